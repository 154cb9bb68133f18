"""The store in one SQLite file: several processes may use it, and what was acknowledged survives a power cut.

The only file that imports sqlite3. Write-ahead log, `synchronous=FULL`, every write one `BEGIN IMMEDIATE` transaction.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from agent.domain import Approval, Noise, Noun, Plan, Reading, Record, Request
from agent.errors import StoreUnusable, UnknownRun
from memory.chain import NOTHING_BEFORE, Link, canonical, first_break, linked
from memory.noise import HISTORY, noise_of
from memory.store import Owner, RunRow

KeptNoun = TypeVar("KeptNoun", bound=Noun)

VERSION = 1
"""Version of the tables below, kept in the file's `user_version`."""
APPLICATION = 0x50525544
"""`PRUD`, kept in the file's `application_id`: whose file it is."""
CHECKPOINT_TABLES = frozenset({"checkpoints", "writes", "sqlite_sequence"})
"""Tables of the graph's checkpoints, which may have come first to a file that we share."""

TABLES = """
CREATE TABLE runs (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    run TEXT NOT NULL UNIQUE,
    worker TEXT NOT NULL,
    request TEXT NOT NULL,
    host TEXT NOT NULL, boot_id TEXT NOT NULL, pid INTEGER NOT NULL, start_ticks INTEGER NOT NULL,
    state TEXT NOT NULL,
    ended TEXT
) STRICT;
CREATE TABLE plans (run TEXT PRIMARY KEY, digest TEXT NOT NULL, document TEXT NOT NULL) STRICT;
CREATE TABLE decisions (
    run TEXT NOT NULL, digest TEXT NOT NULL, decision TEXT NOT NULL, document TEXT NOT NULL,
    spent INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run, digest)
) STRICT;
CREATE TABLE readings (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    run TEXT NOT NULL, metric TEXT NOT NULL, phase TEXT NOT NULL,
    concurrency INTEGER NOT NULL,
    document TEXT NOT NULL,
    UNIQUE (run, metric, phase, concurrency)
) STRICT;
CREATE TABLE records (
    seq INTEGER PRIMARY KEY,
    run TEXT NOT NULL UNIQUE,
    worker TEXT NOT NULL,
    hash TEXT NOT NULL,
    document TEXT NOT NULL
) STRICT;
CREATE INDEX records_of_worker ON records (worker, seq);
CREATE TABLE head (one INTEGER PRIMARY KEY CHECK (one = 1), seq INTEGER NOT NULL, hash TEXT NOT NULL) STRICT;
"""


