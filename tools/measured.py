"""What the load brings home, and the readings that every kind of it has in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from agent.domain import Phase, Reading
from tools.serve_script.secrets import mask


class Outcome(NamedTuple):
    """What the probe brought home."""

    result: Mapping[str, Any]
    """Its result; empty where there is none."""
    why_not: str | None
    """Why there is none."""


def nothing(
    metric: str, phase: Phase, unit: str, why: str, source: str, concurrency: int | None = None, detail: str = ""
) -> Reading:
    """A reading without a value, and why there is none."""
    return Reading(
        metric=metric,
        phase=phase,
        value=None,
        unit=unit,
        no_data=why,
        source=source,
        concurrency=concurrency,
        detail=detail,
    )


def failed_requests(requests: Mapping[str, Any], phase: Phase, source: str, concurrency: int | None) -> Reading:
    """The share of requests that came to an end and failed."""
    if not requests["n"]:
        return nothing("failed_requests", phase, "share", "no request came to an end", source, concurrency)
    # What a server answers can repeat the key that it was sent.
    first = f"; the first: {mask(str(requests['first']))}" if requests["bad"] else ""
    return Reading(
        metric="failed_requests",
        phase=phase,
        value=requests["bad"] / requests["n"],
        unit="share",
        n=requests["n"],
        bad=requests["bad"],
        concurrency=concurrency,
        source=source,
        detail=f"{requests['bad']} of {requests['n']} requests failed{first}",
    )
