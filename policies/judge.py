"""Readings -> judgement: pure and total arithmetic.

A measured breach rolls back. Anything missing, invalid, contradictory or too small a sample restores and defers. Only
where every criterion has a finding that says "met" is a change kept, and a policy without criteria keeps nothing.
A judgement can be computed again from a record's criteria, readings, noise and checks alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from agent.domain import Check, Criterion, Finding, Noise, Noun, Phase, Reading
from policies import wording
from policies.metrics import Metric, metric_of
from policies.part import Part, holds, measured, silence, unusable, worst
from policies.ratios import Pair, by_boot, flawed_runs, judge_amounts, judge_rates, one_of
from policies.shares import judge_share


class Judgement(Noun):
    """What the criteria say together about a change that is live."""

    decision: Literal["kept", "rolled_back", "deferred"]
    """`rolled_back` and `deferred` both restore; only a measured breach is called a roll back."""
    decided_by: tuple[str, ...]
    """Ids of the criteria that decided: the breached, or those that are not met, or all that are."""
    findings: tuple[Finding, ...]
    """One for each criterion, in their order."""
    why: str
    """The reason in one or two sentences."""


class BaselineJudgement(Noun):
    """What the criteria say about the worker before it is touched."""

    decision: Literal["proceed", "refused", "deferred"]
    """`refused`: the worker is already broken; `deferred`: there is nothing to compare the change with."""
    decided_by: tuple[str, ...]
    """Ids of the criteria that decided."""
    findings: tuple[Finding, ...]
    """One for each criterion that has something to say before the change."""
    why: str
    """The reason in one or two sentences."""


def judge(
    criteria: Sequence[Criterion],
    readings: Sequence[Reading],
    noise: Noise | None,
    checks: Sequence[Check] = (),
) -> Judgement:
    """Judge a change by the readings that were taken before it and with it.

    Args:
        criteria: The rollback criteria of the approved plan.
        readings: Whatever was measured, in any order; readings of the phase `restored` are not looked at.
        noise: How much throughput differs between boots and between runs; None: not known, which settles nothing.
        checks: The checks of the approved plan. Where they are given, the concurrencies that they name must have been
            measured: sessions in small batches prove nothing about the large ones that a change captures.
    """
    findings = tuple(_finding(criterion, readings, noise, checks) for criterion in criteria)
    breached = tuple(finding for finding in findings if finding.outcome == "breached")
    open_ones = tuple(finding for finding in findings if finding.outcome != "met")
    if breached:
        return Judgement(
            decision="rolled_back", decided_by=_ids(breached), findings=findings, why=_because("Breached", breached)
        )
    if not findings:
        return Judgement(
            decision="deferred", decided_by=(), findings=(), why="There are no criteria, so nothing was shown."
        )
    if open_ones:
        return Judgement(
            decision="deferred", decided_by=_ids(open_ones), findings=findings, why=_because("Not shown", open_ones)
        )
    one = "The only criterion is met." if len(findings) == 1 else f"All {len(findings)} criteria are met."
    return Judgement(decision="kept", decided_by=_ids(findings), findings=findings, why=one)


def breached_so_far(
    criteria: Sequence[Criterion], readings: Sequence[Reading], noise: Noise | None, checks: Sequence[Check] = ()
) -> tuple[Finding, ...]:
    """The findings that are breached by what has been measured already, while checks are still to come.

    Silence is never a breach here, whatever a criterion makes of it in the end. A run may stop at the first breach and
    spare the worker the rest of the load: `judge`, given the same readings, rolls back. Arguments as for `judge`; with
    the plan's checks, a comparison that is still to come counts among those that a loss has to be proven over.
    """
    patient = [criterion.model_copy(update={"missing": "defer"}) for criterion in criteria]
    return tuple(
        finding for finding in judge(patient, readings, noise, checks).findings if finding.outcome == "breached"
    )


def judge_baseline(
    criteria: Sequence[Criterion],
    readings: Sequence[Reading],
    checks: Sequence[Check] = (),
) -> BaselineJudgement:
    """Judge the worker as it is, before anything is written.

    A share or a fact that is already on the wrong side refuses: after the change nobody could tell whose fault it is.
    A criterion against the baseline needs its baseline, and so does every share that the given checks should have
    measured. Counts too small to show a share are no obstacle here: what has to be shown is shown after the change.

    Args:
        criteria: The rollback criteria of the plan.
        readings: Whatever was measured; only the phase `baseline` is looked at.
        checks: The checks that were run before the change.
    """
    findings = tuple(
        finding for criterion in criteria if (finding := _baseline_finding(criterion, readings, checks)) is not None
    )
    if not criteria:
        return BaselineJudgement(
            decision="deferred", decided_by=(), findings=(), why="There are no criteria, so nothing could be shown."
        )
    broken = tuple(finding for finding in findings if finding.outcome == "breached")
    silent = tuple(finding for finding in findings if finding.outcome == "no_data")
    if broken:
        return BaselineJudgement(
            decision="refused",
            decided_by=_ids(broken),
            findings=findings,
            why=_because("The worker is already broken", broken),
        )
    if silent:
        return BaselineJudgement(
            decision="deferred",
            decided_by=_ids(silent),
            findings=findings,
            why=_because("The change would have nothing to be compared with", silent),
        )
    why = "The worker is sound as it is." if findings else "Nothing had to be measured before the change."
    return BaselineJudgement(decision="proceed", decided_by=_ids(findings), findings=findings, why=why)


def breached_metrics(criteria: Iterable[Criterion], findings: Iterable[Finding]) -> tuple[str, ...]:
    """The metrics whose criteria were breached, which is what an incident's signature is compared with."""
    breached = {finding.criterion for finding in findings if finding.outcome == "breached"}
    return tuple(dict.fromkeys(criterion.metric for criterion in criteria if criterion.id in breached))


