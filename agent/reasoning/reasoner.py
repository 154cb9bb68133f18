"""The promise of a reasoner: two questions, and tools that only look.

A reasoner proposes. Whatever it returns is checked by its caller against the knob catalogue, the request's own words
and the evidence; it never approves, never decides, and never sees a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from pydantic import Field

from agent.domain import Change, Evidence, Knob, Noun, Precedent, Request, Risk


class Tool(NamedTuple):
    """A read-only tool that a reasoner may use."""

    name: str
    """What the model calls it."""
    description: str
    """What it answers, for the model."""
    parameters: Mapping[str, Any]
    """JSON schema of its arguments."""
    ask: Callable[[Mapping[str, Any]], Sequence[Evidence]]
    """Answer with evidence; a failure is evidence too."""


class Wish(Noun):
    """One setting that the request wants, in the catalogue's names, before it met the worker."""

    knob: str
    """Canonical knob name."""
    verb: Literal["set", "raise", "lower", "raise_by", "lower_by", "turn_on", "turn_off", "unset"]
    """`raise` and `lower` go to a value, `raise_by` and `lower_by` by one. `turn_on` and `turn_off` speak of what the
    operators call the knob (the overlap scheduler), `set` and `unset` of the flag or variable as it is spelled."""
    value: float | None = None
    """The number that the request states; a percentage of a fraction is already divided by 100."""
    was: float | None = None
    """The old value, where the request states one ("from 32 to 96")."""
    words: str
    """The words of the request that say so, verbatim."""


class Understanding(Noun):
    """What a request means."""

    kind: Literal["change", "question", "roll_back", "unclear", "foreign"]
    """`unclear`: several meanings are possible, see `choices`; `foreign`: nothing that Prudent does."""
    wishes: tuple[Wish, ...] = ()
    """For a change: the settings wanted."""
    unless_unsafe: bool = False
    """The request says to skip it if it is unsafe."""
    claims: tuple[str, ...] = ()
    """What the request claims about the worker ("the token pool is healthy"), verbatim, to be measured."""
    answer: str | None = None
    """For a question: the answer; every number in it stands in the evidence cited."""
    cites: tuple[str, ...] = ()
    """Ids of the evidence that the answer rests on."""
    choices: tuple[str, ...] = ()
    """For an unclear request: what it could mean, each as words that can be typed."""
    says: str = ""
    """For an unclear or foreign request: one sentence to the operator."""
    by: str = Field(default="rules")
    """Who understood: `rules`, or the model's name."""
    instead_of: str | None = None
    """Where the rules stood in for a model: which one, and why its answer could not be used."""


class Reasoner(Protocol):
    """Something that can read a request and weigh a change."""

    @property
    def name(self) -> str:
        """`rules`, or the model's name."""

    def understand(self, request: Request, knobs: Sequence[Knob], tools: Sequence[Tool]) -> Understanding:
        """Say what a request means.

        Raises:
            ModelSlip: no usable answer, whatever was tried.
        """

    def assess_risk(
        self,
        change: Change,
        knobs: Sequence[Knob],
        evidence: Sequence[Evidence],
        precedents: Sequence[Precedent],
        tools: Sequence[Tool],
    ) -> Risk:
        """Weigh a change against the evidence and what happened before.

        Raises:
            ModelSlip: no usable answer, whatever was tried.
        """
