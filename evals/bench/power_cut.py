"""What survives SIGKILL: `python -m evals.bench.power_cut`, on an SQLite file and on a PostgreSQL server of its own.

Four processes carry runs as an agent does: open, measure, decide, spend, record, learn, end. Each says of every write
that returned that it is acknowledged. Again and again some of them, chosen at random, are killed at a random moment
while the others write on; then everything that was acknowledged since the last time has to be in the store, and the
end of the chain has to hold. At the end the whole chain is verified and every acknowledged record compared by hash.

SIGKILL ends a process, not a machine: what the operating system was handed stays. That a write reaches the disk before
it is acknowledged rests on `synchronous=FULL` and `synchronous_commit`, which the store sets.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import NamedTuple

from evals.bench.postgres_server import postgres_server
from evals.bench.power_cut_writer import write
from memory.backends import open_store
from memory.store import Store

WRITERS = 4
PATIENCE = 120.0
"""Seconds for the writers to acknowledge something: far more than a start takes on a machine whose cores are taken."""
Ack = tuple[str, ...]
"""What was acknowledged: the verb, the run, and for a record its place and hash."""


class Outcome(NamedTuple):
    """What a campaign found."""

    cuts: int
    """Moments at which something was killed."""
    killed: int
    """Processes that were killed."""
    acknowledged: int
    """Writes that were acknowledged."""
    records: int
    """Records in the chain at the end."""
    lost: tuple[str, ...]
    """What was acknowledged and is not there, or is not what it was."""
    seconds: float
    """How long it took."""


def main() -> int:
    """Run the campaign on both databases and print a table; status 0 where nothing was lost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cuts", type=int, default=200, help="how often something is killed, on each database")
    parser.add_argument("--seed", type=int, default=20261129)
    chosen = parser.parse_args()
    sys.stdout.write(f"{'':12}{'cuts':>6}{'killed':>8}{'acknowledged':>14}{'records':>9}{'lost':>6}{'seconds':>9}\n")
    lost = 0
    for name, place in (("SQLite", in_a_file), ("PostgreSQL", on_a_server)):
        with place() as location:
            found = campaign(location, cuts=chosen.cuts, seed=chosen.seed)
        sys.stdout.write(
            f"{name:12}{found.cuts:6}{found.killed:8}{found.acknowledged:14}{found.records:9}{len(found.lost):6}"
            f"{found.seconds:9.0f}\n"
        )
        sys.stdout.writelines(f"    {one}\n" for one in found.lost[:20])
        lost += len(found.lost)
    return 0 if lost == 0 else 1


@contextmanager
def in_a_file() -> Iterator[str]:
    """The path of an SQLite file that is not there yet."""
    with tempfile.TemporaryDirectory(prefix="prudent-power-cut-") as folder:
        yield str(Path(folder) / "prudent.sqlite")


@contextmanager
def on_a_server() -> Iterator[str]:
    """The URL of an empty database."""
    with postgres_server() as server:
        yield server.fresh()


def campaign(location: str, *, cuts: int, seed: int, writers: int = WRITERS) -> Outcome:
    """Kill writers at random, and look after each time for what was lost.

    Args:
        location: Where the store is.
        cuts: How often something is killed.
        seed: Seeds the choice of victims and moments.
        writers: Processes that write at once.
    """
    begun, chance, lost, killed = time.monotonic(), random.Random(seed), list[str](), 0
    with tempfile.TemporaryDirectory(prefix="prudent-acks-") as folder, open_store(location) as store:
        crowd = _Crowd(location, Path(folder), writers)
        try:
            for _ in range(cuts):
                crowd.wait_until_all_write()
                time.sleep(chance.uniform(0.0, 0.15))
                victims = chance.sample(range(writers), chance.choice((1, 1, 2, writers)))
                crowd.kill(victims)
                killed += len(victims)
                lost += missing(store, crowd.acknowledged_since(victims))
                lost += [f"chain: {one.says}" for one in store.breaks(newest=400)]
                crowd.start(victims)
        finally:
            crowd.kill(range(writers))
        everything = crowd.acknowledged()
        lost += missing(store, everything)
        lost += [f"chain: {one.says}" for one in store.breaks()]
        newest = next(iter(store.records(limit=1)), None)
        records = 0 if newest is None else newest.seq
    return Outcome(cuts, killed, len(everything), records, tuple(dict.fromkeys(lost)), time.monotonic() - begun)


