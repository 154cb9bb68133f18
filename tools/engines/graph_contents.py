"""What lies inside the decode graphs, and what their capture needs for a moment, where the model's sizes are known."""

from __future__ import annotations

from typing import NamedTuple

from agent.domain import Interval
from tools.engines.model_shape import ModelShape
from tools.engines.sglang_configuration import Configuration
from tools.engines.span import Span, outward

_LOGITS_BYTES = (4, 8)
"""Bytes for each word of the vocabulary and each row: one buffer of fp32, whole on every rank, and up to two copies of
2 bytes in the pool (SGLang 0.5.14 runner_utils/buffers.py:130, logits_processor.py:924-985)."""


class Inside(NamedTuple):
    """Parts of the capture that the engine does not print."""

    logits: Interval
    """GB of logits buffers, which are a part of the graphs."""
    peak: Interval
    """GB that the capture takes at its highest, the eager step that warms up each graph included."""


def inside_graphs(after: Configuration, graphs: Interval, shape: ModelShape | None) -> Inside | None:
    """Work them out; None where the model's sizes are not known or nothing is captured."""
    largest = max(after.sizes, default=0)
    if shape is None or shape.vocabulary is None or not largest:
        return None
    rows = largest * max(1, after.draft_tokens)
    words = rows * shape.vocabulary
    low, high = outward(Span(*(words * each / 2**30 for each in _LOGITS_BYTES)))
    basis = (
        f"{rows} rows x {shape.vocabulary:,} words x {_LOGITS_BYTES[0]} to {_LOGITS_BYTES[1]} bytes, inside the graphs"
    )
    logits = Interval(low=low, high=high, unit="GB", basis=basis)
    step = rows * (shape.activation_bytes or 0) / 2**30
    low, high = outward(Span(graphs.low, graphs.high + step))
    basis = f"the graphs, and one eager step of {rows} rows before each"
    return Inside(logits, Interval(low=low, high=high, unit="GB", basis=basis))
