"""Runs: who carries them, and where they stand."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, select, text

from agent.domain import Request
from agent.errors import StoreUnusable, UnknownRun
from memory.chain import canonical
from memory.database import Database
from memory.kept.tables import RUNS
from memory.store import Owner, RunRow


class Runs:
    """The runs of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open_run(self, request: Request, owner: Owner) -> None:
        """Remember a new run; the very same request again changes nothing."""
        with self._database.writing() as connection:
            opened = connection.execute(
                text(
                    "INSERT INTO runs (run, worker, request, host, boot_id, pid, start_ticks, state) VALUES"
                    " (:run, :worker, :request, :host, :boot_id, :pid, :start_ticks, 'planning') ON CONFLICT DO NOTHING"
                ),
                {"run": request.run, "worker": request.worker, "request": canonical(request), **owner._asdict()},
            )
            if opened.rowcount == 1:
                return
            known = connection.execute(text("SELECT request FROM runs WHERE run = :run"), {"run": request.run})
            if self._database.parsed(Request, known.scalar_one()) != request:
                raise ValueError(f"run {request.run!r} exists with another request")

    def adopt_run(self, run: str, owner: Owner, previous: Owner) -> bool:
        """Take a run over from a dead owner by compare-and-set."""
        with self._database.writing() as connection:
            adopted = connection.execute(
                text(
                    "UPDATE runs SET host = :host, boot_id = :boot_id, pid = :pid, start_ticks = :start_ticks"
                    " WHERE run = :run AND state != 'ended' AND host = :old_host AND boot_id = :old_boot_id"
                    " AND pid = :old_pid AND start_ticks = :old_start_ticks"
                ),
                {"run": run, **owner._asdict(), **{f"old_{name}": value for name, value in previous._asdict().items()}},
            )
            return adopted.rowcount == 1

    def set_state(self, run: str, state: str) -> None:
        """Say where a run stands."""
        with self._database.writing() as connection:
            moved = connection.execute(
                text("UPDATE runs SET state = :state WHERE run = :run AND (state != 'ended' OR :state = 'ended')"),
                {"run": run, "state": state},
            )
            if moved.rowcount == 1:
                return
            if connection.execute(text("SELECT 1 FROM runs WHERE run = :run"), {"run": run}).first() is None:
                raise UnknownRun(f"There is no run {run!r}.", "`prudent history` lists the runs.")
            raise UnknownRun(f"Run {run!r} has ended and stays so.", "Ask again to open a new run.")

    def run(self, run: str) -> RunRow | None:
        """One run."""
        rows = self._database.asked(select(RUNS).where(RUNS.c.run == run))
        return self._row(rows[0]) if rows else None

    def runs(self, *, worker: str | None = None, open_only: bool = False) -> Sequence[RunRow]:
        """Runs, the newest first."""
        question = select(RUNS).order_by(RUNS.c.place.desc())
        if worker is not None:
            question = question.where(RUNS.c.worker == worker)
        if open_only:
            question = question.where(RUNS.c.state != "ended")
        return tuple(map(self._row, self._database.asked(question)))

    def end_run(self, run: str, at: datetime) -> None:
        """End a run; again, it stays as it ended."""
        with self._database.writing() as connection:
            connection.execute(
                text("UPDATE runs SET state = 'ended', ended = :at WHERE run = :run AND ended IS NULL"),
                {"run": run, "at": at.isoformat()},
            )

    def _row(self, row: Row[Any]) -> RunRow:
        request = self._database.parsed(Request, row.request)
        try:
            ended = None if row.ended is None else datetime.fromisoformat(row.ended)
        except ValueError as error:
            raise StoreUnusable(
                f"{self._database.label} holds a time that is none, for run {request.run!r}: it was altered.",
                "See what prudent verify --all says, and restore a backup.",
            ) from error
        return RunRow(request, Owner(row.host, row.boot_id, row.pid, row.start_ticks), row.state, ended)
