"""Back to the old content and forth again within one transaction, as a pair of boots is measured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from agent.domain import HostState, Plan, Step
from agent.errors import HelperRefused, NoAnswer, StaleState

NOW = datetime.now(UTC)
OLD_RUNS, NEW_RUNS = ("sleep", "86432"), ("sleep", "86496")
FIRST = ("edit", "restart")
PAIR = ("back", "old", "forth", "new")
EVERY = 1 if os.environ.get("PRUDENT_MATRIX") == "all" else 5
"""Each so many actions the helper is killed; with 1 it takes three minutes."""


def _pair(plan: Plan) -> tuple[Step, ...]:
    """The steps of a pair after those of a plan."""
    edit, restart = plan.steps
    old = HostState(script_sha256=edit.before.script_sha256)
    new = HostState(script_sha256=edit.after.script_sha256)
    ways = (
        ("back", "restore_script", new, old),
        ("old", "restart", old, old),
        ("forth", "edit_script", old, new),
        ("new", "restart", new, new),
    )
    return (
        edit,
        restart,
        *(
            Step(id=id_, action=action, what=id_, before=before, after=after, undo="", optional=True)
            for id_, action, before, after in ways
        ),
    )


def _opened(site, run: str = "r-1", steps: Callable[[Plan], tuple[Step, ...]] = _pair) -> int:
    """A lease and an open transaction whose plan has a pair; its token."""
    token = site.writer.lease(run, 60).token
    site.before = site.process()
    plan = site.plan(run=run)
    plan = plan.model_copy(update={"steps": steps(plan)})
    new = site.script.read_bytes().replace(b"32", b"96")
    site.writer.open(token, run, plan, site.approval(plan), new, now=NOW)
    return token


def test_the_old_setting_and_the_change_are_started_in_turn_and_the_change_is_kept(site) -> None:
    """Each start runs the content that lies there, every process is a new one, and the last one is what is kept."""
    token, ran = _opened(site), []
    for step in (*FIRST, *PAIR):
        execution = site.writer.step(token, "r-1", step)
        if step not in {"edit", "back", "forth"}:
            ran.append(site.process().argv)
            assert execution.after.identity == site.process().identity
    assert ran == [NEW_RUNS, OLD_RUNS, NEW_RUNS]
    assert site.restarts == 4
    assert site.writer.commit(token, "r-1").state == "committed"
    assert b"96" in site.script.read_bytes()
    assert [path.name for path in site.folder.iterdir() if "serve" in path.name] == ["serve.sh"]


@pytest.mark.parametrize("taken", range(1, 4))
def test_nothing_is_kept_in_the_middle_of_a_pair(site, taken: int) -> None:
    """On the old content, or on the new one that no process has read yet, a commit is refused and an undo restores."""
    old = site.script.read_bytes()
    token = _opened(site)
    for step in (*FIRST, *PAIR[:taken]):
        site.writer.step(token, "r-1", step)
    with pytest.raises(HelperRefused) as refused:
        site.writer.commit(token, "r-1")
    assert refused.value.kind in {"incomplete", "moved"}
    assert site.writer.undo(token, "r-1").state == "undone"
    assert site.script.read_bytes() == old
    assert site.process().argv == OLD_RUNS


def test_the_watchdog_takes_back_what_was_left_in_a_pair(site) -> None:
    """An agent that falls silent in a pair strands nobody: the old content is there, and a process that runs it."""
    old = site.script.read_bytes()
    token = site.writer.lease("r-1", 60).token
    plan = site.plan(watchdog=2.0)
    plan = plan.model_copy(update={"steps": _pair(plan)})
    site.writer.open(token, "r-1", plan, site.approval(plan), old.replace(b"32", b"96"), now=NOW)
    for step in (*FIRST, *PAIR[:3]):
        site.writer.step(token, "r-1", step)
    until = time.monotonic() + 60
    while site.writer.observe().execution.state != "undone":
        assert time.monotonic() < until
        time.sleep(0.1)
    assert site.script.read_bytes() == old
    assert site.process().argv == OLD_RUNS


def test_somebody_who_edits_the_script_in_a_pair_is_not_overwritten(site) -> None:
    """The way forth finds another content than the plan knows, and writes nothing."""
    token = _opened(site)
    for step in (*FIRST, *PAIR[:2]):
        site.writer.step(token, "r-1", step)
    site.script.write_bytes(b"#!/bin/sh\nexec sleep 86433\n")
    with pytest.raises(StaleState):
        site.writer.step(token, "r-1", "forth")
    assert b"86433" in site.script.read_bytes()


def _swapped(plan: Plan) -> tuple[Step, ...]:
    return tuple(_pair(plan)[place] for place in (2, 1))


def _twice(plan: Plan) -> tuple[Step, ...]:
    return (*plan.steps, plan.steps[0].model_copy(update={"id": "edit-2", "optional": True}))


def _elsewhere(plan: Plan) -> tuple[Step, ...]:
    steps = _pair(plan)
    third = steps[2].model_copy(update={"after": HostState(script_sha256="0" * 64)})
    return (*steps[:2], third, *steps[3:])


@pytest.mark.parametrize("steps", [_swapped, _twice, _elsewhere], ids=["back first", "edited twice", "a third content"])
def test_a_plan_knows_two_contents_and_edits_first(site, steps: Callable[[Plan], tuple[Step, ...]]) -> None:
    """Nothing but the old and the new content is ever written, in turn, and the helper opens no other plan."""
    with pytest.raises(HelperRefused) as refused:
        _opened(site, steps=steps)
    assert refused.value.kind == "bad_request"


@pytest.mark.slow
@pytest.mark.parametrize("step", PAIR)
def test_a_helper_killed_at_any_action_of_a_pair_goes_on_or_goes_back(site, step: str) -> None:
    """SIGKILL at every point of every step, then the same calls again, or an undo: the content fits the process."""
    before = (*FIRST, *PAIR[: PAIR.index(step)])
    killed, number, turn = 0, PAIR.index(step) - EVERY + 1, 0
    while True:
        number, turn = number + EVERY, turn + 1
        run = f"r-{number}"
        token = _opened(site, run)
        for one in before:
            site.writer.step(token, run, one)
        died = False
        with site.crash_at(number):
            try:
                site.writer.step(token, run, step)
            except NoAnswer:
                died = True
        token = site.writer.lease(run, 60).token
        if turn % 2 or not died:
            for one in PAIR[PAIR.index(step) :]:
                site.writer.step(token, run, one)
            assert site.process().argv == NEW_RUNS, (step, number)
            site.writer.commit(token, run)
            assert b"96" in site.script.read_bytes(), (step, number)
            site.script.write_bytes(site.old)
            site.serve("restart")
        else:
            assert site.writer.undo(token, run).state == "undone", (step, number)
            assert site.script.read_bytes() == site.old, (step, number)
            assert site.process().argv == OLD_RUNS, (step, number)
        site.writer.release(token)
        killed += died
        if not died:
            break
    assert killed > 1
