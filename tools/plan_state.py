"""The state of an option, where a document states one: in a line, a heading's tag, a table's cell, or a check box."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tools.plan_markdown import Heading, Option, Outline, mentions, normal

KNOWN = (
    "proposed|to[ -]?do|open|planned|pending|not started|not tried|untested|candidate|idea|draft|next|queued"
    "|in progress|wip|trying|testing|active|evaluating|kept|done|adopted|accepted|applied|enabled|live|shipped"
    "|rolled[ -]back|reverted|deferred|postponed|blocked|on hold|parked|waiting|rejected|refused|declined|abandoned"
    "|skipped|needs a human|needs human"
)
"""Words that are taken for a state."""
WORD = rf"(?P<word>{KNOWN})(?![A-Za-z0-9-])"
MARKUP, WHITE = "*_`~", " \t\r\n"
"""What may stand around a state and says nothing."""
LINE = re.compile(
    r"^(?P<lead>\s*(?:>\s*)?(?:[-*+]\s+)?[*_`]*(?:current )?(?:status|state)[*_`]*\s*[:=—–-]\s*[*_`\[(]*\s*"
    rf"(?:[^\w\s*_`\[(|]+\s*)?){WORD}",
    re.IGNORECASE,
)
"""`Status: proposed`, with any emphasis, as a list item, with a sign before the word."""
FIRST_WORD = re.compile(rf"^(?P<lead>\s*[*_`]*){WORD}", re.IGNORECASE)
"""The word alone, below a heading that says Status."""
TAG = re.compile(rf"(?P<lead>[\[(—–:]\s*[*_`]*|\s-\s[*_`]*){WORD}(?=[*_`]*\s*(?:[\])]|#*\s*$|[*_]*$))", re.IGNORECASE)
"""A word in brackets or after a dash at the end of a heading or an item."""
BOX = re.compile(r"^(?P<lead>\s*(?:[-*+]|\d+[.)])\s+\[)(?P<mark>[ xX])(?P<rest>\]\s+\S.*?)(?P<end>[ \t]*\r?\n?)$")
"""A list item with a check box."""
COLUMN = re.compile(r"^(status|state|decision|outcome|result|verdict)$")
"""Heads of a table's column that holds the state."""
NOTHING_YET = frozenset({"", "-", "–", "—", "?", "tbd", "n a", "none", "…"})


SIGNS = ("🟡", "🟢", "🔴", "🔵", "⚪", "🟠", "✅", "❌", "⏳", "🚧", "⏸", "❗")
"""Signs that people put before a state."""
SIGN_OF = {"kept": "✅", "rolled back": "❌", "deferred": "⏸", "needs a human": "❗", "rejected": "❌"}
"""The sign for each state, where one stood there before."""


KEPT = re.compile(r"kept|done|adopted|accepted|applied|enabled|live|shipped", re.IGNORECASE)
"""Words for an option that is in force."""


class NewState(NamedTuple):
    """The state that an option has from now on."""

    word: str
    """In small letters."""
    over_kept: bool = True
    """Whether it may stand where the option is kept: a later try beyond it that was taken back leaves it kept."""


class Edit(NamedTuple):
    """One line with another state."""

    line: int
    """Its number, from 0."""
    text: str
    """The whole line as it shall be, ending included."""


def edits_of(document: Outline, section: Heading | None, wanted: Option, state: NewState, run: str) -> list[Edit]:
    """Find every place where the document states the option's state, and change it there.

    Args:
        document: The document.
        section: The option's section, where it has one.
        wanted: The option.
        state: The new state.
        run: The run that changed it, for places that only have a box.

    Returns:
        The edits, none where the document states no state or already states this one.
    """
    found: dict[int, Edit] = {}
    places = [_in_section(document, section, state)] if section is not None else []
    places.append(_in_tables(document, section, wanted, state))
    if section is None:
        places.append(_in_items(document, wanted, state, run))
    for edits in places:
        for edit in edits:
            if edit.text != document.lines[edit.line]:
                found.setdefault(edit.line, edit)
    return [found[line] for line in sorted(found)]


def speaks_of_another_value(text: str, wanted: Option) -> bool:
    """Whether an option's words name numbers, and none of those that were set: then its state is not ours to say."""
    bare = re.sub(r"^\W*(?:option|lever|item|step|idea|p)?\s*#?\s*\d+(?=[\s.):—–-])", "", text.lower())
    numbers = set(re.findall(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w%-])", bare.replace("->", " ").replace("→", " ")))
    targets = {value for value in wanted.values if re.fullmatch(r"\d+(?:\.\d+)?", value)}
    return bool(numbers and targets) and not numbers & targets


