"""The settings that vLLM's log prints -> values in force. A production vLLM answers no question about them."""

from __future__ import annotations

from collections.abc import Sequence

from agent.domain import Knob
from tools.engines.catalogue import canonical
from tools.engines.facts import StartupFacts


def effective(facts: StartupFacts, knobs: Sequence[Knob]) -> dict[str, str]:
    """Values in force by knob name, in the form of `catalogue.canonical`.

    Args:
        facts: The last start, whose settings are those of `non-default args` and of the engine's configuration.
        knobs: The knobs to look for.

    Returns:
        Only what the log says; a switch that is printed as False is `off`.
    """
    values: dict[str, str] = {}
    for knob in knobs:
        for path in knob.effective:
            found = facts.settings.get(path)
            if found is None:
                continue
            if knob.value == "switch":
                found = {"True": "on", "False": "off"}.get(found, found)
            values[knob.name] = canonical(knob, found)
            break
    if facts.settings.get("enforce_eager") == "True":
        for name in ("max-cudagraph-capture-size", "cudagraph-capture-sizes"):
            values.pop(name, None)
    return values
