"""Results of the engines' own benchmarks -> readings.

vLLM's `vllm bench serve --save-result` writes one JSON object to a file (`--append-result`: one more after it), and
SGLang's `python -m sglang.bench_serving --output-file` one a line. Both name the same things alike where we look:

    duration, completed, total_output_tokens, output_throughput,       of generated tokens; seconds
    max_concurrency                                                    null: all requests at once, or at a rate
    request_rate                                                       requests a second, "inf" or Infinity; "trace"
    failed (both, in later versions), num_prompts (vLLM)               requests that were sent or went wrong
    median_ttft_ms, p99_ttft_ms, median_itl_ms, p99_itl_ms             milliseconds

Only what was sent as fast as it was answered, at a fixed concurrency, says how much a worker can do: at a request rate
the throughput is the rate that was asked for, whatever the worker is. (vllm/benchmarks/serve.py and
python/sglang/bench_serving.py of their repositories.)
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agent.domain import Phase, Reading
from tools.measured import failed_requests, nothing

METRIC, UNIT = "throughput_tokens_per_second", "tokens/s"
DISAGREES = 0.01
"""A rate that differs by more than this share from tokens over seconds is not the rate of that run."""


class NotABenchmark(ValueError):
    """The text is no result of either benchmark; says what is missing."""


class _Run(NamedTuple):
    dialect: str
    concurrency: int | None
    throughput: float
    failed: int | None
    sent: int | None
    document: Mapping[str, Any]
    why_not: str | None


def readings_of(text: str, phase: Phase, *, boot: int = 1, source: str = "") -> tuple[Reading, ...]:
    """Read what `bench_serving` wrote.

    Args:
        text: The file: JSON objects, one or several, one after the other.
        phase: When it was run: before the change, with it, or after it was taken back.
        boot: After which start of the phase.
        source: Where the file came from, for people; empty: the name of the benchmark.

    Returns:
        One reading of the throughput for each concurrency, its runs in the order of the file, and one of the failed
        requests over all runs. A run that proves nothing is a reading without a value, which says why.

    Raises:
        NotABenchmark: it is no such file.
    """
    runs = [_run(document) for document in _documents(text)]
    if not runs:
        raise NotABenchmark("the file is empty")
    where = source or " and ".join(sorted({f"bench_serving of {run.dialect}" for run in runs}))
    readings = [
        _throughput([run for run in runs if run.concurrency == place], place, phase, boot, where)
        for place in dict.fromkeys(run.concurrency for run in runs)
    ]
    return (*readings, _failures(runs, phase, where).model_copy(update={"boot": boot}))


def _documents(text: str) -> Sequence[Mapping[str, Any]]:
    decoder, found, at = json.JSONDecoder(), [], 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        try:
            document, at = decoder.raw_decode(text, at)
        except ValueError as error:
            raise NotABenchmark(f"not JSON: {error}") from error
        found += document if isinstance(document, list) else [document]
    return found


def _run(document: object) -> _Run:
    if not isinstance(document, Mapping):
        raise NotABenchmark(f"a {type(document).__name__} where a run is expected")
    missing = [name for name in ("duration", "completed", "output_throughput") if name not in document]
    if missing:
        raise NotABenchmark(f"a run names no {' and no '.join(missing)}")
    dialect = "vLLM" if "total_token_throughput" in document or "burstiness" in document else "SGLang"
    throughput, seconds = _number(document, "output_throughput"), _number(document, "duration")
    completed, tokens = _whole(document, "completed"), _whole(document, "total_output_tokens")
    failed, sent = _whole(document, "failed"), _whole(document, "num_prompts")
    if sent is None and failed is not None and completed is not None:
        sent = completed + failed
    if failed is None and sent is not None and completed is not None:
        failed = sent - completed
    why_not = None
    if throughput is None or seconds is None or throughput <= 0 or seconds <= 0 or not completed:
        why_not = "no request was completed"
    elif tokens is not None and abs(tokens / seconds - throughput) > DISAGREES * throughput:
        why_not = f"{tokens} tokens in {seconds:g} s are not {throughput:g} tokens/s"
    elif not _unlimited(document.get("request_rate")):
        why_not = f"requests were sent at a rate ({document.get('request_rate')}), which is what was measured then"
    elif failed:
        why_not = f"{failed} of {sent} requests failed"
    return _Run(dialect, _whole(document, "max_concurrency"), throughput or 0.0, failed, sent, document, why_not)


def _throughput(runs: Sequence[_Run], place: int | None, phase: Phase, boot: int, source: str) -> Reading:
    good = [run for run in runs if run.why_not is None]
    if not good:
        why = runs[0].why_not or ""
        return nothing(METRIC, phase, UNIT, why, source, place).model_copy(update={"boot": boot})
    values = tuple(run.throughput for run in good)
    detail = "; ".join(part for part in (_latency(good), _left_out(runs, good)) if part)
    return Reading(
        metric=METRIC,
        phase=phase,
        value=math.fsum(values) / len(values),
        unit=UNIT,
        n=len(values),
        values=values,
        concurrency=place,
        boot=boot,
        source=source,
        detail=detail,
    )


def _left_out(runs: Sequence[_Run], good: Sequence[_Run]) -> str:
    bad = [run.why_not for run in runs if run.why_not is not None]
    return f"{len(bad)} of {len(runs)} runs are not valid: {bad[0]}" if len(good) < len(runs) else ""


def _latency(runs: Sequence[_Run]) -> str:
    said = []
    for title, name in (("first token", "ttft"), ("between tokens", "itl")):
        ends = [[_number(run.document, f"{end}_{name}_ms") for run in runs] for end in ("median", "p99")]
        known = [[value for value in end if value is not None] for end in ends]
        if all(known):
            said.append(f"{title} p50 {max(known[0]):.0f} ms, p99 {max(known[1]):.0f} ms")
    worst = ", the worst of its runs" if len(runs) > 1 and said else ""
    return ", ".join(said) + worst


def _failures(runs: Sequence[_Run], phase: Phase, source: str) -> Reading:
    known = [(run.sent, run.failed) for run in runs if run.sent is not None and run.failed is not None]
    if len(known) < len(runs):
        why = "the benchmark does not say how many requests failed"
        return nothing("failed_requests", phase, "share", why, source)
    requests = {"n": sum(sent for sent, _ in known), "bad": sum(failed for _, failed in known), "first": "not said"}
    return failed_requests(requests, phase, source, None)


def _unlimited(rate: object) -> bool:
    return rate is None or rate == "inf" or (isinstance(rate, (int, float)) and math.isinf(rate))


def _number(document: Mapping[str, Any], name: str) -> float | None:
    value = document.get(name)
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good and value is not None else None


def _whole(document: Mapping[str, Any], name: str) -> int | None:
    value = _number(document, name)
    return int(value) if value is not None and value >= 0 and value == int(value) else None
