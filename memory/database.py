"""One database behind the store: its transactions, its errors in words, and nouns read back from their text."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError
from sqlalchemy import Connection, Engine, Executable, Row
from sqlalchemy.exc import SQLAlchemyError

from agent.domain import Noun
from agent.errors import StoreUnusable

KeptNoun = TypeVar("KeptNoun", bound=Noun)


class Dialect(NamedTuple):
    """In what the two kinds of database differ."""

    begin_write: Callable[[Connection], None]
    """Called first in every transaction that writes: locks, limits, durability."""
    lock_chain: Callable[[Connection], None]
    """Let only one transaction append to the chain at a time; held until its end."""
    explain: Callable[[BaseException], StoreUnusable | None]
    """A foreign error as a refusal with a remedy; None: it is none of the database's."""
    add_prose: str
    """Statement that indexes `:words` for record `:seq`."""
    forget_prose: str
    """Statement that empties that index."""
    find_prose: str
    """Statement that finds the newest `:most` records (as `seq`) whose text holds `:phrase`."""
    find_prose_of: str
    """The same for those about `:worker`, which is a word of their text."""
    read_options: Mapping[str, Any] = {}
    """Execution options of a transaction that only reads."""
    write_options: Mapping[str, Any] = {}
    """Execution options of a transaction that writes."""
    one_at_a_time: bool = False
    """Whether threads have to take turns, because they share one connection."""


class Database:
    """Transactions on an engine; what goes wrong in them is said with a remedy."""

    def __init__(self, engine: Engine, label: str, dialect: Dialect) -> None:
        """Take an engine that is ready to use.

        Args:
            engine: The engine.
            label: How people know the database; holds no password.
            dialect: In what it differs from others.
        """
        self.engine = engine
        self.label = label
        self.dialect = dialect
        self._turn: AbstractContextManager[Any] = threading.RLock() if dialect.one_at_a_time else nullcontext()

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that writes; durable once the block is left without an exception."""
        with self._turn, self.explained(), self.engine.connect() as opened:
            connection = opened.execution_options(**self.dialect.write_options)
            with connection.begin():
                self.dialect.begin_write(connection)
                yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that only reads, all of it from one moment."""
        with self._turn, self.explained(), self.engine.connect() as opened:
            connection = opened.execution_options(**self.dialect.read_options)
            with connection.begin():
                yield connection

    def asked(self, question: Executable) -> Sequence[Row[Any]]:
        """The rows that answer a question."""
        with self.reading() as connection:
            return connection.execute(question).all()

    def parsed(self, noun: type[KeptNoun], document: str) -> KeptNoun:
        """Read a noun back from its text.

        Raises:
            StoreUnusable: this version cannot read it.
        """
        try:
            return noun.model_validate_json(document)
        except ValidationError as error:
            raise StoreUnusable(
                f"{self.label} holds a {noun.__name__.lower()} that this version cannot read: it was altered, or"
                f" written by another version ({error.error_count()} fields do not fit).",
                "See what prudent verify --all says; run the version of Prudent that wrote it, or restore a backup.",
            ) from error

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Map the errors of the database to a refusal with a remedy."""
        try:
            yield
        except (SQLAlchemyError, OSError, UnicodeDecodeError) as error:
            cause = getattr(error, "orig", None) or error
            refusal = self.dialect.explain(cause)
            if refusal is None:
                raise
            raise refusal from error

    def close(self) -> None:
        """Let go of the connections."""
        with self._turn:
            self.engine.dispose()
