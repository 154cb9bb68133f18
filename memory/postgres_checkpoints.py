"""The graph's checkpoints in the store's own PostgreSQL database."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import psycopg_pool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from psycopg.rows import DictRow, dict_row

from agent.errors import StoreUnusable
from memory.checkpoints import ExplainedCheckpoints, explained
from memory.postgres import CHECKPOINT_LOCK, CONNECT_SECONDS, label_of, plain_url, refusal_of


@contextmanager
def open_postgres_checkpoints(
    url: str, serde: SerializerProtocol, *, patience: float
) -> Iterator[BaseCheckpointSaver[str]]:
    """Checkpoints on a server; a connection that was cut while a run waited for its approval is made anew.

    Args:
        url: The store's own URL.
        serde: What turns a state into bytes and back.
        patience: Seconds to wait for a connection, and for another process that lays the tables.

    Raises:
        StoreUnusable: the database cannot be used.
    """
    url = plain_url(url)
    label = label_of(url)

    def explain(error: BaseException) -> StoreUnusable | None:
        if isinstance(error, psycopg_pool.PoolTimeout):
            error = psycopg.OperationalError(f"no connection within {patience:g} s")
        return refusal_of(error, label)

    pool: psycopg_pool.ConnectionPool[psycopg.Connection[DictRow]] = psycopg_pool.ConnectionPool(
        url,
        kwargs={
            "autocommit": True,
            "prepare_threshold": 0,
            "row_factory": dict_row,
            "application_name": "prudent",
            "connect_timeout": CONNECT_SECONDS,
        },
        min_size=1,
        max_size=4,
        timeout=patience,
        check=psycopg_pool.ConnectionPool.check_connection,
        configure=_durable,
        open=False,
    )
    with explained(explain):
        pool.open(wait=False)
    try:
        saver = PostgresSaver(pool, serde=serde)
        with explained(explain):
            _lay_tables(pool, saver, patience)
        yield ExplainedCheckpoints(saver, explain)
    finally:
        pool.close()


def _durable(connection: psycopg.Connection[DictRow]) -> None:
    """Be durable where the server's own setting would acknowledge before the disk."""
    connection.execute(
        "SELECT set_config('synchronous_commit', 'on', false)"
        " WHERE current_setting('synchronous_commit') IN ('off', 'local')"
    )


def _lay_tables(
    pool: psycopg_pool.ConnectionPool[psycopg.Connection[DictRow]], saver: PostgresSaver, patience: float
) -> None:
    """Lay the library's tables, one process at a time.

    The lock is tried and not waited for in the server: the library builds indexes concurrently, which waits for
    every other session's snapshot, and a session that waits for a lock holds one.
    """
    until = time.monotonic() + patience
    with pool.connection() as guard:
        while not _took(guard):
            if time.monotonic() > until:
                raise psycopg.errors.LockNotAvailable("another process lays the tables of the checkpoints")
            time.sleep(0.05)
        try:
            saver.setup()
        finally:
            guard.execute("SELECT pg_advisory_unlock(%s)", (CHECKPOINT_LOCK,))


def _took(connection: psycopg.Connection[DictRow]) -> bool:
    row = connection.execute("SELECT pg_try_advisory_lock(%s) AS took", (CHECKPOINT_LOCK,)).fetchone()
    return bool(row and row["took"])
