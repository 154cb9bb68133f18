"""The index of records: which traces they left, and what they say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

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
        best: list[int] = []
        with self._database.reading() as connection:
            ordered = sorted(paths, key=lambda path: -path.weight)
            for _, alike in groupby(ordered, key=lambda path: path.weight):
                there = self._newest_on(connection, tuple(alike), most)
                best += sorted(there - set(best), reverse=True)
                if len(best) >= most:
                    break
            question = select(RECORDS.c.seq, RECORDS.c.document).where(RECORDS.c.seq.in_(best[:most]))
            documents = {row.seq: row.document for row in connection.execute(question)}
        return tuple(self._database.parsed(Record, documents[seq]) for seq in best[:most] if seq in documents)

    def last_kept(self, worker: str) -> Record | None:
        """The newest record of a worker whose change was kept."""
        return next(iter(self.akin([Path(1, Trace(aim="kept"), worker)], 1)), None)

    def taken_back_by(self, run: str) -> str | None:
        """The run that took the change of this one back and was kept."""
        there = (TRACES.c.metric == "", TRACES.c.knob == "", TRACES.c.aim == f"undoes:{run}")
        newest = select(TRACES.c.seq).where(*there).order_by(TRACES.c.seq.desc()).limit(1).scalar_subquery()
        rows = self._database.asked(select(RECORDS.c.run).where(RECORDS.c.seq == newest))
        return str(rows[0].run) if rows else None

    def _newest_on(self, connection: Connection, paths: Sequence[Path], most: int) -> set[int]:
        """The newest records on paths of one weight."""
        found: set[int] = set()
        traced = [path for path in paths if not path.phrase]
        for start in range(0, len(traced), _AT_ONCE):
            values: dict[str, object] = {"most": most}
            branches = []
            for place, path in enumerate(traced[start : start + _AT_ONCE]):
                wanted = {**path.trace._asdict(), **({} if path.worker is None else {"worker": path.worker})}
                where = " AND ".join(f"{name} = :{name}{place}" for name in wanted)
                values |= {f"{name}{place}": value for name, value in wanted.items()}
                branches.append(
                    # The names are our columns'; every value is bound.
                    f"SELECT * FROM (SELECT seq FROM traces WHERE {where} ORDER BY seq DESC LIMIT :most) AS t{place}"  # noqa: S608
                )
            found |= set(connection.execute(text(" UNION ALL ".join(branches)), values).scalars())
        dialect = self._database.dialect
        for path in paths:
            if path.phrase:
                values = {"phrase": path.phrase, "most": most}
                question = dialect.find_prose
                if path.worker is not None:
                    question, values = dialect.find_prose_of, {**values, "worker": worker_word(path.worker)}
                found |= set(connection.execute(text(question), values).scalars())
        return found


def index_traces(connection: Connection, record: Record, add_prose: str) -> None:
    """Index a record in the transaction that appends it."""
    rows = [{**trace._asdict(), "worker": record.worker, "seq": record.seq} for trace in sorted(traces_of(record))]
    if rows:
        connection.execute(
            text("INSERT INTO traces (metric, knob, aim, worker, seq) VALUES (:metric, :knob, :aim, :worker, :seq)"),
            rows,
        )
    words = prose_of(record)
    if words:
        connection.execute(text(add_prose), {"seq": record.seq, "words": words})
