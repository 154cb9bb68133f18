"""The crash matrix of the helper on the host.

A crash just before an action that only syncs leaves the same files as one just before the next action, so that by
default the points are all other actions, and every third of them where a test says so; PRUDENT_MATRIX=all takes
every action everywhere.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

import pytest

from agent.domain import Execution, Plan
from agent.errors import NoAnswer

NOW = datetime.now(UTC)
VERBS = ("open", "edit", "restart", "commit")
ALL = os.environ.get("PRUDENT_MATRIX") == "all"
OLD_RUNS, NEW_RUNS = ("sleep", "86432"), ("sleep", "86496")


class Attempt(NamedTuple):
    """One transaction on a site, its calls by name, each to be made once the ones before it have succeeded."""

    run: str
    plan: Plan
    new: bytes
    calls: dict[str, Callable[[], Execution]]


def attempt(site, run: str) -> Attempt:
    """A leased and approved transaction that nothing has happened in yet."""
    token = site.writer.lease(run, 60).token
    site.before = site.process()
    plan, new = site.plan(run=run), site.script.read_bytes().replace(b"32", b"96")
    writer, approval = site.writer, site.approval(plan)
    calls = {
        "open": lambda: writer.open(token, run, plan, approval, new, now=NOW),
        "edit": lambda: writer.step(token, run, "edit"),
        "restart": lambda: writer.step(token, run, "restart"),
        "commit": lambda: writer.commit(token, run),
        "undo": lambda: writer.undo(token, run),
    }
    return Attempt(run, plan, new, calls)


def points(site, *names: str) -> list[tuple[int, str]]:
    """The points of the last of some calls, which are left undone."""
    site.open(site.writer.lease("r-first", 60).token, "r-first", run="r-first")
    reset(site, "r-first")
    tried = attempt(site, "r-traced")
    for name in names[:-1]:
        tried.calls[name]()
    found = listed(site, tried.calls[names[-1]])
    reset(site, tried.run)
    return [(number, action) for number, action in found if ALL or action != "sync"]


def listed(site, call: Callable[[], Execution]) -> list[tuple[int, str]]:
    """The durable actions of a call, as the helper itself lists them."""
    trace = site.folder / "trace"
    with site.seams(TRACE=str(trace)):
        call()
    lines = [line.split()[:2] for line in trace.read_text().splitlines()]
    trace.unlink()
    return [(int(number), action) for number, action in lines]


def reset(site, run: str) -> None:
    """Bring the site to where the next attempt starts from, and give the lease back."""
    token = site.writer.lease(run, 60).token
    execution = site.writer.status(run)
    if execution is not None and execution.state == "open":
        site.writer.undo(token, run)
    if execution is not None and execution.state == "committed":
        site.script.write_bytes(site.script.read_bytes().replace(b"96", b"32"))
        site.serve("restart")
    site.writer.release(token)


def crashes(site, names: tuple[str, ...], *, every: int = 1) -> Iterator[tuple[Attempt, str]]:
    """Attempts in which the helper was killed, one for each point of the last of the calls."""
    for number, action in points(site, *names)[:: 1 if ALL else every]:
        tried = attempt(site, f"r-{number}")
        for name in names[:-1]:
            tried.calls[name]()
        with site.seams(CRASH_AT=str(number)), pytest.raises(NoAnswer):
            tried.calls[names[-1]]()
        yield tried, f"killed before {action} ({number}) of {names[-1]}"
        reset(site, tried.run)


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_a_helper_killed_at_any_action_is_undone_to_the_state_before(site, verb) -> None:
    """SIGKILL at every point of every verb, then undo: exact bytes, a live process that runs them, a named state."""
    old, seen = site.script.read_bytes(), 0
    for tried, where in crashes(site, VERBS[: VERBS.index(verb) + 1]):
        token = site.writer.lease(tried.run, 60).token
        execution = site.writer.status(tried.run)
        state = None if execution is None else execution.state
        if state == "open":
            state = site.writer.undo(token, tried.run).state
        kept = state == "committed" and verb == "commit"
        assert state in ((None, "undone") if verb == "open" else ("undone",)) or kept, where
        assert site.script.read_bytes() == (tried.new if kept else old), where
        assert site.process().argv == (NEW_RUNS if kept else OLD_RUNS), where
        assert verb != "open" or site.process().identity == site.before.identity, where
        assert [path.name for path in site.folder.iterdir() if "serve" in path.name] == ["serve.sh"], where
        seen += 1
    assert seen > 3


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_a_helper_killed_at_any_action_can_be_called_again_to_the_end(site, verb) -> None:
    """SIGKILL at every point of every verb, then the same calls again: committed once, and the new bytes are live."""
    at, restarts = VERBS.index(verb), 0
    for tried, where in crashes(site, VERBS[: at + 1], every=3 if verb == "open" else 1):
        token = site.writer.lease(tried.run, 60).token
        approval = site.approval(tried.plan)
        site.writer.open(token, tried.run, tried.plan, approval, tried.new, now=NOW)
        site.writer.step(token, tried.run, "edit")
        site.writer.step(token, tried.run, "restart")
        execution = site.writer.commit(token, tried.run)
        events = [entry.event for entry in execution.journal]
        assert [event for event in events if event != "begun"] == ["opened", "done", "done", "committed"], where
        assert site.script.read_bytes() == tried.new, where
        assert site.process().argv == NEW_RUNS, where
        assert (site.directory / "spent" / tried.plan.digest).exists(), where
        assert site.process().identity == execution.after.identity, where
        assert restarts in (0, site.restarts - 2), (
            f"{where}: one restart for the step, and one for the test's own reset"
        )
        restarts = site.restarts


@pytest.mark.slow
@pytest.mark.parametrize("names", [("open", "edit", "undo"), ("open", "edit", "restart", "undo")], ids=" ".join)
def test_an_undo_killed_at_any_action_ends_when_it_is_called_again(site, names) -> None:
    """SIGKILL at every point of an undo, then undo again: exact bytes and a live process that runs them."""
    old, restarts = site.script.read_bytes(), 0
    for tried, where in crashes(site, names, every=2):
        token = site.writer.lease(tried.run, 60).token
        assert site.writer.undo(token, tried.run).state == "undone", where
        assert site.script.read_bytes() == old, where
        assert site.process().argv == OLD_RUNS, where
        assert "restart" in names or site.process().identity == site.before.identity, where
        assert restarts in (0, site.restarts - 2 * names.count("restart")), f"{where}: the undo restarts once"
        restarts = site.restarts


def test_three_deaths_in_a_row_still_end_with_the_old_worker(site) -> None:
    """The helper dies after its edit, the worker restarts itself on it, the undo dies half way: old bytes run."""
    tried = attempt(site, "r-1")
    tried.calls["open"]()
    done = next(number for number, action in listed(site, tried.calls["edit"]) if action == "exchange") + 3
    reset(site, "r-1")
    tried = attempt(site, "r-2")
    tried.calls["open"]()
    with site.crash_at(done), pytest.raises(NoAnswer):
        tried.calls["edit"]()
    assert site.script.read_bytes() == tried.new
    assert [entry.event for entry in site.writer.observe().execution.journal] == ["opened", "begun"]
    site.serve("restart")
    assert site.process().argv == NEW_RUNS
    for number in range(1, 100):
        with site.crash_at(number), pytest.raises(NoAnswer):
            tried.calls["undo"]()
        if site.script.read_bytes() == site.old:
            break
    assert site.process().argv == NEW_RUNS
    assert tried.calls["undo"]().state == "undone"
    assert site.script.read_bytes() == site.old
    assert site.process().argv == OLD_RUNS


@pytest.mark.parametrize("then", ["restart", "undo"])
def test_a_restart_command_that_outlived_its_helper_is_waited_for(site, then) -> None:
    """The helper dies while the restart command works: the next call waits for it, and no second one races it."""
    tried = attempt(site, "r-1")
    for name in ("open", "edit"):
        tried.calls[name]()
    number = next(number for number, action in listed(site, tried.calls["restart"]) if action == "wait")
    reset(site, "r-1")
    tried, restarts = attempt(site, "r-2"), site.restarts
    for name in ("open", "edit"):
        tried.calls[name]()
    (site.folder / "slow").write_text("1")
    with site.crash_at(number), pytest.raises(NoAnswer):
        tried.calls["restart"]()
    token = site.writer.lease("r-2", 60).token
    if then == "restart":
        execution = site.writer.step(token, "r-2", "restart")
        assert execution.journal[-1].detail["found"] is True
        assert site.restarts == restarts + 1
    else:
        execution = site.writer.undo(token, "r-2")
        assert site.restarts == restarts + 2
    running = site.process()
    assert running.argv == (NEW_RUNS if then == "restart" else OLD_RUNS)
    assert running.identity == execution.after.identity
    time.sleep(1.2)
    assert site.process().identity == running.identity
