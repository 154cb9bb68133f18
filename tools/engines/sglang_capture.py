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
from tools.engines.capture_slopes import GRAPH_PRIOR, SIZE_PRIOR, by_slope, slopes
from tools.engines.facts import Capture, StartupFacts
from tools.engines.span import Span, interval, summed, times

SECONDS_PRIOR: Final = (0.12, 3.3)
"""Seconds for each graph where nothing was measured here. Recorded 0.13 to 0.35 (dense) and 2.9 (MoE, cold kernels);
published up to 3.0 for DeepSeek-V4."""
_REPEATABLE: Final = 0.05
"""GB within which two captures of the same list count as the same."""


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
        nothing = interval(Span(0.0, 0.0), "GB", "no decode graphs are captured")
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
    per_size, per_graph = slopes(last, low_per_size_gb, plain_context)
    basis = f"{last.gb:.2f} GB measured for {_named(last.sizes)}"
    units, graphs = max(sizes) - max(last.sizes), len(sizes) - len(last.sizes)
    growth = summed(times(per_size, units), times(per_graph, graphs))
    if units or graphs:
        basis += (
            f", {units:+d} of size at {_mib(per_size)} MiB and {graphs:+d} graphs at {_mib(per_graph)} MiB each "
            f"({'from its progress bar' if len(last.steps) > 2 else 'fleet prior, capped by the measurement'})"
        )
    sloped = by_slope(sizes, last, others)
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
    return DecodeCost(interval(total, "GB", basis), growth, seconds, caveat)


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
        return interval(span, "s", f"measured at {len(same)} starts with this very list")
    each = [capture.seconds / len(capture.sizes) for capture in (last, *others) if capture.seconds and capture.sizes]
    if len(each) >= 2:
        span = Span(min(each) * 0.6 * len(sizes), max(each) * 1.3 * len(sizes))
        return interval(span, "s", f"{min(each):.2f} to {max(each):.2f} s a graph at {len(each)} starts of this worker")
    if last.seconds is None:
        span = Span(len(sizes) * SECONDS_PRIOR[0], len(sizes) * SECONDS_PRIOR[1])
        return interval(span, "s", f"fleet prior of {SECONDS_PRIOR[0]} to {SECONDS_PRIOR[1]} s a graph")
    ratio = len(sizes) / len(last.sizes)
    span = Span(last.seconds * 0.5 * min(1.0, ratio), last.seconds * 1.3 * max(1.0, ratio))
    basis = (
        f"{last.seconds:.2f} s measured for {len(last.sizes)} graphs, from half of that (kernels compiled by then) "
        f"to 1.3 times in proportion to {len(sizes)} graphs"
    )
    return interval(span, "s", basis)


def _without_measurement(sizes: Sequence[int]) -> DecodeCost:
    """From priors alone: the first graph has been seen to take 0.06 GB (36 layers) to 6 GB (DeepSeek with fa3)."""
    largest, count = max(sizes), len(sizes)
    span = Span(
        0.02 + SIZE_PRIOR[0] * largest + GRAPH_PRIOR[0] * count, 6.0 + SIZE_PRIOR[1] * largest + GRAPH_PRIOR[1] * count
    )
    basis = "fleet prior: 0.02 to 6 GB for the first graph, then by size and number; nothing was measured here"
    seconds = interval(
        Span(count * SECONDS_PRIOR[0], count * SECONDS_PRIOR[1]),
        "s",
        f"fleet prior of {SECONDS_PRIOR[0]} to {SECONDS_PRIOR[1]} s a graph",
    )
    return DecodeCost(interval(span, "GB", basis), span, seconds, "")


def _mib(span: Span) -> str:
    return f"{span.low * 1024:.1f} to {span.high * 1024:.1f}"


def _named(sizes: Sequence[int]) -> str:
    return f"{len(sizes)} graphs up to {max(sizes)}"