def reworded(text: str, found: re.Match[str], new: NewState) -> str:
    """Put a state in the place of another one; what was said about the old one is kept as what it was."""
    word, rest, state = found["word"], text[found.end("word") :], new.word
    if normal(word) == normal(state) or (KEPT.fullmatch(word) and not new.over_kept):
        return text
    shown = state.upper() if word.isupper() else state.capitalize() if word[0].isupper() else state
    start = re.sub(rf"[{''.join(SIGNS)}]\ufe0f?(?=[*_`\s]*$)", SIGN_OF.get(state, ""), text[: found.start("word")])
    cell, bar, others = rest.partition("|")
    told = cell.rstrip(MARKUP + WHITE)
    after = cell[len(told) :] + bar + others
    close = told[: len(told) - len(told.lstrip(MARKUP))]
    told = told[len(close) :]
    if not told.strip(" .,;:])}") or told[0] in ")]" or told.startswith(" (was: "):
        return f"{start}{shown}{rest}"
    return f"{start}{shown}{close} (was: {word}{told}){after}"


def _in_section(document: Outline, section: Heading, state: NewState) -> Iterator[Edit]:
    """The heading's own tag, and the first line that states it: above all sub-sections, or in one called Status."""
    heading = document.lines[section.line]
    tag = last_match(TAG, heading)
    if tag is not None:
        yield Edit(section.line, reworded(heading, tag, state))
    inner = [other for other in document.headings if section.line < other.line < section.end]
    own = range(section.body, inner[0].line if inner else section.end)
    below = [
        place for other in inner if normal(other.text) in {"status", "state"} for place in range(other.body, other.end)
    ]
    for place in (*own, *below):
        line = document.lines[place]
        if not document.prose[place] or not line.strip():
            continue
        stated = LINE.match(line) or cell_beside(line) or (FIRST_WORD.match(line) if place in below else None)
        if stated is not None:
            yield Edit(place, reworded(line, stated, state))
            return


def cell_beside(line: str) -> re.Match[str] | None:
    """A table's row whose first cell says Status."""
    return re.match(rf"^(?P<lead>\s*\|\s*[*_]*(?:status|state)[*_]*\s*\|\s*[*_`]*){WORD}", line, re.IGNORECASE)


def _in_tables(document: Outline, section: Heading | None, wanted: Option, state: NewState) -> Iterator[Edit]:
    """The one row of a table with a column for states that names the option."""
    for start in range(len(document.lines) - 1):
        head = cells_of(document, start)
        if not head or not is_rule(document, start + 1):
            continue
        column = next((place for place, cell in enumerate(head) if COLUMN.match(normal(cell))), None)
        if column is None:
            continue
        rows = list(rows_of(document, start + 2))
        named = [(line, cells) for line, cells in rows if mentions(_without(cells, column), wanted.words)]
        named = named or [(line, cells) for line, cells in rows if _numbered(cells, column, section, wanted)]
        if len(named) > 1:
            named = [(line, cells) for line, cells in named if mentions(" ".join(cells), wanted.values)]
        if len(named) == 1:
            line, cells = named[0]
            if len(cells) > column and not speaks_of_another_value(_label(cells, column), wanted):
                yield Edit(line, _with_cell(document.lines[line], column, state, aligned=_aligned(head, rows, column)))


def _without(cells: Sequence[str], column: int) -> str:
    return " | ".join(cell for place, cell in enumerate(cells) if place != column)


def _numbered(cells: Sequence[str], column: int, section: Heading | None, wanted: Option) -> bool:
    """Whether a row's first cell is the number of the option's section, or the one that somebody referred to."""
    number = re.match(r"^\W*(?:option|lever|item|step|idea)?\s*#?\s*(\d+)\b", section.text.lower()) if section else None
    known = {number[1]} if number is not None else set(wanted.numbers)
    return column != 0 and normal(cells[0]).removeprefix("option ") in known


def _label(cells: Sequence[str], column: int) -> str:
    """The cell that says what the option is: the one with the most words."""
    return max((cell for place, cell in enumerate(cells) if place != column), key=len, default="")