def _finding(
    criterion: Criterion, readings: Sequence[Reading], noise: Noise | None, checks: Sequence[Check]
) -> Finding:
    metric = metric_of(criterion)
    after = _of(metric, readings, "candidate")
    wrong = unusable(criterion)
    if wrong is not None:
        return _combine(criterion, [wrong])
    if metric.kind == "share":
        before = _of(metric, readings, "baseline")
        return _combine(criterion, _share_parts(criterion, metric, after, checks, before))
    if criterion.of == "absolute":
        return _combine(criterion, _amount_parts(criterion, metric, after))
    before = _of(metric, readings, "baseline")
    pairs: dict[int | None, Pair] = {}
    parts: list[Part] = []
    for where in _places(after, before, expected=_expected(metric, checks)):
        what = f"{metric.title}{'' if where is None else f' at {where}'}"
        old, quarrel_before = by_boot(_at(before, where), f"{what} before the change")
        new, quarrel_after = by_boot(_at(after, where), f"{what} with the change")
        quarrel = quarrel_before or quarrel_after
        if quarrel is not None:
            parts.append(quarrel)
        else:
            pairs[where] = (old, new)
    if metric.kind == "rate" or criterion.confidence is not None:
        parts += judge_rates(criterion, metric, pairs, noise)
    else:
        parts += judge_amounts(criterion, metric, pairs)
    return _combine(criterion, parts)


def _baseline_finding(criterion: Criterion, readings: Sequence[Reading], checks: Sequence[Check]) -> Finding | None:
    metric = metric_of(criterion)
    before = _of(metric, readings, "baseline")
    if unusable(criterion) is not None:
        return None
    if metric.kind == "share":
        if not before and not any(check.name in metric.checks for check in checks):
            return None
        return _combine(criterion, _share_parts(criterion, metric, before, checks), lenient=True)
    if criterion.of == "baseline":
        parts = [
            _comparable(criterion, metric, _at(before, where), where)
            for where in _places(before, (), expected=_expected(metric, checks))
        ]
        return _combine(criterion, parts, lenient=True)
    if metric.kind == "fact" and before:
        return _combine(criterion, _amount_parts(criterion, metric, before), lenient=True)
    return None


def _comparable(criterion: Criterion, metric: Metric, readings: Sequence[Reading], where: int | None) -> Part:
    """Whether a baseline is there to compare with: met, or no data, or breached where nothing comes at all."""
    what = f"{metric.title}{'' if where is None else f' at {where}'} before the change"
    reading, quarrel = one_of(readings, what)
    if quarrel is not None:
        return Part("no_data", quarrel.says)
    silent = silence(reading, what)
    if silent is not None:
        return silent
    value = measured(reading)
    if metric.kind == "rate":
        if value == 0:
            return Part("breached", f"{what}: nothing comes")
        assert reading is not None
        flawed = flawed_runs(criterion, reading, what)
        if flawed is not None:
            return Part("no_data", flawed.says)
    if value <= 0:
        return Part("no_data", f"{what}: {wording.number(value)} is nothing to compare with")
    return Part("met", f"{what}: {wording.number(value)} {metric.unit}".rstrip())


