"""A process that carries runs until it is killed, and says what was acknowledged; see `power_cut.py`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime

from agent.domain import Approval, Change, Reading, Record, Request, Setting, Verdict
from memory.backends import open_store
from memory.store import Fact, Owner, Store


def write(location: str, name: str, acknowledgements: str) -> None:
    """Carry run after run until killed, and say of every write that returned that it is acknowledged.

    Args:
        location: Where the store is.
        name: Part of every run's id.
        acknowledgements: A file to append lines to.
    """
    sink = os.open(acknowledgements, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def acknowledge(*words: str) -> None:
        os.write(sink, f"{' '.join(words)}\n".encode())

    with open_store(location) as store:
        place = 0
        while True:
            place += 1
            carry(store, f"r-{name}-{place}", acknowledge)
            # SQLite's lock goes to whoever asks at the right moment: without a pause one writer keeps the others out.
            time.sleep(0.002)


def carry(store: Store, run: str, acknowledge: Callable[..., None]) -> None:
    """Write what a run writes."""
    now = datetime.now(UTC)
    request = Request(run=run, text="bump cuda graphs " + "x" * 2000, worker="decode", door="cli", by="ana", at=now)
    store.open_run(request, Owner("box", "boot", 1, 1))
    acknowledge("opened", run)
    readings = [Reading(metric=name, phase="baseline", value=1.5, unit="s") for name in ("start_seconds", "other")]
    store.keep_readings(run, readings)
    acknowledge("measured", run)
    store.decide(Approval(run=run, digest="digest", decision="approve", by="ana", door="cli", at=now, expires=now))
    acknowledge("decided", run)
    store.spend(run, "digest")
    acknowledge("spent", run)
    setting = Setting(knob="cuda-graph-max-bs", kind="flag", spelling="--cuda-graph-max-bs", old="32", new="96")
    kept = store.append(
        Record(
            seq=0,
            run=run,
            worker="decode",
            at=now,
            request=request,
            change=Change(worker="decode", operation="set", settings=(setting,), summary="cuda-graph-max-bs 32 -> 96"),
            readings=tuple(readings),
            verdict=Verdict(decision="kept", state="new", why="every criterion is met"),
            previous="",
        )
    )
    acknowledge("recorded", run, str(kept.seq), kept.hash)
    store.learn(Fact(worker=run, name="restart_seconds", value=1.5, unit="s", basis="measured", run=run, at=now))
    acknowledge("learned", run)
    store.end_run(run, now)
    acknowledge("ended", run)
