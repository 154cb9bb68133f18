"""The index of records, made anew from the records: it is derived, and no revision has to carry it over."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError
from sqlalchemy import Connection, text

from agent.domain import Reading, Record
from memory.kept.measurements import index_baselines
from memory.kept.traces import index_traces


def reindex(connection: Connection, *, add_prose: str, forget_prose: str) -> None:
    """Fill the index from the records, in the transaction that is open.

    Args:
        connection: A connection in a transaction that keeps others away.
        add_prose: Statement that indexes `:words` for record `:seq`.
        forget_prose: Statement that empties the index of texts.
    """
    for statement in ("DELETE FROM traces", "DELETE FROM baselines", forget_prose):
        connection.execute(text(statement))
    for record in _records(connection):
        index_traces(connection, (record,), add_prose)
        index_baselines(connection, ((record, _readings(connection, record)),))


def _records(connection: Connection) -> Iterator[Record]:
    """The records so far; one that cannot be read stays in its place, is not indexed, and breaks its chain."""
    seq = 0
    while True:
        row = connection.execute(
            text("SELECT seq, document FROM records WHERE seq > :seq ORDER BY seq LIMIT 1"), {"seq": seq}
        ).first()
        if row is None:
            return
        seq = row.seq
        try:
            record = Record.model_validate_json(row.document)
        except ValidationError:
            continue
        # An altered text may name another place, and the index speaks of places in the table.
        yield record.model_copy(update={"seq": seq})


def _readings(connection: Connection, record: Record) -> tuple[Reading, ...]:
    rows = connection.execute(
        text("SELECT document FROM readings WHERE run = :run ORDER BY place"), {"run": record.run}
    )
    try:
        return tuple(Reading.model_validate_json(row.document) for row in rows) or record.readings
    except ValidationError:
        return record.readings
