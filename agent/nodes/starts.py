"""The starts that a plan holds beyond the first: the change once more, or the old setting and the change in turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from agent.domain import Change, HostState, Step
from policies.schema import Policy

Turn = tuple[Step, ...]
"""Steps that end with a start of the change; those of a pair begin with the old bytes and a start of them."""


def further_starts(
    run: str, worker: str, change: Change, before: HostState, after: HostState, policy: Policy, *, compared: bool
) -> tuple[Step, ...]:
    """The steps after the first start, as many as the policy allows; all are optional unless it says `always`.

    Args:
        run: The run.
        worker: The worker's name.
        change: The change, for its words.
        before: The script's hash and the values in force without the change.
        after: The same with it.
        policy: How many starts and pairs there may be.
        compared: Whether anything is compared with the baseline under noise: for nothing else is it measured again.
    """
    second, pairs = policy.further_starts(compared=compared)
    steps = []
    if second:
        optional = policy.second_start == "undecided"
        what = f"restart {worker} a second time" + (", if the first start does not settle it" * optional)
        steps.append(_restart(f"{run}-again", what, after, optional=optional))
    for number in range(1, pairs + 1):
        steps += _pair(run, worker, change, before, after, number)
    return tuple(steps)


def _pair(run: str, worker: str, change: Change, before: HostState, after: HostState, number: int) -> Turn:
    named = f"{run}-pair-{number}"
    return (
        Step(
            id=f"{named}-back",
            action="restore_script",
            what="put the old script back, if it is still not settled",
            before=_script(after),
            after=_script(before),
            undo="none is needed",
            optional=True,
        ),
        _restart(f"{named}-old", f"restart {worker} with the old setting and measure it again", before),
        Step(
            id=f"{named}-forth",
            action="edit_script",
            what=f"edit it again: {change.summary}",
            before=_script(before),
            after=_script(after),
            undo="put the backup back, byte for byte",
            optional=True,
        ),
        _restart(f"{named}-new", f"restart {worker} with the change and measure it again", after),
    )


def _script(state: HostState) -> HostState:
    return HostState(script_sha256=state.script_sha256)


def _restart(id_: str, what: str, state: HostState, *, optional: bool = True) -> Step:
    state = state.model_copy(update={"process": None})
    return Step(
        id=id_,
        action="restart",
        what=what,
        before=state,
        after=state,
        undo="restart it with the backup in place",
        optional=optional,
    )


def turns(steps: Sequence[Step]) -> Iterator[Turn]:
    """Split the steps after the first start into turns, each of which ends with a start of the change."""
    turn: list[Step] = []
    old = False
    for step in steps:
        turn.append(step)
        if step.action != "restart":
            old = step.action == "restore_script"
        elif not old:
            yield tuple(turn)
            turn = []


def starts_say(steps: Sequence[Step]) -> str:
    """How often a plan may start the worker, for people; the start that takes the change back comes on top."""
    starts = sum(step.action == "restart" for step in steps)
    back = sum(step.action == "restore_script" for step in steps)
    return f"up to {starts} restarts, {back} of them back to the old setting to measure it again"


def values_before(change: Change, effective: Mapping[str, str]) -> dict[str, str]:
    """The values of the settings of a change that were in force without it."""
    return {setting.knob: effective[setting.knob] for setting in change.settings if setting.knob in effective}
