"""A prefill worker and a decode worker behind a router: who answers whom, and what is left when one side goes."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from evals.lab import ground, supervisor
from evals.lab.private import events


@pytest.fixture(scope="module")
def pair(put_up):
    """A pair without faults."""
    return put_up(topology="pd", faults=[])


def at_entry(made):
    """A client of the router."""
    client = made.player
    client.base = made.entry
    return client


def post(made, name):
    """One process of a ground."""
    return next(one for one in made.posts if one.name == name)


def restart(made, name, until):
    """Restart one side and wait until it is up."""
    one = post(made, name)
    before = one.log.read_text(encoding="utf-8").count("fired up")
    command = [sys.executable, supervisor.__file__, "--directory", str(one.directory), "restart"]
    subprocess.run(command, check=True, capture_output=True)
    until(lambda: one.log.read_text(encoding="utf-8").count("fired up") > before)


def test_prudent_is_told_which_side_it_operates(pair):
    """The settings name the decode side, the router as the entry and the prefill side as a peer."""
    worker = tomllib.loads(pair.settings.read_text(encoding="utf-8"))["workers"]["decode"]

    assert worker["role"] == "decode"
    assert worker["control"] == f"http://127.0.0.1:{pair.port}"
    assert worker["entry"] == pair.entry == post(pair, "router").url
    assert worker["peers"] == [post(pair, "prefill").url]


@pytest.mark.parametrize("side", ["decode", "prefill"])
def test_a_side_cannot_be_loaded_directly(pair, side):
    """Without a room either side refuses at once, with the engine's words, whole or streamed."""
    client = pair.player
    client.base = post(pair, side).url

    for body in ({"text": "hello"}, {"text": "hello", "stream": True}):
        status, said = client.get("/generate", method="POST", body=body)
        assert status == 400
        assert "received without boostrap room id" in json.loads(said)["message"]
    assert client.chat()[0] == 400


def test_users_are_served_through_the_router(pair):
    """Sessions of tool calls, whole answers and streams come out right; both sides had their part in each."""
    entry = at_entry(pair)
    status, said = entry.chat("Say what you are.", max_tokens=8)
    events_of_stream = entry.stream(messages=[{"role": "user", "content": "Go on."}], max_tokens=5, ignore_eos=True)

    assert status == 200
    assert json.loads(said)["choices"][0]["finish_reason"] in {"stop", "length"}
    assert events_of_stream[-1] == "[DONE]"
    assert entry.sessions(6) == 0
    prefill, decode = (post(pair, name).log.read_text(encoding="utf-8") for name in ("prefill", "decode"))
    assert prefill.count("Prefill batch") >= 8
    assert "Decode batch" not in prefill
    assert "Prefill batch" not in decode
    assert prefill.count("POST /v1/chat/completions") == decode.count("POST /v1/chat/completions")


def test_each_side_says_what_it_is(pair):
    """Metrics, server info and log of a side are those of the engine in that mode."""
    for side in ("prefill", "decode"):
        client = pair.player
        client.base = post(pair, side).url
        told = json.loads(client.get("/server_info")[1])
        assert told["disaggregation_mode"] == side
        assert told["cuda_graph_config"]["prefill"]["backend"] == "disabled"
        assert (told["cuda_graph_config"]["decode"]["backend"] == "disabled") is (side == "prefill")
        assert told["disable_radix_cache"] is (side == "decode")
        assert f'sglang:num_running_reqs{{engine_type="{side}"' in client.get("/metrics")[1]
        assert client.get("/health")[0] == 200
        assert "End of disaggregation warmup" in post(pair, side).log.read_text(encoding="utf-8")


def test_the_router_knows_both_sides(pair):
    """What the router says of the worker comes from the workers, and its health from their generating."""
    entry = at_entry(pair)

    assert json.loads(entry.get("/v1/models")[1])["data"][0]["id"] == "deepseek-v4-flash"
    told = json.loads(entry.get("/server_info")[1])
    assert [one["disaggregation_mode"] for one in (*told["prefill"], *told["decode"])] == ["prefill", "decode"]
    assert entry.get("/health_generate")[0] == 200


