"""What a policy is: criteria, the checks that feed them, and the limits of a run."""

from __future__ import annotations

import math
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from agent.domain import CheckName, Criterion, Noise, Noun, digest_of
from policies.faults import faults
from policies.limits import Limits

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
    """Sessions in all (sessions), runs at each concurrency (throughput), streams in a storm (aborts), overloads one
    after the other (overload); of no meaning for a soak, which its time ends. With a sequential test it is the least
    that is sent unless it is bad."""
    tokens: Annotated[int, Field(ge=1, le=1_000_000)]
    """Most tokens to generate for each request."""
    depths: tuple[Annotated[int, Field(ge=0, le=1_000_000)], ...] = ()
    """Tokens of context before each session's facts, such as [0, 4096, 12288]: a stratum each; none: short ones."""
    texts: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Long texts after the sessions, at least so many and as many as fill the batch, which stay text to their end."""
    seconds: Annotated[float, Field(gt=0, le=86_400)] | None = None
    """How long a soak lasts."""
    storms: Annotated[int, Field(ge=1, le=1000)] = 3
    """Abort storms at each concurrency; a slope over them needs five."""
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
    overload: CheckRule = CheckRule(
        always=False,
        baseline=False,
        concurrency=("running",),
        otherwise=256,
        count=1,
        tokens=64,
        because="A worker has to come back from more than it can serve, by itself and to what it was.",
    )
    """More requests at once than it runs, and whether it is what it was once they are gone."""
    soak: CheckRule = CheckRule(
        always=False,
        baseline=False,
        concurrency=("captured/2",),
        count=1,
        tokens=128,
        seconds=600,
        because="What leaks or decays shows in hours; ten minutes of load show what is quick enough to hurt today.",
    )
    """Steady load for some time: progress, memory and rate."""

    def rule(self, name: CheckName) -> CheckRule:
        """The rule of a check."""
        rules: dict[CheckName, CheckRule] = {
            "sessions": self.sessions,
            "throughput": self.throughput,
            "aborts": self.aborts,
            "overload": self.overload,
            "soak": self.soak,
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
    order: tuple[CheckName, ...] = ("sessions", "throughput", "aborts", "overload", "soak")
    """The order of the checks: correctness before speed, then what can wedge a worker, and last what takes long."""
    second_start: Literal["never", "undecided", "always"] = "undecided"
    """Whether the change is started a second time: where the first start did not settle the matter, since the boot is
    the unit of inference, or always, since a configuration can come up once and not twice."""
    pairs: Annotated[int, Field(ge=0, le=20)] = 0
    """How often, where that did not settle a comparison with the worker as it was, the old setting is started and
    measured again, and the change after it; as far as `limits.budgets.restarts` goes."""
    limits: Limits = Limits()
    """How far a run may go, when, at which cost, and within which bounds."""
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
    def ordered(self) -> tuple[CheckName, ...]:
        """Every check in the order of this policy; those that it does not name come last."""
        return tuple(dict.fromkeys((*self.order, *get_args(CheckName))))

    def further_starts(self, *, compared: bool) -> tuple[bool, int]:
        """Whether the budget has room for a second start, and how many pairs it then has room for.

        Two starts, the first with the change and the one that takes it back, are always needed.

        Args:
            compared: Whether the plan compares anything with the baseline under noise; only then are pairs of use.
        """
        left = self.limits.budgets.restarts - 2
        second = self.second_start != "never" and left >= 1
        return second, min(self.pairs, (left - second) // 2) if compared else 0

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
        for fault in faults(self):
            raise PydanticCustomError(
                "fault", "{sentence}", {"sentence": fault.sentence, "remedy": fault.remedy, "at": fault.at}
            )
        return self


def _limit(own: float | None, multiple: float, floor: float, unknown: float) -> float:
    """A multiple of what the worker itself takes, or the floor; an own time that is no time counts as unknown."""
    if own is None or not math.isfinite(own) or own < 0:
        return max(unknown, floor)
    return max(own * multiple, floor)
