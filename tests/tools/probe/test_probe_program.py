"""The program on the host: it measures what the server really did, and never outlives its run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ENDLESS = {"kind": "throughput", "concurrency": [6], "count": 1, "tokens": 100_000, "timeout": 50}


def until(holds, seconds: float = 30.0) -> bool:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class TestAccuracy:
    def test_against_the_servers_own_clock(self, serve, measure) -> None:
        """Rates are those that the server wrote down, and so are latencies, unless the client calls them invalid."""
        served = serve(first=0.15, gap=0.02)

        for _ in range(3):
            result = measure(base_url=served.url, kind="throughput", concurrency=[32], count=1, tokens=60)
            if result["bursts"][0]["latency_invalid"] is None and result["bursts"][0]["why_not"] is None:
                break

        streams = served.seen()["streams"][-32:]
        wall = max(stream["done"] for stream in streams) - min(stream["arrived"] for stream in streams)
        burst, latency = result["bursts"][0], result["latency"]["32"]
        assert sum(stream["tokens"] for stream in streams) == burst["tokens"] == 1920
        assert burst["tokens"] / burst["wall"] == pytest.approx(1920 / wall, rel=0.03)
        if burst["latency_invalid"] is None:
            first = sorted(stream["first"] - stream["arrived"] for stream in streams)[15]
            assert latency["ttft"]["p50"] == pytest.approx(first, abs=0.03)
            assert latency["gap"]["p50"] == pytest.approx(0.02, abs=0.004)
        assert latency["gap"]["n"] == 32 * 59
        assert latency["tokens_per_chunk"] == 1.0

    def test_sessions_begin_one_after_the_other(self, serve, measure) -> None:
        """Over a ramp of two seconds the eighth of eight sessions begins at seven eighths of it."""
        served = serve(first=0.9)

        result = measure(base_url=served.url, kind="sessions", concurrency=[8], count=8, ramp=2.0)

        arrived = [stream["arrived"] for stream in served.seen()["streams"]]
        assert result["sessions"]["n"] == 8
        assert max(arrived) - min(arrived) > 1.7

    def test_the_engines_own_endpoint(self, serve, measure) -> None:
        """Raw generation counts the tokens of the last event, not its cumulative texts."""
        served = serve(gap=0.005)

        result = measure(base_url=served.url, kind="throughput", raw=True, concurrency=[4], count=2, tokens=50)

        assert [burst["tokens"] for burst in result["bursts"]] == [200, 200]

    def test_a_warm_up_round_is_discarded(self, serve, measure) -> None:
        """Each concurrency has one burst more than are reported, and the order is the seed's."""
        served = serve()
        order = {"base_url": served.url, "kind": "throughput", "concurrency": [1, 2, 3, 4], "count": 2, "tokens": 8}

        orders = [[burst["concurrency"] for burst in measure(**order, seed=seed)["bursts"]] for seed in (1, 1, 2)]

        assert orders[0] == orders[1] != orders[2]
        assert sorted(orders[0]) == sorted([1, 2, 3, 4] * 2)

    def test_concurrency_as_held(self, serve, measure) -> None:
        """What it says about requests in flight is what the server saw."""
        served = serve(first=0.05, gap=0.01)

        held = measure(base_url=served.url, kind="sessions", concurrency=[24], count=24)["in_flight"]

        assert held["peak"] == served.seen()["peak"] == 24
        assert held["decoding_peak"] <= 24
        assert 12 < held["mean"] <= 24
        assert held["tokens_above"]["8"] >= held["tokens_above"]["16"] > 0


class TestAborts:
    def test_a_wedge(self, serve, measure) -> None:
        """A worker that makes no more tokens after a storm is wedged, and no other storm follows."""
        served = serve(gap=0.005, wedge_after=3)
        order = {"kind": "aborts", "concurrency": [12], "count": 12, "tokens": 60, "floor_seconds": 0.6, "steps": 20}

        result = measure(base_url=served.url, fractions=[0.5, 0.5, 0.5], **order)

        assert [storm["wedged"] for storm in result["storms"]] == [True]
        assert "timeout" in result["storms"][0]["canary"]["why_not"]
        assert result["stopped"] == "wedged"

    def test_starved_is_not_wedged(self, serve, measure) -> None:
        """While the engine still makes tokens for others, a canary without an answer proves nothing."""
        served = serve(gap=0.005, wedge_after=3, foreign=1000)
        order = {"kind": "aborts", "concurrency": [12], "count": 12, "tokens": 60, "floor_seconds": 0.6, "steps": 20}

        storm = measure(base_url=served.url, fractions=[0.5], **order)["storms"][0]

        assert not storm["wedged"]
        assert "made for others" in storm["undecided"]

    def test_phases(self, serve, measure) -> None:
        """Streams are cut before their first token, at it, and in the middle, as many as the fraction says."""
        served = serve(first=0.05, gap=0.004)
        order = {"kind": "aborts", "concurrency": [40], "count": 40, "tokens": 60}

        result = measure(base_url=served.url, fractions=[0.5], **order)

        storm = result["storms"][0]
        assert storm["aborted"] == 20
        assert sum(storm["phases"].values()) == 40
        assert all(storm["phases"][phase] for phase in ("before first token", "first token", "mid decode"))
        assert storm["survivors_failed"] == 0


