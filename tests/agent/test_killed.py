"""SIGKILL of the agent, spread over a run: whatever it was doing, `prudent resume` ends in a proven state."""

import json
import os
import signal
import subprocess
import threading
from datetime import UTC, datetime

import pytest

INSTANTS = 20
EVERY = 1 if os.environ.get("PRUDENT_MATRIX") == "all" else 5
TAKEN = range(datetime.now(UTC).toordinal() % EVERY, INSTANTS, EVERY)
"""A fifth of them, another one each day; every single call of a run is killed around in `evals.bench.matrix`."""
RUN_SECONDS = 17.0
"""About how long a run under the brisk policy takes, from the question to the record; later kills find it ended."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.mark.parametrize("instant", TAKEN)
def test_a_killed_run_resumes_to_a_proven_state(quick, instant: int):
    """The record names a proven state, and script, process and journal show that very state."""
    asking = quick.start("ask", "bump cuda graphs to 96", "--json")
    approving = threading.Thread(target=_approve, args=(quick, asking))
    approving.start()
    try:
        asking.wait(timeout=1.2 + instant * RUN_SECONDS / INSTANTS)
    except subprocess.TimeoutExpired:
        os.kill(asking.pid, signal.SIGKILL)
    asking.wait()
    approving.join()

    resumed = quick.say("resume", "--json")

    history = quick.say("history", "--json").document
    assert not history["open"], resumed.err
    assert history["chain_broken_at"] is None
    if not history["records"]:
        assert "run" not in resumed.out
        return
    record = history["records"][0]
    state = record["verdict"]["state"]
    assert state in {"new", "restored", "untouched"}, record["verdict"]
    wanted = b"max-bs 96" if state == "new" else b"max-bs 32"
    assert quick.ground.script.read_bytes() == quick.original.replace(b"max-bs 32", wanted)
    quick.wait_until_ready()
    argv = quick.argv()
    assert argv[argv.index("--cuda-graph-max-bs") + 1] == wanted.split()[-1].decode()
    if record["execution"] is not None:
        settled = {"new": "committed", "restored": "undone"}
        assert record["execution"]["state"] == settled.get(state, record["execution"]["state"])
    if state == "new":
        assert record["run"] in quick.ground.plan.read_text(encoding="utf-8")


def _approve(quick, asking: subprocess.Popen[str]) -> None:
    """Approve the plan as soon as it is shown, and read on until the pipe ends."""
    with asking.stdout as lines, asking.stderr:
        for line in lines:
            event = json.loads(line) if line.endswith("\n") else {}
            if event.get("kind") == "plan":
                quick.say("approve", event["plan"]["run"])
