"""What one more row and one more graph cost: by a progress bar, by priors, and by what two captures differ in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tools.engines.facts import Capture
from tools.engines.span import Span, times

_MIB: Final = 1 / 1024
SIZE_PRIOR: Final = (0.25 * _MIB, 12 * _MIB)
"""GB for each further unit of the largest size. Low: logits of a 32,000-word vocabulary at 8 bytes (one fp32 buffer and
two of 2 bytes). High: six times the 2 MiB that SGLang 0.5.14 itself reserves (server_args.py:3276-3320), because
MoE and sparse-attention buffers exceed it; recorded: 1.2 MiB (8 B dense, vocabulary 151,936)."""
GRAPH_PRIOR: Final = (0.5 * _MIB, 16 * _MIB)
"""GB for each further graph. Recorded 1.4 MiB at 36 layers; published 14.5 MiB at 80 layers and tensor parallel 8
(SGLang pull request 11716)."""
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


def slopes(last: Capture, low_per_size_gb: float | None, plain_context: int | None) -> tuple[Span, Span]:
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


def by_slope(sizes: Sequence[int], last: Capture, others: Sequence[Capture]) -> Span | None:
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
    return times(Span(low, high), units)
