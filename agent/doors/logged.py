"""Everything that a run says, with the time, as JSON lines in a file: for whoever asks later when what happened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog

from agent.domain import Plan, Record
from agent.doors.show import Show


class Logged:
    """A display that writes down what it passes on; progress is passed on only."""

    def __init__(self, show: Show, log: Any, run: str) -> None:
        """Take the display, a structlog logger, and the run that its lines are about."""
        self._show = show
        self._log = log.bind(run=run)

    def event(self, event: Mapping[str, Any]) -> None:
        """Write an event down and pass it on."""
        if event.get("kind") != "progress":
            rest = {key: value for key, value in event.items() if key not in {"kind", "run"}}
            self._log.info(str(event.get("kind")), **rest)
        self._show.event(event)

    def card(self, plan: Plan) -> None:
        """Write down which plan was shown."""
        self._log.info("plan", digest=plan.digest, change=plan.change.summary)
        self._show.card(plan)

    def waiting(self, plan: Plan, seconds_left: float) -> None:
        """Pass it on."""
        self._show.waiting(plan, seconds_left)

    def record(self, record: Record) -> None:
        """Write down how it ended."""
        self._log.info(
            "record", seq=record.seq, hash=record.hash, decision=record.verdict.decision, state=record.verdict.state
        )
        self._show.record(record)


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
