"""Intended, effective, last known good -> what did not take, what is not reported, what moved without being asked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from agent.domain import Knob, Noun


class Drift(Noun):
    """One knob whose value in force is not what one would expect."""

    knob: str
    """Canonical knob name."""
    kind: Literal[
        "did_not_take",  # it was asked for and is not in force
        "not_reported",  # it was asked for and the engine does not say what is in force
        "moved",  # nobody asked for it and it is not as at the last good start
    ]
    """What is the matter."""
    intended: str | None
    """What was asked for; None: nothing."""
    effective: str | None
    """What is in force; None: not reported."""
    before: str | None
    """What was in force at the last good start; None: not known."""
    side_effect_of: str | None = None
    """For a value that moved: the changed knob that it is coupled with, which may well explain it."""
    says: str
    """The finding in one sentence."""


def compare(
    intended: Mapping[str, str | None],
    effective: Mapping[str, str],
    last_known_good: Mapping[str, str],
    *,
    knobs: Sequence[Knob],
    changed: Collection[str] = (),
) -> tuple[Drift, ...]:
    """Compare what was meant, what is, and what was.

    Args:
        intended: By knob name what the launch asks for, in the form of `catalogue.in_force`; None: it asks for
            nothing and whatever the engine takes is fine.
        effective: What is in force, by knob name; from `effective` and, for variables, from /proc.
        last_known_good: The same of the last good start; empty: there was none.
        knobs: The catalogue, for couplings.
        changed: Names of the knobs that this change is about.

    Returns:
        Knobs that did not take first, then those that are not reported, then those that moved; in catalogue order.
    """
    by_name = {knob.name: knob for knob in knobs}
    names = [*by_name, *sorted({*intended, *effective, *last_known_good} - set(by_name))]
    drifts: list[Drift] = []
    for name in names:
        meant, is_now, was = intended.get(name), effective.get(name), last_known_good.get(name)
        if meant is not None:
            if is_now is None:
                drifts.append(_drift(name, "not_reported", meant, is_now, was))
            elif is_now != meant:
                drifts.append(_drift(name, "did_not_take", meant, is_now, was))
        elif name not in changed and was is not None and is_now is not None and not _same(is_now, was):
            drifts.append(_drift(name, "moved", meant, is_now, was, _coupled(by_name.get(name), by_name, changed)))
    order = {"did_not_take": 0, "not_reported": 1, "moved": 2}
    return tuple(sorted(drifts, key=lambda drift: order[drift.kind]))


def _same(one: str, other: str) -> bool:
    """Whether two values are the same, or whole numbers that the engine resolved from memory to within 1 %."""
    if one == other:
        return True
    if not (one.isdecimal() and other.isdecimal() and max(len(one), len(other)) <= 15):
        return False
    return min(int(one), int(other)) >= 1000 and abs(int(one) - int(other)) <= 0.01 * max(int(one), int(other))


def _coupled(knob: Knob | None, by_name: Mapping[str, Knob], changed: Collection[str]) -> str | None:
    for name in changed:
        other = by_name.get(name)
        if knob is not None and (name in knob.couples or (other is not None and knob.name in other.couples)):
            return name
    return None


def _drift(
    name: str,
    kind: Literal["did_not_take", "not_reported", "moved"],
    meant: str | None,
    is_now: str | None,
    was: str | None,
    side_effect_of: str | None = None,
) -> Drift:
    if kind == "did_not_take":
        says = f"{name} was asked to be {meant} and is {is_now}"
        says += " as before." if is_now == was else f"; it was {was}." if was is not None else "."
    elif kind == "not_reported":
        says = f"{name} was asked to be {meant}, and the engine does not say what is in force."
    else:
        says = f"{name} moved from {was} to {is_now} without being asked"
        says += f"; it is coupled with {side_effect_of}, which was changed." if side_effect_of else "."
    return Drift(
        knob=name, kind=kind, intended=meant, effective=is_now, before=was, side_effect_of=side_effect_of, says=says
    )
