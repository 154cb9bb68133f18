"""What nodes share: the state of a run, which is checkpointed, and the parts that they are handed, which are not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, TypedDict, TypeVar

from agent.domain import (
    Approval,
    Change,
    Evidence,
    Execution,
    Forecast,
    Knob,
    Noise,
    Plan,
    Precedent,
    Reading,
    Record,
    Request,
    Risk,
    Verdict,
)
from agent.errors import Stopped
from agent.reasoning.reasoner import Reasoner
from agent.settings import WorkerSettings
from memory.incidents import Incident
from memory.store import Owner, Store
from policies.schema import Policy
from tools.worker import Worker

Item = TypeVar("Item")


def added(old: Sequence[Item], new: Sequence[Item]) -> tuple[Item, ...]:
    """Join what a node adds to what there is; a checkpoint hands back lists, so both ends become tuples."""
    return (*old, *new)


class RunState(TypedDict, total=False):
    """A run as far as it has come, noun by noun."""

    request: Request
    change: Change
    evidence: Annotated[tuple[Evidence, ...], added]
    precedents: tuple[Precedent, ...]
    risk: Risk
    forecast: Forecast
    plan: Plan
    approval: Approval
    execution: Execution
    readings: Annotated[tuple[Reading, ...], added]
    noise: Noise
    verdict: Verdict
    notes: Annotated[tuple[str, ...], added]
    record: Record


@dataclass
class Stop:
    """The wish to end a run early; the law then treats what is missing as missing."""

    asked: threading.Event = field(default_factory=threading.Event)
    """Set once somebody asked."""
    why: str = "stopped by the operator"
    """The reason that the record gives."""


@dataclass
class Heard:
    """What comes to pass on the way to the host besides: shown with what is said next, and kept for the record."""

    lines: list[str] = field(default_factory=list)
    """All of it, in order."""
    shown: int = 0
    """How many of them were shown."""

    def hear(self, text: str) -> None:
        """Take something, from whatever thread."""
        self.lines.append(text)

    def fresh(self) -> list[str]:
        """What was not shown yet; now it is."""
        new = self.lines[self.shown :]
        self.shown += len(new)
        return new


@dataclass(frozen=True)
class Parts:
    """What a node may use. Only promises and pure functions of the rooms below stand behind these names."""

    name: str
    """The worker's name in the settings."""
    settings: WorkerSettings
    """The worker's settings."""
    worker: Worker
    """The worker: its host, its script, its engine."""
    store: Store
    """Runs and records."""
    reasoner: Reasoner
    """What is asked for meaning and risk."""
    rules: Reasoner
    """The reasoner without a model: the floor below which no model's risk can go."""
    policy: Policy
    """The law for this worker."""
    knobs: tuple[Knob, ...]
    """The catalogue of the worker's engine."""
    incidents: tuple[Incident, ...]
    """The shipped incidents and the team's."""
    owner: Owner
    """This process."""
    clock: Callable[[], datetime]
    """The time, with its zone."""
    seed: int
    """Seeds the load that the probe sends."""
    stop: Stop
    """Whether somebody wants to end early."""
    heard: Heard = field(default_factory=Heard)
    """What came to pass on the way to the host."""


Tell = Callable[[dict[str, Any]], None]
"""Says to whoever watches what is happening; see `tell_of`."""


def stoppable(tell: Tell, stop: Stop) -> Tell:
    """Make a long wait end soon after somebody asked to stop: the next that it tells raises `Stopped`."""

    def tell_or_stop(event: dict[str, Any]) -> None:
        if stop.asked.is_set():
            raise Stopped(stop.why)
        tell(event)

    return tell_or_stop


def tell_of(writer: Callable[[Any], None]) -> Tell:
    """Wrap LangGraph's stream writer: an event is a dict with `kind` and `text`, and what else belongs to it."""

    def tell(event: dict[str, Any]) -> None:
        writer(event)

    return tell
