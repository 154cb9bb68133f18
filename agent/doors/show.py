"""The promise of a display: what a run says while it goes on, for people or for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from agent.domain import Plan, Record


class Show(Protocol):
    """Somebody who watches a run."""

    def event(self, event: Mapping[str, Any]) -> None:
        """Something happened; `kind` and `text` are always there, `share` (0 to 1) with progress."""

    def card(self, plan: Plan) -> None:
        """The plan that wants a decision."""

    def waiting(self, plan: Plan, seconds_left: float) -> None:
        """Nobody has decided yet."""

    def record(self, record: Record) -> None:
        """The run has ended."""
