"""The store in one SQLite file: several processes may use it, and what was acknowledged survives a power cut.

Write-ahead log, `synchronous=FULL`, every write one `BEGIN IMMEDIATE` transaction.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import StaticPool

from agent.errors import StoreUnusable
from memory.database import Database, Dialect
from memory.kept.store import SqlStore
from memory.revisions import OUR_TABLES, VERSION_TABLE, bring_up_to_date, newer, revision_of

FIRST_VERSION, VERSION = 1, 2
"""The file's `user_version`: of the tables before there were revisions, and from then on."""
APPLICATION = 0x50525544
"""`PRUD`, kept in the file's `application_id`: whose file it is."""
CHECKPOINT_TABLES = frozenset({"checkpoints", "writes", "sqlite_sequence"})
"""Tables of the graph's checkpoints, which may have come first to a file that we share."""


class SqliteStore(SqlStore):
    """Keeps the promise of `Store` in a file; safe for several threads and several processes of one machine."""

    def __init__(self, path: Path, *, patience: float = 20.0) -> None:
        """Open the file, or make it; one of an earlier version is brought up to date, and nothing in it is lost.

        Args:
            path: The database file; its folder is made where it is missing.
            patience: Seconds to wait for another process's write.

        Raises:
            StoreUnusable: it is newer than this version, damaged, locked, read-only, or something else altogether.
        """
        database = Database(_engine(path, patience), str(path), _dialect(path))
        try:
            with database.explained():
                _make(path)
            with database.writing() as connection:
                _check(database, connection, path)
        except BaseException:
            database.close()
            raise
        super().__init__(database)


def refusal_of(error: BaseException, path: Path) -> StoreUnusable | None:
    """What an error of SQLite, or of the file system under it, means for an operator; None: it is neither."""
    if isinstance(error, UnicodeDecodeError):
        # sqlite3 raises this where a damaged schema stands in the message that it would have given.
        name = "SQLITE_CORRUPT"
    elif isinstance(error, sqlite3.Error):
        name = str(getattr(error, "sqlite_errorname", ""))
    elif isinstance(error, OSError):
        return StoreUnusable(
            f"The state database {path} cannot be made: {error.strerror or error}.",
            "Check the path under [store] in prudent.toml, and the rights and the room there.",
        )
    else:
        return None
    for start, (sentence, remedy) in EXPLAINED.items():
        if name.startswith(start):
            return StoreUnusable(sentence.format(path=path), remedy.format(path=path))
    if "no such module: fts5" in str(error):
        return StoreUnusable(
            f"{path} needs SQLite's full-text search, and this Python's SQLite {sqlite3.sqlite_version} is without it.",
            "Use a Python whose sqlite3 has FTS5, or PostgreSQL ([store] url in prudent.toml).",
        )
    return StoreUnusable(
        f"The state database {path} does not work: {error} ({name or type(error).__name__}).",
        "Look at the disk and the file's rights; `prudent history` shows whether it is readable again.",
    )


EXPLAINED = {
    "SQLITE_NOTADB": (
        "{path} is not a database.",
        "Put the real file back from a backup, or name another one under [store] in prudent.toml.",
    ),
    "SQLITE_CORRUPT": (
        "{path} is damaged or cut short.",
        "Restore it from a backup, or save what is left with `sqlite3 {path} .recover`; nothing was changed.",
    ),
    "SQLITE_BUSY": (
        "{path} is locked by another process.",
        "Wait for the other Prudent to end, or find who holds the file with `fuser {path}`.",
    ),
    "SQLITE_LOCKED": (
        "{path} is locked by another process.",
        "Wait for the other Prudent to end, or find who holds the file with `fuser {path}`.",
    ),
    "SQLITE_READONLY": (
        "{path} may not be written.",
        "Give this user the right to write the file and its folder, or name another file under [store].",
    ),
    "SQLITE_PERM": ("{path} may not be written.", "Give this user the right to write the file and its folder."),
    "SQLITE_CANTOPEN": (
        "{path} cannot be opened.",
        "Check that it is a file in a folder that this user may write.",
    ),
    "SQLITE_FULL": ("There is no room left for {path}.", "Free some space on its disk and try again."),
    "SQLITE_IOERR": (
        "The disk under {path} gave an error.",
        "Check the disk (`dmesg`), and keep the file on a local disk: network file systems do not lock reliably.",
    ),
}
"""What SQLite's error names mean for an operator, and what to do, by the beginning of the name."""


