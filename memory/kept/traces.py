"""The index of records: which traces they left, and what they say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from sqlalchemy import Connection, select, text

from agent.domain import Record
from memory.database import Database
from memory.kept.tables import RECORDS, TRACES
from memory.traces import Path, Trace, prose_of, traces_of, worker_word

_AT_ONCE = 50
"""Paths in one statement: below every limit of SQLite, and enough that the number of statements does not matter."""


class Traces:
    """The index of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def akin(self, paths: Iterable[Path], most: int) -> Sequence[Record]:
        """The records on the heaviest paths; lighter paths are not walked once there are enough."""
        if most < 1:
            return ()
        weights: dict[int, int] = {}
        ordered = sorted(paths, key=lambda path: (-path.weight, path.phrase))
        with self._database.reading() as connection:
            for start in range(0, len(ordered), _AT_ONCE):
                some = ordered[start : start + _AT_ONCE]
                if sum(weight > some[0].weight for weight in weights.values()) >= most:
                    break
                for weight, seq in self._newest_on(connection, some, most):
                    weights[seq] = max(weight, weights.get(seq, 0))
            best = sorted(weights, key=lambda seq: (-weights[seq], -seq))[:most]
            question = select(RECORDS.c.seq, RECORDS.c.document).where(RECORDS.c.seq.in_(best))
            documents = {row.seq: row.document for row in connection.execute(question)} if best else {}
        return tuple(self._database.parsed(Record, documents[seq]) for seq in best if seq in documents)

    def last_kept(self, worker: str) -> Record | None:
        """The newest record of a worker whose change was kept."""
        return next(iter(self.akin([Path(1, Trace(aim="kept"), worker)], 1)), None)

    def taken_back_by(self, runs: Iterable[str]) -> Mapping[str, str]:
        """Of these runs those whose change was taken back, with the newest run that did it and was kept."""
        undone = {f"undoes:{run}": run for run in runs}
        if not undone:
            return {}
        rows = self._database.asked(
            select(TRACES.c.aim, RECORDS.c.run)
            .join_from(TRACES, RECORDS, TRACES.c.seq == RECORDS.c.seq)
            .where(TRACES.c.metric == "", TRACES.c.knob == "", TRACES.c.aim.in_(undone))
            .order_by(TRACES.c.seq)
        )
        return {undone[row.aim]: row.run for row in rows}

    def _newest_on(self, connection: Connection, paths: Sequence[Path], most: int) -> Iterator[tuple[int, int]]:
        """The newest records on each of some paths, with the weight of the path."""
        values: dict[str, object] = {"most": most}
        branches = []
        for place, path in enumerate(paths):
            if path.phrase:
                yield from ((path.weight, seq) for seq in self._speaking(connection, path, most))
                continue
            wanted = {**path.trace._asdict(), **({} if path.worker is None else {"worker": path.worker})}
            where = " AND ".join(f"{name} = :{name}{place}" for name in wanted)
            values |= {f"{name}{place}": value for name, value in wanted.items()}
            branches.append(
                # The names are our columns' and the weight is a number of ours; every value is bound.
                f"SELECT * FROM (SELECT {int(path.weight)} AS weight, seq FROM traces"  # noqa: S608
                f" WHERE {where} ORDER BY seq DESC LIMIT :most) AS t{place}"
            )
        if branches:
            rows = connection.execute(text(" UNION ALL ".join(branches)), values)
            yield from ((row.weight, row.seq) for row in rows)

    def _speaking(self, connection: Connection, path: Path, most: int) -> Sequence[int]:
        """The newest records whose text holds a path's phrase."""
        dialect, values = self._database.dialect, {"phrase": path.phrase, "most": most}
        if path.worker is None:
            return connection.execute(text(dialect.find_prose), values).scalars().all()
        values["worker"] = worker_word(path.worker)
        return connection.execute(text(dialect.find_prose_of), values).scalars().all()


def index_traces(connection: Connection, records: Iterable[Record], add_prose: str) -> None:
    """Index records in the transaction that appends them."""
    records = tuple(records)
    rows = [
        {**trace._asdict(), "worker": record.worker, "seq": record.seq}
        for record in records
        for trace in sorted(traces_of(record))
    ]
    if rows:
        connection.execute(
            text("INSERT INTO traces (metric, knob, aim, worker, seq) VALUES (:metric, :knob, :aim, :worker, :seq)"),
            rows,
        )
    said = [{"seq": record.seq, "words": words} for record in records if (words := prose_of(record))]
    if said:
        connection.execute(text(add_prose), said)
