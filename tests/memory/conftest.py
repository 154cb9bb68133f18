"""Nouns to remember, and both stores to remember them in."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import memory
from agent.domain import (
    Approval,
    Change,
    Execution,
    Forecast,
    Knob,
    Plan,
    Process,
    Reading,
    Record,
    Request,
    Risk,
    Setting,
    Spelling,
    Traffic,
    Verdict,
)
from evals.bench.postgres_server import Server
from memory.in_memory import InMemoryStore
from memory.postgres import PostgresStore
from memory.sqlite import SqliteStore
from memory.store import Owner, Store

NOON = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


class Nouns:
    """Makes nouns with everything filled in that a test does not care about."""

    owner = Owner("box", "boot-1", 4242, 777)
    other = Owner("box", "boot-1", 4343, 888)

    def request(self, run: str = "r-1", *, worker: str = "decode", text: str = "bump cuda graphs to 96") -> Request:
        return Request(run=run, text=text, worker=worker, door="cli", by="ana", at=NOON)

    def approval(
        self, run: str = "r-1", digest: str = "d" * 64, decision: str = "approve", by: str = "ana"
    ) -> Approval:
        return Approval.model_validate(
            {
                "run": run,
                "digest": digest,
                "decision": decision,
                "by": by,
                "door": "cli",
                "at": NOON,
                "expires": NOON + timedelta(minutes=10),
            }
        )

    def change(
        self, knob: str, old: str | None, new: str | None, *, kind: str = "flag", worker: str = "decode"
    ) -> Change:
        setting = Setting.model_validate(
            {"knob": knob, "kind": kind, "spelling": f"--{knob}" if kind == "flag" else knob, "old": old, "new": new}
        )
        return Change(worker=worker, operation="set", settings=(setting,), summary=f"{knob} {old} -> {new}")

    def record(self, run: str = "r-1", *, worker: str = "decode", day: int = 0, **more: Any) -> Record:
        fields: dict[str, Any] = {
            "seq": 0,
            "run": run,
            "worker": worker,
            "at": NOON + timedelta(days=day),
            "request": self.request(run, worker=worker),
            "verdict": Verdict(decision="kept", state="new", why="every criterion is met"),
            "previous": "",
        }
        return Record(**(fields | more))

    def process(self, pid: int, *, argv: tuple[str, ...] = ("sglang", "serve")) -> Process:
        return Process(pid=pid, start_ticks=pid * 10, boot_id="boot-1", argv=argv)

    def execution(self, before: Process, after: Process | None = None, state: str = "undone") -> Execution:
        return Execution.model_validate(
            {"transaction": "t", "token": 1, "state": state, "before": before, "after": after}
        )

    def throughput(self, phase: str, concurrency: int, *values: float) -> Reading:
        return Reading.model_validate(
            {
                "metric": "throughput_tokens_per_second",
                "phase": phase,
                "value": sum(values) / len(values),
                "values": values,
                "n": len(values),
                "unit": "tokens/s",
                "concurrency": concurrency,
            }
        )

    def knob(self, name: str, *, subsystem: str, kind: str = "flag", couples: tuple[str, ...] = ()) -> Knob:
        text = f"--{name}" if kind == "flag" else name
        return Knob.model_validate(
            {
                "engine": "sglang",
                "name": name,
                "kind": kind,
                "meaning": "",
                "value": "text",
                "spellings": (Spelling(text=text),),
                "subsystem": subsystem,
                "couples": couples,
                "risk": "medium",
                "source": "the test",
            }
        )


@pytest.fixture
def nouns() -> Nouns:
    """A maker of nouns."""
    return Nouns()


@pytest.fixture(params=["in memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Each store that keeps the promise."""
    makers: dict[str, Callable[[], Store]] = {
        "in memory": InMemoryStore,
        "sqlite": lambda: SqliteStore(tmp_path / "state" / "prudent.sqlite"),
        "postgres": lambda: PostgresStore(request.getfixturevalue("postgres_url")),
    }
    made = makers[request.param]()
    yield made
    made.close()


@pytest.fixture
def postgres_url(postgres: Server) -> str:
    """An empty place on the server: a schema of its own, which is quicker made than a database."""
    name = f"s{secrets.token_hex(6)}"
    postgres.ask(f"CREATE SCHEMA {name}")
    return f"{postgres.url()}?options=-csearch_path%3D{name}"


@pytest.fixture
def plan(nouns: Nouns) -> Callable[..., Plan]:
    """A maker of plans for one change of one flag."""

    def make(run: str, *, watchdog_seconds: float) -> Plan:
        return Plan(
            run=run,
            worker="decode",
            host="box",
            made_at=NOON,
            change=nouns.change("cuda-graph-max-bs", "32", "96"),
            diff="",
            edit_proof="",
            backup_of="serve.sh",
            new_script_sha256="0" * 64,
            risk=Risk(level="low", ways=(), summary="", by="rules"),
            precedents=(),
            forecast=Forecast(rows=(), free_after_capture=None, restart_seconds=None, fits="unsure", why=""),
            steps=(),
            checks=(),
            criteria=(),
            policy="decode",
            traffic=Traffic(live_requests=0, loses="", load=""),
            watchdog_seconds=watchdog_seconds,
            approve_within_seconds=600.0,
        )

    return make


WRITER = """
import sys
from datetime import UTC, datetime
from agent.domain import Approval, Record, Request, Verdict
from memory.backends import open_store
from memory.store import Owner

name, location = sys.argv[1:3]
place, now = 0, datetime.now(UTC)
with open_store(location) as store:
    while place < int(sys.argv[3]):
        place += 1
        run = f"r-{name}-{place}"
        request = Request(run=run, text="x" * 3000, worker="decode", door="cli", by="ana", at=now)
        store.open_run(request, Owner("box", "boot", 1, 1))
        won = store.decide(Approval(run="shared", digest=str(place), decision="approve", by=name, door="cli",
                                    at=now, expires=now))
        spent = store.spend("shared", str(place))
        store.append(Record(seq=0, run=run, worker="decode", at=now, request=request,
                            verdict=Verdict(decision="kept", state="new", why="yes"), previous=""))
        print(run, int(won), int(spent), place, flush=True)
"""


@pytest.fixture
def writers() -> Callable[..., list[list[str]]]:
    """Has four processes write to one store at once, and returns what they said of each run."""

    def write(location: str, *, count: int) -> list[list[str]]:
        crowd = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, name, location, str(count)],
                cwd=Path(memory.__file__).parent.parent,
                stdout=subprocess.PIPE,
                text=True,
            )
            for name in "abcd"
        ]
        said = [process.communicate(timeout=240)[0] for process in crowd]
        assert [process.returncode for process in crowd] == [0, 0, 0, 0]
        return [line.split() for text in said for line in text.splitlines()]

    return write
