"""What an edit is meant to do, and what it comes to."""

from __future__ import annotations

from typing import Literal, NamedTuple

Operation = Literal[
    "set",  # change it, or add it where it is not there
    "replace",  # change it; it has to be there
    "add",  # add it; it must not be there
    "unset",  # take it out; it has to be there
]


class Found(NamedTuple):
    """What a file says about one flag or variable of one launch."""

    value: str | None
    """Its value; an empty text for a switch that is there; None: it is not there."""
    spelling: str | None
    """How the file spells it."""
    line: int | None
    """1-based line; None: it is not there."""
    sentence: str
    """The fact in one sentence, with its source, secrets masked."""

    def __repr__(self) -> str:
        """The sentence alone: the value may be a secret."""
        return f"Found({self.sentence!r})"


class Intent(NamedTuple):
    """What an edit is meant to change, for the proof."""

    kind: Literal["flag", "env"]
    operation: Literal["set", "add", "unset"]
    names: tuple[str, ...]
    """All spellings of the flag, or the variable's name."""
    values: tuple[str, ...]
    """The new value; empty for a switch or a removal."""
    spelling: str
    """How it is spelled in the file afterwards."""
    carriers: tuple[str, ...] = ()
    """Variables that carry the value and, being exported, change with it."""
    old: tuple[str, ...] | None = None
    """The value before, as far as it is known; None: it was not there, or is not known."""

    def __repr__(self) -> str:
        """What is done to which name: the values may be secrets."""
        return f"Intent({self.operation} {self.kind} {self.spelling})"


class Edit(NamedTuple):
    """A planned change; nothing is written."""

    content: bytes
    """The file afterwards."""
    diff: str
    """The change as a unified diff, secrets masked."""
    explanation: str
    """What changes and where, in a sentence or two, secrets masked."""
    lines: tuple[int, ...]
    """1-based lines of the file before that change."""
    spelling: str
    """How the flag or variable is spelled there."""
    old: str | None
    """Its value before; None: it was not there."""
    notes: tuple[str, ...]
    """What the operator should know: a default that the caller can override, a flag that only some runs have."""
    intent: Intent

    def __repr__(self) -> str:
        """What is changed, secrets masked."""
        return f"Edit({self.explanation!r})"
