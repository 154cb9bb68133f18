"""Everything that a run says, with the time, as JSON lines in a file: for whoever asks later when what happened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import structlog

from agent.carry import Show
from agent.domain import Plan, Record

_GONE = (OSError, ValueError)
"""What a stream raises that is closed, full, gone, or of an encoding that lacks a sign."""


class Logged:
    """A display that writes down what it passes on; progress is passed on only.

    A terminal that is gone, a closed pipe or a full disk must not end a run in the middle of a change: what cannot be
    shown or written down is left out.
    """

    def __init__(self, show: Show, log: Any, run: str) -> None:
        """Take the display, a structlog logger, and the run that its lines are about."""
        self._show = show
        self._log = log.bind(run=run)

    def event(self, event: Mapping[str, Any]) -> None:
        """Write an event down and pass it on."""
        if event.get("kind") != "progress":
            rest = {key: value for key, value in event.items() if key not in {"kind", "run"}}
            self._write(str(event.get("kind")), **rest)
        with suppress(*_GONE):
            self._show.event(event)

    def card(self, plan: Plan) -> None:
        """Write down which plan was shown."""
        self._write("plan", digest=plan.digest, change=plan.change.summary)
        with suppress(*_GONE):
            self._show.card(plan)

    def waiting(self, plan: Plan, seconds_left: float) -> None:
        """Pass it on."""
        with suppress(*_GONE):
            self._show.waiting(plan, seconds_left)

    def record(self, record: Record) -> None:
        """Write down how it ended."""
        verdict = record.verdict
        self._write("record", seq=record.seq, hash=record.hash, decision=verdict.decision, state=verdict.state)
        with suppress(*_GONE):
            self._show.record(record)

    def _write(self, event: str, **rest: Any) -> None:
        with suppress(*_GONE):
            self._log.info(event, **rest)


@contextmanager
def logged(show: Show, path: Path, run: str) -> Iterator[Show]:
    """Let a display write into a log file beside the store."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        log = structlog.wrap_logger(
            structlog.WriteLogger(file),
            processors=[
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.JSONRenderer(ensure_ascii=False),
            ],
        )
        yield Logged(show, log, run)
