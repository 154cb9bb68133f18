"""What is wrong with a policy across its fields; each would make a rule that can never be met, or never be breached."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from agent.domain import Criterion, Sequential
from policies import proportions, sequential, wording
from policies.metrics import METRICS, Metric, known

if TYPE_CHECKING:
    from policies.schema import Policy


class Fault(NamedTuple):
    """Something that a model of single fields cannot see."""

    at: tuple[str | int, ...]
    sentence: str
    remedy: str


def faults(policy: Policy) -> Iterator[Fault]:
    """What is wrong across fields; each would make a criterion that can never be met, or never be breached."""
    if len(set(policy.order)) != len(policy.order):
        yield Fault(("order",), "The order names a check twice.", "Name each once; those left out come last.")
    if not policy.criteria:
        yield Fault(("criteria",), "A policy without criteria keeps nothing.", "Name at least one.")
    for check in policy.ordered:
        if not policy.checks.rule(check).concurrency:
            yield Fault(("checks", check, "concurrency"), "The list is empty.", "Write [captured], for example.")
    if policy.checks.soak.seconds is None:
        yield Fault(("checks", "soak", "seconds"), "A soak without a length is none.", "Write seconds: 600.")
    if policy.second_start == "always" and policy.limits.budgets.restarts < 3:
        yield Fault(
            ("limits", "budgets", "restarts"),
            "A second start and the one that takes it back need 3 restarts.",
            "Write 3 or more, or second_start: never.",
        )
    needed = 2 + 2 * policy.pairs + (policy.second_start != "never")
    if policy.pairs and policy.limits.budgets.restarts < needed:
        yield Fault(
            ("pairs",),
            f"Pairs with all the other starts need {needed} restarts, and the budget is "
            f"{policy.limits.budgets.restarts}.",
            f"Write limits.budgets.restarts: {needed}, or fewer pairs.",
        )
    if len(policy.checks.sessions.concurrency) > 1:
        yield Fault(
            ("checks", "sessions", "concurrency"),
            "Sessions run at one concurrency, or what is shown in small batches would be claimed for large ones.",
            "Write [captured].",
        )
    for name in ("boot_sd", "run_sd"):
        sd = getattr(policy.noise, name)
        if not 0 < sd < 1:
            yield Fault(
                ("noise", name), f"{name} is {sd}, not a relative standard deviation.", "Write one such as 0.026."
            )
    seen: set[str] = set()
    for index, criterion in enumerate(policy.criteria):
        if criterion.id in seen:
            yield Fault(
                ("criteria", index, "id"), f"The id {criterion.id!r} is used twice.", "Give each criterion its own."
            )
        seen.add(criterion.id)
        metric = known(criterion.metric)
        if metric is None:
            yield Fault(
                ("criteria", index, "metric"),
                f"Nothing measures {criterion.metric!r}.",
                "Known metrics: " + ", ".join(metric.name for metric in METRICS) + ".",
            )
        else:
            yield from (
                fault._replace(at=("criteria", index, *fault.at))
                for fault in (*_bound_faults(criterion, metric), *_sample_faults(policy, criterion, metric))
            )


def _bound_faults(criterion: Criterion, metric: Metric) -> Iterator[Fault]:
    if not math.isfinite(criterion.bound):
        yield Fault(("bound",), f"The bound {criterion.bound} is not a number.", "Write one.")
    if criterion.confidence is not None and not 0.8 <= criterion.confidence <= 0.9999:
        yield Fault(
            ("confidence",), f"{criterion.confidence} is not a one-sided confidence.", "Write 0.95, for example."
        )
    if criterion.of == "baseline" and criterion.bound <= 0:
        yield Fault(("bound",), "A factor on the baseline is greater than 0.", "Write 0.9 for a loss of 10 %.")
    if metric.kind == "share":
        if criterion.comparison != "at_most" or criterion.of != "absolute":
            yield Fault(("comparison",), "A share of bad ones is judged at_most, absolute.", "Write it so.")
        if not 0 <= criterion.bound < 1:
            yield Fault(("bound",), f"{criterion.bound} is not a share.", "Write 0.03 for 3 %.")
        if criterion.confidence is not None and criterion.bound <= 0:
            yield Fault(
                ("bound",), "No sample shows a share of 0.", "Write a bound above 0, or leave the confidence out."
            )
    elif criterion.hard_count is not None:
        yield Fault(("hard_count",), f"{criterion.metric} is not a share, it has no counts.", "Leave it out.")
    if metric.kind == "rate" and criterion.of == "baseline" and criterion.confidence is None:
        yield Fault((), f"{criterion.metric} is noisy and needs a confidence.", "Add confidence: 0.95.")
    if criterion.confidence is not None and metric.kind in {"fact", "amount"}:
        yield Fault(
            ("confidence",), f"{criterion.metric} is one number, there is no confidence in it.", "Leave it out."
        )
    if metric.kind == "fact" and (criterion.of == "baseline" or criterion.bound not in {0.0, 1.0}):
        yield Fault(("bound",), f"{criterion.metric} is 0 or 1.", "Write an absolute bound of 0 or 1.")


def _sample_faults(policy: Policy, criterion: Criterion, metric: Metric) -> Iterator[Fault]:
    if criterion.minimum_n < 1:
        yield Fault(("minimum_n",), "The minimum sample is at least 1.", "Write 1 or more.")
        return
    if criterion.sequential is not None:
        yield from _sequential_faults(policy, criterion, criterion.sequential, metric)
    if criterion.exposure is not None and not (metric.name == "corrupted_sessions" and 0 < criterion.exposure < 1):
        yield Fault(
            ("exposure",),
            "Only the sessions' tokens are counted by batch size, as a share above 0 and below 1.",
            "Write 0.2 for a fifth of them, or leave it out.",
        )
    if criterion.hard_count is not None and criterion.hard_count < 1:
        yield Fault(("hard_count",), "The hard count is at least 1.", "Write 1 or more.")
    provable = criterion.confidence is not None and 0 < criterion.bound < 1 and 0.8 <= criterion.confidence < 1
    provable = provable and criterion.sequential is None
    if metric.kind == "share" and provable:
        assert criterion.confidence is not None
        enough = proportions.needed(criterion.bound, criterion.confidence)
        if criterion.minimum_n < enough:
            yield Fault(
                ("minimum_n",),
                f"{criterion.minimum_n} clean {metric.things} do not show a share under "
                f"{wording.share(criterion.bound)} at {wording.share(criterion.confidence)}.",
                f"Write {enough} or more.",
            )
    sends = {"sessions": "sessions", "throughput": "runs"}
    counts_same_thing = metric.name in {"corrupted_sessions", "throughput_tokens_per_second"}
    for check in metric.checks if counts_same_thing else ():
        count = policy.checks.rule(check).count
        if count < criterion.minimum_n:
            yield Fault(
                ("minimum_n",),
                f"The criterion asks for {criterion.minimum_n} {sends[check]} and the check sends {count}.",
                f"Raise checks.{check}.count, or ask for less.",
            )


def _sequential_faults(policy: Policy, criterion: Criterion, test: Sequential, metric: Metric) -> Iterator[Fault]:
    at = "sequential"
    if metric.name != "corrupted_sessions":
        yield Fault((at,), f"{metric.name} is not counted one by one.", "Leave it out.")
        return
    if not 0 < test.ok < test.bad < 1:
        yield Fault((at, "bad"), "A test tells a smaller share from a larger one.", "Write ok: 0.001 and bad: 0.03.")
        return
    if not 0 < test.error < 0.5:
        yield Fault((at, "error"), f"{test.error} is not a probability of a mistake.", "Write 0.05, for example.")
        return
    if test.bad != criterion.bound:
        yield Fault(
            (at, "bad"),
            f"The test is of {wording.share(test.bad)} and the bound says {wording.share(criterion.bound)}.",
            "Write the same share in both.",
        )
    enough = sequential.enough(test)
    if test.cap < enough:
        yield Fault(
            (at, "cap"),
            f"{enough} clean {metric.things} are needed, and it ends after {test.cap}.",
            f"Write {2 * enough}, for example.",
        )
    most = policy.limits.budgets.sessions
    if test.cap > most:
        yield Fault((at, "cap"), f"The budget is {most} sessions.", "Raise limits.budgets.sessions, or ask for less.")
