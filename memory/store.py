"""The promise of a store: what survives us. The host's journal is the truth about a worker; this is our copy of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from agent.domain import Approval, Noise, Plan, Reading, Record, Request


class Owner(NamedTuple):
    """The process that carries a run forward."""

    host: str
    """Its machine's name."""
    boot_id: str
    """That machine's boot id."""
    pid: int
    """Its process id."""
    start_ticks: int
    """Its start time in clock ticks: a pid that was given to somebody else is not the owner."""


class RunRow(NamedTuple):
    """A run at a glance."""

    request: Request
    """What was asked."""
    owner: Owner
    """Who carries it, or did last."""
    state: str
    """`planning`, `awaiting approval`, `executing`, `recorded`, `ended`."""
    ended: datetime | None
    """When it ended, its record written and its plan document too."""


class Store(Protocol):
    """Runs, plans, decisions, baselines and records. Every write is durable when the call returns."""

    def open_run(self, request: Request, owner: Owner) -> None:
        """Remember a new run; its state is `planning`."""

    def adopt_run(self, run: str, owner: Owner, previous: Owner) -> bool:
        """Take a run over from a dead owner by compare-and-set; False where somebody else was faster."""

    def set_state(self, run: str, state: str) -> None:
        """Say where a run stands."""

    def run(self, run: str) -> RunRow | None:
        """One run."""

    def runs(self, *, worker: str | None = None, open_only: bool = False) -> Sequence[RunRow]:
        """Runs, the newest first."""

    def offer_plan(self, plan: Plan) -> None:
        """Lay a plan out for a decision; a newer one of the same run replaces it."""

    def plan(self, run: str) -> Plan | None:
        """The plan that was last laid out for a run."""

    def decide(self, approval: Approval) -> bool:
        """Write a decision; the first one for a digest stands, and False says that there was one already."""

    def decision(self, run: str, digest: str) -> Approval | None:
        """The decision on this very plan."""

    def spend(self, run: str, digest: str) -> bool:
        """Mark an approval as spent by compare-and-set; False where it was spent before."""

    def is_spent(self, run: str, digest: str) -> bool:
        """Whether the approval of this plan has opened a transaction."""

    def keep_readings(self, run: str, readings: Iterable[Reading]) -> None:
        """Keep measurements of a run; those of the same metric, phase and concurrency replace earlier ones."""

    def readings(self, run: str, phase: str | None = None) -> Sequence[Reading]:
        """The measurements of a run in the order in which they were taken."""

    def noise(self, worker: str) -> Noise | None:
        """Boot-to-boot and run-to-run noise from this worker's own history; None while there is too little of it."""

    def append(self, record: Record) -> Record:
        """Chain a record to the last one; `seq` and `previous` of the argument are set here.

        A run has one record: a second call for it returns the first one unaltered.
        """

    def end_run(self, run: str, at: datetime) -> None:
        """End a run once everything that follows from its record is done; again, it stays as it ended.

        Until then a run whose owner dies is found by `runs(open_only=True)` and resumed, record or not.
        """

    def record(self, run: str) -> Record | None:
        """The record of a run."""

    def records(self, *, worker: str | None = None, limit: int | None = None) -> Sequence[Record]:
        """Records, the newest first."""

    def broken_at(self) -> int | None:
        """The seq of the first record whose chain does not hold; None: all hold."""

    def close(self) -> None:
        """Let go of files and connections."""