def _aligned(head: Sequence[str], rows: Sequence[tuple[int, Sequence[str]]], column: int) -> bool:
    """Whether somebody keeps the column's cells equally wide."""
    return len({len(cells[column]) for cells in (head, *(cells for _, cells in rows)) if len(cells) > column}) == 1


def _with_cell(line: str, column: int, state: NewState, *, aligned: bool) -> str:
    bounds = [found.start() for found in re.finditer(r"(?<!\\)\|", line)]
    first = column if line.lstrip().startswith("|") else column - 1
    start = bounds[first] + 1 if first >= 0 else 0
    end = bounds[first + 1] if first + 1 < len(bounds) else len(line.rstrip("\r\n"))
    cell = line[start:end]
    found = re.search(rf"(?P<lead>){WORD}", cell, re.IGNORECASE)
    if found is not None:
        changed = reworded(cell, found, state)
    elif normal(cell) in NOTHING_YET or cell.strip() in NOTHING_YET:
        changed = f" {state.word} "
    else:
        return line
    if aligned and changed.endswith(" ") and len(cell) > len(changed.rstrip()):
        changed = changed.rstrip().ljust(len(cell))
    return line[:start] + changed + line[end:]


def _in_items(document: Outline, wanted: Option, state: NewState, run: str) -> Iterator[Edit]:
    """The one list item that names the option, with a box or a tag."""
    items = [
        place
        for place, line in enumerate(document.lines)
        if document.prose[place] and re.match(r"^\s*(?:[-*+]|\d+[.)])\s+\S", line) and mentions(line, wanted.words)
    ]
    if len(items) > 1:
        items = [place for place in items if mentions(document.lines[place], wanted.values)] or [
            place for place in items if BOX.match(document.lines[place])
        ]
    if len(items) != 1 or speaks_of_another_value(_item_text(document.lines[items[0]]), wanted):
        return
    line = document.lines[items[0]]
    tag = last_match(TAG, line) or re.search(rf"(?P<lead>(?:status|state)\s*[:=]\s*[*_`]*){WORD}", line, re.IGNORECASE)
    box = BOX.match(line)
    if tag is not None:
        line = reworded(line, tag, state)
        box = BOX.match(line)
    if box is None:
        stated = _stated_below(document, items[0]) if tag is None else None
        if tag is not None:
            yield Edit(items[0], line)
        elif stated is not None:
            yield Edit(stated[0], reworded(document.lines[stated[0]], stated[1], state))
        return
    if box["mark"] in "xX" and not state.over_kept:
        return
    mark = "x" if state.word == "kept" else " "
    rest = re.sub(r" — [\w ]+ \(r-\S+\)$", "", box["rest"]) if tag is None else box["rest"]
    said = f" — {state.word} ({run})" if tag is None and state.word != "kept" else ""
    yield Edit(items[0], f"{box['lead']}{mark}{rest}{said}{box['end']}")


def _stated_below(document: Outline, item: int) -> tuple[int, re.Match[str]] | None:
    """The line below an item, and indented under it, that states its state."""
    depth = _depth(document.lines[item])
    for place in range(item + 1, len(document.lines)):
        line = document.lines[place]
        if line.strip() and _depth(line) <= depth:
            return None
        found = LINE.match(line) if document.prose[place] else None
        if found is not None:
            return place, found
    return None


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def _item_text(line: str) -> str:
    return re.sub(r"^\s*(?:[-*+]|\d+[.)])\s+(?:\[[ xX]\]\s+)?", "", line)


def last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The last place in a line where a pattern is found."""
    found = None
    for found in pattern.finditer(text.rstrip("\r\n")):  # noqa: B007 - the last one is what is wanted
        pass
    return found


def cells_of(document: Outline, place: int) -> list[str]:
    """The cells of a table's row; none where the line is none."""
    line = document.lines[place]
    if not document.prose[place] or "|" not in line:
        return []
    return re.split(r"(?<!\\)\|", line.strip().strip("|")) if line.strip() != "|" else []


def is_rule(document: Outline, place: int) -> bool:
    """Whether a line is the rule between a table's head and its rows."""
    return (
        document.prose[place]
        and re.match(r"^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$", document.lines[place]) is not None
    )


def rows_of(document: Outline, start: int) -> Iterator[tuple[int, list[str]]]:
    """The rows of a table from a line on, each with its number."""
    for place in range(start, len(document.lines)):
        cells = cells_of(document, place)
        if not cells:
            return
        yield place, cells
