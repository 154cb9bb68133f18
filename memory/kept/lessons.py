"""What a team adds of its own: incidents, and facts learned about workers."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select, text

from memory.chain import canonical
from memory.database import Database
from memory.incidents import Incident
from memory.kept.tables import FACTS, INCIDENTS
from memory.store import Fact


class Lessons:
    """The incidents and facts of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add_incident(self, incident: Incident) -> bool:
        """Keep an incident of the team's own; False where its id is taken by another one."""
        document = canonical(incident.model_copy(update={"tainted": True}))
        with self._database.writing() as connection:
            connection.execute(
                text("INSERT INTO incidents (id, document) VALUES (:id, :document) ON CONFLICT DO NOTHING"),
                {"id": incident.id, "document": document},
            )
            kept = connection.execute(text("SELECT document FROM incidents WHERE id = :id"), {"id": incident.id})
            return bool(kept.scalar_one() == document)

    def incidents(self) -> Sequence[Incident]:
        """The team's own incidents in the order of their ids, marked as text from outside whatever is kept."""
        rows = self._database.asked(select(INCIDENTS.c.document))
        found = [self._database.parsed(Incident, row.document) for row in rows]
        return tuple(one.model_copy(update={"tainted": True}) for one in sorted(found, key=lambda one: one.id))

    def learn(self, fact: Fact) -> None:
        """Keep a fact; the same run's fact of the same name replaces the earlier one."""
        key = {"worker": fact.worker, "name": fact.name, "run": fact.run}
        with self._database.writing() as connection:
            connection.execute(text("DELETE FROM facts WHERE worker = :worker AND name = :name AND run = :run"), key)
            connection.execute(
                text("INSERT INTO facts (worker, name, run, document) VALUES (:worker, :name, :run, :document)"),
                {**key, "document": canonical(fact)},
            )

    def facts(self, worker: str, name: str | None = None, *, limit: int | None = None) -> Sequence[Fact]:
        """What was learned about a worker, the newest first."""
        question = select(FACTS.c.document).where(FACTS.c.worker == worker).order_by(FACTS.c.place.desc()).limit(limit)
        rows = self._database.asked(question if name is None else question.where(FACTS.c.name == name))
        return tuple(self._database.parsed(Fact, row.document) for row in rows)
