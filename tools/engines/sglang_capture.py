"""Which decode graphs SGLang captures, and what they cost: memory and seconds, as intervals.

All graphs share one memory pool and the largest is captured first, so the smaller ones reuse its blocks. The cost is
therefore that of the largest (static buffers and one set of activations, in proportion to its size), a little for each
graph, and one-time costs of whatever was first used inside the capture (workspaces, loaded or tuned kernels, NCCL).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from agent.domain import Interval
from tools.engines.facts import Capture, StartupFacts

_MIB: Final = 1 / 1024

SIZE_PRIOR: Final = (0.25 * _MIB, 12 * _MIB)
"""GB for each further unit of the largest size. Low: logits of a 32,000-word vocabulary at 8 bytes (one fp32 buffer and
two of 2 bytes). High: six times the 2 MiB that SGLang 0.5.14 itself reserves (server_args.py:3276-3320), because
MoE and sparse-attention buffers exceed it; recorded: 1.2 MiB (8 B dense, vocabulary 151,936)."""
GRAPH_PRIOR: Final = (0.5 * _MIB, 16 * _MIB)
"""GB for each further graph. Recorded 1.4 MiB at 36 layers; published 14.5 MiB at 80 layers and tensor parallel 8
(SGLang pull request 11716)."""
SECONDS_PRIOR: Final = (0.12, 3.3)
"""Seconds for each graph where nothing was measured here. Recorded 0.13 to 0.35 (dense) and 2.9 (MoE, cold kernels);
published up to 3.0 for DeepSeek-V4."""
LARGEST: Final = 1 << 16
"""Size beyond which nothing is listed: a figure in a damaged log must not fill our memory."""
STATIC_LIMIT: Final = 3 * _MIB
"""GB of static buffers for each unit of size, the indices of the context apart: one fp32 row of 262,144 words (1 MiB),
and what attention keeps for a row, 128 heads x 8 splits x 512 x 4 bytes (2 MiB)."""
FIRST_LIMIT: Final = 4 * _MIB
"""GB that the first graph holds for each unit of size: twice what SGLang itself reserves in all. Recorded: 0.5 MiB
(8 B dense)."""
_INDEX_BYTES: Final = 8
"""Bytes of an index of attention, for each token of the context and each row."""
_SLOPE: Final = (0.5, 1.6)
"""Factors on the slope between two measured captures; the recorded slopes of one model lie within 0.9 to 1.1 of each
other, rounding apart."""
_ROUNDING: Final = 0.01
"""GB by which a difference of two of the engine's figures can be off, each being rounded to 0.01."""
_REPEATABLE: Final = 0.05
"""GB within which two captures of the same list count as the same."""


class Span(NamedTuple):
    """A low and a high end, in the unit of the context."""

    low: float
    """Low end."""
    high: float
    """High end."""


class DecodeCost(NamedTuple):
    """What the decode capture is expected to be."""

    gb: Interval
    """Memory of the graphs as the engine will print it."""
    growth: Span
    """GB by which free memory shrinks against the last start; below 0: it grows."""
    seconds: Interval
    """Time of the capture by the engine's own clock."""
    caveat: str
    """Why the printed figure can fall although the captured range grows; empty where it cannot."""


def capture_list(
    max_bs: int, *, speculative: bool = False, padding_disabled: bool = False, max_running: int | None = None
) -> tuple[int, ...]:
    """Batch sizes that SGLang captures for decode, ascending.

    Args:
        max_bs: `cuda-graph-max-bs`; counted up to `LARGEST`.
        speculative: Whether any speculative decoding is on, which makes the list denser.
        padding_disabled: `disable-cuda-graph-padding`: every size.
        max_running: Running requests of one data-parallel worker; sizes above it are dropped and it becomes the last.

    The list is that of SGLang 0.5.10 to 0.5.23 (0.5.14 server_args.py:3331-3362, base_cuda_graph_runner.py:58-97).
    """
    if max_bs < 1:
        return ()
    max_bs = min(max_bs, LARGEST)
    if padding_disabled:
        sizes = list(range(1, max_bs + 1))
    elif speculative:
        sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, max_bs + 1, 16)]
    else:
        sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, max_bs + 1, 32)]
    chosen = {size for size in sizes if size <= max_bs} | {max_bs}
    if max_running is not None and max(chosen) > max_running:
        chosen = {size for size in chosen if size <= max_running} | {max_running}
    return tuple(sorted(size for size in chosen if size > 0))


