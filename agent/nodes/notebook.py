"""Evidence as it is gathered: every fact gets the next free id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from agent.domain import Evidence


class Notebook:
    """Numbers facts on from those that there are."""

    def __init__(self, before: Sequence[Evidence], clock: Callable[[], datetime]) -> None:
        """Take the facts that are known and the clock."""
        self._before = tuple(before)
        self._clock = clock
        self.new: list[Evidence] = []

    @property
    def all(self) -> tuple[Evidence, ...]:
        """Everything that is known."""
        return (*self._before, *self.new)

    def note(self, what: str, source: str, *, tainted: bool = False, claimed: bool = False) -> Evidence:
        """Write a fact down; the same fact from the same source is not written twice."""
        for fact in self.all:
            if fact.what == what and fact.source == source:
                return fact
        fact = Evidence(
            id=f"e{len(self.all) + 1}",
            what=what,
            source=source,
            at=self._clock(),
            tainted=tainted,
            claimed=claimed,
        )
        self.new.append(fact)
        return fact
