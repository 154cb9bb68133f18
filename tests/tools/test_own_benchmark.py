"""A team's own benchmark instead of our bursts, as a real command on a real host."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agent.domain import Check, Reading
from tools import own_benchmark
from tools.local import LocalHost

BENCH = """
import json, sys
concurrency, output, seed, how = sys.argv[1:]
print("warming up", flush=True)
tokens = 64 * 256
seconds = tokens / (100.0 * int(concurrency) + int(seed) % 1000)
found = {"duration": seconds, "completed": 64, "total_output_tokens": tokens, "output_throughput": tokens / seconds,
         "max_concurrency": int(concurrency), "request_rate": "inf", "num_prompts": 64, "burstiness": 1.0}
found |= json.loads(how) if how.startswith("{") else {}
if how == "dies":
    sys.exit("CUDA error: token=hf_abcdefghijklmnopqrstuvwxyzabcdefgh")
if how != "silent":
    open(output, "w").write("Traceback" if how == "garbled" else json.dumps(found))
if how == "slow":
    import time
    time.sleep(60)
"""


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    """This machine, with Prudent's own folder on it."""
    directory = tmp_path / "prudent"
    directory.mkdir()
    return LocalHost(directory)


def _check() -> Check:
    return Check(name="throughput", concurrency=(8, 16), count=2, tokens=256, before=True, why="policy")


def _measured(host: LocalHost, how: str, limit: float = 120.0) -> dict[Any, Reading]:
    """Run it; readings by concurrency, the failed requests under their name."""
    command = (sys.executable, "-c", BENCH, "{concurrency}", "{output}", "{seed}", how)
    found = own_benchmark.throughput(
        host,
        command,
        base_url="http://127.0.0.1:9",
        check=_check(),
        phase="candidate",
        seed=7,
        limit_seconds=limit,
        clock=time.monotonic,
        tell=lambda _, __: None,
    )
    assert list(Path(host.directory).iterdir()) == []
    return {reading.concurrency or reading.metric: reading for reading in found}


def test_each_run_at_each_concurrency_is_a_value(host: LocalHost) -> None:
    """Two runs at two concurrencies, each from a file of its own that is gone afterwards, with seeds of their own."""
    found = _measured(host, "")

    assert [round(value) for value in found[8].values] == [800, 802]
    assert [round(value) for value in found[16].values] == [1601, 1603]
    assert (found[8].n, found[8].unit, found[8].phase) == (2, "tokens/s", "candidate")
    assert found["failed_requests"].n == 4 * 64
    assert found["failed_requests"].bad == 0
    assert "own benchmark" in found[8].source


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("silent", "No such file"),
        ("garbled", "not JSON"),
        ("dies", "ended with status 1"),
        (json.dumps({"max_concurrency": 64}), "with 64 in flight, and 8 were asked for"),
        (json.dumps({"max_concurrency": None}), "no fixed number in flight"),
        (json.dumps({"output_throughput": 1e9}), "are not 1e+09 tokens/s"),
        (json.dumps({"request_rate": 4.0}), "sent at a rate"),
        (json.dumps({"completed": 0, "total_output_tokens": 0}), "no request was completed"),
    ],
)
def test_what_proves_nothing_is_no_data(host: LocalHost, how: str, why: str) -> None:
    """Missing, garbled, of another concurrency or invalid: a reading without a value that says why, for each place."""
    found = _measured(host, how)

    for size in (8, 16):
        assert found[size].value is None
    assert why in (found[8].no_data or ""), found[8].no_data
    assert "hf_" not in str(found)


def test_a_benchmark_that_does_not_end_is_ended(host: LocalHost) -> None:
    """It gets the time that the check has, and then it is killed; what it wrote before proves nothing."""
    begun = time.monotonic()

    found = _measured(host, "slow", limit=2.0)

    assert time.monotonic() - begun < 30
    assert found[8].value is None
    assert "no line" in (found[8].no_data or "")
    assert "the time was over" in (found[16].no_data or "")