def _share_parts(
    criterion: Criterion,
    metric: Metric,
    readings: Sequence[Reading],
    checks: Sequence[Check],
    before: Sequence[Reading] = (),
) -> list[Part]:
    acts = next((check.acts for check in checks if check.name in metric.checks and check.acts is not None), None)
    if metric.pooled:
        if not readings:
            return [Part("no_data", f"{metric.title}: no reading")]
        return [judge_share(criterion, metric, readings, None, before=before, acts=acts)]
    parts = []
    for where in _places(readings, (), expected=_expected(metric, checks)):
        here = _at(readings, where)
        if here:
            then = _at(before, where)
            parts.append(judge_share(criterion, metric, here, where, before=then, acts=acts))
        else:
            parts.append(Part("no_data", f"{metric.title}{wording.at(where)}: no reading"))
    return parts


def _amount_parts(criterion: Criterion, metric: Metric, readings: Sequence[Reading]) -> list[Part]:
    """Judge each reading by itself; repeats that disagree are met only if they agree after all."""
    if not readings:
        return [Part("no_data", f"{metric.title}: no reading")]
    parts = []
    for where, boot in dict.fromkeys((reading.concurrency, reading.boot) for reading in readings):
        here = tuple(reading for reading in _at(readings, where) if reading.boot == boot)
        judged = [_amount(criterion, metric, reading) for reading in here]
        again = f" after start {boot}" if boot > 1 else ""
        _, quarrel = one_of(here, f"{metric.title}{wording.at(where)}{again}")
        breaches = [part for part in judged if part.outcome == "breached"]
        parts += breaches or ([quarrel] if quarrel is not None else judged[:1])
    return parts


def _amount(criterion: Criterion, metric: Metric, reading: Reading) -> Part:
    silent = silence(reading, metric.title)
    if silent is not None:
        return silent
    value = measured(reading)
    good = holds(criterion, value, criterion.bound)
    if metric.kind == "fact":
        if value not in {0.0, 1.0}:
            return Part("undecided", f"{metric.title}: {wording.number(value)} is neither yes nor no")
        return Part("met" if good else "breached", metric.yes if value else metric.no)
    unit = metric.unit or reading.unit
    says = (
        f"{metric.title}{wording.at(reading.concurrency)}: {wording.number(value)} {unit}".rstrip()
        + f", {wording.bound(criterion)} {unit}".rstrip()
        + " is asked"
    )
    if not good:
        return Part("breached", says)
    if criterion.minimum_n > 1 and reading.n < criterion.minimum_n:
        return Part("undecided", f"{says}, but of {reading.n} samples where {criterion.minimum_n} are needed")
    return Part("met", says)


def _combine(criterion: Criterion, parts: Sequence[Part], *, lenient: bool = False) -> Finding:
    """One finding for a criterion; `lenient` leaves silence what it is, whatever the criterion makes of it."""
    outcome = worst(parts)
    telling = dict.fromkeys(part.says for part in parts if part.outcome == outcome)
    says = "; ".join(telling) if telling else f"{metric_of(criterion).title}: no reading"
    if outcome == "no_data" and criterion.missing == "breach" and not lenient:
        return Finding(criterion=criterion.id, outcome="breached", says=f"{says}; silence counts as a breach here")
    return Finding(criterion=criterion.id, outcome=outcome, says=says)


def _of(metric: Metric, readings: Iterable[Reading], phase: Phase) -> tuple[Reading, ...]:
    return tuple(reading for reading in readings if reading.metric == metric.name and reading.phase == phase)


def _at(readings: Iterable[Reading], where: int | None) -> tuple[Reading, ...]:
    return tuple(reading for reading in readings if reading.concurrency == where)


def _places(*readings: Sequence[Reading], expected: Iterable[int]) -> tuple[int | None, ...]:
    """The concurrencies that must be spoken of, in rising order; a single None where no reading names one."""
    places = {reading.concurrency for some in readings for reading in some} | set(expected)
    if not places:
        return (None,)
    return tuple(sorted(places, key=lambda place: -1 if place is None else place))


def _expected(metric: Metric, checks: Iterable[Check]) -> frozenset[int]:
    """The concurrencies at which the plan's checks measure a metric that does not pool."""
    if metric.pooled:
        return frozenset()
    return frozenset(place for check in checks if check.name in metric.checks for place in check.concurrency)


def _ids(findings: Iterable[Finding]) -> tuple[str, ...]:
    return tuple(finding.criterion for finding in findings)


def _because(label: str, findings: Sequence[Finding]) -> str:
    shown = "; ".join(f"{finding.says} [{finding.criterion}]" for finding in findings[:3])
    rest = f"; and {len(findings) - 3} more" if len(findings) > 3 else ""
    return f"{label}: {shown}{rest}."