def decode_cost(
    sizes: Sequence[int],
    *,
    last: Capture | None,
    others: Sequence[Capture] = (),
    low_per_size_gb: float | None = None,
    plain_context: int | None = None,
) -> DecodeCost:
    """Forecast the capture of a list of sizes.

    Args:
        sizes: What will be captured; empty: nothing.
        last: The decode capture of this worker's last start; None: it captured nothing, or nothing is known.
        others: Decode captures of earlier starts of the same model, GPU and settings.
        low_per_size_gb: What each unit of size costs at least, where the model's vocabulary is known.
        plain_context: Tokens of the context, where a row of a graph is one token of one request and nothing is gathered
            over groups of GPUs, so that what a row can cost is known; None: it is not.
    """
    before = 0.0 if last is None or last.gb is None else max(0.0, last.gb)
    if not sizes:
        nothing = _interval(Span(0.0, 0.0), "GB", "no decode graphs are captured")
        return DecodeCost(nothing, Span(-before, -before), nothing.model_copy(update={"unit": "s"}), "")
    known = [one for one in (last, *others) if one is not None and one.gb is not None and one.sizes]
    if not known:
        return _without_measurement(sizes)
    if last is known[0]:
        return _from_measurement(sizes, last, known[1:], low_per_size_gb, plain_context)
    nearest = min(known, key=lambda one: abs(max(one.sizes) - max(sizes)))
    rest = [one for one in known if one is not nearest]
    cost = _from_measurement(sizes, nearest, rest, low_per_size_gb, plain_context)
    return cost._replace(growth=Span(cost.gb.low - before, cost.gb.high - before))


def _from_measurement(
    sizes: Sequence[int],
    last: Capture,
    others: Sequence[Capture],
    low_per_size_gb: float | None,
    plain_context: int | None,
) -> DecodeCost:
    """From one measured capture, bounded by others of the same worker."""
    assert last.gb is not None
    per_size, per_graph = _slopes(last, low_per_size_gb, plain_context)
    basis = f"{last.gb:.2f} GB measured for {_named(last.sizes)}"
    units, graphs = max(sizes) - max(last.sizes), len(sizes) - len(last.sizes)
    growth = _sum(_times(per_size, units), _times(per_graph, graphs))
    if units or graphs:
        basis += (
            f", {units:+d} of size at {_mib(per_size)} MiB and {graphs:+d} graphs at {_mib(per_graph)} MiB each "
            f"({'from its progress bar' if len(last.steps) > 2 else 'fleet prior, capped by the measurement'})"
        )
    sloped = _by_slope(sizes, last, others)
    if sloped is not None and max(growth.low, sloped.low) <= min(growth.high, sloped.high):
        growth = Span(max(growth.low, sloped.low), min(growth.high, sloped.high))
        basis += ", and by the slope between this worker's captures"
    bounded = _between_measured(sizes, [last, *others])
    if bounded is not None:
        low, high = max(growth.low, bounded.low - last.gb), min(growth.high, bounded.high - last.gb)
        growth = Span(low, high) if low <= high else Span(bounded.low - last.gb, bounded.high - last.gb)
        basis += ", bounded by this worker's other starts"
    growth = Span(max(growth.low, -max(0.0, last.gb)), max(growth.high, -max(0.0, last.gb)))
    total = Span(max(0.0, last.gb + growth.low), max(0.0, last.gb + growth.high))
    unexplained = last.gb - SIZE_PRIOR[1] * max(last.sizes) - GRAPH_PRIOR[1] * len(last.sizes)
    caveat = ""
    if unexplained > 0.5 and not _seen_again(last, others):
        low = min(total.low, SIZE_PRIOR[0] * max(sizes) + GRAPH_PRIOR[0] * len(sizes))
        total = Span(low, total.high)
        caveat = (
            f"The graph figure itself can fall: at most {last.gb - unexplained:.2f} of the {last.gb:.2f} GB can be due "
            f"to {len(last.sizes)} graphs up to size {max(last.sizes)}, so the rest were one-time costs of other "
            "capture settings or of kernels first used inside that capture, and no second start has shown them again. "
            "Free memory is forecast without counting on that."
        )
    seconds = _seconds(sizes, last, others)
    return DecodeCost(_interval(total, "GB", basis), growth, seconds, caveat)


