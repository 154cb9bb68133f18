"""How long precedents take in a long history: `python -m evals.bench.precedents`, on SQLite and on PostgreSQL.

A history of 100,000 records is made up from the shipped knob catalogue: a fleet of workers, a few knobs that are
changed all the time and many that seldom are, a tenth of the changes breaking a criterion. Then changes are drawn in
the same way and precedents are asked for as a run does: the shipped incidents, the records through the store, the
couplings of the catalogue. The time is what one caller waits, reading and parsing included; the processor's time of
that caller stands beside it, because on a machine with other work the wait says more about that. The records hold what
a real one holds without its plan, about 7 KB. The longest part of a prompt that the precedents came to is printed too.

PostgreSQL is the installed one, on a cluster of its own, with its shipped settings.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from statistics import quantiles
from typing import NamedTuple

from agent.domain import Change, Evidence, Finding, Knob, Precedent, Reading, Record, Request, Setting, Verdict
from agent.reasoning.prompt import precedents_told
from evals.bench.power_cut import in_a_file, on_a_server
from memory.backends import open_store
from memory.incidents import Incident, incidents
from memory.precedents import precedents_for
from memory.store import Store
from memory.told import CHECK_OF
from tools.engines.catalogue import knobs

WORKERS = tuple(f"decode-{place}" for place in range(12))
VERSIONS = ("0.5.12", "0.5.13", "0.5.14")
BEGAN = datetime(2024, 1, 1, tzinfo=UTC)
LIMIT_MS = 50.0
"""What the issue asks for at the 95th percentile."""


class Row(NamedTuple):
    """What was measured on one database."""

    name: str
    records: int
    filled_seconds: float
    asked: int
    p50_ms: float
    p95_ms: float
    worst_ms: float
    cpu_p95_ms: float
    """Processor time of the caller."""
    found: float
    """Precedents a change, on average."""
    longest_prompt: int
    """Characters of the precedents' part of a prompt, at most."""


