"""A store that lasts as long as its process: for tests, evals and replays."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from agent.domain import Approval, Noise, Plan, Reading, Record, Request
from agent.errors import UnknownRun
from memory.chain import NOTHING_BEFORE, Break, Link, breaks, linked
from memory.incidents import Incident
from memory.noise import HISTORY, METRIC, baselines_of, noise_of
from memory.store import Baseline, Fact, Owner, RunRow
from memory.traces import Path, Trace, is_imported, prose_of, traces_of


class InMemoryStore:
    """Keeps the promise of `Store` in dictionaries, safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._runs: dict[str, RunRow] = {}
        self._plans: dict[str, Plan] = {}
        self._decisions: dict[tuple[str, str], Approval] = {}
        self._spent: set[tuple[str, str]] = set()
        self._readings: dict[str, list[Reading]] = {}
        self._records: dict[str, Record] = {}
        self._links: list[Link] = []
        self._traces: dict[Trace, list[Record]] = defaultdict(list)
        self._prose: list[tuple[str, Record]] = []
        self._baselines: list[tuple[str, Baseline]] = []
        self._incidents: dict[str, Incident] = {}
        self._facts: dict[tuple[str, str, str], Fact] = {}

    def open_run(self, request: Request, owner: Owner) -> None:
        """Remember a new run; the very same request again changes nothing.

        Raises:
            ValueError: the id belongs to another request.
        """
        with self._lock:
            known = self._runs.get(request.run)
            if known is None:
                self._runs[request.run] = RunRow(request, owner, "planning", None)
            elif known.request != request:
                raise ValueError(f"run {request.run!r} exists with another request")

    def adopt_run(self, run: str, owner: Owner, previous: Owner) -> bool:
        """Take a run over from a dead owner by compare-and-set."""
        with self._lock:
            row = self._runs.get(run)
            if row is None or row.owner != previous or row.state == "ended":
                return False
            self._runs[run] = row._replace(owner=owner)
            return True

    def set_state(self, run: str, state: str) -> None:
        """Say where a run stands.

        Raises:
            UnknownRun: there is no such run, or it has ended.
        """
        with self._lock:
            row = self._runs.get(run)
            if row is None:
                raise UnknownRun(f"There is no run {run!r}.", "`prudent history` lists the runs.")
            if row.state == "ended" and state != "ended":
                raise UnknownRun(f"Run {run!r} has ended and stays so.", "Ask again to open a new run.")
            self._runs[run] = row._replace(state=state)

    def run(self, run: str) -> RunRow | None:
        """One run."""
        with self._lock:
            return self._runs.get(run)

    def runs(self, *, worker: str | None = None, open_only: bool = False) -> Sequence[RunRow]:
        """Runs, the newest first."""
        with self._lock:
            rows = list(reversed(self._runs.values()))
        return tuple(
            row
            for row in rows
            if (worker is None or row.request.worker == worker) and not (open_only and row.state == "ended")
        )

    def end_run(self, run: str, at: datetime) -> None:
        """End a run; again, it stays as it ended."""
        with self._lock:
            row = self._runs.get(run)
            if row is not None and row.ended is None:
                self._runs[run] = row._replace(state="ended", ended=at)

    def offer_plan(self, plan: Plan) -> None:
        """Lay a plan out for a decision; a newer one of the same run replaces it."""
        with self._lock:
            self._plans[plan.run] = plan

    def plan(self, run: str) -> Plan | None:
        """The plan that was last laid out for a run."""
        with self._lock:
            return self._plans.get(run)

    def decide(self, approval: Approval) -> bool:
        """Write a decision; the first one for a digest stands."""
        with self._lock:
            return self._decisions.setdefault((approval.run, approval.digest), approval) is approval

    def decision(self, run: str, digest: str) -> Approval | None:
        """The decision on this very plan."""
        with self._lock:
            return self._decisions.get((run, digest))

    def spend(self, run: str, digest: str) -> bool:
        """Mark an approval as spent; False where there is none, where it said no, and where it was spent before."""
        with self._lock:
            approval = self._decisions.get((run, digest))
            if approval is None or approval.decision != "approve" or (run, digest) in self._spent:
                return False
            self._spent.add((run, digest))
            return True

    def is_spent(self, run: str, digest: str) -> bool:
        """Whether the approval of this plan has opened a transaction."""
        with self._lock:
            return (run, digest) in self._spent

    def keep_readings(self, run: str, readings: Iterable[Reading]) -> None:
        """Keep measurements; those of the same metric, phase and concurrency replace earlier ones."""
        with self._lock:
            kept = self._readings.setdefault(run, [])
            for reading in readings:
                kept[:] = [old for old in kept if _slot(old) != _slot(reading)]
                kept.append(reading)

    def readings(self, run: str, phase: str | None = None) -> Sequence[Reading]:
        """The measurements of a run in the order in which they were taken."""
        with self._lock:
            return tuple(reading for reading in self._readings.get(run, ()) if phase is None or reading.phase == phase)

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
        with self._lock:
            found = [one for of, one in reversed(self._baselines) if of == worker]
        wanted = [
            one
            for one in found
            if metric in {None, one.reading.metric}
            and phase in {None, one.reading.phase}
            and concurrency in {None, one.reading.concurrency}
        ]
        return tuple(wanted[:limit])

    def noise(self, worker: str, concurrency: int | None = None) -> Noise | None:
        """Noise from this worker's own history; None while there is too little of it."""
        return noise_of(self.baselines(worker, metric=METRIC, concurrency=concurrency, limit=HISTORY))

    def append(self, record: Record) -> Record:
        """Chain a record to the last one; a second one of a run returns the first unaltered."""
        with self._lock:
            first = self._records.get(record.run)
            if first is not None:
                return first
            previous = self._links[-1].hash if self._links else NOTHING_BEFORE
            placed, link = linked(record, seq=len(self._links) + 1, previous=previous)
            self._records[placed.run] = placed
            self._links.append(link)
            for trace in traces_of(placed):
                self._traces[trace].append(placed)
            self._prose.append((f" {prose_of(placed)} ", placed))
            measured = tuple(self._readings.get(placed.run, ())) or placed.readings
            self._baselines += [(placed.worker, one) for one in baselines_of(placed, measured)]
            row = self._runs.get(record.run)
            if row is not None:
                self._runs[record.run] = row._replace(state="recorded")
            return placed

    def append_all(self, records: Iterable[Record]) -> Sequence[Record]:
        """Chain many records; those of runs that have one already are left out."""
        with self._lock:
            wanted: dict[str, Record] = {}
            for record in records:
                wanted.setdefault(record.run, record)
            return tuple(self.append(record) for run, record in wanted.items() if run not in self._records)

    def record(self, run: str) -> Record | None:
        """The record of a run."""
        with self._lock:
            return self._records.get(run)

    def records(
        self, *, worker: str | None = None, limit: int | None = None, imported: bool = False
    ) -> Sequence[Record]:
        """Records of our own runs, the newest first; or else those that were imported."""
        with self._lock:
            chosen = [
                record
                for record in reversed(self._records.values())
                if (worker is None or record.worker == worker) and is_imported(record) == imported
            ]
        return tuple(chosen if limit is None else chosen[:limit])

    def link(self, run: str) -> Link | None:
        """The record of a run as it is kept."""
        with self._lock:
            record = self._records.get(run)
            return None if record is None else self._links[record.seq - 1]

    def links(self, *, after: int = 0, limit: int | None = None) -> Sequence[Link]:
        """Records as they are kept, in the order of the chain."""
        with self._lock:
            return tuple(self._links[after : None if limit is None else after + limit])

    def akin(self, paths: Iterable[Path], most: int) -> Sequence[Record]:
        """The records on the heaviest paths."""
        weights: dict[int, int] = {}
        with self._lock:
            for path in paths:
                there = (
                    [record for prose, record in self._prose if f" {path.phrase} " in prose]
                    if path.phrase
                    else self._traces.get(path.trace, [])
                )
                for record in there:
                    if path.worker in {None, record.worker}:
                        weights[record.seq] = max(path.weight, weights.get(record.seq, 0))
            by_seq = list(self._records.values())
        best = sorted(weights, key=lambda seq: (-weights[seq], -seq))[:most]
        return tuple(by_seq[seq - 1] for seq in best)

    def last_kept(self, worker: str) -> Record | None:
        """The newest record of a worker whose change was kept."""
        return next(iter(self.akin([Path(1, Trace(aim="kept"), worker)], 1)), None)

    def taken_back_by(self, runs: Iterable[str]) -> Mapping[str, str]:
        """Of these runs those whose change was taken back, with the newest run that did it and was kept."""
        found = ((run, self.akin([Path(1, Trace(aim=f"undoes:{run}"))], 1)) for run in runs)
        return {run: records[0].run for run, records in found if records}

    def appended(self) -> int:
        """How many records were ever appended."""
        with self._lock:
            return len(self._links)

    def breaks(self, *, newest: int | None = None) -> Sequence[Break]:
        """Where the chain of records does not hold."""
        with self._lock:
            start = 0 if newest is None else max(0, len(self._links) - newest)
            after = self._links[start - 1] if start else None
            head = self._links[-1] if self._links else None
            return tuple(breaks(self._links[start:], head=head, after=after))

    def broken_at(self, *, newest: int | None = None) -> int | None:
        """The seq of the first record whose chain does not hold; None: all hold."""
        return next((one.seq for one in self.breaks(newest=newest)), None)

    def add_incident(self, incident: Incident) -> bool:
        """Keep an incident of the team's own; False where its id is taken by another one."""
        with self._lock:
            tainted = incident.model_copy(update={"tainted": True})
            return self._incidents.setdefault(incident.id, tainted) == tainted

    def incidents(self) -> Sequence[Incident]:
        """The team's own incidents in the order of their ids."""
        with self._lock:
            return tuple(self._incidents[key] for key in sorted(self._incidents))

    def learn(self, fact: Fact) -> None:
        """Keep a fact; the same run's fact of the same name replaces the earlier one."""
        with self._lock:
            key = (fact.worker, fact.name, fact.run)
            self._facts.pop(key, None)
            self._facts[key] = fact

    def facts(self, worker: str, name: str | None = None, *, limit: int | None = None) -> Sequence[Fact]:
        """What was learned about a worker, the newest first."""
        with self._lock:
            found = [fact for fact in reversed(self._facts.values()) if fact.worker == worker]
        return tuple([fact for fact in found if name in {None, fact.name}][:limit])

    def close(self) -> None:
        """Nothing to let go of."""


def _slot(reading: Reading) -> tuple[str, str, int | None]:
    return (reading.metric, reading.phase, reading.concurrency)
