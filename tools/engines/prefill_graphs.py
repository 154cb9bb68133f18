"""What the capture of prefill takes, in memory and in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agent.domain import Interval
from tools.engines.facts import StartupFacts
from tools.engines.model_shape import ModelShape
from tools.engines.sglang_configuration import Configuration
from tools.engines.size_lists import prefill_list
from tools.engines.span import Span, outward

REPEAT_GB: Final = 0.03
"""GB by which a figure differs between two starts of one configuration; recorded: 0.01."""
_GRAPH_GB: Final = (0.0, 10 / 1024)
"""GB of each prefill graph besides the activations that all share. Recorded: at most 8 MiB (36 layers, 58 graphs)."""
_SET: Final = (0.6, 2.0)
"""Sets of activations of a full chunk that the capture keeps, by a model's widths; recorded 1.0 (dense, 36 layers)."""
_USUAL: Final = 16384
"""Tokens of a chunk where the engine does not say it."""


def prefill_graphs(
    facts: StartupFacts,
    peers: Sequence[StartupFacts],
    before: Configuration,
    after: Configuration,
    shape: ModelShape | None = None,
) -> tuple[float, Interval]:
    """GB of the prefill graphs now, and after the change.

    Args:
        facts: The last start.
        peers: Earlier starts that are comparable with it.
        before: The configuration now.
        after: The configuration after the change.
        shape: The model's sizes; None: not known.
    """
    capture = facts.capture("prefill")
    now = 0.0 if capture is None or capture.gb is None else capture.gb
    if not after.prefill_captured:
        return now, Interval(low=0.0, high=0.0, unit="GB", basis="prefill is not captured")
    seen = [
        one for start in peers if (one := start.capture("prefill")) is not None and one.gb is not None and one.sizes
    ]
    tokens = after.captured_prefill_tokens
    if (capture is None or capture.gb is None) and seen:
        figures = [(one.gb or 0.0) * (tokens or max(one.sizes)) / max(one.sizes) for one in seen]
        low, high = outward(Span(min(figures) * 0.8, max(figures) * 1.2))
        basis = f"{len(seen)} earlier starts of this worker captured prefill, in proportion to the tokens of a chunk"
        return now, Interval(low=low, high=high, unit="GB", basis=basis)
    if capture is None or capture.gb is None:
        return now, _unmeasured(after, shape)
    if before.captured_prefill_tokens == tokens:
        low, high = outward(Span(max(0.0, now - REPEAT_GB), now + REPEAT_GB))
        return now, Interval(low=low, high=high, unit="GB", basis="measured at the last start and not touched")
    ratio = (tokens or _USUAL) / max(1, before.captured_prefill_tokens or _USUAL)
    low, high = outward(Span(now * min(1.0, ratio) * 0.7, now * max(1.0, ratio) * 1.3))
    return now, Interval(low=low, high=high, unit="GB", basis=f"{now:.2f} GB measured, by tokens of a chunk")


def prefill_seconds(facts: StartupFacts, after: Configuration) -> Interval:
    """Seconds of the prefill capture; two recorded starts of one configuration took 18 and 26 s."""
    capture = facts.capture("prefill")
    if not after.prefill_captured:
        return Interval(low=0.0, high=0.0, unit="s", basis="prefill is not captured")
    if capture is not None and capture.seconds:
        low, high = outward(Span(capture.seconds * 0.6, capture.seconds * 1.5))
        return Interval(low=low, high=high, unit="s", basis=f"{capture.seconds:.2f} s measured at the last start")
    sizes = len(prefill_list(after.captured_prefill_tokens or _USUAL))
    low, high = outward(Span(0.05 * sizes, 0.6 * sizes))
    return Interval(low=low, high=high, unit="s", basis="fleet prior: recorded 0.3 to 0.44 s a size, published 0.1")


def _unmeasured(after: Configuration, shape: ModelShape | None) -> Interval:
    tokens = after.captured_prefill_tokens or _USUAL
    each = shape.activation_bytes if shape is not None else None
    if each is None:
        low, high = 0.1, round(0.5 + 0.35 / 1024 * tokens, 2)
        basis = "fleet prior: nothing was measured here; recorded 0.28 and 1.29"
    else:
        graphs, held = len(prefill_list(tokens)), each * tokens / 2**30
        low, high = outward(Span(_SET[0] * held + _GRAPH_GB[0] * graphs, _SET[1] * held + _GRAPH_GB[1] * graphs))
        basis = (
            f"{tokens:,} tokens x {each:,} bytes of activations by the model's widths, {_SET[0]:g} to {_SET[1]:g} "
            f"times, and {graphs} graphs of up to {_GRAPH_GB[1] * 1024:g} MiB"
        )
    return Interval(low=0.0 if after.prefill_guessed else low, high=high, unit="GB", basis=basis)