class TestItsEnd:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal(self, serve, start, number) -> None:
        """Told to stop, it says so, closes its connections and is gone."""
        served = serve(gap=0.01)
        process = start(base_url=served.url, **ENDLESS)
        assert until(lambda: served.seen()["in_flight"] == 6)

        process.send_signal(number)
        out, _ = process.communicate(timeout=30)

        assert process.returncode == 143
        assert json.loads(out.splitlines()[-1])["event"] == "invalid"
        assert until(lambda: served.seen()["in_flight"] == 0)

    def test_nobody_listens(self, serve, start) -> None:
        """When nobody reads its output any more, it ends by itself."""
        served = serve(gap=0.01)
        process = start(base_url=served.url, **ENDLESS)
        assert until(lambda: served.seen()["in_flight"] == 6)

        process.stdout.close()
        process.stdout = None

        process.wait(timeout=30)
        assert until(lambda: served.seen()["in_flight"] == 0)

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
    def test_its_parent_dies(self, serve, tmp_path, number) -> None:
        """When the process that started it is killed, no load is left behind, even though its output stays open."""
        served = serve(gap=0.01)
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT, json.dumps({"base_url": served.url, "deadline": 60, **ENDLESS})],
            stdout=subprocess.PIPE,
            env={**os.environ, "PROGRAM": str(Path(__file__).parents[3] / "tools/on_host/probe.py")},
        )
        with parent:
            child = int(parent.stdout.readline())
            assert until(lambda: served.seen()["in_flight"] == 6)
            assert alive(child)

            parent.send_signal(number)
            parent.wait(timeout=30)

            assert until(lambda: not alive(child))
        assert until(lambda: served.seen()["in_flight"] == 0)

    def test_the_deadline(self, serve, measure) -> None:
        """A run ends at its deadline with what it has."""
        served = serve(gap=0.01)

        result = measure(base_url=served.url, **{**ENDLESS, "deadline": 1.2})

        assert result["event"] == "result"
        assert result["stopped"] == "the time was up"
        assert result["requests"]["bad"] == 0
        assert until(lambda: served.seen()["in_flight"] == 0)

    def test_a_request_that_stands_still(self, serve, measure) -> None:
        """A stream that stalls is given up at its own limit and counts as failed."""
        served = serve(stall=True, every=3)

        result = measure(base_url=served.url, kind="sessions", concurrency=[3], count=6, timeout=0.4)

        assert result["requests"]["errors"] == {"timeout": result["requests"]["bad"]}
        assert result["sessions"]["failed"] == result["requests"]["bad"] > 0
        assert result["sessions"]["bad"] == 0

    def test_a_reader_that_is_asleep(self, serve, start) -> None:
        """Output that nobody takes for a while blocks no measurement."""
        served = serve(gap=0.01)
        process = start(base_url=served.url, kind="sessions", concurrency=[4], count=8)

        assert until(lambda: served.seen()["requests"] == 24)
        out, _ = process.communicate(timeout=30)

        assert json.loads(out.splitlines()[-1])["sessions"]["n"] == 8


class TestItsWords:
    def test_progress(self, serve, start) -> None:
        """It says how far it is at least every other second, and not more than about four times a second."""
        served = serve(gap=0.01)
        process = start(base_url=served.url, kind="sessions", concurrency=[2], count=40, deadline=2)
        out, _ = process.communicate(timeout=30)

        events = [json.loads(line) for line in out.splitlines()]

        assert [event["event"] for event in events[:-1]] == ["progress"] * (len(events) - 1)
        assert 3 <= len(events) <= 12
        assert events[-2]["done"] > events[1]["done"]

    @pytest.mark.parametrize(
        ("order", "why"),
        [
            ({"kind": "storm"}, "the kind has to be one of"),
            ({"kind": "canary", "deadline": -1}, "deadline"),
            ({"kind": "canary", "base_url": ""}, "base_url"),
            ({"kind": "canary", "base_url": "ftp://127.0.0.1"}, "not an http or https URL"),
            ({"kind": "sessions", "base_url": "http://127.0.0.1:9", "count": 0}, "at least 1"),
            ({"kind": "sessions", "base_url": "http://127.0.0.1:9", "concurrency": ["many"]}, "many"),
            ({"kind": "canary", "base_url": "http://127.0.0.1:9", "api_key_env": "NO_SUCH_KEY"}, "NO_SUCH_KEY"),
        ],
    )
    def test_an_order_that_cannot_be_met(self, measure, order, why) -> None:
        """What it cannot do is said in a line, with the reason."""
        last = measure(**order)

        assert last["event"] == "invalid"
        assert why in last["why"]

    def test_a_key(self, serve, start) -> None:
        """A key is taken from the environment, goes to the server, and is in no line of output."""
        served = serve(key="s3cret-k3y")
        order = {"base_url": served.url, "kind": "canary", "api_key_env": "WORKER_KEY"}

        right, _ = start(environ={"WORKER_KEY": "s3cret-k3y"}, **order).communicate(timeout=30)
        wrong, _ = start(environ={"WORKER_KEY": "an0ther-k3y"}, **order).communicate(timeout=30)

        assert json.loads(right.splitlines()[-1])["answered"]
        assert json.loads(wrong.splitlines()[-1])["status"] == 401
        assert b"k3y" not in right + wrong

    def test_input_that_is_no_order(self, start) -> None:
        """Input that is not JSON is said to be so, at once."""
        process = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__).parents[3] / "tools/on_host/probe.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with process:
            out, _ = process.communicate(b"{", timeout=30)

        assert json.loads(out)["event"] == "invalid"
        assert process.returncode == 2


PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-I", os.environ["PROGRAM"]], stdin=subprocess.PIPE, start_new_session=True,
                         stdout=os.open("/dev/null", os.O_WRONLY))
child.stdin.write(sys.argv[1].encode())
child.stdin.close()
print(child.pid, flush=True)
time.sleep(600)
"""
