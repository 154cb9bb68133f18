"""A run to its record: the graph goes forward, waits for the decision, and takes the change back where it breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from langchain_core.runnables import RunnableConfig
from langgraph.types import Command

from agent.domain import Plan, Record
from agent.errors import RunInFlight, Superseded
from agent.graph import Run
from agent.state import Parts, RunState

Ask = Callable[[Plan], None]
"""Offers the plan for a moment to whoever may decide, and writes a decision to the store."""


class Show(Protocol):
    """Somebody who watches a run: the promise of a display, for people or for programs."""

    def event(self, event: Mapping[str, Any]) -> None:
        """Something happened; `kind` and `text` are always there, `share` (0 to 1) with progress."""

    def card(self, plan: Plan) -> None:
        """The plan that wants a decision."""

    def waiting(self, plan: Plan, seconds_left: float) -> None:
        """Nobody has decided yet."""

    def record(self, record: Record) -> None:
        """The run has ended."""


def carry(run: str, graph: Run, parts: Parts, show: Show, ask: Ask, start: RunState | None) -> Record:
    """Carry a run to its record.

    Args:
        run: The run's id, which is the checkpoint's thread too.
        graph: The compiled graph with its checkpoints.
        parts: What the nodes use.
        show: Who watches.
        ask: Asks whoever may decide.
        start: The first state; None resumes from the last checkpoint.

    Raises:
        RunInFlight: another process has taken the run over meanwhile; it has its change and its record now.
    """
    config: RunnableConfig = {"configurable": {"thread_id": run}, "recursion_limit": 50}
    try:
        _to_the_end(graph, config, parts, show, ask, start)
    except Superseded as gone:
        raise RunInFlight(str(gone), f"It goes on there; see prudent show {run}.") from None
    except Exception as error:
        # A node or a checkpoint broke. Nothing is kept after that: one more pass takes back what was begun.
        parts.stop.why = f"broken off by {type(error).__name__}: {error}"
        parts.stop.asked.set()
        show.event({"kind": "stop", "text": f"{parts.stop.why}; whatever was begun is being taken back"})
        try:
            _to_the_end(graph, config, parts, show, ask, _next_payload(graph, config, start))
        except Superseded as gone:
            raise RunInFlight(str(gone), f"It goes on there; see prudent show {run}.") from None
        except Exception:
            text = f"that failed too; the host takes it back by itself, and prudent resume {run} proves it"
            show.event({"kind": "stop", "text": text})
            raise error from None
    record: Record = graph.get_state(config).values["record"]
    return record


def _to_the_end(graph: Run, config: RunnableConfig, parts: Parts, show: Show, ask: Ask, payload: Any) -> None:
    while _stream(graph, config, parts, show, payload):
        _await_decision(graph.get_state(config).values["plan"], parts, show, ask)
        payload = Command(resume="decided")


def _next_payload(graph: Run, config: RunnableConfig, start: RunState | None) -> Any:
    """What carries a broken graph on: nothing, or the start where no checkpoint was written yet."""
    return None if graph.get_state(config).values else start


def _stream(graph: Run, config: RunnableConfig, parts: Parts, show: Show, payload: Any) -> bool:
    """Run the graph until it ends or waits; True while it waits for a decision."""
    paused = False
    stream = graph.stream(payload, config, context=parts, stream_mode=["custom", "updates"], durability="sync")
    for mode, chunk in stream:
        for text in parts.heard.fresh():
            show.event({"kind": "note", "text": text})
        if mode == "custom" and isinstance(chunk, dict):
            show.event(chunk)
        elif "__interrupt__" in chunk:
            paused = True
    return paused


def _await_decision(plan: Plan, parts: Parts, show: Show, ask: Ask) -> None:
    """Wait until the store holds a decision on this plan, or its time is over, or somebody wants to stop."""
    if parts.store.decision(plan.run, plan.digest) is None:
        show.card(plan)
    while parts.store.decision(plan.run, plan.digest) is None and not parts.stop.asked.is_set():
        left = (plan.expires - parts.clock()).total_seconds()
        if left <= 0:
            return
        show.waiting(plan, left)
        ask(plan)
