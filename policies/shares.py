"""A criterion on counts: so many bad ones among n."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agent.domain import Criterion, Reading
from policies import proportions, wording
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


def judge_share(criterion: Criterion, metric: Metric, readings: Sequence[Reading], where: int | None) -> Part:
    """What a criterion says about counts.

    Args:
        criterion: A rule on a share of bad ones.
        metric: The metric that it looks at.
        readings: The readings of one concurrency, or of all where the metric pools; at least one.
        where: The concurrency, for the sentence.
    """
    what = f"{metric.title}{wording.at(where)}"
    if criterion.comparison != "at_most" or criterion.of != "absolute":
        return Part("undecided", f"{what}: a share of bad ones has an upper, absolute bound or none that can be judged")
    counted = [reading for reading in readings if _doubt(reading, what) is None]
    doubts = [doubt for reading in readings if (doubt := _doubt(reading, what)) is not None]
    if counted:
        part = _weigh(criterion, metric, add_up(counted), where)
        if part.outcome == "breached" or not doubts:
            return part
    return doubts[0]


def add_up(readings: Iterable[Reading]) -> Count:
    """Add up readings that hold counts, never counting a sample twice.

    Readings of one concurrency and source may be repeats of each other: of those the largest sample counts. Readings
    of different concurrencies or sources are different samples, and add up.
    """
    places: dict[tuple[int | None, str], list[tuple[int, int]]] = {}
    for reading in readings:
        place = places.setdefault((reading.concurrency, reading.source), [])
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
