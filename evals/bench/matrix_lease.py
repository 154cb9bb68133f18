"""The lease's matrix: two agents at once for one worker, some of them stopped past their lease and let go again."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from agent.errors import PrudentError, RunInFlight
from evals.bench.matrix_points import Point
from evals.campaigns.bench_plan import Bench, planned
from evals.campaigns.campaign import Campaign
from evals.campaigns.host import VirtualHost
from evals.campaigns.oracle import journal

BATCHES, RACES = 20, 10
ALWAYS = 4
"""Batches that are always taken."""
TTL = 1.0
"""Seconds of a lease here."""
PATIENCE = 60.0
STOPS = ("lease", "open", "edit", "restart")
"""After which call the first agent is stopped."""


def points(_: Campaign) -> list[Point]:
    """100 races of two agents, and 100 in which one is stopped past its lease."""
    kinds = ("stopped", "race")
    return [Point("lease", f"{kinds[number % 2]} | {number}", number < ALWAYS, RACES) for number in range(BATCHES)]


def check(campaign: Campaign, point: Point) -> str | None:
    """Hold some races on one ground; what is wrong with the first bad one, or None."""
    kind, number = point.id.split(" | ")
    with campaign.ground() as ground:
        bench = planned(campaign, ground)
        bench.host.close()
        for race in range(point.cases):
            name = f"{number}-{race}"
            wrong = (_race if kind == "race" else _stopped)(bench, name, Random(name))
            if wrong is not None:
                return f"{kind} {name}: {wrong}"
            _reset(bench, name)
    return None


class _Agent:
    """An agent in a process of its own: it takes the lease, settles what is open, and carries its own change out."""

    def __init__(self, bench: Bench, run: str, *, delay: float, stop_after: str | None, ttl: float) -> None:
        self.run = run
        self._said = bench.ground.folder / "run" / f"agent-{run}"
        self._said.unlink(missing_ok=True)
        self.pid = os.fork()
        if not self.pid:
            try:
                time.sleep(delay)
                self._work(bench, stop_after, ttl)
            except BaseException as problem:
                self._say("problem", repr(problem))
            finally:
                os._exit(0)

    def _say(self, what: str, detail: Any = None) -> None:
        with self._said.open("a", encoding="utf-8") as said:
            said.write(json.dumps([what, detail]) + "\n")

    def _work(self, bench: Bench, stop_after: str | None, ttl: float) -> None:
        writer = bench.writer(VirtualHost(bench.ground, bench.host.forge))
        until = time.monotonic() + PATIENCE / 2
        while True:
            try:
                grant = writer.lease(self.run, ttl)
                break
            except RunInFlight:
                if time.monotonic() > until:
                    self._say("refused", "lease")
                    return
                time.sleep(0.02)
        self._say("done", "lease")
        if grant.unfinished is not None:
            writer.undo(grant.token, grant.unfinished.transaction)
        plan = bench.plan(self.run)
        calls: dict[str, Callable[[], Any]] = {
            "lease": lambda: None,
            "open": lambda: bench.open(writer, grant.token, plan),
            "edit": lambda: writer.step(grant.token, self.run, plan.steps[0].id),
            "restart": lambda: writer.step(grant.token, self.run, plan.steps[1].id),
            "commit": lambda: writer.commit(grant.token, self.run),
            "release": lambda: writer.release(grant.token),
        }
        for name, call in calls.items():
            try:
                call()
            except PrudentError as refusal:
                self._say("refused", [name, str(refusal)])
                return
            self._say("done", name)
            if name == stop_after:
                os.kill(os.getpid(), signal.SIGSTOP)

    @property
    def said(self) -> list[tuple[str, Any]]:
        """What it has said so far."""
        if not self._said.exists():
            return []
        lines = self._said.read_text(encoding="utf-8").split("\n")[:-1]
        return [tuple(json.loads(line)) for line in lines]

    def await_end(self) -> None:
        """Wait for its end; one that hangs is ended."""
        until = time.monotonic() + PATIENCE
        while not os.waitpid(self.pid, os.WNOHANG)[0]:
            if time.monotonic() > until:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.005)

    def await_stop(self) -> bool:
        """Wait until it has been stopped; False: it has ended."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        return os.WIFSTOPPED(status)


