"""Plans that were laid out, what was decided on them, and whether that has been spent."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, select, text

from agent.domain import Approval, Plan
from memory.chain import canonical
from memory.database import Database
from memory.kept.tables import DECISIONS, PLANS


class Decisions:
    """The plans and decisions of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def offer_plan(self, plan: Plan) -> None:
        """Lay a plan out for a decision; a newer one of the same run replaces it."""
        with self._database.writing() as connection:
            connection.execute(
                text(
                    "INSERT INTO plans (run, digest, document) VALUES (:run, :digest, :document)"
                    " ON CONFLICT (run) DO UPDATE SET digest = excluded.digest, document = excluded.document"
                ),
                {"run": plan.run, "digest": plan.digest, "document": canonical(plan)},
            )

    def plan(self, run: str) -> Plan | None:
        """The plan that was last laid out for a run."""
        rows = self._database.asked(select(PLANS.c.document).where(PLANS.c.run == run))
        return self._database.parsed(Plan, rows[0].document) if rows else None

    def decide(self, approval: Approval) -> bool:
        """Write a decision; the first one for a digest stands."""
        with self._database.writing() as connection:
            written = connection.execute(
                text(
                    "INSERT INTO decisions (run, digest, decision, document, spent)"
                    " VALUES (:run, :digest, :decision, :document, 0) ON CONFLICT DO NOTHING"
                ),
                {**approval.model_dump(include={"run", "digest", "decision"}), "document": canonical(approval)},
            )
            return written.rowcount == 1

    def decision(self, run: str, digest: str) -> Approval | None:
        """The decision on this very plan."""
        rows = self._database.asked(self._on(run, digest))
        return self._database.parsed(Approval, rows[0].document) if rows else None

    def spend(self, run: str, digest: str) -> bool:
        """Mark an approval as spent; False where there is none, where it said no, and where it was spent before."""
        with self._database.writing() as connection:
            spent = connection.execute(
                text(
                    "UPDATE decisions SET spent = 1"
                    " WHERE run = :run AND digest = :digest AND decision = 'approve' AND spent = 0"
                ),
                {"run": run, "digest": digest},
            )
            return spent.rowcount == 1

    def is_spent(self, run: str, digest: str) -> bool:
        """Whether the approval of this plan has opened a transaction."""
        rows = self._database.asked(self._on(run, digest))
        return bool(rows and rows[0].spent)

    def _on(self, run: str, digest: str) -> Select[Any]:
        return select(DECISIONS).where(DECISIONS.c.run == run, DECISIONS.c.digest == digest)
