"""A run whose throughput a team's own benchmark measures."""

from __future__ import annotations

import json
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

BURST = """
import json, sys, threading, time, urllib.request
concurrency, output, base_url = int(sys.argv[1]), sys.argv[2], sys.argv[3]
ask = {"model": "m", "max_tokens": 12, "ignore_eos": True, "messages": [{"role": "user", "content": "count"}]}
made = []

def one():
    body = json.dumps(ask).encode()
    request = urllib.request.Request(base_url + "/v1/chat/completions", body, {"Content-Type": "application/json"})
    made.append(json.load(urllib.request.urlopen(request, timeout=60))["usage"]["completion_tokens"])

begun = time.monotonic()
threads = [threading.Thread(target=one) for _ in range(concurrency)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
seconds = time.monotonic() - begun
result = {"duration": seconds, "completed": len(made), "total_output_tokens": sum(made), "request_rate": "inf",
          "output_throughput": sum(made) / seconds, "max_concurrency": concurrency, "num_prompts": concurrency}
open(output, "w").write(json.dumps(result) + "\\n")
"""


def _command(bench, text: str) -> None:
    path = bench.ground.directory / "burst.py"
    path.write_text(text, encoding="utf-8")
    command = [sys.executable, str(path), "{concurrency}", "{output}", "{base_url}"]
    bench.settle('policy = "brisk.yaml"', f'policy = "brisk.yaml"\nbenchmark = {json.dumps(command)}')


def test_a_teams_own_benchmark_decides_about_speed(bench):
    """Its command is on the card, it is run before and after, and its numbers are what throughput is judged by."""
    bench.brisk("bound: 0.7,", "bound: 0.3,")
    _command(bench, BURST)

    said = bench.ask("bump cuda graphs to 48")

    assert said.status == 0, said.out + said.err
    record = said.record
    assert record["verdict"]["decision"] == "kept"
    assert sys.executable in record["plan"]["traffic"]["load"]
    seen = [r for r in record["readings"] if r["metric"] == "throughput_tokens_per_second"]
    assert {(r["phase"], r["n"], r["concurrency"]) for r in seen} >= {("baseline", 2, 16), ("candidate", 2, 16)}
    assert all("own benchmark" in r["source"] for r in seen)


def test_a_benchmark_that_writes_nothing_of_use_keeps_nothing(bench):
    """A garbled file is no data: there is nothing to compare the change with, so that nothing is touched."""
    bench.brisk()
    _command(bench, "import sys\nopen(sys.argv[2], 'w').write('Traceback')\n")

    said = bench.ask("bump cuda graphs to 48")

    verdict = said.record["verdict"]
    assert (verdict["decision"], verdict["state"]) == ("deferred", "untouched"), verdict
    assert "not JSON" in verdict["why"]
    assert bench.ground.script.read_bytes() == bench.original


def test_a_benchmark_that_is_not_told_where_to_write_is_refused(bench):
    """The settings are read with the line of the mistake, before anything is asked."""
    bench.brisk()
    bench.settle('policy = "brisk.yaml"', 'policy = "brisk.yaml"\nbenchmark = ["bench", "{concurrency}"]')

    said = bench.say("history")

    assert said.status == 21, said.out + said.err
    assert "{output}" in said.out + said.err