def comparable(one: StartupFacts, other: StartupFacts) -> bool:
    """Whether graph figures of one start say something about the other: same model, parallelism, kernels, context."""
    same = (
        "tp_size",
        "dp_size",
        "attention_backend",
        "speculative_algorithm",
        "quantization",
        "context_length",
        "device",
    )
    if one.model_type != other.model_type or any(one.settings.get(key) != other.settings.get(key) for key in same):
        return False
    if one.weights_gb is None or other.weights_gb is None:
        return one.weights_gb == other.weights_gb
    return math.isclose(one.weights_gb, other.weights_gb, rel_tol=0.02, abs_tol=0.05)


def outward(span: Span) -> Span:
    """Rounded to 0.01 so that nothing falls out of it."""
    return Span(math.floor(span.low * 100 + 1e-6) / 100, math.ceil(span.high * 100 - 1e-6) / 100)


def _slopes(last: Capture, low_per_size_gb: float | None, plain_context: int | None) -> tuple[Span, Span]:
    """GB for each unit of size, and for each graph, as far as the last capture and the priors allow."""
    assert last.gb is not None
    largest, count = max(last.sizes), len(last.sizes)
    by_size, by_graph = last.gb + _ROUNDING, Span(*GRAPH_PRIOR)
    if len(last.steps) > 2 and last.free_before_gb is not None and last.free_after_gb is not None:
        tail = last.steps[1].free_gb - last.free_after_gb
        rest = len(last.steps) - 1
        by_graph = Span(
            max(GRAPH_PRIOR[0], (tail - 2 * _ROUNDING) / rest),
            max(GRAPH_PRIOR[0], (max(tail, 0.0) + 2 * _ROUNDING) / rest),
        )
        by_size = last.free_before_gb - last.steps[1].free_gb + _ROUNDING
        if plain_context is not None:
            static = last.free_before_gb - last.steps[0].free_gb + _ROUNDING
            first = last.steps[0].free_gb - last.steps[1].free_gb + _ROUNDING
            most = STATIC_LIMIT + plain_context * _INDEX_BYTES / 2**30
            by_size = min(by_size, min(static, most * largest) + min(first, FIRST_LIMIT * largest))
    by_graph = Span(by_graph.low, min(by_graph.high, max(by_graph.low, (last.gb + _ROUNDING) / count)))
    low = SIZE_PRIOR[0] if low_per_size_gb is None else low_per_size_gb
    high = min(SIZE_PRIOR[1], max(low, by_size / largest))
    return Span(min(low, high), high), by_graph


def _by_slope(sizes: Sequence[int], last: Capture, others: Sequence[Capture]) -> Span | None:
    """Growth by what this worker's captures of other lists cost more or less; None: there is no such pair.

    A larger list that cost less was made with other settings and says nothing.
    """
    assert last.gb is not None
    units = max(sizes) - max(last.sizes)
    slopes = []
    for other in others:
        apart = max(other.sizes) - max(last.sizes)
        if other.gb is None or not apart:
            continue
        grown = (other.gb - last.gb) / apart
        off = 2 * _ROUNDING / abs(apart)
        if grown > 0:
            slopes.append(Span(max(0.0, grown - off), grown + off))
    if not slopes or not units:
        return None
    low = min(slope.low for slope in slopes) * _SLOPE[0]
    high = max(slope.high for slope in slopes) * _SLOPE[1]
    return _times(Span(low, high), units)


