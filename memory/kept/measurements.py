"""Readings of runs, and what they say of a worker: its baselines and its noise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, select, text

from agent.domain import Noise, Reading, Record
from memory.chain import canonical
from memory.database import Database
from memory.kept.tables import BASELINES, READINGS
from memory.noise import HISTORY, METRIC, baselines_of, noise_of
from memory.store import Baseline

NO_CONCURRENCY = -1
"""Stands for "no concurrency" in keys, because a database takes no two NULLs for equal."""


class Measurements:
    """The readings and baselines of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def keep_readings(self, run: str, readings: Iterable[Reading]) -> None:
        """Keep measurements; those of the same metric, phase and concurrency replace earlier ones."""
        with self._database.writing() as connection:
            for reading in readings:
                slot = {"run": run, "metric": reading.metric, "phase": reading.phase, "concurrency": _level(reading)}
                connection.execute(
                    text(
                        "DELETE FROM readings"
                        " WHERE run = :run AND metric = :metric AND phase = :phase AND concurrency = :concurrency"
                    ),
                    slot,
                )
                connection.execute(
                    text(
                        "INSERT INTO readings (run, metric, phase, concurrency, document)"
                        " VALUES (:run, :metric, :phase, :concurrency, :document)"
                    ),
                    {**slot, "document": canonical(reading)},
                )

    def readings(self, run: str, phase: str | None = None) -> Sequence[Reading]:
        """The measurements of a run in the order in which they were taken."""
        question = select(READINGS.c.document).where(READINGS.c.run == run).order_by(READINGS.c.place)
        rows = self._database.asked(question if phase is None else question.where(READINGS.c.phase == phase))
        return tuple(self._database.parsed(Reading, row.document) for row in rows)

    def baselines(
        self,
        worker: str,
        *,
        metric: str | None = None,
        phase: str | None = None,
        concurrency: int | None = None,
        limit: int | None = None,
    ) -> Sequence[Baseline]:
        """What the records of a worker measured, the newest first."""
        given = {"metric": metric, "phase": phase, "concurrency": concurrency}
        question = select(BASELINES).where(BASELINES.c.worker == worker)
        for name, value in given.items():
            if value is not None:
                question = question.where(BASELINES.c[name] == value)
        rows = self._database.asked(question.order_by(BASELINES.c.seq.desc(), BASELINES.c.place.desc()).limit(limit))
        return tuple(
            Baseline(row.run, row.seq, self._database.parsed(Reading, row.document), row.process, row.configuration)
            for row in rows
        )

    def noise(self, worker: str, concurrency: int | None = None) -> Noise | None:
        """Noise from this worker's own history; None while there is too little of it."""
        return noise_of(self.baselines(worker, metric=METRIC, concurrency=concurrency, limit=HISTORY))


def index_baselines(connection: Connection, measured: Iterable[tuple[Record, Sequence[Reading]]]) -> None:
    """Write down what records measured, in the transaction that appends them."""
    rows = [
        {
            "seq": record.seq,
            "place": place,
            "run": record.run,
            "worker": record.worker,
            "metric": one.reading.metric,
            "phase": one.reading.phase,
            "concurrency": _level(one.reading),
            "process": one.process,
            "configuration": one.configuration,
            "document": canonical(one.reading),
        }
        for record, readings in measured
        for place, one in enumerate(baselines_of(record, readings))
    ]
    if rows:
        connection.execute(
            text(
                "INSERT INTO baselines"
                " (seq, place, run, worker, metric, phase, concurrency, process, configuration, document) VALUES"
                " (:seq, :place, :run, :worker, :metric, :phase, :concurrency, :process, :configuration, :document)"
            ),
            rows,
        )


def _level(reading: Reading) -> int:
    return NO_CONCURRENCY if reading.concurrency is None else reading.concurrency
