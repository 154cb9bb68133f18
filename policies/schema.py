"""What a policy is: criteria, the checks that feed them, and the limits of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from agent.domain import CheckName, Criterion, Noise, Noun, digest_of
from policies import proportions, wording
from policies.metrics import METRICS, Metric, known

Place = Annotated[str, Field(pattern=r"^(captured|running)(/[1-9][0-9]?)?$")]
"""A number of requests in flight that follows the worker: `captured`, the largest batch that is captured before or
after the change; `running`, the most that it runs at once; either divided by a whole number."""


class CheckRule(Noun):
    """How a check is run, and what demands it besides knobs, precedents and risks."""

    always: bool
    """Whether every change has to pass it."""
    subsystems: tuple[str, ...] = ()
    """Parts of the engine whose knobs have to pass it, as the knob catalogue names them."""
    baseline: bool
    """Whether it is also run before the change, on the worker as it is."""
    concurrency: tuple[Annotated[int, Field(ge=1, le=4096)] | Place, ...]
    """Requests in flight, a run for each: whole numbers, `captured`, `running`, or one of them divided, `captured/2`.
    None of them goes beyond what the worker runs at once."""
    otherwise: Annotated[int, Field(ge=1, le=4096)] = 32
    """Requests in flight where a place has no number, because nothing is captured or no limit is known."""
    count: Annotated[int, Field(ge=1, le=1_000_000)]
    """Sessions in all (sessions), runs at each concurrency (throughput), streams in a storm (aborts)."""
    tokens: Annotated[int, Field(ge=1, le=1_000_000)]
    """Most tokens to generate for each request."""
    because: str
    """Why it is run like this, in one sentence."""


class Checks(Noun):
    """A rule for each check, because a knob, a precedent or a risk may demand any of them."""

    sessions: CheckRule
    """Tool-call sessions with planted facts, whose right calls are known."""
    throughput: CheckRule
    """Tokens per second with so many requests in flight."""
    aborts: CheckRule
    """Storms of streams that are cut, and whether tokens still come afterwards."""

    def rule(self, name: CheckName) -> CheckRule:
        """The rule of a check."""
        rules: dict[CheckName, CheckRule] = {
            "sessions": self.sessions,
            "throughput": self.throughput,
            "aborts": self.aborts,
        }
        return rules[name]


class Times(Noun):
    """Limits of time, in multiples of what this worker itself takes."""

    start: Annotated[float, Field(ge=1, le=100)]
    """A start has failed when it takes longer than so many times the last one."""
    start_floor_seconds: Annotated[float, Field(gt=0)]
    """However short the last start was, this long is always waited."""
    start_unknown_seconds: Annotated[float, Field(gt=0)]
    """How long is waited where no earlier start is known."""
    watchdog: Annotated[float, Field(gt=1, le=100)]
    """The host takes the change back when the agent has been silent for so many restarts."""
    watchdog_floor_seconds: Annotated[float, Field(gt=0)]
    """However short a restart is, this much silence is always allowed."""
    stall: Annotated[float, Field(ge=2, le=100_000)]
    """After a storm the worker is wedged when no token comes for so many of its own decode steps."""
    stall_floor_seconds: Annotated[float, Field(gt=0)]
    """However short a step is, this long is always waited for a token."""
    entry_seconds: Annotated[float, Field(gt=0)]
    """How long a request through the traffic entry may take."""

    def start_limit_seconds(self, last_start: float | None) -> float:
        """Seconds after which a start has failed; `last_start` in seconds, None where no earlier start is known."""
        return _limit(last_start, self.start, self.start_floor_seconds, self.start_unknown_seconds)

    def watchdog_seconds(self, last_start: float | None) -> float:
        """Seconds of silence after which the host takes the change back; argument as above."""
        return _limit(last_start, self.watchdog, self.watchdog_floor_seconds, self.start_unknown_seconds)

    def stall_seconds(self, step: float | None) -> float:
        """Seconds without a token that mean a wedge; `step` is one decode step in seconds, None: unknown."""
        return _limit(step, self.stall, self.stall_floor_seconds, self.stall_floor_seconds)


class Users(Noun):
    """How much live traffic may be cut off by a restart."""

    at_most: Annotated[int, Field(ge=0)]
    """A restart waits while more requests than this are in flight."""
    wait_seconds: Annotated[float, Field(ge=0)]
    """How long it waits before the run gives way to the users."""


class Policy(Noun):
    """The law for one kind of worker."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    """Short name, such as `decode`."""
    summary: str
    """What it is for, in one sentence."""
    criteria: tuple[Criterion, ...]
    """The rollback criteria. Those on the start always apply, the others where their check is part of the plan."""
    checks: Checks
    """The checks, how they are run, and when."""
    order: tuple[CheckName, ...] = ("sessions", "throughput", "aborts")
    """The order of the checks: correctness before speed, and last what can wedge a worker."""
    times: Times
    """Limits of time."""
    approve_within_minutes: Annotated[float, Field(gt=0, le=1440)]
    """How long an approval may be given and used."""
    users: Users
    """What is asked of live traffic before a restart."""
    unproven_edits: Literal["show", "refuse"] = "show"
    """An edit that could not be proven by executing it, because the machine allows no sandbox: shown as unproven on the
    plan card for a person to decide, or refused."""
    noise: Noise
    """How much throughput differs where this worker has no history yet: published figures, at their upper end."""

    @property
    def label(self) -> str:
        """Name and hash, such as `decode 1f2e3d4c5b6a`."""
        return f"{self.name} {digest_of(self)[:12]}"

    @property
    def floor_gb(self) -> float | None:
        """The free GPU memory that has to stay after capture, in GB; None where no criterion asks for any."""
        floors = [
            criterion.bound
            for criterion in self.criteria
            if criterion.metric == "free_after_capture_gb"
            and criterion.of == "absolute"
            and criterion.comparison == "at_least"
        ]
        return max(floors, default=None)

    @property
    def approve_within_seconds(self) -> float:
        """How long an approval may be given and used, in seconds."""
        return self.approve_within_minutes * 60

    @model_validator(mode="after")
    def _makes_sense(self) -> Policy:
        for fault in _faults(self):
            raise PydanticCustomError(
                "fault", "{sentence}", {"sentence": fault.sentence, "remedy": fault.remedy, "at": fault.at}
            )
        return self


class _Fault(NamedTuple):
    """Something that a model of single fields cannot see."""

    at: tuple[str | int, ...]
    sentence: str
    remedy: str


def _faults(policy: Policy) -> Iterator[_Fault]:
    """What is wrong across fields; each would make a criterion that can never be met, or never be breached."""
    if sorted(policy.order) != ["aborts", "sessions", "throughput"]:
        yield _Fault(("order",), "The order must name each check once.", "Write [sessions, throughput, aborts].")
    if not policy.criteria:
        yield _Fault(("criteria",), "A policy without criteria keeps nothing.", "Name at least one.")
    for check in policy.order:
        if not policy.checks.rule(check).concurrency:
            yield _Fault(("checks", check, "concurrency"), "The list is empty.", "Write [captured], for example.")
    if len(policy.checks.sessions.concurrency) > 1:
        yield _Fault(
            ("checks", "sessions", "concurrency"),
            "Sessions run at one concurrency, or what is shown in small batches would be claimed for large ones.",
            "Write [captured].",
        )
    for name in ("boot_sd", "run_sd"):
        sd = getattr(policy.noise, name)
        if not 0 < sd < 1:
            yield _Fault(
                ("noise", name), f"{name} is {sd}, not a relative standard deviation.", "Write one such as 0.026."
            )
    seen: set[str] = set()
    for index, criterion in enumerate(policy.criteria):
        if criterion.id in seen:
            yield _Fault(
                ("criteria", index, "id"), f"The id {criterion.id!r} is used twice.", "Give each criterion its own."
            )
        seen.add(criterion.id)
        metric = known(criterion.metric)
        if metric is None:
            yield _Fault(
                ("criteria", index, "metric"),
                f"Nothing measures {criterion.metric!r}.",
                "Known metrics: " + ", ".join(metric.name for metric in METRICS) + ".",
            )
        else:
            yield from (
                fault._replace(at=("criteria", index, *fault.at))
                for fault in (*_bound_faults(criterion, metric), *_sample_faults(policy, criterion, metric))
            )


def _bound_faults(criterion: Criterion, metric: Metric) -> Iterator[_Fault]:
    if not math.isfinite(criterion.bound):
        yield _Fault(("bound",), f"The bound {criterion.bound} is not a number.", "Write one.")
    if criterion.confidence is not None and not 0.8 <= criterion.confidence <= 0.9999:
        yield _Fault(
            ("confidence",), f"{criterion.confidence} is not a one-sided confidence.", "Write 0.95, for example."
        )
    if criterion.of == "baseline" and criterion.bound <= 0:
        yield _Fault(("bound",), "A factor on the baseline is greater than 0.", "Write 0.9 for a loss of 10 %.")
    if metric.kind == "share":
        if criterion.comparison != "at_most" or criterion.of != "absolute":
            yield _Fault(("comparison",), "A share of bad ones is judged at_most, absolute.", "Write it so.")
        if not 0 <= criterion.bound < 1:
            yield _Fault(("bound",), f"{criterion.bound} is not a share.", "Write 0.03 for 3 %.")
        if criterion.confidence is not None and criterion.bound <= 0:
            yield _Fault(
                ("bound",), "No sample shows a share of 0.", "Write a bound above 0, or leave the confidence out."
            )
    elif criterion.hard_count is not None:
        yield _Fault(("hard_count",), f"{criterion.metric} is not a share, it has no counts.", "Leave it out.")
    if metric.kind == "rate" and criterion.of == "baseline" and criterion.confidence is None:
        yield _Fault((), f"{criterion.metric} is noisy and needs a confidence.", "Add confidence: 0.95.")
    if criterion.confidence is not None and metric.kind in {"fact", "amount"}:
        yield _Fault(
            ("confidence",), f"{criterion.metric} is one number, there is no confidence in it.", "Leave it out."
        )
    if metric.kind == "fact" and (criterion.of == "baseline" or criterion.bound not in {0.0, 1.0}):
        yield _Fault(("bound",), f"{criterion.metric} is 0 or 1.", "Write an absolute bound of 0 or 1.")


def _sample_faults(policy: Policy, criterion: Criterion, metric: Metric) -> Iterator[_Fault]:
    if criterion.minimum_n < 1:
        yield _Fault(("minimum_n",), "The minimum sample is at least 1.", "Write 1 or more.")
        return
    if criterion.hard_count is not None and criterion.hard_count < 1:
        yield _Fault(("hard_count",), "The hard count is at least 1.", "Write 1 or more.")
    provable = criterion.confidence is not None and 0 < criterion.bound < 1 and 0.8 <= criterion.confidence < 1
    if metric.kind == "share" and provable:
        assert criterion.confidence is not None
        enough = proportions.needed(criterion.bound, criterion.confidence)
        if criterion.minimum_n < enough:
            yield _Fault(
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
            yield _Fault(
                ("minimum_n",),
                f"The criterion asks for {criterion.minimum_n} {sends[check]} and the check sends {count}.",
                f"Raise checks.{check}.count, or ask for less.",
            )


def _limit(own: float | None, multiple: float, floor: float, unknown: float) -> float:
    """A multiple of what the worker itself takes, or the floor; an own time that is no time counts as unknown."""
    if own is None or not math.isfinite(own) or own < 0:
        return max(unknown, floor)
    return max(own * multiple, floor)
