"""Memory that does not suffice, at each moment where it can show."""

import re

import pytest

from evals.lab.ground import GroundError, status, up

FRACTION = "--mem-fraction-static 0.82"


@pytest.fixture(scope="module")
def standing(put_up):
    """The worker that all tests of this file share."""
    return put_up(faults=(), start_speed=400.0)


@pytest.fixture
def worker(standing):
    """A worker whose script each test may change; the next one finds it as it was."""
    script = standing.script.read_text(encoding="utf-8")
    yield standing
    standing.script.write_text(script, encoding="utf-8")


def ended(worker):
    """What the supervisor wrote about ends."""
    path = worker.directory / "run" / "supervisor.log"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def last_start(worker):
    """The log from the last start on."""
    return worker.said().rpartition("recommended entrypoint.")[2]


@pytest.mark.parametrize(
    ("fraction", "sentence"),
    [
        (
            "0.985",
            r"Exception: Capture cuda graph failed: CUDA out of memory\. Tried to allocate [\d.]+ MiB\. GPU 0 has",
        ),
        (
            "0.998",
            r"in init_cublas\n    c = a @ b\ntorch\.OutOfMemoryError: CUDA out of memory\. Tried to allocate 32\.00",
        ),
        ("0.4", r"ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0\.4\."),
    ],
)
def test_a_start_that_does_not_fit_fails_as_the_engine_does(worker, until, fraction, sentence):
    """Too large or too small a memory fraction ends the start where the engine's would, in its words, by SIGKILL."""
    pid = worker.edit((FRACTION, f"--mem-fraction-static {fraction}"), ready=False)
    until(lambda: f"process {pid} ended with status -9" in ended(worker))
    worker.supervise("stop")

    said = worker.said()
    assert re.search(r"TP0\] Scheduler hit an exception: Traceback \(most recent call last\):", said)
    assert re.search(sentence, said)
    assert "Received sigquit from a child process. It usually means the child failed." in said
    if fraction == "0.985":
        assert "2. set --cuda-graph-max-bs-decode to a smaller value (e.g., 16)\n" in said


def test_a_start_without_the_fused_indexer_does_not_fit_96(worker, until):
    """The captured buffers that grow with the context fit at 32 requests and not at 96."""
    fused, graphs = "export SGLANG_OPT_USE_TILELANG_INDEXER=1", "--cuda-graph-max-bs 32"
    worker.edit((fused, "# no indexer"))
    assert re.search(r"decode CUDA graph end\. .*mem usage=9\.\d\d GB, avail mem=6\.\d\d GB", last_start(worker))

    worker.edit((graphs, "--cuda-graph-max-bs 96"), ready=False)
    until(lambda: "Capture cuda graph failed: CUDA out of memory. Tried to allocate 27." in worker.said())


def test_the_first_real_batch_can_be_too_much(worker, until):
    """With too little left after capture, health is good until a burst comes; then the server dies (as q_oom_mf99)."""
    worker.edit((FRACTION, "--mem-fraction-static 0.979"))
    player = worker.player
    assert player.get("/health")[0] == 200
    assert player.chat(max_tokens=8)[0] == 200

    long = "word " * 512
    clients = [
        player.begin(messages=[{"role": "user", "content": f"{number} {long}"}], max_tokens=64) for number in range(64)
    ]
    until(lambda: "TP0] Scheduler hit an exception" in worker.said().split("Draining")[-1])
    until(lambda: "Sleeping 5 seconds before crash diagnostics" in worker.said())
    for client in clients:
        client.close()
    died = worker.said()[worker.said().rindex("Scheduler hit an exception") :]
    assert "torch.OutOfMemoryError: CUDA out of memory." in died
    assert "_execute_extend" in died
    until(lambda: status(worker.directory).restarts > 0)


@pytest.mark.slow
def test_a_start_that_keeps_failing_is_reported(put_up, tmp_path_factory):
    """A ground whose worker cannot start says so with the end of the log, and leaves nothing running."""
    holder = put_up(start_speed=400.0)
    directory = tmp_path_factory.mktemp("second")

    with pytest.raises(GroundError, match="address already in use"):
        up(directory, start_speed=400.0, port=holder.port)
    assert status(directory)[:3] == (False, False, "stopped")
    assert holder.player.chat()[0] == 200
