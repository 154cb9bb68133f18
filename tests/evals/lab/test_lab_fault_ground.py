"""Faults that take a real process, a real supervisor and the wall's time."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from evals.lab import ground, oracle


def argv(worker):
    """The words that the kernel has of the worker's process."""
    return Path(f"/proc/{worker.pid()}/cmdline").read_bytes().decode().split("\0")[:-1]


def found(worker):
    """What the oracle finds."""
    return {finding.what for finding in oracle.unsound(worker.directory)}


@pytest.mark.slow
def test_a_restart_brings_the_old_words_back(put_up, until):
    """With the fault a restart starts what was created, whatever the script says now; a new supervisor reads it."""
    worker = put_up(faults=["stale-restart"])

    worker.edit(("--cuda-graph-max-bs 32", "--cuda-graph-max-bs 48"), ("OVERLAP=0", "OVERLAP=1"))
    assert argv(worker)[argv(worker).index("--cuda-graph-max-bs") + 1] == "32"
    environ = Path(f"/proc/{worker.pid()}/environ").read_bytes().decode().split("\0")
    assert "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP=0" in environ
    assert "cuda_graph_max_bs_decode=32" in worker.said().rpartition("server_args=")[2]
    assert found(worker) == {"words"}

    worker.supervise("stop")
    worker.supervise("start")
    until(lambda: ground.status(worker.directory).ready)
    assert argv(worker)[argv(worker).index("--cuda-graph-max-bs") + 1] == "48"


@pytest.mark.slow
def test_a_wrapper_eats_quotes(put_up):
    """The process's words in the kernel are the mangled ones; its program, its environment and its port are not."""
    worker = put_up(faults=["mangled-argv"])
    assert found(worker) == set()

    worker.edit(
        ("    --enable-metrics", """    --json-model-override-args '{"rope_theta": 1}' \\\n    --enable-metrics""")
    )

    words = argv(worker)
    assert words[:3] == ["python3", "-m", "sglang.launch_server"]
    assert words[words.index("--json-model-override-args") + 1] == "{rope_theta: 1}"
    assert found(worker) == {"words"}
    assert worker.player.sessions(2) == 0


@pytest.mark.slow
def test_a_start_that_is_too_slow_is_killed_until_it_is_left_lying(put_up, until):
    """A start over its budget is killed without a word and tried again; the supervisor gives up at its limit."""
    worker = put_up(faults=["slow-start"], start_speed=400.0)
    lines = worker.said().count("\n")

    worker.edit(("--cuda-graph-max-bs 32", "--cuda-graph-max-bs 256"), ready=False)
    until(lambda: ground.status(worker.directory).state == "failed")

    late = "\n".join(worker.said().splitlines()[lines:])
    assert late.count("Init torch distributed begin.") >= 5
    assert "fired up" not in late
    assert "Traceback" not in late
    worker.edit(("--cuda-graph-max-bs 256", "--cuda-graph-max-bs 32"))
    assert worker.player.sessions(2) == 0


@pytest.mark.slow
def test_failed_starts_take_the_room_of_good_ones(put_up, until):
    """After a loop of failed starts the configuration that was good does not start either, until it was let alone."""
    worker = put_up(faults=["supervisor-loop:release=8"], start_speed=400.0)

    worker.edit(("--mem-fraction-static 0.82", "--mem-fraction-static 0.90"), ready=False)
    until(lambda: ground.status(worker.directory).state == "failed")
    worker.edit(("--mem-fraction-static 0.90", "--mem-fraction-static 0.82"), ready=False)
    before = worker.said().count("fired up")
    until(lambda: ground.status(worker.directory).state == "failed")
    assert worker.said().count("fired up") == before
    assert worker.said().count("The memory capacity is unbalanced.") >= 6

    shelf = worker.directory / ".ground" / "shelf" / "loop.json"
    until(lambda: time.time() - shelf.stat().st_mtime > 8.5)
    worker.edit()
    assert worker.player.sessions(2) == 0


@pytest.mark.slow
def test_a_killed_worker_spoils_the_next(put_up, until):
    """After SIGKILL the next start serves a while and then falls silent under health 200; after a drain it does not."""
    worker = put_up(faults=["dirty-restart:least=20,most=30"])
    before = worker.pid()
    os.kill(before, signal.SIGKILL)
    until(lambda: worker.pid() not in {0, before})
    until(lambda: ground.status(worker.directory).ready)

    assert worker.player.sessions(3, concurrency=1) == 0
    clients = []

    def silent():
        # One more at a time: a crowd may be served whole within one batch, and then no later pass is left to stop.
        clients.append(worker.player.begin(max_tokens=4))
        return any(event.kind == "stalled" for event in worker.events)

    until(silent)
    assert worker.player.get("/health")[0] == 200
    load = json.loads(worker.player.get("/v1/loads")[1])["loads"][0]
    assert load["num_running_reqs"] + load["num_waiting_reqs"] > 0
    for client in clients:
        client.close()
    worker.edit()
    assert worker.player.sessions(20, concurrency=4) == 0


@pytest.mark.slow
def test_a_ground_that_is_put_up_anew_remembers_nothing(put_up):
    """What earlier workers did and what faults remember is gone with the next `up` in the same place."""
    worker = put_up(faults=["second-start-crash:above=0"])
    worker.edit(("--cuda-graph-max-bs 32", "--cuda-graph-max-bs 40"))
    assert found(worker) == set()

    ground.up(worker.directory, faults=["second-start-crash:above=0"], start_speed=200.0)

    assert found(worker) == set()
    assert worker.events == []
