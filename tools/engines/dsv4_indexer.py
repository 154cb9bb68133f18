"""DeepSeek-V4's indexer inside captured graphs: the one buffer that grows with batch times context.

Its torch path gathers and upcasts keys for the whole context that the request table allows, whatever the requests hold.
SM120 forces it on; a fused kernel leaves it out (SGLang 0.5.14 server_args.py:3799, dsv4/indexer.py:152-222).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tools.engines.catalogue import canonical, knob_named
from tools.engines.facts import StartupFacts
from tools.engines.sglang_configuration import Configuration
from tools.engines.span import Span

_BYTES: Final = 132 + 512 + 256 + 256
"""Bytes for each captured request and each fourth token of the context: gathered keys and their upcast copies."""
_CERTAIN_LOW: Final = 0.6
"""Share of the arithmetic that is counted on where the path is known to be on: it is derived and was never measured."""


def indexer_growth(
    facts: StartupFacts, before: Configuration, after: Configuration, variables: Mapping[str, str] | None
) -> Span:
    """GB by which the torch indexer makes the decode graphs grow.

    Args:
        facts: The last start.
        before: The configuration now.
        after: The configuration after the change.
        variables: The worker's environment as its process has it; None: not known, and then what the last start
            measured decides whether the path can have been on.

    Returns:
        Zero for other models, and where the path is off.
    """
    capture = facts.decode_capture
    if not (facts.model_type or "").startswith("DeepseekV4") or capture is None or not before.sizes:
        return Span(0.0, 0.0)
    now, then = _gb(before), _gb(after)
    if now == then:
        return Span(0.0, 0.0)
    is_on = _stated(variables)
    if is_on is None:
        is_on = None if capture.gb is not None and capture.gb >= 0.8 * now else False
    if is_on is False:
        return Span(0.0, 0.0)
    grown = then - now
    certain = _CERTAIN_LOW * grown if is_on else 0.0
    return Span(min(certain, grown), max(certain, grown))


def _stated(variables: Mapping[str, str] | None) -> bool | None:
    """Whether the environment says that the path is on; None: it does not say."""
    if variables is None:
        return None
    fused, torch = (
        _switch(variables, name) for name in ("SGLANG_OPT_USE_TILELANG_INDEXER", "SGLANG_FP8_PAGED_MQA_LOGITS_TORCH")
    )
    if fused:
        return False
    return torch


def _switch(variables: Mapping[str, str], name: str) -> bool | None:
    knob = knob_named("sglang", name)
    if knob is None or name not in variables:
        return None
    return canonical(knob, variables[name]) == "on"


def _gb(configuration: Configuration) -> float:
    largest = max(configuration.sizes, default=0)
    return largest * (configuration.context or 0) / 4 * _BYTES / 2**30
