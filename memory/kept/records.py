"""Records: appended to one chain, read back, and verified."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sqlalchemy import Connection, not_, select, text

from agent.domain import Reading, Record
from memory.chain import NOTHING_BEFORE, Break, Link, breaks, linked
from memory.database import Database
from memory.kept.measurements import index_baselines
from memory.kept.tables import HEAD, READINGS, RECORDS
from memory.kept.traces import index_traces

_AT_ONCE = 500
"""Records that are in memory at once while the chain is verified."""
_IMPORTED = '"decision":"imported"'
"""How an import stands in the canonical text of a record; within somebody's words the quotes would be escaped."""
_LINK = select(RECORDS.c.seq, RECORDS.c.hash, RECORDS.c.document)


class Records:
    """The chain of records of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(self, record: Record) -> Record:
        """Chain a record to the last one; a second one of a run returns the first unaltered."""
        with self._database.writing() as connection:
            self._database.dialect.lock_chain(connection)
            first = connection.execute(select(RECORDS.c.document).where(RECORDS.c.run == record.run))
            kept = first.scalar_one_or_none()
            if kept is not None:
                return self._database.parsed(Record, kept)
            return self._chained(connection, (record,))[0]

    def append_all(self, records: Iterable[Record]) -> Sequence[Record]:
        """Chain many records; those of runs that have one already are left out."""
        wanted: dict[str, Record] = {}
        for record in records:
            wanted.setdefault(record.run, record)
        with self._database.writing() as connection:
            self._database.dialect.lock_chain(connection)
            names = tuple(wanted)
            for start in range(0, len(names), _AT_ONCE):
                some = names[start : start + _AT_ONCE]
                for run in connection.execute(select(RECORDS.c.run).where(RECORDS.c.run.in_(some))).scalars():
                    del wanted[run]
            return self._chained(connection, tuple(wanted.values())) if wanted else ()

    def _chained(self, connection: Connection, records: Sequence[Record]) -> Sequence[Record]:
        """Chain records that are new, in a transaction that keeps others away from the chain."""
        head = connection.execute(select(HEAD)).first()
        seq, previous = (0, NOTHING_BEFORE) if head is None else (head.seq, head.hash)
        placed: list[Record] = []
        links: list[Link] = []
        for record in records:
            one, link = linked(record, seq=seq + 1, previous=previous)
            placed.append(one)
            links.append(link)
            seq, previous = link.seq, link.hash
        connection.execute(
            text(
                "INSERT INTO records (seq, run, worker, hash, document) VALUES (:seq, :run, :worker, :hash, :document)"
            ),
            [{**link._asdict(), "run": one.run, "worker": one.worker} for one, link in zip(placed, links, strict=True)],
        )
        connection.execute(
            text(
                "INSERT INTO head (one, seq, hash) VALUES (1, :seq, :hash)"
                " ON CONFLICT (one) DO UPDATE SET seq = excluded.seq, hash = excluded.hash"
            ),
            {"seq": seq, "hash": previous},
        )
        index_traces(connection, placed, self._database.dialect.add_prose)
        index_baselines(connection, [(one, self._measured(connection, one)) for one in placed])
        connection.execute(
            text("UPDATE runs SET state = 'recorded' WHERE run = :run"), [{"run": one.run} for one in placed]
        )
        return tuple(placed)

    def _measured(self, connection: Connection, record: Record) -> Sequence[Reading]:
        question = select(READINGS.c.document).where(READINGS.c.run == record.run).order_by(READINGS.c.place)
        kept = connection.execute(question).scalars()
        return tuple(self._database.parsed(Reading, document) for document in kept) or record.readings

    def record(self, run: str) -> Record | None:
        """The record of a run."""
        rows = self._database.asked(select(RECORDS.c.document).where(RECORDS.c.run == run))
        return self._database.parsed(Record, rows[0].document) if rows else None

    def records(
        self, *, worker: str | None = None, limit: int | None = None, imported: bool = False
    ) -> Sequence[Record]:
        """Records of our own runs, the newest first; or else those that were imported."""
        told = RECORDS.c.document.contains(_IMPORTED, autoescape=True)
        question = select(RECORDS.c.document).where(told if imported else not_(told))
        question = question.order_by(RECORDS.c.seq.desc()).limit(limit)
        rows = self._database.asked(question if worker is None else question.where(RECORDS.c.worker == worker))
        return tuple(self._database.parsed(Record, row.document) for row in rows)

    def link(self, run: str) -> Link | None:
        """The record of a run as it is kept."""
        rows = self._database.asked(_LINK.where(RECORDS.c.run == run))
        return Link(rows[0].seq, rows[0].hash, rows[0].document) if rows else None

    def links(self, *, after: int = 0, limit: int | None = None) -> Sequence[Link]:
        """Records as they are kept, in the order of the chain."""
        rows = self._database.asked(_LINK.where(RECORDS.c.seq > after).order_by(RECORDS.c.seq).limit(limit))
        return tuple(Link(row.seq, row.hash, row.document) for row in rows)

    def appended(self) -> int:
        """How many records were ever appended, as the note of the chain's end says."""
        rows = self._database.asked(select(HEAD.c.seq))
        return int(rows[0].seq) if rows else 0

    def breaks(self, *, newest: int | None = None) -> Sequence[Break]:
        """Where the chain of records does not hold."""
        with self._database.reading() as connection:
            found = connection.execute(text("SELECT seq, hash FROM head")).first()
            head = None if found is None else Link(found.seq, found.hash, "")
            start = 0 if newest is None or head is None else max(0, head.seq - newest)
            before = connection.execute(text("SELECT seq, hash FROM records WHERE seq = :seq"), {"seq": start}).first()
            after = None if before is None else Link(before.seq, before.hash, "")
            links = _links(connection, start if after is not None else None)
            return tuple(breaks(links, head=head, after=after))

    def broken_at(self, *, newest: int | None = None) -> int | None:
        """The seq of the first record whose chain does not hold; None: all hold."""
        return next((one.seq for one in self.breaks(newest=newest)), None)


def _links(connection: Connection, after: int | None) -> Iterator[Link]:
    """The records behind a place, or all of them, a few at a time."""
    question = _LINK.order_by(RECORDS.c.seq)
    question = question if after is None else question.where(RECORDS.c.seq > after)
    for row in connection.execution_options(yield_per=_AT_ONCE).execute(question):
        yield Link(row.seq, row.hash, row.document)
