"""What was acknowledged survives SIGKILL; `python -m evals.bench.power_cut` does it 200 times on each database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from evals.bench.power_cut import campaign, missing
from memory.in_memory import InMemoryStore
from memory.postgres import PostgresStore


@pytest.fixture(params=["sqlite", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty place of each kind."""
    if request.param == "sqlite":
        yield str(tmp_path / "prudent.sqlite")
    else:
        yield request.getfixturevalue("postgres_url")


@pytest.mark.slow
def test_what_was_acknowledged_survives_a_kill(location: str) -> None:
    """Four writers, some of which are killed twelve times, leave every acknowledged write and a chain that holds."""
    found = campaign(location, cuts=12, seed=7)
    assert found.lost == ()
    assert found.cuts == 12
    assert found.killed > 12
    assert found.records >= 12


def test_what_is_lost_is_noticed(postgres_url: str, nouns: Any) -> None:
    """The campaign's own eye sees a write that is gone, a record that is another one, and a run that did not end."""
    for store in (InMemoryStore(), PostgresStore(postgres_url)):
        with closing(store):
            store.open_run(nouns.request("r-1"), nouns.owner)
            kept = store.append(nouns.record("r-1"))
            there = [("opened", "r-1"), ("recorded", "r-1", "1", kept.hash)]
            gone = [
                ("opened", "r-2"),
                ("measured", "r-1"),
                ("decided", "r-1"),
                ("spent", "r-1"),
                ("recorded", "r-1", "1", "0" * 64),
                ("recorded", "r-2", "1", kept.hash),
                ("learned", "r-1"),
                ("ended", "r-1"),
            ]
            assert missing(store, [*there, *gone]) == [" ".join(ack) for ack in gone]