def _between_measured(sizes: Sequence[int], known: Sequence[Capture]) -> Span | None:
    """Bounds from captures on both sides: more sizes never cost less."""
    if len(known) < 2:
        return None
    largest = max(sizes)
    below = [capture.gb for capture in known if max(capture.sizes) <= largest and capture.gb is not None]
    above = [capture.gb for capture in known if max(capture.sizes) >= largest and capture.gb is not None]
    if not below or not above:
        return None
    low, high = max(below), min(above)
    if low > high:
        low, high = min(*below, *above), max(*below, *above)
    return Span(max(0.0, low - _REPEATABLE), high + _REPEATABLE)


def _seen_again(last: Capture, others: Sequence[Capture]) -> bool:
    return any(
        other.sizes == last.sizes
        and other.gb is not None
        and last.gb is not None
        and abs(other.gb - last.gb) <= max(_REPEATABLE, 0.1 * last.gb)
        for other in others
    )


def _seconds(sizes: Sequence[int], last: Capture, others: Sequence[Capture]) -> Interval:
    same = [capture.seconds for capture in (last, *others) if capture.sizes == tuple(sizes) and capture.seconds]
    if len(same) >= 2:
        span = Span(min(same) * 0.6, max(same) * 1.3)
        return _interval(span, "s", f"measured at {len(same)} starts with this very list")
    each = [capture.seconds / len(capture.sizes) for capture in (last, *others) if capture.seconds and capture.sizes]
    if len(each) >= 2:
        span = Span(min(each) * 0.6 * len(sizes), max(each) * 1.3 * len(sizes))
        return _interval(
            span, "s", f"{min(each):.2f} to {max(each):.2f} s a graph at {len(each)} starts of this worker"
        )
    if last.seconds is None:
        span = Span(len(sizes) * SECONDS_PRIOR[0], len(sizes) * SECONDS_PRIOR[1])
        return _interval(span, "s", f"fleet prior of {SECONDS_PRIOR[0]} to {SECONDS_PRIOR[1]} s a graph")
    ratio = len(sizes) / len(last.sizes)
    span = Span(last.seconds * 0.5 * min(1.0, ratio), last.seconds * 1.3 * max(1.0, ratio))
    basis = (
        f"{last.seconds:.2f} s measured for {len(last.sizes)} graphs, from half of that (kernels compiled by then) "
        f"to 1.3 times in proportion to {len(sizes)} graphs"
    )
    return _interval(span, "s", basis)


def _without_measurement(sizes: Sequence[int]) -> DecodeCost:
    """From priors alone: the first graph has been seen to take 0.06 GB (36 layers) to 6 GB (DeepSeek with fa3)."""
    largest, count = max(sizes), len(sizes)
    span = Span(
        0.02 + SIZE_PRIOR[0] * largest + GRAPH_PRIOR[0] * count, 6.0 + SIZE_PRIOR[1] * largest + GRAPH_PRIOR[1] * count
    )
    basis = "fleet prior: 0.02 to 6 GB for the first graph, then by size and number; nothing was measured here"
    seconds = _interval(
        Span(count * SECONDS_PRIOR[0], count * SECONDS_PRIOR[1]),
        "s",
        f"fleet prior of {SECONDS_PRIOR[0]} to {SECONDS_PRIOR[1]} s a graph",
    )
    return DecodeCost(_interval(span, "GB", basis), span, seconds, "")


def _interval(span: Span, unit: str, basis: str) -> Interval:
    low, high = outward(span)
    return Interval(low=low, high=high, unit=unit, basis=basis)


def _times(span: Span, count: int) -> Span:
    low, high = sorted((span.low * count, span.high * count))
    return Span(low, high)


def _sum(*spans: Span) -> Span:
    return Span(sum(span.low for span in spans), sum(span.high for span in spans))


def _mib(span: Span) -> str:
    return f"{span.low * 1024:.1f} to {span.high * 1024:.1f}"


def _named(sizes: Sequence[int]) -> str:
    return f"{len(sizes)} graphs up to {max(sizes)}"