def missing(store: Store, acknowledged: list[Ack]) -> list[str]:
    """What was acknowledged and is not in the store as it was."""
    holds: dict[str, Callable[[Ack], bool]] = {
        "opened": lambda ack: store.run(ack[1]) is not None,
        "measured": lambda ack: len(store.readings(ack[1])) == 2,
        "decided": lambda ack: store.decision(ack[1], "digest") is not None,
        "spent": lambda ack: store.is_spent(ack[1], "digest"),
        "recorded": lambda ack: _is(store, *ack[1:]),
        "learned": lambda ack: any(fact.run == ack[1] for fact in store.facts(ack[1])),
        "ended": lambda ack: (row := store.run(ack[1])) is not None and row.state == "ended",
    }
    return [" ".join(ack) for ack in acknowledged if not holds[ack[0]](ack)]


def _is(store: Store, run: str, seq: str, digest: str) -> bool:
    link = store.link(run)
    return link is not None and (str(link.seq), link.hash) == (seq, digest)


class _Crowd:
    """The writers, and what they said."""

    def __init__(self, location: str, folder: Path, count: int) -> None:
        # A server that has everything imported forks the writers, so that a start costs milliseconds and not a second.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["evals.bench.power_cut_writer", "memory.postgres", "alembic.command"])
        self._location, self._folder = location, folder
        self._lives = [0] * count
        self._seen = [0] * count
        self._processes: dict[int, ForkServerProcess] = {}
        self.start(range(count))

    def start(self, which: range | list[int]) -> None:
        """Start writers; each life of one has names of its own."""
        for number in which:
            self._lives[number] += 1
            process = self._context.Process(
                target=write,
                args=(self._location, f"{number}-{self._lives[number]}", str(self._file(number))),
                daemon=True,
            )
            process.start()
            self._processes[number] = process

    def kill(self, which: range | list[int]) -> None:
        """End writers where they stand."""
        for number in which:
            self._processes[number].kill()
        for number in which:
            self._processes[number].join(PATIENCE)
            self._processes[number].close()

    def wait_until_all_write(self) -> None:
        """Wait until every living writer has acknowledged something in this life."""
        until = time.monotonic() + PATIENCE
        for number in self._processes:
            while not self._lines(number, f"-{self._lives[number]}-"):
                if time.monotonic() > until or self._processes[number].exitcode is not None:
                    raise RuntimeError(f"writer {number} does not write (status {self._processes[number].exitcode})")
                time.sleep(0.002)

    def acknowledged_since(self, which: list[int]) -> list[Ack]:
        """What these writers acknowledged since this was asked of them last."""
        found = []
        for number in which:
            lines = self._lines(number)
            found += lines[self._seen[number] :]
            self._seen[number] = len(lines)
        return found

    def acknowledged(self) -> list[Ack]:
        """Everything that was ever acknowledged."""
        return [ack for number in range(len(self._lives)) for ack in self._lines(number)]

    def _file(self, number: int) -> Path:
        return self._folder / f"acknowledged-{number}"

    def _lines(self, number: int, life: str = "") -> list[Ack]:
        try:
            text = self._file(number).read_text(encoding="ascii")
        except FileNotFoundError:
            return []
        # A line without its end was not finished, so it acknowledges nothing.
        return [tuple(line.split()) for line in text.split("\n")[:-1] if life in line]


if __name__ == "__main__":
    sys.exit(main())