def main() -> int:
    """Measure both databases and print a table; status 0 where both keep the limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--asked", type=int, default=400)
    parser.add_argument("--seed", type=int, default=20261129)
    chosen = parser.parse_args()
    heads = ("", "records", "filled s", "asked", "p50 ms", "p95 ms", "worst ms", "p95 cpu ms", "found", "prompt chars")
    sys.stdout.write(f"{heads[0]:12}" + "".join(f"{head:>13}" for head in heads[1:]) + "\n")
    rows = []
    for name, place in (("SQLite", in_a_file), ("PostgreSQL", on_a_server)):
        with place() as location:
            row = measured(name, location, records=chosen.records, asked=chosen.asked, seed=chosen.seed)
        rows.append(row)
        sys.stdout.write(
            f"{row.name:12}{row.records:13}{row.filled_seconds:13.0f}{row.asked:13}{row.p50_ms:13.1f}{row.p95_ms:13.1f}"
            f"{row.worst_ms:13.1f}{row.cpu_p95_ms:13.1f}{row.found:13.1f}{row.longest_prompt:13}\n"
        )
        sys.stdout.flush()
    return 0 if all(row.p95_ms < LIMIT_MS for row in rows) else 1


def measured(name: str, location: str, *, records: int, asked: int, seed: int) -> Row:
    """Fill a store and ask it.

    Args:
        name: What the database is called in the table.
        location: Where the store is.
        records: How long the history is.
        asked: How many changes are asked about.
        seed: Seeds the history and the changes.
    """
    past = Past(random.Random(seed), knobs("sglang"))
    begun = time.perf_counter()
    with open_store(location) as store:
        made = past.records(records)
        while some := tuple(islice(made, 1000)):
            store.append_all(some)
    filled = time.perf_counter() - begun
    # Opened again, as every run does; the first question pays for whatever is not in memory yet.
    with open_store(location) as store:
        known = incidents()
        times, busy, counts, longest = list[float](), list[float](), list[int](), 0
        for _ in range(asked):
            change, version = past.change(past.chance.choice(WORKERS)), past.chance.choice(VERSIONS)
            before, before_cpu = time.perf_counter(), time.process_time()
            found = ask(store, change, version, past.catalogue, known)
            times.append((time.perf_counter() - before) * 1000)
            busy.append((time.process_time() - before_cpu) * 1000)
            counts.append(len(found))
            longest = max(longest, len(precedents_told(found)))
    cuts, mean = quantiles(times, n=100), sum(counts) / len(counts)
    p95_cpu = quantiles(busy, n=100)[94]
    return Row(name, records, filled, asked, cuts[49], cuts[94], max(times), p95_cpu, mean, longest)


def ask(
    store: Store, change: Change, version: str, catalogue: Sequence[Knob], known: Sequence[Incident]
) -> tuple[Precedent, ...]:
    """Ask for precedents as a run does."""
    return precedents_for(
        change,
        knobs=catalogue,
        history=store,
        incidents=known,
        engine="sglang",
        version=version,
        settings_in_force={"cuda-graph-max-bs": "32", "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP": "0"},
    )


class Past:
    """A made-up history of a fleet."""

    def __init__(self, chance: random.Random, catalogue: Sequence[Knob]) -> None:
        """Take the randomness and the knobs; the first ones drawn are changed most, as a harmonic series falls."""
        self.chance = chance
        self.catalogue = tuple(catalogue)
        self._order = chance.sample(self.catalogue, len(self.catalogue))
        # The knob of the seeds is the one that everybody turns.
        self._order.sort(key=lambda knob: knob.name != "cuda-graph-max-bs")
        self._weights = [1 / (place + 1) for place in range(len(self._order))]

    def change(self, worker: str) -> Change:
        """A change of a knob, or of two."""
        drawn = self.chance.choices(self._order, self._weights, k=self.chance.choice((1, 1, 1, 1, 2)))
        settings = tuple(self._setting(knob) for knob in dict.fromkeys(drawn))
        summary = ", ".join(f"{one.knob} {one.old} -> {one.new}" for one in settings)
        return Change(worker=worker, operation="set", settings=settings, summary=summary)

    def records(self, count: int) -> Iterator[Record]:
        """The records, the oldest first."""
        for place in range(count):
            yield self._record(place)

    def _setting(self, knob: Knob) -> Setting:
        values: tuple[str | None, ...] = ("8", "16", "32", "64", "96", "128", "256")
        if knob.value == "switch":
            values = ("", None) if knob.kind == "flag" else ("0", "1")
        elif knob.value == "fraction":
            values = ("0.80", "0.85", "0.90")
        elif knob.value in {"text", "list", "json"}:
            values = ("auto", "one", "two", None)
        old, new = self.chance.sample(values, 2)
        return Setting(knob=knob.name, kind=knob.kind, spelling=knob.spellings[0].text, old=old, new=new)

    def _record(self, place: int) -> Record:
        worker, run, at = self.chance.choice(WORKERS), f"r-{place}", BEGAN + timedelta(minutes=13 * place)
        change = self.change(worker)
        broken = self.chance.sample(sorted(CHECK_OF), 1) if self.chance.random() < 0.1 else []
        decision = "rolled_back" if broken else self.chance.choice(("kept", "kept", "kept", "deferred", "answered"))
        findings = [
            Finding(criterion=metric, outcome="breached" if metric in broken else "met", says="arithmetic " * 12)
            for metric in CHECK_OF
        ]
        other = self.chance.choice(self._order).name
        why = f"Every criterion was looked at; {other} was as before." if place % 50 == 0 else "As the criteria say."
        version = Evidence(id="e0", what=f"engine version {self.chance.choice(VERSIONS)}", source="server info", at=at)
        facts = [
            Evidence(id=f"e{n}", what=f"fact {n}: " + "what the log said at the start, " * 4, source="log", at=at)
            for n in range(1, 12)
        ]
        return Record(
            seq=1,
            run=run,
            worker=worker,
            at=at,
            request=Request(run=run, text=change.summary, worker=worker, door="cli", by="ana", at=at),
            change=change,
            evidence=(version, *facts),
            readings=self._readings(),
            verdict=Verdict.model_validate({"decision": decision, "state": "new", "why": why, "findings": findings}),
            previous="",
        )

    def _readings(self) -> tuple[Reading, ...]:
        return tuple(
            Reading(
                metric="throughput_tokens_per_second",
                phase=phase,
                value=level * self.chance.gauss(1, 0.03),
                values=(level, level * 1.01, level * 0.99),
                unit="tokens/s",
                n=3,
                concurrency=concurrency,
            )
            for phase in ("baseline", "candidate")
            for concurrency, level in ((1, 53.0), (8, 280.0), (32, 561.0), (64, 657.0))
        )


if __name__ == "__main__":
    sys.exit(main())
