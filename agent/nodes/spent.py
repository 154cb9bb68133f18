"""What a run has spent of its budget: the time since its first change to the worker."""

from __future__ import annotations

from datetime import UTC, datetime

from agent.domain import Reading
from agent.state import Parts

FIRST_CHANGE = "first_change"
"""When a run was about to touch its worker, kept as a reading so that whoever resumes it counts from there, too."""


def note_first_change(run: str, parts: Parts) -> None:
    """Write down that the worker is about to be changed; a second time changes nothing."""
    if first_change(run, parts) is None:
        at = parts.clock().timestamp()
        reading = Reading(
            metric=FIRST_CHANGE, phase="candidate", value=at, unit="s since the epoch", n=1, source="clock"
        )
        parts.store.keep_readings(run, [reading])


def first_change(run: str, parts: Parts) -> datetime | None:
    """When that was; None: nobody wrote it down."""
    kept = [reading.value for reading in parts.store.readings(run, "candidate") if reading.metric == FIRST_CHANGE]
    return datetime.fromtimestamp(kept[0], UTC) if kept and kept[0] is not None else None
