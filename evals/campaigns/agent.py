"""The agent as a process of its own, forked from one that has everything loaded: it asks, or resumes, to the record."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from langgraph.checkpoint.base import BaseCheckpointSaver

from agent.assemble import Assembly, assemble, open_store, owner_lives
from agent.carry import carry
from agent.domain import Approval, Plan, Record, Request
from agent.settings import load
from agent.state import Stop
from evals.campaigns.forge import Forge
from evals.campaigns.ground import Ground
from evals.campaigns.host import VirtualHost
from evals.campaigns.real import RealGround, RealWorld
from memory.store import Store
from tools.host import Host

STORIES = {
    "bump": "token pool is pretty healthy now, can you bump cuda graphs to 96?",
    "overlap": "turn the overlap scheduler on, skip that one if it's unsafe",
}
"""The two seeds, in their operators' words."""
LONGEST = 280.0
"""Seconds after which a run has hung; it takes one or two, half a minute in real time, and more on a busy machine."""


class World(Host, Protocol):
    """A host with the time that passes on it."""

    def now(self) -> float:
        """Seconds that only go forward."""

    def moment(self) -> datetime:
        """The time, with its zone."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""

    def close(self) -> None:
        """Let go of what was started."""


def enter(ground: Ground | RealGround, forge: Forge) -> World:
    """The world of a ground."""
    return RealWorld(ground.host_directory) if isinstance(ground, RealGround) else VirtualHost(ground, forge)


class Around(NamedTuple):
    """What a campaign puts between the agent and its world."""

    host: Callable[[World], Host] = lambda host: host
    """Wraps the host."""
    store: Callable[[Store], Store] = lambda store: store
    """Wraps the store."""
    checkpoints: Callable[[BaseCheckpointSaver[str]], BaseCheckpointSaver[str]] = lambda saver: saver
    """Wraps the checkpoints."""
    event: Callable[[Mapping[str, Any]], None] = lambda _: None
    """Hears what the nodes say."""


class Ended(NamedTuple):
    """How an agent's process ended."""

    status: int
    """Exit status; negative: the signal."""
    said: str
    """What it complained."""


class _Show:
    """Shows nothing, and hands events on."""

    def __init__(self, hear: Callable[[Mapping[str, Any]], None]) -> None:
        self._hear = hear

    def event(self, event: Mapping[str, Any]) -> None:
        self._hear(event)

    def card(self, plan: Plan) -> None:
        pass

    def waiting(self, plan: Plan, left: float) -> None:
        pass

    def record(self, record: Record) -> None:
        pass


class _Patience:
    """A wish to stop that is waited for in the world's time."""

    def __init__(self, host: World) -> None:
        self._host = host
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._host.sleep(timeout or 0.0)
        return self._set


def ask(ground: Ground | RealGround, forge: Forge, run: str, text: str, around: Around | None = None) -> None:
    """Carry a request to its record in this process; its plan is approved as soon as it is there."""

    def begin(parts: Assembly, at: Any) -> Any:
        request = Request(run=run, text=text, worker="decode", door="replay", by="campaign", at=at)
        parts.store.open_run(request, parts.parts.owner)
        return {"request": request}

    _carry(ground, forge, run, around or Around(), begin)


def resume(ground: Ground | RealGround, forge: Forge, run: str, around: Around | None = None) -> None:
    """Bring a run whose owner died to its record in this process; one that has ended already stays as it is.

    Raises:
        RuntimeError: its owner lives.
    """

    def begin(parts: Assembly, _: Any) -> Any:
        row = parts.store.run(run)
        if row is None or row.ended is not None:
            return None
        if owner_lives(row.owner) or not parts.store.adopt_run(run, parts.parts.owner, row.owner):
            raise RuntimeError(f"run {run} belongs to {row.owner}")
        return parts.resumption(run) or "its checkpoint"

    _carry(ground, forge, run, around or Around(), begin)


def record_of(ground: Ground | RealGround, run: str) -> Record | None:
    """The record of a run."""
    with open_store(load(ground.settings, {})) as store:
        return store.record(run)


def _carry(
    ground: Ground | RealGround, forge: Forge, run: str, around: Around, begin: Callable[[Assembly, Any], Any]
) -> None:
    world = enter(ground, forge)
    settings = load(ground.settings, {})
    with assemble(
        settings,
        "decode",
        environ={},
        clock=world.moment,
        seed=ground.nature.seed,
        host=around.host(world),
        monotonic=world.now,
        sleep=world.sleep,
    ) as made:
        store = around.store(made.store)
        stop = Stop(asked=_Patience(world))  # type: ignore[arg-type]
        parts = dataclasses.replace(made.parts, store=store, stop=stop)
        assert isinstance(made.graph.checkpointer, BaseCheckpointSaver)
        made.graph.checkpointer = around.checkpoints(made.graph.checkpointer)
        assembly = Assembly(store, parts, made.graph)

        def approve(plan: Plan) -> None:
            at = world.moment()
            until = at + timedelta(seconds=plan.approve_within_seconds)
            yes = Approval(
                run=run, digest=plan.digest, decision="approve", by="campaign", door="replay", at=at, expires=until
            )
            store.decide(yes)

        start = begin(assembly, world.moment())
        if start is not None:
            payload = None if start == "its checkpoint" else start
            carry(run, made.graph, parts, _Show(around.event), approve, payload)
    world.close()


def forked(work: Callable[[], None], *, limit: float = LONGEST, said: Path) -> Ended:
    """Do something in a child process; an exception ends it with status 70 and its traceback.

    Args:
        work: What to do.
        limit: Seconds after which the child is killed.
        said: File that takes what the child prints and complains.
    """
    child = os.fork()
    if not child:
        status = 70
        try:
            handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    until = time.monotonic() + limit
    while True:
        pid, how = os.waitpid(child, os.WNOHANG)
        if pid:
            return Ended(os.waitstatus_to_exitcode(how), said.read_text(encoding="utf-8", errors="replace"))
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return Ended(-9, f"hung for {limit:g} s\n" + said.read_text(encoding="utf-8", errors="replace"))
        time.sleep(0.003)
