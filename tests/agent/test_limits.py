"""What a policy allows: how far, when, within which bounds, and how often the worker is started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

TIMES = "times:\n"
BRISK = (Path(__file__).parents[1] / "data" / "agent" / "brisk.yaml").read_text(encoding="utf-8")
PRUDENT = (sys.executable, "-m", "agent.doors")


def test_a_policy_is_read_and_told_in_words(tmp_path):
    """What a run would insist on can be read before it is asked for, and a mistake is met with its line."""
    (tmp_path / "ours.yaml").write_text(
        BRISK.replace("{always: true, baseline: true, conc", "{always: yess, baseline: true, conc")
    )

    told = _prudent("policy", "explain", "decode")
    sound = _prudent("policy", "check", "practice", "--json")
    wrong = _prudent("policy", "check", str(tmp_path / "ours.yaml"))

    assert "a loss of more than" in told.stdout
    assert "a change is carried out once a person has approved its plan" in told.stdout
    assert json.loads(sound.stdout)[0]["policy"] == "practice"
    assert wrong.returncode == 21
    assert "ours.yaml, line 19" in wrong.stderr


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (TIMES, "limits: {knobs: {cuda-graph-max-b: {high: 9, because: so}}}\ntimes:\n", "'cuda-graph-max-bs'"),
        ("{always: false, base", "{always: false, subsystems: [decode graph captures], base", "'decode graph capture'"),
    ],
)
def test_a_rule_that_would_never_apply_is_refused(tmp_path, old: str, new: str, says: str):
    """A knob or a part of the engine that does not exist is a slip, and the nearest right name is offered."""
    (tmp_path / "ours.yaml").write_text(BRISK.replace(old, new, 1))

    wrong = _prudent("policy", "check", str(tmp_path / "ours.yaml"))

    assert wrong.returncode == 24
    assert says in wrong.stderr


def _prudent(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PRUDENT, *argv], capture_output=True, text=True, check=False)


def _with(text: str) -> tuple[str, str]:
    return TIMES, f"{text}\n{TIMES}"


def test_a_change_is_started_twice_where_policy_says_so(bench):
    """What comes up once and not twice is no change to keep: each start is proven, and the second is on the record."""
    bench.brisk(*_with("second_start: always"))

    said = bench.ask("bump cuda graphs to 48")

    record = said.record
    assert said.status == 0, said.out + said.err
    assert record["verdict"]["decision"] == "kept"
    started = [reading for reading in record["readings"] if reading["metric"] == "identity_proven"]
    assert [(reading["phase"], reading["boot"], reading["value"]) for reading in started] == [
        ("candidate", 1, 1.0),
        ("candidate", 2, 1.0),
    ]
    assert "--cuda-graph-max-bs 48" in " ".join(bench.argv())
    assert len({entry["detail"]["process"]["pid"] for entry in record["execution"]["journal"] if _started(entry)}) == 2


def _started(entry: dict) -> bool:
    return entry["event"] == "done" and "process" in entry["detail"]


@pytest.mark.parametrize(
    ("limits", "status", "says"),
    [
        ("limits: {autonomy: watch}", 47, "only watches"),
        ("limits: {autonomy: propose}", 13, "propose and not carry out"),
        ("limits: {windows: [{opens: '03:00', closes: '03:01', days: [mon]}]}", 47, "mon 03:00 to 03:01 UTC"),
        ("limits: {knobs: {cuda-graph-max-bs: {high: 40, because: the team wants to see it first}}}", 24, "at most 40"),
        ("limits: {budgets: {sessions: 40}}", 47, "up to 42 sessions"),
        ("second_start: never\nlimits: {budgets: {sessions: 20}}", 47, "up to 28 sessions"),
    ],
)
def test_what_the_policy_does_not_allow(bench, limits: str, status: int, says: str):
    """It is said in one sentence with the remedy, and the worker is not touched."""
    bench.brisk(*_with(limits))
    before = bench.ground.script.read_bytes()

    said = bench.ask("bump cuda graphs to 48", decide=())

    assert said.status == status, said.out + said.err
    assert says in said.out
    assert bench.ground.script.read_bytes() == before