def connector(path: Path, patience: float) -> Callable[[], sqlite3.Connection]:
    """How a connection to the file is made: durable, and with transactions where we say so."""

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(path, timeout=patience, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA synchronous=FULL")
        except BaseException:
            connection.close()
            raise
        return connection

    return connect


def _engine(path: Path, patience: float) -> Engine:
    engine = create_engine("sqlite://", creator=connector(path, patience), poolclass=StaticPool)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("begins", "BEGIN"))

    return engine


def _dialect(path: Path) -> Dialect:
    find = "SELECT rowid AS seq FROM prose WHERE prose MATCH {words} ORDER BY rowid DESC LIMIT :most"
    phrase = """'"' || :phrase || '"'"""
    return Dialect(
        begin_write=lambda _: None,
        lock_chain=lambda _: None,
        explain=lambda error: refusal_of(error, path),
        add_prose="INSERT INTO prose (rowid, words) VALUES (:seq, :words)",
        forget_prose="INSERT INTO prose (prose) VALUES ('delete-all')",
        find_prose=find.format(words=phrase),
        find_prose_of=find.format(words=f"""{phrase} || ' AND "' || :worker || '"'"""),
        write_options={"begins": "BEGIN IMMEDIATE"},
        one_at_a_time=True,
    )


def _make(path: Path) -> None:
    """Make the file where there is none, complete at once: an empty file is never taken for a new one.

    SQLite itself would fill an empty file with a fresh database, and a history that was cut to nothing would be gone
    without a word. So the file is built under another name and then linked to its own, which only one process can do.
    """
    log = path.with_name(f"{path.name}-wal")
    left = log.exists()
    if path.exists():
        if path.stat().st_size == 0:
            raise StoreUnusable(
                f"{path} is empty: a state database never is, so it has been cut short.",
                "Put it back from a backup, or delete the file to begin without history.",
            )
        return
    if left:
        raise StoreUnusable(
            f"{path} is gone, but its write-ahead log {log.name} is still there.",
            "Put the database back beside it, or move the log away to begin without history.",
        )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        draft.touch(mode=0o600)
        database = Database(_engine(draft, 20.0), str(draft), _dialect(path))
        try:
            with database.engine.connect() as connection:
                connection.connection.cursor().execute("PRAGMA journal_mode=WAL")
            with database.writing() as connection:
                _lay_tables(database, connection)
        finally:
            database.close()
        with suppress(FileExistsError):
            path.hardlink_to(draft)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        for name in (draft, Path(f"{draft}-wal"), Path(f"{draft}-shm")):
            name.unlink(missing_ok=True)


def _check(database: Database, connection: Connection, path: Path) -> None:
    """Refuse a file that is not ours or newer; bring an older one, or one that we share, up to date."""
    application = connection.exec_driver_sql("PRAGMA application_id").scalar()
    version = connection.exec_driver_sql("PRAGMA user_version").scalar()
    names = set(connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'").scalars())
    if application != APPLICATION:
        if application or version or names - CHECKPOINT_TABLES:
            raise StoreUnusable(
                f"{path} is a database of another program.",
                "Name another file under [store] in prudent.toml.",
            )
        _lay_tables(database, connection)
    elif version == FIRST_VERSION and names >= OUR_TABLES:
        bring_up_to_date(database, connection, revision="0001")
    elif version != VERSION or VERSION_TABLE not in names:
        raise newer(str(path), str(version))
    else:
        bring_up_to_date(database, connection, revision=revision_of(connection))


def _lay_tables(database: Database, connection: Connection) -> None:
    bring_up_to_date(database, connection, revision=None)
    connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION}")
