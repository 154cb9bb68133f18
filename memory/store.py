"""The promise of a store: what survives us. The host's journal is the truth about a worker; this is our copy of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from agent.domain import Approval, Noise, Noun, Plan, Reading, Record, Request
from memory.chain import Break, Link
from memory.incidents import Incident
from memory.traces import Path


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


class Baseline(NamedTuple):
    """One measurement of a worker that a record holds, and of which boot and configuration it is."""

    run: str
    """The run that measured it."""
    seq: int
    """Place of its record."""
    reading: Reading
    """The measurement, its phase included."""
    process: str
    """Identity of the worker's process; empty: the record does not name it."""
    configuration: str
    """Hash of that process's arguments and variables: equal for equal configurations; empty: not known."""


class Fact(Noun):
    """Something learned about a worker that outlives the run and the log it was read in: an anchor for a forecast."""

    worker: str
    """The worker."""
    name: str
    """What it is, such as `start 2026-11-29 12:00:00`."""
    value: float | None = None
    """The number, where it is one."""
    unit: str = ""
    """Its unit; empty where there is none."""
    text: str = ""
    """What is more than a number, in the form of the room that reads it; empty: there is nothing more."""
    basis: str
    """How it came about, in one sentence."""
    run: str
    """The run that taught it."""
    at: datetime
    """When."""


class Store(Protocol):
    """Runs, plans, decisions, measurements, records and lessons. Every write is durable when the call returns.

    Whatever cannot be read or written raises `StoreUnusable` with a remedy.
    """

    # ------------------------------------------------------------------------------------------------ runs

    def open_run(self, request: Request, owner: Owner) -> None:
        """Remember a new run; its state is `planning`. The very same request again changes nothing.

        Raises:
            ValueError: the id belongs to another request.
        """

    def adopt_run(self, run: str, owner: Owner, previous: Owner) -> bool:
        """Take a run over from a dead owner by compare-and-set; False where somebody else was faster."""

    def set_state(self, run: str, state: str) -> None:
        """Say where a run stands.

        Raises:
            UnknownRun: there is no such run, or it has ended.
        """

    def run(self, run: str) -> RunRow | None:
        """One run."""

    def runs(self, *, worker: str | None = None, open_only: bool = False) -> Sequence[RunRow]:
        """Runs, the newest first."""

    def end_run(self, run: str, at: datetime) -> None:
        """End a run once everything that follows from its record is done; again, it stays as it ended.

        Until then a run whose owner dies is found by `runs(open_only=True)` and resumed, record or not.
        """

    # ------------------------------------------------------------------------------------ plans and decisions

    def offer_plan(self, plan: Plan) -> None:
        """Lay a plan out for a decision; a newer one of the same run replaces it."""

    def plan(self, run: str) -> Plan | None:
        """The plan that was last laid out for a run."""

    def decide(self, approval: Approval) -> bool:
        """Write a decision; the first one for a digest stands, and False says that there was one already."""

    def decision(self, run: str, digest: str) -> Approval | None:
        """The decision on this very plan."""

    def spend(self, run: str, digest: str) -> bool:
        """Mark an approval as spent by compare-and-set; False where there is none, where it said no, or was spent."""

    def is_spent(self, run: str, digest: str) -> bool:
        """Whether the approval of this plan has opened a transaction."""

    # ------------------------------------------------------------------------------------------- measurements

    def keep_readings(self, run: str, readings: Iterable[Reading]) -> None:
        """Keep measurements of a run; those of the same metric, phase and concurrency replace earlier ones."""

    def readings(self, run: str, phase: str | None = None) -> Sequence[Reading]:
        """The measurements of a run in the order in which they were taken."""

    def baselines(
        self,
        worker: str,
        *,
        metric: str | None = None,
        phase: str | None = None,
        concurrency: int | None = None,
        limit: int | None = None,
    ) -> Sequence[Baseline]:
        """What the records of a worker measured, the newest first, narrowed by whatever is given."""

    def noise(self, worker: str, concurrency: int | None = None) -> Noise | None:
        """Boot-to-boot and run-to-run noise from this worker's own history; None while there is too little of it.

        Args:
            worker: The worker.
            concurrency: Requests in flight at which the noise is wanted; None: over all that were measured.
        """

    # ------------------------------------------------------------------------------------------------ records

    def append(self, record: Record) -> Record:
        """Chain a record to the last one; `seq` and `previous` of the argument are set here.

        A run has one record: a second call for it returns the first one unaltered.
        """

    def append_all(self, records: Iterable[Record]) -> Sequence[Record]:
        """Chain many records in their order, all of them or none: a past that is imported.

        Records of runs that have one already are left out, there and of what is returned.
        """

    def record(self, run: str) -> Record | None:
        """The record of a run."""

    def records(
        self, *, worker: str | None = None, limit: int | None = None, imported: bool = False
    ) -> Sequence[Record]:
        """Records of our own runs, the newest first; or else those that were imported, the last one first."""

    def link(self, run: str) -> Link | None:
        """The record of a run as it is kept: its text and hash, which stay what they are when nouns get fields."""

    def links(self, *, after: int = 0, limit: int | None = None) -> Sequence[Link]:
        """Records as they are kept, in the order of the chain, behind the place `after`."""

    def akin(self, paths: Iterable[Path], most: int) -> Sequence[Record]:
        """The records that lie on the heaviest paths, found through the index and never by reading them all.

        Args:
            paths: Where to look, and what a record weighs that is found there.
            most: How many records to return.

        Returns:
            At most that many records by the weight of their heaviest path, the newest first where it is equal.
        """

    def last_kept(self, worker: str) -> Record | None:
        """The newest record of a worker whose change was kept."""

    def taken_back_by(self, runs: Iterable[str]) -> Mapping[str, str]:
        """Of these runs those whose change was taken back, with the newest run that did it and was kept."""

    def appended(self) -> int:
        """How many records were ever appended, as the note of the chain's end says."""

    def breaks(self, *, newest: int | None = None) -> Sequence[Break]:
        """Where the chain of records does not hold, in order; empty: all hold.

        Args:
            newest: Look at this many records from the end only; None: at all of them.
        """

    def broken_at(self, *, newest: int | None = None) -> int | None:
        """The seq of the first record whose chain does not hold; None: all hold."""

    # ------------------------------------------------------------------------------------------------ lessons

    def add_incident(self, incident: Incident) -> bool:
        """Keep an incident of the team's own; False where its id is taken by another one."""

    def incidents(self) -> Sequence[Incident]:
        """The team's own incidents in the order of their ids, marked as text from outside."""

    def learn(self, fact: Fact) -> None:
        """Keep a fact; the same run's fact of the same name replaces the earlier one."""

    def facts(self, worker: str, name: str | None = None, *, limit: int | None = None) -> Sequence[Fact]:
        """What was learned about a worker, the newest first; all of it, or as much as the limit says."""

    def close(self) -> None:
        """Let go of files and connections."""
