"""Record -> a plan document's text with the record in it, where a person would have put it; pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from agent.domain import Record
from tools.plan_block import STATE_WORDS, body, title
from tools.plan_markdown import BOLD, MARKER, Heading, Outline, decisions_in, option, outline, place_in, section_of
from tools.plan_state import NewState, edits_of, speaks_of_another_value

CHANGES_STATE = frozenset({"kept", "rolled_back", "deferred", "needs_human", "rejected"})
"""Decisions that say something of the option. A refusal says something of the moment: busy, down, not understood."""


class Written(NamedTuple):
    """A document with a record in it."""

    text: str
    """The whole document."""
    notes: tuple[str, ...]
    """Where the record stands, and which states were changed or left."""


def with_record(text: str, record: Record, words: Sequence[str] = ()) -> Written | None:
    """Put a record into the text of a document; pure.

    Args:
        text: The document, byte order mark and line endings included.
        record: The record.
        words: What the changed knobs are called.

    Returns:
        The document with the record, or None where it holds the record already.
    """
    document = outline(text)
    if any((found := MARKER.match(line)) and found["run"] == record.run for line in document.lines):
        return None
    settings = record.change.settings if record.change is not None else ()
    known = [*words, *(setting.knob for setting in settings), *(setting.spelling for setting in settings)]
    wanted = option(known if settings else (), asked=record.request.text, values=[setting.new for setting in settings])
    section = section_of(document, wanted) if settings else None
    lines = list(document.lines)
    notes = []
    state = _state(record)
    if state is not None and section is not None and speaks_of_another_value(section.text, wanted):
        notes.append(f"the state of {section.text!r} was left: it names another value")
    elif state is not None:
        new = NewState(state, over_kept=state == STATE_WORDS["kept"] or record.change is None or _takes_back(record))
        for edit in edits_of(document, section, wanted, new, record.run):
            notes.append(f"state in line {edit.line + 1} is {state!r} now")
            lines[edit.line] = edit.text
    home = (decisions_in(document, section) if section is not None else None) or section or decisions_in(document, None)
    notes.insert(0, f"recorded under {home.text!r}" if home is not None else "recorded at the end")
    place = place_in(document, home)
    block = _block(record, document, home)
    return Written(_inserted(lines, place, block, _ending(document)), tuple(notes))


def _takes_back(record: Record) -> bool:
    return record.change is not None and record.change.operation == "roll_back"


def _state(record: Record) -> str | None:
    """The state of the option after a record; None: it says nothing of it."""
    if record.change is None or not record.change.settings or record.verdict.decision not in CHANGES_STATE:
        return None
    if record.change.operation == "roll_back":
        return STATE_WORDS["rolled_back"] if record.verdict.decision == "kept" else None
    return STATE_WORDS[record.verdict.decision]


def _block(record: Record, document: Outline, home: Heading | None) -> str:
    """The block in the document's own style; with a section for decisions around it where there is none."""
    bullets = re.findall(r"^ {0,3}([-*+]) +\S", "".join(document.lines), flags=re.MULTILINE)
    bullet = max("-*+", key=bullets.count)
    own = [heading for heading in document.headings if not heading.ours and heading.level < BOLD]
    if home is not None:
        level = home.level + 1 if home.level < BOLD else BOLD
        style = home.style
        siblings = [
            heading for heading in document.headings if home.line < heading.line < home.end and not heading.ours
        ]
        if siblings and home.level < BOLD:
            level = min(sibling.level for sibling in siblings)
            style = siblings[0].style
        return f"{_heading(title(record), level, style)}\n\n{body(record, bullet=bullet)}"
    top = min((heading.level for heading in own[1 if document.titled else 0 :]), default=2)
    style = own[-1].style if own else "atx"
    opening = _heading("Decision records", top, style)
    return f"{opening}\n\n{_heading(title(record), top + 1, style)}\n\n{body(record, bullet=bullet)}"


def _heading(text: str, level: int, style: str) -> str:
    if style == "bold" or level >= BOLD:
        return f"**{text}**"
    if style == "setext" and level <= 2:
        return f"{text}\n{'=-'[level - 1] * len(text)}"
    sign = "#" * level
    return f"{sign} {text} {sign}" if style == "closed" else f"{sign} {text}"


def _ending(document: Outline) -> str:
    """The line ending that most lines have."""
    long = sum(line.endswith("\r\n") for line in document.lines)
    return "\r\n" if long * 2 > len(document.lines) else "\n"


def _inserted(lines: list[str], place: int, block: str, ending: str) -> str:
    """Insert a block between blank lines; a document without a newline at its end stays without one."""
    new = block.replace("\n", ending)
    before, after = "".join(lines[:place]), "".join(lines[place:])
    if before.strip("\ufeff"):
        if not before.endswith("\n"):
            return f"{before}{ending}{ending}{new.removesuffix(ending)}"
        new = new if not lines[place - 1].strip() else ending + new
    if after.strip() and lines[place].strip():
        new += ending
    return before + new + after
