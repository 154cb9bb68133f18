"""Records in the order in which things happened, and how each is told in a line."""

from __future__ import annotations

from collections.abc import Sequence

from agent.domain import Record
from memory.store import Store

MOST_IMPORTED = 2000
"""Imported records that are looked through for those that happened last: what was imported last may lie far back."""


def chronicle(store: Store, *, worker: str | None, limit: int) -> Sequence[Record]:
    """What happened last, the newest first; what was imported stands at its own day, and without one at the end.

    Args:
        store: The store.
        worker: The worker; None: all of them.
        limit: How many records at most.
    """
    ours = store.records(worker=worker, limit=limit)
    imported = store.records(worker=worker, imported=True, limit=MOST_IMPORTED)
    dated = [record for record in (*ours, *imported) if record.when is not None]
    undated = [record for record in imported if record.when is None]
    dated.sort(key=lambda record: 0.0 if record.when is None else record.when.timestamp(), reverse=True)
    return (*dated, *undated)[:limit]


def day(record: Record) -> str:
    """The day on which it happened."""
    return "not known" if record.when is None else f"{record.when:%Y-%m-%d}"


def came(record: Record) -> str:
    """What came of it."""
    return "imported, unproven" if record.origin is not None else record.verdict.decision.replace("_", " ")
