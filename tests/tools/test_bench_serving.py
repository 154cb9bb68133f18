"""What the engines' own benchmarks wrote is read as readings, and never as more than they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools.bench_serving import NotABenchmark, readings_of

DATA = Path(__file__).parents[1] / "data" / "bench_serving"


def _vllm(**other: Any) -> str:
    return json.dumps({**json.loads((DATA / "vllm.json").read_text()), **other})


class TestVllm:
    def test_a_run(self) -> None:
        """A saved result is one run at its concurrency, with its latencies in the sentence."""
        throughput, failed = readings_of((DATA / "vllm.json").read_text(), "baseline")

        assert (throughput.metric, throughput.phase, throughput.concurrency) == (
            "throughput_tokens_per_second",
            "baseline",
            32,
        )
        assert throughput.value == pytest.approx(24576 / 41.25)
        assert (throughput.n, len(throughput.values), throughput.boot) == (1, 1, 1)
        assert throughput.source == "bench_serving of vLLM"
        assert throughput.detail == "first token p50 388 ms, p99 701 ms, between tokens p50 50 ms, p99 99 ms"
        assert (failed.n, failed.bad) == (96, 0)

    def test_several_appended(self) -> None:
        """Results that were appended to one file are the runs of one reading."""
        text = _vllm() + "\n" + _vllm(duration=40.0, output_throughput=614.4)

        throughput, failed = readings_of(text, "candidate", boot=2)

        assert throughput.values == pytest.approx((595.78, 614.4), abs=0.01)
        assert throughput.value == pytest.approx(605.09, abs=0.01)
        assert (throughput.boot, failed.boot, failed.n) == (2, 2, 192)


class TestSglang:
    def test_runs_by_concurrency(self) -> None:
        """Lines of one concurrency are runs of one reading; a run with failed requests proves no rate."""
        low, high, failed = readings_of((DATA / "sglang.jsonl").read_text(), "candidate", source="night.jsonl")

        assert (low.concurrency, low.n, low.source) == (32, 2, "night.jsonl")
        assert low.values == pytest.approx((24576 / 39.8, 24576 / 40.6))
        assert high.concurrency == 64
        assert high.value is None
        assert high.no_data == "2 of 192 requests failed"
        # The first two lines are of a version that counts no failures, so that the share over all runs is not known.
        assert failed.value is None

    def test_what_was_retokenized_is_not_what_was_generated(self) -> None:
        """The rate is of the tokens that the server counted, not of those that another tokenizer makes of the text."""
        low, *_ = readings_of((DATA / "sglang.jsonl").read_text(), "baseline")

        assert low.value != pytest.approx(24561 / 39.8, abs=0.1)
        assert low.value == pytest.approx((24576 / 39.8 + 24576 / 40.6) / 2)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"request_rate": 4.0}, "requests were sent at a rate (4.0), which is what was measured then"),
        ({"request_rate": "trace"}, "requests were sent at a rate (trace), which is what was measured then"),
        ({"completed": 0, "failed": 96, "output_throughput": 0.0}, "no request was completed"),
        ({"output_throughput": float("nan")}, "no request was completed"),
        ({"output_throughput": 900.0}, "24576 tokens in 41.25 s are not 900 tokens/s"),
        ({"failed": 3, "completed": 93}, "3 of 96 requests failed"),
    ],
    ids=["at a rate", "a trace", "nothing completed", "no number", "a rate of something else", "failures"],
)
def test_a_run_that_proves_nothing_says_why(other: dict[str, Any], why: str) -> None:
    """A run from which no rate can be taken is a reading without a value."""
    throughput, _ = readings_of(_vllm(**other), "baseline")

    assert throughput.value is None
    assert throughput.no_data == why


@pytest.mark.parametrize("text", ["", "  \n", "no json", "[1]", '{"duration": 1}', '"text"'], ids=repr)
def test_another_file_is_refused(text: str) -> None:
    """What neither benchmark writes is refused, not read as silence."""
    with pytest.raises(NotABenchmark):
        readings_of(text, "baseline")
