"""What was imported is kept in the same chain and told apart, whatever the store."""

from __future__ import annotations

from typing import Any

from agent.domain import Verdict
from memory.store import Store


def test_what_was_imported_is_read_apart_from_what_was_done(store: Store, nouns: Any):
    """Our own records are found as if nothing had been imported, and words that look like the mark are only words."""
    imported = Verdict(decision="imported", state="unknown", why="said so")
    quoting = Verdict(decision="deferred", state="restored", why='somebody wrote "decision":"imported" here')
    store.append(nouns.record("r-1", verdict=quoting))
    store.append_all([nouns.record(f"i-{number}", verdict=imported) for number in range(4)])
    store.append(nouns.record("r-2"))

    assert [record.run for record in store.records(limit=2)] == ["r-2", "r-1"]
    assert [record.run for record in store.records(imported=True, limit=2)] == ["i-3", "i-2"]
    assert store.broken_at() is None