class SqliteStore:
    """Keeps the promise of `Store` in a file; safe for several threads and several processes of one machine."""

    def __init__(self, path: Path, *, patience: float = 20.0) -> None:
        """Open the file, or make it.

        Args:
            path: The database file; its folder is made where it is missing.
            patience: Seconds to wait for another process's write.

        Raises:
            StoreUnusable: it is newer than this version, damaged, locked, read-only, or something else altogether.
        """
        self._path = path
        self._lock = threading.RLock()
        with self._explained():
            _make(path)
            self._connection = sqlite3.connect(path, timeout=patience, isolation_level=None, check_same_thread=False)
            try:
                self._connection.execute("PRAGMA synchronous=FULL")
                self._check()
            except BaseException:
                self._connection.close()
                raise

    def open_run(self, request: Request, owner: Owner) -> None:
        """Remember a new run; the very same request again changes nothing.

        Raises:
            ValueError: the id belongs to another request.
        """
        with self._writing() as cursor:
            row = cursor.execute("SELECT request FROM runs WHERE run = ?", (request.run,)).fetchone()
            if row is None:
                cursor.execute(
                    "INSERT INTO runs (run, worker, request, host, boot_id, pid, start_ticks, state)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, 'planning')",
                    (request.run, request.worker, canonical(request), *owner),
                )
            elif self._parsed(Request, row[0]) != request:
                raise ValueError(f"run {request.run!r} exists with another request")

    def adopt_run(self, run: str, owner: Owner, previous: Owner) -> bool:
        """Take a run over from a dead owner by compare-and-set."""
        with self._writing() as cursor:
            return self._changed(
                cursor,
                "UPDATE runs SET host = ?, boot_id = ?, pid = ?, start_ticks = ? WHERE run = ? AND state != 'ended'"
                " AND host = ? AND boot_id = ? AND pid = ? AND start_ticks = ?",
                (*owner, run, *previous),
            )

    def set_state(self, run: str, state: str) -> None:
        """Say where a run stands.

        Raises:
            UnknownRun: there is no such run, or it has ended.
        """
        with self._writing() as cursor:
            row = cursor.execute("SELECT state FROM runs WHERE run = ?", (run,)).fetchone()
            if row is None:
                raise UnknownRun(f"There is no run {run!r}.", "`prudent history` lists the runs.")
            if row[0] == "ended" and state != "ended":
                raise UnknownRun(f"Run {run!r} has ended and stays so.", "Ask again to open a new run.")
            cursor.execute("UPDATE runs SET state = ? WHERE run = ?", (state, run))

    def run(self, run: str) -> RunRow | None:
        """One run."""
        rows = self._asked(f"{RUN_ROW} WHERE run = ?", (run,))
        return self._run_row(rows[0]) if rows else None

    def runs(self, *, worker: str | None = None, open_only: bool = False) -> Sequence[RunRow]:
        """Runs, the newest first."""
        rows = self._asked(
            f"{RUN_ROW} WHERE (?1 IS NULL OR worker = ?1) AND NOT (?2 AND state = 'ended') ORDER BY place DESC",
            (worker, open_only),
        )
        return tuple(self._run_row(row) for row in rows)

    def offer_plan(self, plan: Plan) -> None:
        """Lay a plan out for a decision; a newer one of the same run replaces it."""
        with self._writing() as cursor:
            cursor.execute(
                "INSERT INTO plans VALUES (?, ?, ?)"
                " ON CONFLICT (run) DO UPDATE SET digest = excluded.digest, document = excluded.document",
                (plan.run, plan.digest, canonical(plan)),
            )

    def plan(self, run: str) -> Plan | None:
        """The plan that was last laid out for a run."""
        rows = self._asked("SELECT document FROM plans WHERE run = ?", (run,))
        return self._parsed(Plan, rows[0][0]) if rows else None

    def decide(self, approval: Approval) -> bool:
        """Write a decision; the first one for a digest stands."""
        with self._writing() as cursor:
            return self._changed(
                cursor,
                "INSERT INTO decisions (run, digest, decision, document) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (approval.run, approval.digest, approval.decision, canonical(approval)),
            )

    def decision(self, run: str, digest: str) -> Approval | None:
        """The decision on this very plan."""
        rows = self._asked("SELECT document FROM decisions WHERE run = ? AND digest = ?", (run, digest))
        return self._parsed(Approval, rows[0][0]) if rows else None

    def spend(self, run: str, digest: str) -> bool:
        """Mark an approval as spent; False where there is none, where it said no, and where it was spent before."""
        with self._writing() as cursor:
            return self._changed(
                cursor,
                "UPDATE decisions SET spent = 1 WHERE run = ? AND digest = ? AND decision = 'approve' AND spent = 0",
                (run, digest),
            )

    def is_spent(self, run: str, digest: str) -> bool:
        """Whether the approval of this plan has opened a transaction."""
        rows = self._asked("SELECT spent FROM decisions WHERE run = ? AND digest = ?", (run, digest))
        return bool(rows and rows[0][0])

    def keep_readings(self, run: str, readings: Iterable[Reading]) -> None:
        """Keep measurements; those of the same metric, phase and concurrency replace earlier ones."""
        with self._writing() as cursor:
            for reading in readings:
                slot = (run, reading.metric, reading.phase, NO_CONCURRENCY)
                if reading.concurrency is not None:
                    slot = (*slot[:3], reading.concurrency)
                cursor.execute(
                    "DELETE FROM readings WHERE run = ? AND metric = ? AND phase = ? AND concurrency = ?", slot
                )
                cursor.execute(
                    "INSERT INTO readings (run, metric, phase, concurrency, document) VALUES (?, ?, ?, ?, ?)",
                    (*slot, canonical(reading)),
                )

    def readings(self, run: str, phase: str | None = None) -> Sequence[Reading]:
        """The measurements of a run in the order in which they were taken."""
        rows = self._asked(
            "SELECT document FROM readings WHERE run = ?1 AND (?2 IS NULL OR phase = ?2) ORDER BY place", (run, phase)
        )
        return tuple(self._parsed(Reading, row[0]) for row in rows)

    def noise(self, worker: str) -> Noise | None:
        """Noise from this worker's own history; None while there is too little of it."""
        records = self.records(worker=worker, limit=HISTORY)
        return noise_of((record, self.readings(record.run) or record.readings) for record in records)

    def append(self, record: Record) -> Record:
        """Chain a record to the last one; a second one of a run returns the first unaltered."""
        with self._writing() as cursor:
            first = cursor.execute("SELECT document FROM records WHERE run = ?", (record.run,)).fetchone()
            if first is not None:
                return self._parsed(Record, first[0])
            head = cursor.execute("SELECT seq, hash FROM head").fetchone() or (0, NOTHING_BEFORE)
            placed, link = linked(record, seq=head[0] + 1, previous=head[1])
            cursor.execute(
                "INSERT INTO records (seq, run, worker, hash, document) VALUES (?, ?, ?, ?, ?)",
                (link.seq, placed.run, placed.worker, link.hash, link.document),
            )
            cursor.execute("INSERT OR REPLACE INTO head VALUES (1, ?, ?)", (link.seq, link.hash))
            cursor.execute("UPDATE runs SET state = 'recorded' WHERE run = ?", (placed.run,))
            return placed

    def end_run(self, run: str, at: datetime) -> None:
        """End a run; again, it stays as it ended."""
        with self._writing() as cursor:
            cursor.execute(
                "UPDATE runs SET state = 'ended', ended = ? WHERE run = ? AND ended IS NULL", (at.isoformat(), run)
            )

    def record(self, run: str) -> Record | None:
        """The record of a run."""
        rows = self._asked("SELECT document FROM records WHERE run = ?", (run,))
        return self._parsed(Record, rows[0][0]) if rows else None

    def records(self, *, worker: str | None = None, limit: int | None = None) -> Sequence[Record]:
        """Records, the newest first."""
        rows = self._asked(
            "SELECT document FROM records WHERE (?1 IS NULL OR worker = ?1) ORDER BY seq DESC LIMIT ?2",
            (worker, -1 if limit is None else limit),
        )
        return tuple(self._parsed(Record, row[0]) for row in rows)

    def broken_at(self) -> int | None:
        """The seq of the first record whose chain does not hold; None: all hold."""
        with self._lock, self._explained():
            cursor = self._connection.cursor()
            cursor.execute("BEGIN")
            try:
                head = cursor.execute("SELECT seq, hash, '' FROM head").fetchone()
                rows = cursor.execute("SELECT seq, hash, document FROM records ORDER BY seq")
                return first_break((Link(*row) for row in rows), head=Link(*head) if head else None)
            finally:
                cursor.execute("ROLLBACK")

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._connection.close()

    def _check(self) -> None:
        """Refuse a file that is not ours or newer; give a file that we share our tables."""
        with self._transaction() as cursor:
            application = cursor.execute("PRAGMA application_id").fetchone()[0]
            version = cursor.execute("PRAGMA user_version").fetchone()[0]
            if application == APPLICATION:
                if version != VERSION:
                    raise StoreUnusable(
                        f"{self._path} was written by another version of Prudent"
                        f" (its tables are version {version}, ours {VERSION}).",
                        "Run the version of Prudent that wrote it, or name another file under [store] in prudent.toml.",
                    )
                return
            names = {row[0] for row in cursor.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if application or version or names - CHECKPOINT_TABLES:
                raise StoreUnusable(
                    f"{self._path} is a database of another program.",
                    "Name another file under [store] in prudent.toml.",
                )
            _lay_tables(cursor)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Cursor]:
        cursor = self._connection.cursor()
        cursor.execute("BEGIN IMMEDIATE")
        try:
            yield cursor
            cursor.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                cursor.execute("ROLLBACK")

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Cursor]:
        with self._lock, self._explained(), self._transaction() as cursor:
            yield cursor

    def _asked(self, question: str, values: Sequence[object]) -> list[Any]:
        with self._lock, self._explained():
            return self._connection.execute(question, values).fetchall()

    def _run_row(self, row: Sequence[Any]) -> RunRow:
        request = self._parsed(Request, row[0])
        try:
            ended = None if row[6] is None else datetime.fromisoformat(row[6])
        except ValueError as error:
            raise StoreUnusable(
                f"{self._path} holds a time that is none, for run {request.run!r}: it was altered.",
                "Check the chain of records, and restore a backup.",
            ) from error
        return RunRow(request, Owner(*row[1:5]), row[5], ended)

    def _parsed(self, noun: type[KeptNoun], document: str) -> KeptNoun:
        try:
            return noun.model_validate_json(document)
        except ValidationError as error:
            raise StoreUnusable(
                f"{self._path} holds a {noun.__name__.lower()} that this version cannot read: it was altered, or"
                f" written by another version ({error.error_count()} fields do not fit).",
                "Check the chain of records; run the version of Prudent that wrote it, or restore a backup.",
            ) from error

    def _changed(self, cursor: sqlite3.Cursor, statement: str, values: Sequence[object]) -> bool:
        return cursor.execute(statement, values).rowcount == 1

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Map SQLite's own errors to a refusal with a remedy."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._refusal(error) from error
        except UnicodeDecodeError as error:
            # sqlite3 raises this where a damaged schema stands in the message that it would have given.
            sentence, remedy = EXPLAINED["SQLITE_CORRUPT"]
            raise StoreUnusable(sentence.format(path=self._path), remedy.format(path=self._path)) from error
        except OSError as error:
            raise StoreUnusable(
                f"The state database {self._path} cannot be made: {error.strerror or error}.",
                "Check the path under [store] in prudent.toml, and the rights and the room there.",
            ) from error

    def _refusal(self, error: sqlite3.Error) -> StoreUnusable:
        name = str(getattr(error, "sqlite_errorname", ""))
        for start, (sentence, remedy) in EXPLAINED.items():
            if name.startswith(start):
                return StoreUnusable(sentence.format(path=self._path), remedy.format(path=self._path))
        return StoreUnusable(
            f"The state database {self._path} does not work: {error} ({name or type(error).__name__}).",
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

RUN_ROW = "SELECT request, host, boot_id, pid, start_ticks, state, ended FROM runs"
NO_CONCURRENCY = -1
"""Stands for "no concurrency" in the key, because SQLite takes no two NULLs for equal."""


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
        connection = sqlite3.connect(draft, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            cursor = connection.cursor()
            cursor.execute("BEGIN IMMEDIATE")
            _lay_tables(cursor)
            cursor.execute("COMMIT")
        finally:
            connection.close()
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


def _lay_tables(cursor: sqlite3.Cursor) -> None:
    for statement in TABLES.split(";"):
        cursor.execute(statement)
    cursor.execute(f"PRAGMA application_id = {APPLICATION}")
    cursor.execute(f"PRAGMA user_version = {VERSION}")
