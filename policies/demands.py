"""Policy, knobs, precedents and risk -> the checks of a plan, and the criteria that they feed.

Checks only add up: whoever demands one, nobody can take it away, and nobody can make it smaller than the policy has it.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.domain import Check, CheckName, Criterion, Knob, Precedent, Risk
from policies.metrics import metric_of
from policies.schema import CheckRule, Policy


def checks_for(
    policy: Policy,
    *,
    knobs: Sequence[Knob],
    precedents: Sequence[Precedent],
    risk: Risk,
    captured_max: int | None,
    running_max: int | None,
    acts: tuple[int, int] | None = None,
) -> tuple[Check, ...]:
    """The checks that a change has to pass, in the policy's order, each saying what demands it.

    Args:
        policy: The worker's policy.
        knobs: The knobs that the change touches, from the catalogue.
        precedents: What happened before; only their ids go into the reasons, because their text may be foreign.
        risk: The risk, which can add checks.
        captured_max: The largest batch that is captured before or after the change, whichever is larger: that is where
            a change of the captured range acts. None where nothing is captured.
        running_max: The most requests that the worker runs at once, before or after the change; None: not known.
        acts: Batch sizes at which alone the change acts: above the first, up to the second; None: at all of them.
    """
    plan = []
    counted = next((one for one in policy.criteria if one.metric == "corrupted_sessions"), None)
    for name in policy.ordered:
        rule = policy.checks.rule(name)
        reasons = _reasons(policy, name, rule, knobs, precedents, risk)
        if reasons:
            concurrency = _concurrency(name, rule, captured_max, running_max)
            one_by_one = counted if name == "sessions" else None
            plan.append(
                Check(
                    name=name,
                    concurrency=concurrency,
                    count=_count(name, rule, concurrency),
                    tokens=rule.tokens,
                    depths=rule.depths,
                    seconds=rule.seconds or 0.0,
                    storms=rule.storms,
                    texts=max(rule.texts, *concurrency) if rule.texts else 0,
                    sequential=one_by_one.sequential if one_by_one else None,
                    stop_at=one_by_one.hard_count if one_by_one else None,
                    before=rule.baseline,
                    acts=acts if name == "sessions" else None,
                    why="; ".join(reasons),
                )
            )
    return tuple(plan)


def baseline_checks(checks: Sequence[Check]) -> tuple[Check, ...]:
    """Those of a plan's checks that are also run before the change, on the worker as it is."""
    return tuple(check for check in checks if check.before)


def criteria_for(policy: Policy, checks: Sequence[Check]) -> tuple[Criterion, ...]:
    """The criteria that a plan with these checks is judged by.

    Criteria on the start always apply. A criterion on load applies where one of the plan's checks measures it; left out
    here means left out of the plan that is approved, so silence still never counts as met.
    """
    planned = {check.name for check in checks}
    return tuple(
        criterion
        for criterion in policy.criteria
        if not (measuring := metric_of(criterion).checks) or planned.intersection(measuring)
    )


def compared(criteria: Sequence[Criterion]) -> dict[str, tuple[CheckName, ...]]:
    """The criteria that hold a noisy rate against the baseline, by id, with the checks that measure it.

    More boots of either side settle these and no others.
    """
    return {
        criterion.id: metric_of(criterion).checks
        for criterion in criteria
        if criterion.of == "baseline" and criterion.confidence is not None
    }


def _reasons(
    policy: Policy,
    name: CheckName,
    rule: CheckRule,
    knobs: Sequence[Knob],
    precedents: Sequence[Precedent],
    risk: Risk,
) -> list[str]:
    reasons = [f"policy {policy.name}: every change"] if rule.always else []
    asked = {subsystem.casefold() for subsystem in rule.subsystems}
    reasons += [
        f"policy {policy.name}: {knob.name} acts on {knob.subsystem}"
        for knob in knobs
        if knob.subsystem.casefold() in asked
    ]
    reasons += [f"knob {knob.name}" for knob in knobs if name in knob.demands]
    reasons += [f"precedent {precedent.id}" for precedent in precedents if name in precedent.demands]
    if name in risk.add_checks:
        reasons.append(f"risk, as {risk.by} sees it")
    return list(dict.fromkeys(reasons))


def _count(name: CheckName, rule: CheckRule, concurrency: tuple[int, ...]) -> int:
    """How much is sent: as many as the rule says, and never fewer sessions or streams than fill the largest batch."""
    if name in {"throughput", "overload", "soak"}:
        return rule.count
    return max(rule.count, *concurrency)


def _concurrency(
    name: CheckName, rule: CheckRule, captured_max: int | None, running_max: int | None
) -> tuple[int, ...]:
    """Requests in flight: what the rule says, no more than the worker runs, and half as much again to overload it."""
    most = running_max if running_max is not None and running_max > 0 else None
    places = {"captured": captured_max, "running": most}
    numbers = []
    for place in rule.concurrency:
        if isinstance(place, int):
            number = place
        else:
            what, _, divisor = place.partition("/")
            known = places[what]
            number = known // int(divisor or 1) if known is not None and known > 0 else rule.otherwise
        number = max(number, 1)
        number = number if most is None else min(number, most)
        numbers.append(number + (number + 1) // 2 if name == "overload" else number)
    return tuple(dict.fromkeys(numbers))
