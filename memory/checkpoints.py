"""The graph's checkpoints in the store's own file; what goes wrong there is said with a remedy, as in the store."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.sqlite import SqliteSaver

from agent.errors import StoreUnusable
from memory.sqlite import refusal_of

Explain = Callable[[BaseException], StoreUnusable | None]
"""A foreign error as a refusal with a remedy; None: it is none of the database's."""


class ExplainedCheckpoints(BaseCheckpointSaver[str]):
    """Hands every call on to another saver and says what went wrong there as the store does."""

    def __init__(self, saver: BaseCheckpointSaver[str], explain: Explain) -> None:
        """Take a saver that is ready to use, and what explains its errors."""
        super().__init__(serde=saver.serde)
        self._saver = saver
        self._explain = explain

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint of a thread."""
        with explained(self._explain):
            return self._saver.get_tuple(config)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the library's own name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """The checkpoints of a thread, the newest first."""
        with explained(self._explain):
            yield from self._saver.list(config, filter=filter, before=before, limit=limit)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Keep a checkpoint."""
        with explained(self._explain):
            return self._saver.put(config, checkpoint, metadata, new_versions)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep what a step has written before its checkpoint."""
        with explained(self._explain):
            self._saver.put_writes(config, writes, task_id, task_path)

    def delete_thread(self, thread_id: str) -> None:
        """Forget a thread."""
        with explained(self._explain):
            self._saver.delete_thread(thread_id)

    def get_next_version(self, current: str | None, channel: None) -> str:
        """The version that follows on one of a channel."""
        return self._saver.get_next_version(current, channel)


@contextmanager
def explained(explain: Explain) -> Iterator[None]:
    """Say a database's errors with a remedy; every other goes on as it is."""
    try:
        yield
    except Exception as error:
        refusal = explain(error)
        if refusal is None:
            raise
        raise refusal from error


@contextmanager
def open_sqlite_checkpoints(
    path: Path, serde: SerializerProtocol, *, patience: float
) -> Iterator[BaseCheckpointSaver[str]]:
    """Checkpoints in an SQLite file.

    Args:
        path: The file; the store has made it.
        serde: What turns a state into bytes and back.
        patience: Seconds to wait for another process's write.

    Raises:
        StoreUnusable: the file cannot be used.
    """

    def explain(error: BaseException) -> StoreUnusable | None:
        return refusal_of(error, path) if isinstance(error, sqlite3.Error) else None

    with explained(explain):
        connection = sqlite3.connect(path, check_same_thread=False, timeout=patience)
    with closing(connection):
        saver = SqliteSaver(connection, serde=serde)
        with explained(explain):
            connection.execute("PRAGMA synchronous=FULL")
            saver.setup()
        yield ExplainedCheckpoints(saver, explain)
