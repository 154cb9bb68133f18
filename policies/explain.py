"""A policy in words, for the plan card and for whoever wants to know what Prudent will insist on."""

from __future__ import annotations

from agent.domain import Criterion
from policies import wording
from policies.metrics import metric_of
from policies.schema import CheckRule, Policy


def rule(criterion: Criterion) -> str:
    """What one criterion asks for, as one line for a plan card."""
    metric = metric_of(criterion)
    if metric.kind == "share":
        return _share_rule(criterion, metric.things, metric.went)
    if metric.kind == "fact" and criterion.of == "absolute":
        return _fact_rule(criterion)
    if criterion.of == "baseline":
        return _ratio_rule(criterion, metric.title)
    side = "at most" if criterion.comparison == "at_most" else "at least"
    return f"{metric.title}: {side} {wording.number(criterion.bound)} {metric.unit}".rstrip()


def explain(policy: Policy) -> tuple[str, ...]:
    """A policy as lines of text, without colours."""
    lines = [f"{policy.label}: {policy.summary}", "", "A change is kept only if all of this is shown:"]
    for criterion in policy.criteria:
        measured = metric_of(criterion).checks
        when = f" (where the plan has the check: {' or '.join(measured)})" if measured else ""
        lines.append(f"  {criterion.id}: {rule(criterion)}{when}")
        lines.append(f"      {criterion.because}")
        if criterion.missing == "breach":
            lines.append("      Without a reading it counts as breached.")
    lines += ["", "A measured breach rolls back; what is missing or not settled restores and defers.", "", "Checks:"]
    for name in policy.ordered:
        check = policy.checks.rule(name)
        lines.append(f"  {name}: {_when(check)}, {_how(name, check)}")
        lines.append(f"      {check.because}")
    lines += ["", "Limits:", *(f"  {limit}" for limit in _limits(policy))]
    return tuple(lines)


def _share_rule(criterion: Criterion, things: str, went: str) -> str:
    if criterion.bound <= 0:
        asked = f"none of {criterion.minimum_n} or more {things} {went}"
    elif criterion.sequential is not None:
        test = criterion.sequential
        asked = (
            f"under {wording.share(test.bad)} of {things} {went} rather than {wording.share(test.ok)}, shown at "
            f"{wording.share(1 - test.error)} by a sequential test of at most {test.cap}"
        )
    elif criterion.confidence is None:
        asked = f"at most {wording.share(criterion.bound)} of {criterion.minimum_n} or more {things} {went}"
    else:
        sure = wording.share(criterion.confidence)
        asked = (
            f"under {wording.share(criterion.bound)} of {things} {went}, shown at {sure} "
            f"by {criterion.minimum_n} or more"
        )
    if criterion.exposure is not None:
        asked += f", {wording.share(criterion.exposure)} of their tokens from where the change acts"
    if criterion.hard_count is None or criterion.bound <= 0:
        return asked
    return f"{asked}; {wording.count(criterion.hard_count)} bad ones are a breach whatever the share"


def _fact_rule(criterion: Criterion) -> str:
    metric = metric_of(criterion)
    wanted = metric.yes if criterion.comparison == "at_least" and criterion.bound > 0 else metric.no
    return wanted or f"{metric.title} {wording.bound(criterion)}"


def _ratio_rule(criterion: Criterion, title: str) -> str:
    if criterion.confidence is None:
        return f"{title}: {wording.bound(criterion)}"
    sure = wording.share(criterion.confidence)
    if criterion.comparison == "at_least" and criterion.bound < 1:
        return f"{title}: a loss of more than {wording.share(1 - criterion.bound)} is ruled out at {sure}"
    return f"{title}: {wording.bound(criterion)}, shown at {sure}"


def _when(check: CheckRule) -> str:
    always = "for every change" if check.always else ""
    some = f"for changes of {', '.join(check.subsystems)}" if check.subsystems and not check.always else ""
    when = always or some or "where a knob, a precedent or the risk demands it"
    return f"{when}, before and after" if check.baseline else f"{when}, after it"


def _how(name: str, check: CheckRule) -> str:
    places = " and ".join(str(place) for place in check.concurrency)
    counted = {
        "sessions": f"{check.count} sessions",
        "throughput": f"{check.count} runs each",
        "aborts": f"{check.storms} storms of {check.count} streams",
        "overload": f"{check.count} times half as much again as the worker runs, counted",
        "soak": f"{wording.number(check.seconds or 0.0)} s of load",
    }
    deep = f" and at least {check.texts} long texts" if check.texts else ""
    deep += f", {'/'.join(map(str, check.depths))} tokens deep" if check.depths else ""
    return f"{counted[name]} at {places} in flight, {check.tokens} tokens at most{deep}"


def _limits(policy: Policy) -> list[str]:
    times, noise, limits = policy.times, policy.noise, policy.limits
    second = {
        "never": "a change is started once",
        "undecided": "a change is started a second time where the first start did not settle it",
        "always": "a change is started twice before it is kept",
    }
    level = {
        "watch": "questions are answered, changes are not planned",
        "propose": "changes are planned and handed to a person, never carried out",
        "ask": "a change is carried out once a person has approved its plan",
    }
    return [
        level[limits.autonomy],
        f"changes are carried out {limits.windows_say()}",
        f"a run takes at most {wording.number(limits.budgets.minutes)} min, {limits.budgets.restarts} starts and "
        f"{limits.budgets.sessions} sessions",
        *(f"{name}: {bound.says()}, {bound.because}" for name, bound in limits.knobs.items()),
        second[policy.second_start],
        *(
            [
                f"where speed is still not settled, the old setting and the change are each started again, up to "
                f"{policy.pairs} {'times' if policy.pairs > 1 else 'time'}"
            ]
            if policy.pairs
            else []
        ),
        f"a start fails after {wording.number(times.start)} times the last one, "
        f"not before {wording.number(times.start_floor_seconds)} s",
        f"the host takes the change back after {wording.number(times.watchdog)} restarts of silence, "
        f"not before {wording.number(times.watchdog_floor_seconds)} s",
        f"a worker without a token for {wording.number(times.stall)} of its own steps is wedged, "
        f"not before {wording.number(times.stall_floor_seconds)} s",
        f"an approval is good for {wording.number(policy.approve_within_minutes)} minutes",
        f"a restart waits up to {wording.number(policy.users.wait_seconds)} s "
        f"while more than {policy.users.at_most} requests are in flight",
        f"throughput differs by {wording.share(noise.boot_sd)} between boots and {wording.share(noise.run_sd)} "
        f"between runs ({noise.basis})",
    ]
