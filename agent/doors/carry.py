"""The owner at a terminal: carries a run, and takes its change back on Ctrl-C."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NamedTuple

from agent.carry import Ask, Show
from agent.carry import carry as to_the_record
from agent.domain import Plan, Record
from agent.graph import Run
from agent.state import Parts, RunState

INTERRUPTED = 130
"""Exit status of a run that was stopped, as shells have it for SIGINT."""


class Outcome(NamedTuple):
    """How a run ended for its owner."""

    record: Record
    """The record."""
    interrupted: bool
    """Whether somebody stopped it."""


def carry(run: str, graph: Run, parts: Parts, show: Show, ask: Ask, start: RunState | None) -> Outcome:
    """Carry a run to its record, see `agent.carry.carry`, with an ear for signals.

    Raises:
        RunInFlight: another process has taken the run over meanwhile.
    """
    with _stopping(run, parts) as signals:
        record = to_the_record(run, graph, parts, show, ask, start)
    show.record(record)
    return Outcome(record=record, interrupted=bool(signals))


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