def _race(bench: Bench, name: str, chance: Random) -> str | None:
    """Two agents begin within a few milliseconds; one is committed, and they never work at once."""
    agents = [
        _Agent(bench, f"r-{side}-{name}", delay=chance.uniform(0.0, 0.03), stop_after=None, ttl=60.0) for side in "ab"
    ]
    for agent in agents:
        agent.await_end()
    return _serial(bench, agents)


def _stopped(bench: Bench, name: str, chance: Random) -> str | None:
    """The first is stopped past its lease, the second finishes, and the first goes on: the host refuses it."""
    at, ttl = chance.choice(STOPS), TTL
    first = _Agent(bench, f"r-a-{name}", delay=0.0, stop_after=at, ttl=ttl)
    while not first.await_stop():
        # A machine with much else to do lets the lease run out on the way: that is no race yet.
        if "run out" not in str(first.said[-1:]) or ttl > PATIENCE / 2:
            return f"the first ended before it was stopped: {first.said}"
        ttl *= 2
        _reset(bench, f"{name}-{ttl:g}")
        first = _Agent(bench, f"r-a{ttl:g}-{name}", delay=0.0, stop_after=at, ttl=ttl)
    second = _Agent(bench, f"r-b-{name}", delay=0.0, stop_after=None, ttl=60.0)
    second.await_end()
    if ("done", "commit") not in second.said:
        os.kill(first.pid, signal.SIGKILL)
        os.waitpid(first.pid, 0)
        held = {bench.old: "old", bench.new: "new"}.get(bench.ground.script.read_bytes(), "neither old nor new")
        events = [(entry["transaction"], entry["event"], entry["by"]) for entry in journal(bench.ground)[-12:]]
        return f"the second did not finish: {second.said} after {first.said}; the script is {held}; {events}"
    was = (bench.ground.script.read_bytes(), bench.ground.main(), bench.restarts(), len(journal(bench.ground)))
    os.kill(first.pid, signal.SIGCONT)
    first.await_end()
    now = (bench.ground.script.read_bytes(), bench.ground.main(), bench.restarts(), len(journal(bench.ground)))
    if first.said[-1][0] != "refused":
        return f"the first went on after {at}: {first.said}"
    if now != was:
        return f"the first wrote after {at}, when it was let go"
    return _serial(bench, [first, second])


def _serial(bench: Bench, agents: list[_Agent]) -> str | None:
    """Whether the journal shows one transaction after the other, and says of each agent what it says itself."""
    open_now, token = None, 0
    ends: dict[str, str] = {}
    for entry in journal(bench.ground):
        id_, event = entry["transaction"], entry["event"]
        if event == "opened":
            if open_now is not None:
                return f"{id_} was opened while {open_now} was open"
            if entry["token"] <= token:
                return f"{id_} was opened under token {entry['token']} after {token}"
            open_now, token = id_, entry["token"]
        elif id_ != open_now:
            return f"{event} of {id_} while {open_now} was open"
        if event in {"committed", "undone"}:
            ends[id_] = event
            open_now = None
    mine = [agent for agent in agents if ("done", "commit") in agent.said]
    for agent in agents:
        if any(what == "problem" for what, _ in agent.said):
            return f"{agent.run} broke: {agent.said}"
        if (agent in mine) != (ends.get(agent.run) == "committed"):
            return f"{agent.run} says {agent.said}, the journal {ends.get(agent.run)}"
    if len(mine) != 1:
        return f"{len(mine)} agents were committed: {[agent.said for agent in agents]}"
    held = bench.ground.script.read_bytes()
    return None if held == bench.new and bench.ground.argv() else "the script is not the committed one"


def _reset(bench: Bench, name: str) -> None:
    """Bring the ground to where the next race begins: the old script runs, and nobody holds the lease."""
    writer = bench.writer(VirtualHost(bench.ground, bench.host.forge))
    until = time.monotonic() + PATIENCE
    while True:
        try:
            token = writer.lease(f"r-reset-{name}", 60.0).token
            break
        except RunInFlight:
            if time.monotonic() > until:
                raise
            (bench.ground.host_directory / "workers" / "decode" / "lease").write_bytes(_ended(bench))
    left = writer.status()
    if left is not None and left.state == "open":
        writer.undo(token, left.transaction)
    writer.release(token)
    bench.ground.script.write_bytes(bench.old)
    bench.ground.service("restart")
    bench.host.sleep(0.0)


def _ended(bench: Bench) -> bytes:
    path: Path = bench.ground.host_directory / "workers" / "decode" / "lease"
    return json.dumps({**json.loads(path.read_bytes()), "until": 0.0}).encode()
