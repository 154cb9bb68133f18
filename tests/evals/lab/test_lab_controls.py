"""Endpoints that look or change without generating, and variables that change how the worker behaves."""

import json
import re

import pytest

TEXT = [{"role": "user", "content": "Tell me about the scheduler."}]


@pytest.fixture(scope="module")
def worker(put_up):
    """A worker whose script sets the variables and the key."""
    made = put_up(faults=(), wait=False)
    made.edit(
        (
            "export SGLANG_OPT_USE_TILELANG_INDEXER=1",
            "export SGLANG_OPT_USE_TILELANG_INDEXER=1 SGLANG_LOG_MS=1 SGLANG_LOG_FORWARD_ITERS=1"
            " SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0",
        ),
        ("--tool-call-parser", "--decode-log-interval 4 --tool-call-parser"),
    )
    return made


def test_loads_have_the_sections_that_are_asked_for(worker):
    """The core always; memory, queues and the side of a pair on demand; unknown sections are refused."""
    core, whole = (json.loads(worker.player.get(f"/v1/loads{query}")[1])["loads"][0] for query in ("", "?include=all"))

    assert core["max_total_num_tokens"] == 2_368_000
    assert set(whole) - set(core) == {"memory", "queues", "disaggregation"}
    assert whole["memory"]["graph_gb"] == 0.36
    assert worker.player.get("/v1/loads?include=cores")[0] == 400
    assert worker.player.get("/v1/loads?dp_rank=3")[0] == 400


def test_loads_can_be_scraped(worker):
    """The same figures for Prometheus."""
    _, text = worker.player.get("/v1/loads?format=prometheus")

    assert 'sglang:max_running_requests{dp_rank="0"} 256.0' in text


def test_the_old_form_of_load_is_deprecated(worker):
    """`/get_load` still answers, and the log says what to use."""
    assert json.loads(worker.player.get("/get_load")[1])[0]["num_reqs"] == 0
    assert "Endpoint '/get_load' is deprecated" in worker.said()


def test_generation_pauses_and_goes_on(worker, until):
    """A pause in place leaves a running request where it is until it is let go on."""
    player = worker.player
    connection = player.begin(max_tokens=2000, ignore_eos=True)
    until(lambda: player.running() == 1)
    assert json.loads(player.get("/pause_generation", method="POST", body={"mode": "in_place"})[1])["status"] == "ok"
    used = [json.loads(player.get("/v1/loads")[1])["loads"][0]["num_used_tokens"] for _ in range(20)][-2:]
    queues = json.loads(player.get("/v1/loads?include=queues")[1])["loads"][0]["queues"]
    assert json.loads(player.get("/continue_generation", method="POST", body={})[1])["status"] == "ok"
    with connection.getresponse() as answer:
        document = json.load(answer)

    assert used[0] == used[1]
    assert queues["paused"] == 1
    assert document["usage"]["completion_tokens"] == 2000


def test_a_pause_can_take_requests_back(worker, until):
    """By default running requests are aborted."""
    connection = worker.player.begin(max_tokens=100_000, ignore_eos=True)
    until(lambda: worker.player.running() == 1)
    worker.player.get("/pause_generation", method="POST", body={})
    with connection.getresponse() as answer:
        document = json.load(answer)

    assert document["choices"][0]["finish_reason"] == "abort"


def test_variables_change_the_log(worker):
    """Times have milliseconds and decode lines the number of the pass."""
    worker.player.chat(max_tokens=20, ignore_eos=True)

    assert re.search(
        r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} TP0\] Decode batch \[\d+\], #running-req: 1", worker.said(), re.M
    )


def test_health_without_generation_says_nothing_of_the_loop(worker, until):
    """With the variable off `/health` answers at once while `/health_generate` still waits for a token."""
    worker.player.get("/pause_generation", method="POST", body={"mode": "in_place"})
    until(lambda: worker.player.get("/health_generate")[0] == 503)
    quick = worker.player.get("/health")[0]
    worker.player.get("/continue_generation", method="POST", body={})
    until(lambda: worker.player.get("/health_generate")[0] == 200)

    assert quick == 200


def test_a_key_guards_what_generates(put_up):
    """With `--api-key` requests need it; health and metrics do not."""
    guarded = put_up(faults=(), wait=False)
    guarded.edit(("--tool-call-parser", "--api-key sesame --tool-call-parser"), ready=False)
    player = guarded.player

    def asked():
        try:
            return player.get("/v1/models")
        except OSError:
            return None

    while (answer := asked()) is None:
        pass
    assert answer == (401, '{"error":"Unauthorized"}')
    assert player.get("/metrics")[0] == 200


@pytest.mark.slow
def test_wishes_that_the_pool_does_not_grant_are_told(put_up, until):
    """A token limit above what was profiled is lowered with a warning, as is a limit of requests."""
    worker = put_up(faults=())
    worker.edit(("--tp 4", "--tp 4 --max-total-tokens 9000000"))
    assert "max_total_tokens=9000000 is larger than the profiled value 2368000. Use the profiled value" in worker.said()

    worker.edit(("--max-total-tokens 9000000", "--max-total-tokens 256"))
    said = "max_running_requests was reduced from the requested 256 to 128 (per dp worker) due to"
    until(lambda: said in worker.said())
