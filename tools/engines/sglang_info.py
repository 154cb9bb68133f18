"""SGLang's answer about itself -> values in force.

The answer of /server_info holds flags only. Variables are not in it: those come from /proc, through the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.domain import Knob
from tools.engines.catalogue import canonical, release
from tools.engines.facts import StartupFacts


def effective(
    info: Mapping[str, object], knobs: Sequence[Knob], *, facts: StartupFacts | None = None
) -> dict[str, str]:
    """Values in force by knob name, in the form of `catalogue.canonical`: `on` or `off`, `96`, `0.9`.

    Args:
        info: The JSON of /server_info, flat (0.5.13 and older) or nested (0.5.14 and newer).
        knobs: The knobs to look for.
        facts: The start of the same process, if its log was read: a capture list that was cut is seen only there, so
            the largest size that was captured stands in for the maximum that was configured.

    Returns:
        Only what the engine reports; a flag that it reports as null counts as not reported.
    """
    values: dict[str, str] = {}
    for knob in knobs:
        for path in knob.effective:
            found = _at(info, path)
            if found is not None:
                values[knob.name] = canonical(knob, found)
                break
    if _capture_disabled(info):
        for name in ("cuda-graph-max-bs", "cuda-graph-bs"):
            values.pop(name, None)
    elif facts is not None and facts.decode_capture is not None and facts.decode_capture.sizes:
        sizes = facts.decode_capture.sizes
        if "cuda-graph-max-bs" in values:
            values["cuda-graph-max-bs"] = str(max(sizes))
        if "cuda-graph-bs" in values:
            values["cuda-graph-bs"] = ",".join(map(str, sizes))
    return values


def version(info: Mapping[str, object]) -> str | None:
    """The version that the engine reports; None where it does not."""
    found = info.get("version")
    return found if isinstance(found, str) and release(found) else None


def graph_gb(info: Mapping[str, object]) -> float | None:
    """GB of graphs as the engine counts them, the largest of its data-parallel workers."""
    states = info.get("internal_states")
    found = [
        value
        for index in range(len(states) if isinstance(states, list) else 0)
        if isinstance(value := _at(info, f"internal_states.{index}.memory_usage.graph"), int | float)
    ]
    return float(max(found)) if found else None


def _capture_disabled(info: Mapping[str, object]) -> bool:
    if _at(info, "cuda_graph_config.decode.backend") == "disabled":
        return True
    return info.get("disable_cuda_graph") is True


def _at(document: object, path: str) -> object:
    for part in path.split("."):
        if isinstance(document, Mapping):
            document = document.get(part)
        elif isinstance(document, list) and part.isdigit() and int(part) < len(document):
            document = document[int(part)]
        else:
            return None
    return document
