"""Ask a model first and the rules when it fails; the answer says that they stood in, and why."""

from __future__ import annotations

from collections.abc import Sequence

from agent.domain import Change, Evidence, Knob, Precedent, Request, Risk
from agent.errors import ModelSlip
from agent.reasoning.reasoner import Reasoner, Tool, Understanding


class Fallback:
    """Two reasoners in a row."""

    def __init__(self, first: Reasoner, then: Reasoner) -> None:
        """Take the one to ask and the one that stands in."""
        self._first = first
        self._then = then

    @property
    def name(self) -> str:
        """The name of the first."""
        return self._first.name

    def understand(self, request: Request, knobs: Sequence[Knob], tools: Sequence[Tool]) -> Understanding:
        """Say what a request means; see the promise."""
        try:
            return self._first.understand(request, knobs, tools)
        except ModelSlip as slip:
            instead = self._then.understand(request, knobs, tools)
            return instead.model_copy(update={"instead_of": f"{self._first.name}: {slip}"})

    def assess_risk(
        self,
        change: Change,
        knobs: Sequence[Knob],
        evidence: Sequence[Evidence],
        precedents: Sequence[Precedent],
        tools: Sequence[Tool],
    ) -> Risk:
        """Weigh a change; see the promise."""
        try:
            return self._first.assess_risk(change, knobs, evidence, precedents, tools)
        except ModelSlip as slip:
            instead = self._then.assess_risk(change, knobs, evidence, precedents, tools)
            return instead.model_copy(update={"instead_of": f"{self._first.name}: {slip}"})
