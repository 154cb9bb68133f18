"""Precedents -> the part of a prompt that tells them: quoted, marked where they came from outside, within a budget."""

from __future__ import annotations

import json
from collections.abc import Sequence

from agent.domain import Precedent

BUDGET = 12_000
"""Characters for all precedents: about 3,000 tokens at four characters each, which leaves a model with a window of
8,000 tokens room for the evidence, the catalogue's lines and its own answer."""
LONGEST = 700
"""Characters for one text of a precedent: what a record or an incident says in its first few sentences."""


def precedents_told(precedents: Sequence[Precedent], budget: int = BUDGET) -> str:
    """Tell precedents to a model, the most pressing first; what no longer fits is left out, and counted.

    Args:
        precedents: The precedents, the most pressing first.
        budget: Characters for all of them.

    Returns:
        A line for each; a text is JSON, so that a line break in it cannot pass for a line of the prompt.
    """
    lines: list[str] = []
    room = budget - len(_left_out(len(precedents)))
    for precedent in precedents:
        line = _line(precedent)
        if len(line) + 1 > room:
            break
        lines.append(line)
        room -= len(line) + 1
    if len(lines) < len(precedents):
        lines.append(_left_out(len(precedents) - len(lines)))
    return "\n".join(lines) or "none"


def _line(precedent: Precedent) -> str:
    mark = " (outside)" if precedent.tainted else ""
    told = (precedent.what, precedent.why, precedent.lesson or "-")
    return f"{precedent.id}{mark}: {' | '.join(map(_quoted, told))}"


def _quoted(text: str) -> str:
    return json.dumps(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…", ensure_ascii=False)


def _left_out(count: int) -> str:
    return f"({count} more, less pressing, are left out)"
