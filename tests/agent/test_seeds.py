"""Both seed stories through the command line, on a real worker process, under the shipped policy."""

import subprocess
from pathlib import Path

import pytest

from evals.lab import ground

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def _commits(plan: Path) -> list[str]:
    log = subprocess.run(
        ["git", "-C", str(plan.parent), "log", "--format=%s"], capture_output=True, text=True, check=True
    )
    return log.stdout.splitlines()


def test_a_safe_change_is_kept_proven_and_recorded(bench):
    """Bumping the captured batch to 96: one value of the script changes; it is live, faster, and written down."""
    before = ground.status(bench.ground.directory).pid

    said = bench.ask("token pool is pretty healthy now, can you bump cuda graphs to 96?")

    record = said.record
    assert (said.status, record["verdict"]["decision"], record["verdict"]["state"]) == (0, "kept", "new")
    assert bench.ground.script.read_bytes() == bench.original.replace(b"max-bs 32", b"max-bs 96")
    argv = bench.argv()
    assert argv[argv.index("--cuda-graph-max-bs") + 1] == "96"
    assert ground.status(bench.ground.directory).pid != before
    findings = {finding["criterion"]: finding for finding in record["verdict"]["findings"]}
    assert {finding["outcome"] for finding in findings.values()} == {"met"}
    assert "sessions corrupted at 96 in flight: under 3 % at 95 %" in findings["corruption"]["says"]
    assert "of the tokens from batches of 33 to 96, where the change acts" in findings["corruption"]["says"]
    speed = {
        (r["phase"], r["concurrency"]): r["value"]
        for r in record["readings"]
        if r["metric"] == "throughput_tokens_per_second"
    }
    assert speed["candidate", 96] > speed["baseline", 96]
    assert record["approval"]["digest"] == record["plan_digest"]
    assert [entry["event"] for entry in record["execution"]["journal"]][-1] == "committed"
    assert any(p["id"] == "multi-stream-race-under-capture" for p in record["precedents"])
    assert any(fact["claimed"] and "token pool" in fact["what"] for fact in record["evidence"])
    document = bench.ground.plan.read_text(encoding="utf-8")
    assert record["run"] in document
    assert "- State: kept" in document
    assert record["run"] in _commits(bench.ground.plan)[0]


def test_an_unsafe_change_is_tried_taken_back_and_deferred(bench):
    """The overlap scheduler: faster, wedged by an abort cascade, taken back with proof, and deferred."""
    before = ground.status(bench.ground.directory).pid

    said = bench.ask("turn the overlap scheduler on, skip that one if it's unsafe")

    record = said.record
    verdict = record["verdict"]
    assert (said.status, verdict["decision"], verdict["state"]) == (11, "deferred", "restored")
    assert verdict["decided_by"] == ["progress-under-aborts"]
    assert "agree-or-defer" in verdict["reopen_when"]
    assert "overlap-scheduler-abort-wedge" in verdict["reopen_when"]
    assert bench.ground.script.read_bytes() == bench.original
    assert "--disable-overlap-schedule" in bench.argv()
    assert ground.status(bench.ground.directory).pid != before
    restored = {r["metric"]: r["value"] for r in record["readings"] if r["phase"] == "restored"}
    assert (restored["identity_proven"], restored["effective_matches"], restored["entry_answers"]) == (1, 1, 1)
    speed = {
        (r["phase"], r["concurrency"]): r["value"]
        for r in record["readings"]
        if r["metric"] == "throughput_tokens_per_second"
    }
    assert speed["candidate", 32] > speed["baseline", 32]
    assert [entry["event"] for entry in record["execution"]["journal"]][-1] == "undone"
    assert record["run"] in bench.ground.plan.read_text(encoding="utf-8")

    again = bench.ask("turn the overlap scheduler on", decide=())

    assert (again.status, again.record["verdict"]["state"]) == (11, "untouched")
    assert record["run"] in again.record["verdict"]["why"]
    assert again.record["plan"] is None

    weighed = bench.say("plan", "next", "--json").document
    waits = {one["option"]["id"]: one["why"] for one in weighed["others"]}
    assert (weighed["next"]["option"]["id"], weighed["next"]["request"]) == ("1", "set cuda graphs to 96")
    assert record["run"] in waits["2"]
    assert "agree-or-defer" in waits["2"]
    assert waits["3"] == "waits for #1"
    assert "deferred" in bench.say("plan", "list").out
    assert bench.say("verify", record["run"]).status == 0
