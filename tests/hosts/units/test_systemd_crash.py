"""The crash matrix of the helper where systemd keeps the worker: what the command service has not, at every point.

By default a third of the points that only systemd's guards and commands add, which third following from the day, and
one that they share with every service; PRUDENT_MATRIX=all takes every one.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime

import pytest

from agent.errors import NoAnswer

OLD_RUNS, NEW_RUNS = ("sleep", "86432"), ("sleep", "86496")
VERBS = ("open", "edit", "restart", "commit", "undo")
ALL = os.environ.get("PRUDENT_MATRIX") == "all"
OURS = ("prudent-boot", "zzz-prudent.conf", "reload", "symlink", "spawn", "command", "wait", "arm")
NEW = b"#!/bin/bash\n# decode worker\nexport LEVEL=96\nexec sleep 86496\n"
OLD = NEW.replace(b"96", b"32")


def calls(site, run: str):
    """A leased and approved transaction that nothing has happened in yet."""
    token = site.writer.lease(run, 300).token
    plan, writer = site.plan(run=run), site.writer
    return {
        "open": lambda: writer.open(token, run, plan, site.approval(plan), NEW, now=datetime.now(UTC)),
        "edit": lambda: writer.step(token, run, "edit"),
        "restart": lambda: writer.step(token, run, "restart"),
        "commit": lambda: writer.commit(token, run),
        "undo": lambda: writer.undo(token, run),
    }


def before(verb: str) -> tuple[str, ...]:
    """The verbs that have to succeed before."""
    return VERBS[: VERBS.index("commit" if verb == "undo" else verb)]


def reset(site, run: str) -> None:
    """Bring the worker to where the next attempt starts from."""
    token = site.writer.lease(run, 60).token
    execution = site.writer.status(run)
    if execution is not None and execution.state == "open":
        site.writer.undo(token, run)
    if execution is not None and execution.state == "committed":
        site.write(OLD)
        site.systemctl("restart", site.unit)
    site.writer.release(token)


def points(site, verb: str) -> list[tuple[int, str]]:
    """The points of a verb that are tried."""
    # The very first transaction makes folders that every other one finds.
    calls(site, "r-first")["open"]()
    reset(site, "r-first")
    tried, trace = calls(site, "r-traced"), f"{site.folder}/trace"
    for name in before(verb):
        tried[name]()
    with site.seams(TRACE=trace):
        tried[verb]()
    lines = [line.split(maxsplit=1) for line in site.host.read(trace).decode().splitlines()]
    reset(site, "r-traced")
    acts = [(int(number), what) for number, what in lines if ALL or not what.startswith("sync")]
    if ALL:
        return acts
    ours = [act for act in acts if any(word in act[1] for word in OURS)]
    today = datetime.now(UTC).toordinal()
    return sorted({*ours[today % 3 :: 3], acts[today % len(acts)]})


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_a_helper_killed_at_any_action_is_undone_to_the_unit_as_it_was(root_site, verb) -> None:
    """SIGKILL at a point, then undo: exact bytes, a live process that runs them, the unit as it was."""
    site, seen = root_site, 0
    for number, action in points(site, verb):
        run, where = f"r-{number}", f"killed before {action} ({number}) of {verb}"
        tried = calls(site, run)
        for name in before(verb):
            tried[name]()
        with site.seams(CRASH_AT=str(number)), pytest.raises(NoAnswer):
            tried[verb]()
        token = site.writer.lease(run, 60).token
        execution = site.writer.status(run)
        state = None if execution is None else execution.state
        if state == "open":
            state = site.writer.undo(token, run).state
        kept = state == "committed" and verb == "commit"
        assert kept or state in ((None, "undone") if verb == "open" else ("undone",)), where
        assert site.host.read(site.script) == (NEW if kept else OLD), where
        assert site.process().argv == (NEW_RUNS if kept else OLD_RUNS), where
        assert site.shows("Restart") == "always", where
        assert site.shows("NeedDaemonReload") == "no", where
        site.until(lambda: site.traces == [])
        reset(site, run)
        seen += 1
    assert seen >= 1
