"""One process owns a run: it carries the graph forward, waits for the decision, and takes the change back on Ctrl-C."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.types import Command

from agent.domain import Plan, Record
from agent.doors.show import Show
from agent.errors import RunInFlight, Superseded
from agent.graph import Run
from agent.state import Parts, RunState

Ask = Callable[[Plan], None]
"""Offers the plan for a moment to whoever sits at the terminal, and writes a decision to the store."""


INTERRUPTED = 130
"""Exit status of a run that was stopped, as shells have it for SIGINT."""


class Outcome(NamedTuple):
    """How a run ended for its owner."""

    record: Record
    """The record."""
    interrupted: bool
    """Whether somebody stopped it."""


def carry(run: str, graph: Run, parts: Parts, show: Show, ask: Ask, start: RunState | None) -> Outcome:
    """Carry a run to its record.

    Args:
        run: The run's id, which is the checkpoint's thread too.
        graph: The compiled graph with its checkpoints.
        parts: What the nodes use.
        show: Who watches.
        ask: Asks whoever sits at the terminal.
        start: The first state; None resumes from the last checkpoint.

    Raises:
        RunInFlight: another process has taken the run over meanwhile; it has its change and its record now.
    """
    config: RunnableConfig = {"configurable": {"thread_id": run}, "recursion_limit": 50}
    payload: Any = start
    with _stopping(run, parts) as signals:
        try:
            _to_the_end(graph, config, parts, show, ask, payload)
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
    show.record(record)
    return Outcome(record=record, interrupted=bool(signals))


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


@contextmanager
def _stopping(run: str, parts: Parts) -> Iterator[list[int]]:
    """Ctrl-C, SIGTERM and SIGHUP: the first takes the change back, the second says so, the third lets go.

    The nodes run in a thread of LangGraph's, so a signal is a wish that they look at, never an exception among them.
    The handler may interrupt anything of ours, so it takes no lock and prints with a bare system call.
    """
    seen: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        if len(seen) == 1:
            parts.stop.why = f"stopped by {'Ctrl-C' if number == signal.SIGINT else signal.Signals(number).name}"
            parts.stop.asked.set()
            _say("stopping: whatever was begun is taken back and proven")
        elif len(seen) == 2:
            _say("still taking it back; once more leaves it to the host's watchdog and `prudent resume`")
        else:
            _say(f"let go: prudent resume {run} takes it back and proves it")
            os._exit(INTERRUPTED)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    with suppress(OSError):
        os.write(2, f"\nprudent: {text}\n".encode())


def pause(_plan: Plan) -> None:
    """Ask nobody: wait a moment and let the store be looked at again."""
    time.sleep(0.2)
