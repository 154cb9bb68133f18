"""A criterion on counts: so many bad ones among n."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agent.domain import Criterion, Reading, Sequential
from policies import fisher, proportions, sequential, wording
from policies.metrics import Metric
from policies.part import Part, measured, silence


class Count(NamedTuple):
    """Bad ones among n, where the same thing may have been reported more than once."""

    n: int
    """Samples that are certainly distinct."""
    bad: int
    """Bad ones that are certainly distinct."""
    suspected: int
    """Bad ones if no two reports speak of the same one; what a claim of cleanness has to face."""


def judge_share(
    criterion: Criterion,
    metric: Metric,
    readings: Sequence[Reading],
    where: int | None,
    *,
    before: Sequence[Reading] = (),
    acts: tuple[int, int] | None = None,
) -> Part:
    """What a criterion says about counts.

    Args:
        criterion: A rule on a share of bad ones.
        metric: The metric that it looks at.
        readings: The readings of one concurrency, or of all where the metric pools; at least one.
        where: The concurrency, for the sentence.
        before: The readings of the worker as it was: where some were bad then, so many now are none of the change's.
        acts: Batch sizes at which the change acts, where only some are.
    """
    what = f"{metric.title}{wording.at(where)}"
    if criterion.comparison != "at_most" or criterion.of != "absolute":
        return Part("undecided", f"{what}: a share of bad ones has an upper, absolute bound or none that can be judged")
    counted = [reading for reading in readings if _doubt(reading, what) is None]
    doubts = [doubt for reading in readings if (doubt := _doubt(reading, what)) is not None]
    if counted:
        part = _weigh(criterion, metric, add_up(counted), where)
        if part.outcome == "breached":
            return _against(part, add_up(counted), [one for one in before if _doubt(one, what) is None], criterion)
        if not doubts:
            return _exposed(part, counted, criterion, acts)
    return doubts[0]


def _against(part: Part, after: Count, before: Sequence[Reading], criterion: Criterion) -> Part:
    """A breach, unless the worker was bad before as well and it cannot be told that it is worse now."""
    was = add_up(before)
    if not was.bad or not was.n:
        return part
    chance = fisher.chance(min(was.bad, was.n), was.n, after.bad, after.n)
    seen = f"{part.says}; before the change {was.bad} of {was.n}"
    asked = 1 - (criterion.confidence if criterion.confidence is not None else 0.95)
    if chance <= asked:
        return Part("breached", f"{seen}, and chance explains the difference with {wording.share(chance)}")
    return Part("undecided", f"{seen}, and chance would explain the difference with {wording.share(chance)}")


def _exposed(part: Part, readings: Sequence[Reading], criterion: Criterion, acts: tuple[int, int] | None) -> Part:
    """Met only where enough of what was decoded came from where the change acts."""
    if part.outcome != "met" or criterion.exposure is None or acts is None:
        return part
    place = f"batches of {acts[0] + 1} to {acts[1]}, where the change acts"
    known = [(reading.exposure, reading.n) for reading in readings if reading.exposure is not None]
    if not known or not all(0 <= share <= 1 for share, _ in known):
        return Part("undecided", f"{part.says}, but how many of the tokens came from {place}, is not known")
    # Sessions of which it is not known count as if none of their tokens had come from there.
    exposed = sum(share * n for share, n in known) / sum(reading.n for reading in readings)
    if exposed < criterion.exposure:
        seen = f"only {wording.share(exposed)} of the tokens came from {place}"
        return Part("undecided", f"{part.says}, but {seen}; {wording.share(criterion.exposure)} are asked")
    return Part("met", f"{part.says}; {wording.share(exposed)} of the tokens from {place}")


def add_up(readings: Iterable[Reading]) -> Count:
    """Add up readings that hold counts, never counting a sample twice.

    Readings of one concurrency, source and boot may be repeats of each other: of those the largest sample counts.
    Readings of different concurrencies, sources or boots are different samples, and add up.
    """
    places: dict[tuple[int | None, str, int], list[tuple[int, int]]] = {}
    for reading in readings:
        place = places.setdefault((reading.concurrency, reading.source, reading.boot), [])
        counts = (reading.n, reading.bad or 0)
        if counts not in place:
            place.append(counts)
    return Count(
        n=sum(max(n for n, _ in place) for place in places.values()),
        bad=sum(max(bad for _, bad in place) for place in places.values()),
        suspected=sum(bad for place in places.values() for _, bad in place),
    )


def _doubt(reading: Reading, what: str) -> Part | None:
    """Why a reading holds no counts that can be believed; None where it does."""
    silent = silence(reading, what)
    if silent is not None:
        return silent
    if reading.bad is None:
        return Part("no_data", f"{what}: a share without its counts proves nothing")
    if not 0 <= reading.bad <= reading.n or not 0 < reading.n <= proportions.LARGEST_SAMPLE:
        return Part("no_data", f"{what}: {reading.bad} of {reading.n} is not a count that can be")
    value = measured(reading)
    if abs(value - reading.bad / reading.n) > 0.005:
        seen = f"{wording.number(value)} is not {reading.bad} of {reading.n}"
        return Part("no_data", f"{what}: the reading contradicts itself, {seen}")
    return None


def _weigh(criterion: Criterion, metric: Metric, count: Count, where: int | None) -> Part:
    seen = f"{count.bad} of {count.n} {metric.things} {metric.went}{wording.at(where)}"
    if criterion.hard_count is not None and count.bad >= max(criterion.hard_count, 1):
        return Part("breached", f"{seen}: {wording.count(max(criterion.hard_count, 1))} or more are a breach")
    if criterion.sequential is not None:
        return _sequentially(criterion, criterion.sequential, metric, count, seen)
    asked = "none is allowed" if criterion.bound <= 0 else f"at most {wording.share(criterion.bound)} is allowed"
    if criterion.confidence is None:
        return _without_confidence(criterion, count, seen, asked)
    least = proportions.lower(min(count.bad, count.n), count.n, criterion.confidence)
    sure = wording.share(criterion.confidence)
    if least > criterion.bound:
        return Part("breached", f"{seen}: over {wording.over(least)} at {sure}, {asked}")
    most = proportions.upper(min(count.suspected, count.n), count.n, criterion.confidence)
    claim = f"{seen}: under {wording.under(most)} at {sure}"
    if count.n < criterion.minimum_n:
        return Part("undecided", f"{claim}, and {criterion.minimum_n} {metric.things} are needed")
    if most <= criterion.bound:
        return Part("met", claim)
    return Part("undecided", f"{claim}, {asked}{_more(criterion, metric, count)}")


def _sequentially(criterion: Criterion, test: Sequential, metric: Metric, count: Count, seen: str) -> Part:
    """What the sequential test says; samples that came after its decision count too, and may take it back."""
    odds = f"{wording.share(test.bad)} against {wording.share(test.ok)}, at {wording.share(1 - test.error)}"
    if sequential.standing(test, count.n, count.bad) == "bad":
        return Part("breached", f"{seen}: a sequential test of {odds} says bad")
    now = sequential.standing(test, count.n, count.suspected)
    if now == "acceptable" and count.n >= criterion.minimum_n:
        return Part("met", f"{seen}: under {wording.share(test.bad)} at {wording.share(1 - test.error)}")
    if now == "capped":
        return Part(
            "undecided", f"{seen}: a sequential test of {odds} did not decide within {test.cap} {metric.things}"
        )
    needed = max(sequential.enough(test, count.suspected), criterion.minimum_n)
    return Part("undecided", f"{seen}: a sequential test of {odds} needs {needed} with no more bad ones")


def _without_confidence(criterion: Criterion, count: Count, seen: str, asked: str) -> Part:
    if count.bad / count.n > criterion.bound:
        return Part("breached", f"{seen}: {asked}")
    if count.n < criterion.minimum_n:
        return Part("undecided", f"{seen}: {criterion.minimum_n} are needed")
    if count.suspected / count.n > criterion.bound:
        return Part("undecided", f"{seen}: the reports differ, {asked}")
    return Part("met", f"{seen}: {asked}")


def _more(criterion: Criterion, metric: Metric, count: Count) -> str:
    """How many more clean ones would settle it, where a few would."""
    if not 0 < criterion.bound < 1 or criterion.confidence is None:
        return ""
    enough = proportions.needed(criterion.bound, criterion.confidence, count.suspected)
    if enough <= count.n or enough > 10 * count.n:
        return ""
    return f"; {enough - count.n} more clean {metric.things} would show it"
