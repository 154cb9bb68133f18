"""What the first full prefill takes once a worker serves: the memory that no start-up check tries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from agent.domain import Interval
from tools.engines.facts import StartupFacts
from tools.engines.model_shape import ModelShape
from tools.engines.sglang_capture import comparable
from tools.engines.sglang_configuration import Configuration
from tools.engines.span import Span, outward

_PER_TOKEN_GB: Final = (0.05 / 1024, 0.35 / 1024)
"""GB of activations for each token of a prefill step where nothing was measured. Low: a dense model of hidden size
4,096 (gate and up 48 KiB, activation 24 KiB, residuals); high: 8 experts of 2,048 of hidden size 7,168 with permuted
copies. SGLang 0.5.14 itself reserves 1.5 MiB a token where it chooses the memory fraction."""
_BY_WIDTHS: Final = (0.7, 2.0)
"""Sets of activations that a step holds at once by the model's widths. The recorded start that died had 0.71 GB left,
which are 0.9 sets."""
_CAPTURED: Final = (0.5, 1.5)
"""Share of what the prefill capture of as many tokens took, as it holds one set of activations besides its graphs."""


class PrefillNeed(NamedTuple):
    """What one full prefill step needs."""

    tokens: int
    """Tokens of the step."""
    gb: Interval
    """Memory beyond what is held after capture."""


def prefill_need(
    facts: StartupFacts, history: Sequence[StartupFacts], after: Configuration, shape: ModelShape | None = None
) -> PrefillNeed | None:
    """What a full prefill needs, from prefill captures, from what was survived, and from what was died of.

    Args:
        facts: The last start.
        history: Earlier starts, failed ones included.
        after: The configuration after the change.
        shape: The model's sizes, which stand in for the prior; None: not known.

    Returns:
        None where the size of a full prefill is not known.
    """
    tokens = after.prefill_tokens or facts.max_prefill_tokens
    if tokens is None:
        return None
    starts = [facts, *(start for start in history if comparable(facts, start))]
    span, basis = Span(_PER_TOKEN_GB[0] * tokens, _PER_TOKEN_GB[1] * tokens), "fleet prior by tokens of the step"
    if shape is not None and shape.activation_bytes is not None:
        held = shape.activation_bytes * tokens / 2**30
        span = Span(_BY_WIDTHS[0] * held, _BY_WIDTHS[1] * held)
        basis = f"{shape.activation_bytes:,} bytes a token by the model's widths"
    for start in starts:
        capture = start.capture("prefill")
        if capture is not None and capture.gb and capture.sizes:
            there = capture.gb * tokens / max(capture.sizes)
            span = Span(_CAPTURED[0] * there, _CAPTURED[1] * there)
            basis = f"prefill capture of {max(capture.sizes):,} tokens took {capture.gb:.2f} GB here"
            break
    for start in starts:
        left = start.free_after_capture_gb
        if left is None or left <= 0:
            continue
        if any(failure.kind == "oom_at_run_time" for failure in start.failures):
            span = Span(max(span.low, left), max(span.high, left * 1.5))
            basis += f"; a start that had {left:.2f} GB left died of its first batches"
        elif start.serving.largest_prefill_tokens >= tokens and left < span.high:
            span = Span(min(span.low, left), left)
            basis += f"; a start that had {left:.2f} GB left served such a prefill"
    low, high = outward(span)
    return PrefillNeed(tokens, Interval(low=low, high=high, unit="GB", basis=basis))
