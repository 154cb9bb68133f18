"""Where the store is kept -> the store and the graph's checkpoints, both in the same database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.base import SerializerProtocol

from memory.checkpoints import open_sqlite_checkpoints
from memory.sqlite import SqliteStore
from memory.store import Store

PATIENCE = 30.0
"""Seconds to wait for another process's write; its checkpoint of a long run may take a second on a slow disk."""


def is_server(location: str) -> bool:
    """Whether a location is a PostgreSQL URL; everything else is the path of an SQLite file."""
    return location.startswith(("postgresql://", "postgresql+psycopg://", "postgres://"))


@contextmanager
def open_store(location: str) -> Iterator[Store]:
    """Open the store, and close it again.

    Args:
        location: A PostgreSQL URL, or the path of an SQLite file.

    Raises:
        StoreUnusable: it is damaged, locked, too new, out of reach, or not to be written.
    """
    if is_server(location):
        # The driver takes a tenth of a second to import, which nobody with a file should wait for.
        from memory.postgres import PostgresStore  # noqa: PLC0415

        store: Store = PostgresStore(location)
    else:
        store = SqliteStore(Path(location))
    with closing(store):
        yield store


@contextmanager
def open_checkpoints(location: str, serde: SerializerProtocol) -> Iterator[BaseCheckpointSaver[str]]:
    """The graph's checkpoints beside the store; the store has to have been opened before.

    Args:
        location: As for `open_store`.
        serde: What turns a state into bytes and back.

    Raises:
        StoreUnusable: as for `open_store`.
    """
    if is_server(location):
        from memory.postgres_checkpoints import open_postgres_checkpoints  # noqa: PLC0415

        with open_postgres_checkpoints(location, serde, patience=PATIENCE) as saver:
            yield saver
    else:
        with open_sqlite_checkpoints(Path(location), serde, patience=PATIENCE) as saver:
            yield saver
