"""A worker that ends while it is measured."""

from __future__ import annotations

import json
import os
import signal

import pytest

from evals.lab import ground

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_a_worker_that_ends_under_the_load_is_taken_back_and_not_only_deferred(bench):
    """Its service says that the process that was proven is no more: a breach, whatever the load brought home."""
    sessions = "{always: true, baseline: true, concurrency: [14], count: 14, tokens"
    bench.brisk(sessions, "{always: true, baseline: false, concurrency: [14], count: 100, tokens")
    asking = bench.start("ask", "bump cuda graphs to 48", "--json")
    assert asking.stdout is not None
    killed, lines = 0, []
    for line in asking.stdout:
        lines.append(line)
        event = json.loads(line)
        if event["kind"] == "plan":
            assert bench.say("approve", event["plan"]["run"]).status == 0
        if event["kind"] == "progress" and event["text"].startswith("candidate: ") and "sessions" in event["text"]:
            killed = ground.status(bench.ground.directory).pid
            os.kill(killed, signal.SIGKILL)
            break
    lines += asking.stdout.readlines()
    asking.wait(timeout=60)
    assert asking.stderr is not None
    for pipe in (asking.stdout, asking.stderr):
        pipe.close()
    record = json.loads(lines[-1])["record"]

    verdict = record["verdict"]
    assert (verdict["decision"], verdict["state"]) == ("rolled_back", "restored"), verdict
    assert verdict["decided_by"] == ["identity"]
    assert any(f"pid {killed} ended under the load of sessions" in note for note in record["notes"]), record["notes"]
    assert "--cuda-graph-max-bs 32" in " ".join(bench.argv())
