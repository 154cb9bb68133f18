"""The units' matrix: the helper dies where a real systemd keeps the worker, at what only its guards and commands add.

Each point boots a test host of its own and takes a part of the actions of one verb: the opening, with its boot unit,
its drop-in and its watchdog's unit; both steps; the commit; the undo; and what watchdog and boot unit undo. Afterwards
either an agent settles it, or nobody does and the watchdog has to. In the end there are the exact bytes, a live process
that runs them, the unit as it was, and nothing of ours among the manager's files and units.

No part of it is taken in CI, where `tests/hosts/units/test_systemd_crash.py` takes some.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agent.errors import HelperRefused, NoAnswer
from evals.bench.matrix_points import Point
from evals.campaigns.campaign import Campaign
from evals.campaigns.units import NEW, NEW_RUNS, OLD, OLD_RUNS, UnitSite
from evals.lab import machine
from evals.lab.machine_image import cache

VERBS = ("open", "edit", "restart", "commit", "undo", "watch", "boot")
ACCOUNTS = ("root", "operator")
SETTLERS = ("agent", "watchdog")
PARTS = 4
"""Points of a verb: each takes every fourth of its actions."""
SILENCE = 6.0
"""Seconds after which the watchdog takes a change back whose agent stays away."""
PATIENCE = 90.0
"""Seconds in which it has to."""


def points(_: Campaign) -> list[Point]:
    """Every verb for a unit of the system and of a user, settled by an agent and by the watchdog, in parts."""
    return [
        Point("units", f"{account} | {verb} | {settler} | {part} of {PARTS}", False)
        for account in ACCOUNTS
        for verb in VERBS
        for settler in SETTLERS
        if settler == "agent" or verb not in {"watch", "boot"}
        for part in range(PARTS)
    ]


def check(_: Campaign, point: Point) -> str | None:
    """Die at each action of a part; what is wrong with the first bad one, or None."""
    account, verb, settler, part = point.id.split(" | ")
    why_not = machine.unable()
    if why_not is not None:
        return f"no test host can stand here: {why_not}"
    folder = Path(tempfile.mkdtemp(prefix="prudent-host-"))
    made = machine.up(folder / "host", folder=cache(os.environ))
    try:
        site = UnitSite(made, account)
        for number, action in actions(site, verb)[int(part.split()[0]) :: PARTS]:
            wrong = died(site, verb, number, settler)
            if wrong is not None:
                return f"killed before {action} ({number}): {wrong}"
        return None
    finally:
        made.down()
        shutil.rmtree(folder, ignore_errors=True)


def calls(site: UnitSite, run: str, watchdog: float = 120.0) -> dict[str, Callable[[], Any]]:
    """A leased and approved transaction that nothing has happened in yet."""
    token = site.writer.lease(run, 300).token
    plan, writer = site.plan(run=run, watchdog=watchdog), site.writer
    return {
        "open": lambda: writer.open(token, run, plan, site.approval(plan), NEW, now=datetime.now(UTC)),
        "edit": lambda: writer.step(token, run, "edit"),
        "restart": lambda: writer.step(token, run, "restart"),
        "commit": lambda: writer.commit(token, run),
        "undo": lambda: writer.undo(token, run),
        "watch": lambda: watch(site),
        "boot": lambda: watch(site, NOTIFY_SOCKET="/run/nobody"),
    }


def ahead(verb: str) -> Sequence[str]:
    """The verbs that have to succeed before."""
    return VERBS[: VERBS.index("commit" if verb in {"undo", "watch", "boot"} else verb)]


def watch(site: UnitSite, **environ: str) -> None:
    """Be the watchdog of a change whose own was killed and whose agent has been silent too long.

    Args:
        site: The site.
        environ: Variables for it; with `NOTIFY_SOCKET` it does what the boot unit does first.

    Raises:
        NoAnswer: it died.
    """
    folder = f"{site.host.directory}/workers/{site.worker}"
    site.until(lambda: site.host.read(f"{folder}/watchdog").endswith(b"\n"))
    site.host.ask("kill", "-KILL", site.host.read(f"{folder}/watchdog").decode().strip(), check=False)
    deadline = json.loads(site.host.read(f"{folder}/deadline"))
    over = json.dumps({**deadline, "until": 0.0}).encode()
    site.machine.write(f"{folder}/deadline", over, user=site.user, mode=0o600)
    (helper,) = site.host.ask("sh", "-c", 'ls "$1"/shipped/*/transaction.py', "sh", site.host.directory).split()
    words = [site.host.python, "-I", "-S", "-B", helper, "watch", site.host.directory, site.worker]
    done = site.host.run(words, timeout=120, environ=environ)
    if done.status:
        raise NoAnswer(site.host.name, words, done.status, done.stderr.decode(errors="replace"))


def reset(site: UnitSite, run: str) -> None:
    """Bring the worker to where the next attempt starts from."""
    token = site.writer.lease(run, 60).token
    execution = site.writer.status(run)
    if execution is not None and execution.state == "open":
        site.writer.undo(token, run)
    if execution is not None and execution.state == "committed":
        site.write(OLD)
        site.systemctl("restart", site.unit)
    site.writer.release(token)


def actions(site: UnitSite, verb: str) -> list[tuple[int, str]]:
    """The durable actions of a verb but those that only sync: their numbers, and what they are."""
    # The very first transaction makes folders that every other one finds.
    calls(site, "r-first")["open"]()
    reset(site, "r-first")
    tried, trace = calls(site, "r-traced"), f"{site.folder}/trace"
    for name in ahead(verb):
        tried[name]()
    with site.seams(TRACE=trace):
        tried[verb]()
    lines = [line.split(maxsplit=1) for line in site.host.read(trace).decode().splitlines()]
    reset(site, "r-traced")
    return [(int(number), what) for number, what in lines if not what.startswith("sync")]


def died(site: UnitSite, verb: str, number: int, settler: str = "agent") -> str | None:
    """Kill the helper before an action of a verb, have it settled, and look; what is wrong, or None."""
    run = f"r-{settler}-{number}"
    tried, ended = calls(site, run, SILENCE if settler == "watchdog" else 120.0), "it did not die"
    try:
        for name in ahead(verb):
            tried[name]()
        with site.seams(CRASH_AT=str(number)):
            tried[verb]()
    except NoAnswer:
        ended = ""
    except HelperRefused as refusal:
        # On a busy machine the watchdog may have come before.
        late = settler == "watchdog" and refusal.kind in {"overdue", "not_open"}
        ended = "" if late else f"refused: {refusal}"
    if ended:
        return ended
    state = _settled(site, run) if settler == "agent" else _left_alone(site, run)
    kept = state == "committed" and verb == "commit"
    if not kept and state not in ((None, "undone") if verb == "open" else ("undone",)):
        return f"it came to {state}"
    if site.host.read(site.script) != (NEW if kept else OLD):
        return "the script holds something else"
    if site.process().argv != (NEW_RUNS if kept else OLD_RUNS):
        return f"the worker runs {site.process().argv}"
    for name, wanted in (("Restart", "always"), ("NeedDaemonReload", "no")):
        if site.shows(name) != wanted:
            return f"{name} of the unit is {site.shows(name)}"
    site.until(lambda: site.traces == [])
    reset(site, run)
    return None


def _settled(site: UnitSite, run: str) -> str | None:
    """How a transaction stands once an agent has come back and taken back what was open."""
    token = site.writer.lease(run, 60).token
    execution = site.writer.status(run)
    if execution is not None and execution.state == "open":
        return site.writer.undo(token, run).state
    return None if execution is None else execution.state


def _left_alone(site: UnitSite, run: str) -> str | None:
    """How a transaction stands once nothing of it is under way any more, without anybody having asked for that."""

    def look() -> Any:
        execution = site.writer.observe().execution
        mine = execution if execution is not None and execution.transaction == run else None
        return None if mine is not None and mine.state in {"open", "undo_failed"} else (mine,)

    (execution,) = site.until(look, PATIENCE)
    return None if execution is None else str(execution.state)
