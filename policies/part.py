"""What a criterion says about one reading, or about one concurrency: the parts of a finding."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

from agent.domain import Criterion, Reading
from policies import wording

Outcome = Literal["met", "undecided", "no_data", "breached"]

_WORST_FIRST: tuple[Outcome, ...] = ("breached", "no_data", "undecided", "met")


class Part(NamedTuple):
    """An outcome and the arithmetic behind it."""

    outcome: Outcome
    """As in `agent.domain.Finding`."""
    says: str
    """One clause with the numbers, without a full stop."""


def worst(parts: Iterable[Part]) -> Outcome:
    """The outcome of the whole: a breach before silence, silence before doubt; no parts at all are silence."""
    outcomes = {part.outcome for part in parts}
    return next((outcome for outcome in _WORST_FIRST if outcome in outcomes), "no_data")


def silence(reading: Reading | None, what: str) -> Part | None:
    """A part saying why there is no number, or None where the reading has a finite value.

    Args:
        reading: The reading; None: nobody took it.
        what: What should have been measured, for the sentence.
    """
    if reading is None:
        return Part("no_data", f"{what}: no reading")
    if reading.no_data is not None:
        return Part("no_data", f"{what}: no reading ({wording.line(reading.no_data)})")
    if reading.value is None:
        return Part("no_data", f"{what}: no reading, and no reason given")
    if not math.isfinite(reading.value):
        return Part("no_data", f"{what}: the reading is {reading.value}, which is not a number to judge")
    return None


def measured(reading: Reading | None) -> float:
    """The value of a reading that `silence` had nothing to say about."""
    assert reading is not None
    assert reading.value is not None
    return reading.value


def holds(criterion: Criterion, value: float, bound: float) -> bool:
    """Whether a value lies on the good side of a bound, or on it."""
    return value <= bound if criterion.comparison == "at_most" else value >= bound


def unusable(criterion: Criterion) -> Part | None:
    """A part saying that the rule itself cannot be applied, or None where it can."""
    if not math.isfinite(criterion.bound):
        return Part("undecided", f"{criterion.id}: the bound {criterion.bound} is not a number")
    if criterion.confidence is not None and not 0.5 <= criterion.confidence < 1.0:
        return Part("undecided", f"{criterion.id}: {criterion.confidence} is not a confidence")
    if criterion.of == "baseline" and criterion.bound <= 0:
        return Part("undecided", f"{criterion.id}: {criterion.bound} times the baseline is not a bound")
    return None