def test_a_client_that_hangs_up_frees_both_sides(pair, until):
    """A stream that is cut off leaves neither side with a request."""
    entry = at_entry(pair)
    decode = pair.player
    connection = entry.begin(max_tokens=100_000, ignore_eos=True, stream=True)
    until(lambda: decode.running() == 1)

    connection.close()

    until(lambda: decode.running() == 0)
    prefill = pair.player
    prefill.base = post(pair, "prefill").url
    until(lambda: prefill.running() == 0)


def test_load_through_the_router_runs_in_one_batch(pair):
    """Streams that users have open at once are one batch of the decode side, which says what waits before it."""
    at_entry(pair).throughput(32, tokens=600)

    log = post(pair, "decode").log.read_text(encoding="utf-8")
    assert max(int(found) for found in re.findall(r"Decode batch, #running-req: (\d+)", log)) > 8
    assert re.search(
        r"Decode batch, #running-req: \d+, #full token: .*, pre-allocated usage: \d\.\d\d, #prealloc-req: \d+,"
        r" #transfer-req: \d+, #retracted-req: 0, cuda graph: True, gen throughput",
        log,
    )


def test_either_side_may_come_back(put_up, until):
    """After a restart of one side, whichever, the other finds it again and requests are served."""
    made = put_up(topology="pd", faults=[])
    entry = at_entry(made)

    for side in ("decode", "prefill", "decode"):
        restart(made, side, until)
        assert entry.chat("Still there?", max_tokens=4)[0] == 200, side


def test_without_its_prefill_side_a_pair_serves_nobody(put_up, until):
    """Without the prefill side every request fails at once, while the decode side is healthy all the same."""
    made = put_up(topology="pd", faults=[])
    prefill = post(made, "prefill")
    command = [sys.executable, supervisor.__file__, "--directory", str(prefill.directory), "stop"]
    subprocess.run(command, check=True, capture_output=True)

    status, said = at_entry(made).chat("Anybody?", max_tokens=4)

    assert status == 502
    assert "Failed to reach a worker" in said
    room = {"bootstrap_host": "127.0.0.1", "bootstrap_port": 9, "bootstrap_room": 7}
    status, said = made.player.get("/generate", method="POST", body={"text": "Anybody?", **room})
    assert status == 500
    assert "Could not fetch prefill parallel info from 127.0.0.1:9 after 5 attempts" in said
    assert made.player.get("/health")[0] == 200
    assert ground.status(made.directory).beside[0][:2] == ("prefill", "stopped")


@pytest.mark.slow
def test_what_one_side_remembers_can_be_stale(put_up, until):
    """With the fault, a restarted decode side is healthy and no request comes through until both are started anew."""
    made = put_up(topology="pd", faults=["stale-bootstrap"])
    entry = at_entry(made)
    assert entry.chat("Hello.", max_tokens=4)[0] == 200

    restart(made, "decode", until)

    assert made.player.get("/health")[0] == 200
    with pytest.raises(TimeoutError):
        entry.get(
            "/v1/chat/completions",
            method="POST",
            body={"messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 4},
            timeout=3,
        )
    assert any(event.kind == "stale" for event in events(post(made, "prefill").directory))
    restart(made, "prefill", until)
    restart(made, "decode", until)
    assert entry.chat("Hello again.", max_tokens=4)[0] == 200


def test_down_takes_the_whole_pair(put_up):
    """After down no process of the pair runs and its ports are free."""
    made = put_up(topology="pd", faults=[])
    assert ground.down(made.directory)

    for one in made.posts:
        with pytest.raises(urllib.error.URLError, match="refused"):
            urllib.request.urlopen(f"{one.url}/health", timeout=5)
    assert ground.status(made.directory)[:3] == (False, False, "stopped")


@pytest.mark.slow
def test_a_pair_dies_with_whoever_holds_it(tmp_path, until):
    """Three supervisors and three workers are gone when the process that held the ground is killed."""
    program = (
        "import sys, time; from pathlib import Path; from evals.lab import ground\n"
        "with ground.standing(Path(sys.argv[1]), topology='pd', start_speed=200.0) as made:\n"
        "    print(made.entry, flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "pair")], stdout=subprocess.PIPE, text=True
    ) as holder:
        entry = holder.stdout.readline().strip()
        assert urllib.parse.urlsplit(entry).port
        pids = [ground.status(tmp_path / "pair").pid]
        os.kill(holder.pid, signal.SIGKILL)
    until(lambda: ground.status(tmp_path / "pair").state == "stopped")
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
