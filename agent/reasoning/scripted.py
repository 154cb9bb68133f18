"""A reasoner that says what it was told to, for tests and replays; it keeps the promise and raises when it runs dry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent.domain import Change, Evidence, Knob, Precedent, Request, Risk
from agent.errors import ModelSlip
from agent.reasoning.reasoner import Tool, Understanding


class ScriptedReasoner:
    """Hands out its answers in order."""

    def __init__(self, understandings: Iterable[Understanding] = (), risks: Iterable[Risk] = ()) -> None:
        """Take the answers to each of the two questions."""
        self._understandings = iter(understandings)
        self._risks = iter(risks)

    @property
    def name(self) -> str:
        """What records call it."""
        return "scripted"

    def understand(self, request: Request, knobs: Sequence[Knob], tools: Sequence[Tool]) -> Understanding:
        """Say the next understanding."""
        answer = next(self._understandings, None)
        if answer is None:
            raise ModelSlip(f"nothing was scripted for {request.text!r}")
        return answer

    def assess_risk(
        self,
        change: Change,
        knobs: Sequence[Knob],
        evidence: Sequence[Evidence],
        precedents: Sequence[Precedent],
        tools: Sequence[Tool],
    ) -> Risk:
        """Say the next risk."""
        answer = next(self._risks, None)
        if answer is None:
            raise ModelSlip(f"nothing was scripted for {change.summary!r}")
        return answer
