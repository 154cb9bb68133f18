"""A plan document -> its options: what somebody thought of, what it should bring, and how it stands.

Documents are people's, so options are recognised by more than one sign: a section or a list item below a heading such
as "Options", a state that is stated, a number, a check box, a row of a table that has a column for states.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from agent.errors import UnknownRun
from tools.plan_markdown import DECISIONS, GENERAL, RESULTS, Heading, Outline, mentions, normal, outline
from tools.plan_state import (
    BOX,
    COLUMN,
    FIRST_WORD,
    LINE,
    MARKUP,
    TAG,
    WORD,
    cell_beside,
    cells_of,
    is_rule,
    last_match,
    rows_of,
)

State = Literal["proposed", "in progress", "kept", "rolled back", "deferred", "rejected", "needs a human"]

_LISTS = re.compile(
    r"\b(options?|levers?|ideas?|proposals?|candidates?|experiments?|backlog|roadmap|worklist|to ?do|next steps?"
    r"|things to try|what next|plan)\b"
)
_GAIN = re.compile(r"(?:expected(?: gain)?|gain|benefit|upside|impact|win|improves)", re.IGNORECASE)
_GAIN_LINE = re.compile(
    rf"^\s*(?:>\s*)?(?:[-*+]\s+)?[*_]*{_GAIN.pattern}[*_]*\s*[:=—–-]\s*(?P<says>\S.*)$", re.IGNORECASE
)
_GAIN_CELL = re.compile(rf"^\s*\|\s*[*_]*{_GAIN.pattern}[*_]*\s*\|\s*(?P<says>[^|]+?)\s*\|?\s*$", re.IGNORECASE)
_GAIN_HEAD = re.compile(r"^(expected( gain)?|gain|benefit|upside|impact|win)$")
_WAITS = re.compile(r"\b(?:after|until|once|when|needs?|waiting for|blocked (?:by|on))\b.*", re.IGNORECASE)
_ITEM = re.compile(r"^(?P<depth>\s*)(?:[-*+]|(?P<number>\d+)[.)])\s+(?:\[[ xX]\]\s+)?(?P<text>\S.*?)\s*$")
_NUMBER = re.compile(
    r"^\W*?(?:(?:option|lever|item|step|idea)\s+#?|#)(?P<named>\d+|[A-Z](?=\W))[.):—–\s-]+(?P<what>\S.*)$"
    r"|^\W*(?P<id>\d+|[A-Z])[.):]\s+(?P<rest>\S.*)$",
    re.IGNORECASE,
)
_GROUPS: Mapping[State, str] = {
    "proposed": "proposed|to ?do|open|planned|pending|not started|not tried|untested|candidate|idea|draft|next|queued",
    "in progress": "in progress|wip|trying|testing|active|evaluating",
    "kept": "kept|done|adopted|accepted|applied|enabled|live|shipped",
    "rolled back": "rolled back|reverted",
    "deferred": "deferred|postponed|blocked|on hold|parked|waiting",
    "rejected": "rejected|refused|declined|abandoned|skipped",
    "needs a human": "needs a human|needs human",
}


class PlanOption(NamedTuple):
    """One option of a plan document."""

    id: str
    """The number or letter that the document gives it, or words of its title."""
    title: str
    """What it is called there, without marks."""
    state: State
    """How it stands; where the document says nothing it is proposed."""
    said: str
    """The state in the document's own words, with what it adds, such as `open, after #1`; empty: it says nothing."""
    expected: str
    """What it should bring, in the document's own words; empty: it does not say."""
    knobs: tuple[str, ...]
    """Canonical names of the settings that it names, the one that it names best first."""
    line: int
    """Where it stands, from 1."""
    about: str = ""
    """The lines of its own that name a setting, such as ``--cuda-graph-max-bs` 32 -> 96`."""

    @property
    def waits(self) -> str:
        """What it waits for, by the document's own words; empty: nothing that it says."""
        found = _WAITS.search(self.said)
        return found[0].strip() if found else ""


def options_in(path: Path, knobs: Mapping[str, Sequence[str]]) -> tuple[PlanOption, ...]:
    """Read the options of a document.

    Args:
        path: The document.
        knobs: What each knob is called, by its canonical name.

    Raises:
        UnknownRun: there is no such document, or it is no text.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnknownRun(f"The plan {path} cannot be read: {error}.", "Correct `plan` in the settings.") from error
    return options_of(text, knobs)


def options_of(text: str, knobs: Mapping[str, Sequence[str]]) -> tuple[PlanOption, ...]:
    """Read the options of a document's text; arguments as for `options_in`."""
    document = outline(text)
    words = {name: tuple(normal(word) for word in called if normal(word)) for name, called in knobs.items()}
    sections = [heading for heading in document.sections() if not _apart(document, heading)]
    found = [_of_section(document, heading, words) for heading in _leaves(document, sections, words)]
    taken = [(option.line - 1, _end_of(document, option.line - 1)) for option in found]
    for option in (*_of_tables(document, words), *_of_items(document, words)):
        inside = any(begin <= option.line - 1 < end for begin, end in taken)
        if not inside and not any(_same(option, other) for other in found[: len(taken)]):
            found.append(option)
    title = document.headings[0] if document.titled else None
    if not found and title is not None and _stated(document, title, document.headings[1:]) is not None:
        found = [_of_section(document, title, words)]
    return tuple(sorted(found, key=lambda option: option.line))


def _apart(document: Outline, heading: Heading) -> bool:
    """Whether a section tells of the past or of the whole, and not of an option."""
    above = [other for other in document.sections() if other.line <= heading.line < other.end]
    return any(DECISIONS.match(normal(one.text)) or RESULTS.match(normal(one.text)) for one in above)


def _leaves(document: Outline, sections: Sequence[Heading], words: Mapping[str, Sequence[str]]) -> Iterator[Heading]:
    """The sections that are an option each: those that say so, neither what only holds others nor parts of one."""
    good = [heading for heading in sections if _is_option(document, heading, sections, words)]
    firm = [heading for heading in good if _says_so(document, heading, sections)]
    for heading in good:
        holds_others = any(heading.line < other.line < heading.end for other in firm)
        is_a_part = heading not in firm and any(other.line < heading.line < other.end for other in firm)
        holds_any = heading not in firm and any(heading.line < other.line < heading.end for other in good)
        if not holds_others and not is_a_part and not holds_any:
            yield heading


def _says_so(document: Outline, heading: Heading, sections: Sequence[Heading]) -> bool:
    """Whether a section states a state or bears a number."""
    inner = [other for other in sections if heading.line < other.line < heading.end]
    return _stated(document, heading, inner) is not None or _NUMBER.match(heading.text) is not None


def _is_option(
    document: Outline, heading: Heading, sections: Sequence[Heading], words: Mapping[str, Sequence[str]]
) -> bool:
    if GENERAL.search(normal(heading.text)):
        return False
    if _says_so(document, heading, sections):
        return True
    if _LISTS.search(normal(heading.text)) and not _named(heading.text, words):
        return False
    inner = [other for other in sections if heading.line < other.line < heading.end]
    above = [other for other in sections if other.line < heading.line < other.end]
    listed = any(_LISTS.search(normal(other.text)) for other in above)
    own = "\n".join(_body(document, heading, heading.end))
    return bool(_named(heading.text, words)) or (not inner and (listed or bool(_named(own, words))))


def _body(document: Outline, heading: Heading, end: int) -> list[str]:
    return [document.lines[place] for place in range(heading.body, end) if document.prose[place]]


def _of_section(document: Outline, heading: Heading, words: Mapping[str, Sequence[str]]) -> PlanOption:
    inner = [other for other in document.headings if heading.line < other.line < heading.end]
    said = _stated(document, heading, inner) or ""
    number = _NUMBER.match(heading.text)
    text = (number["what"] or number["rest"]) if number else heading.text
    tag = last_match(TAG, text)
    title = _plain((text[: tag.start()] if tag else text).rstrip("[( ")) or _plain(heading.text)
    around = [other for other in document.sections() if other.line < heading.line < other.end]
    if around and not re.search(r"[^\W\d]{2}", title):
        title = f"{_plain(around[-1].text)}: {title}"
    body = _body(document, heading, heading.end)
    gain = next((found["says"] for line in body if (found := _GAIN_LINE.match(line) or _GAIN_CELL.match(line))), "")
    own = "\n".join(_body(document, heading, inner[0].line if inner else heading.end))
    knobs = _named(heading.text, words) or _named(own, words)
    knobs = knobs or next((named for other in reversed(around) if (named := _named(other.text, words))), ())
    option = _option((number["named"] or number["id"]) if number else "", title, said, gain, knobs, heading.line)
    return option._replace(about=" ".join(_plain(line) for line in own.splitlines() if _named(line, words)))


def _stated(document: Outline, heading: Heading, inner: Sequence[Heading]) -> str | None:
    """The state that a section states, in its own words; None: it states none."""
    tag = last_match(TAG, document.lines[heading.line])
    if tag is not None:
        return str(tag["word"])
    own = range(heading.body, inner[0].line if inner else heading.end)
    status = [other for other in inner if normal(other.text) in {"status", "state"}]
    for place in (*own, *(place for other in status for place in range(other.body, other.end))):
        line = document.lines[place]
        if not document.prose[place]:
            continue
        found = LINE.match(line) or cell_beside(line)
        if found is None and place not in own:
            found = FIRST_WORD.match(line)
        if found is not None:
            return str(found["word"] + line[found.end("word") :]).strip(f"{MARKUP}| \r\n")
    return None


def _of_tables(document: Outline, words: Mapping[str, Sequence[str]]) -> Iterator[PlanOption]:
    for start in range(len(document.lines) - 1):
        head = cells_of(document, start)
        if not head or not is_rule(document, start + 1):
            continue
        names = [normal(cell) for cell in head]
        column = next((place for place, name in enumerate(names) if COLUMN.match(name)), None)
        if column is None:
            continue
        gains = next((place for place, name in enumerate(names) if _GAIN_HEAD.match(name)), None)
        for line, cells in rows_of(document, start + 2):
            if len(cells) <= column:
                continue
            others = [cell for place, cell in enumerate(cells) if place not in {column, gains}]
            label = max(others, key=len, default="")
            number = re.match(r"^\W*#?(\d+|[A-Z])\W*$", cells[0]) if column else None
            gain = cells[gains] if gains is not None and len(cells) > gains else ""
            said = cells[column].strip(f"{MARKUP} ")
            stated = re.search(WORD, said, re.IGNORECASE)
            told = said[stated.start() :] if stated else ""
            yield _option(number[1] if number else "", _plain(label), told, gain, _named(" ".join(others), words), line)


def _of_items(document: Outline, words: Mapping[str, Sequence[str]]) -> Iterator[PlanOption]:
    """List items with a box, a state, or a place below a heading that speaks of options."""
    for place, line in enumerate(document.lines):
        item = _ITEM.match(line) if document.prose[place] else None
        if item is None or len(item["depth"]) > 1 or LINE.match(line) or _GAIN_LINE.match(line):
            continue
        above = [other for other in document.sections() if other.line <= place < other.end]
        if any(_apart(document, other) for other in above):
            continue
        title = [document.headings[0]] if document.titled else []
        listed = any(_LISTS.search(normal(other.text)) for other in (*above, *title))
        box = BOX.match(line)
        tag = last_match(TAG, line)
        below = _below(document, place)
        stated = next((found for one in below if (found := LINE.match(one))), None)
        if box is None and tag is None and stated is None and not (listed and _named(item["text"], words)):
            continue
        said = str(tag["word"]) if tag else ""
        if not said and stated is not None:
            said = (stated["word"] + stated.string[stated.end("word") :]).strip(f"{MARKUP}| \r\n")
        if not said and box is not None:
            said = "done" if box["mark"] in "xX" else ""
        gain = next((found["says"] for one in below if (found := _GAIN_LINE.match(one))), "")
        text = item["text"]
        text = text[: len(text) - (len(line.rstrip()) - tag.start())] if tag is not None else text
        yield _option(item["number"] or "", _plain(text), said, gain, _named(text, words), place)


def _below(document: Outline, item: int) -> list[str]:
    """The lines that belong to a list item."""
    depth = len(document.lines[item]) - len(document.lines[item].lstrip())
    lines = []
    for line in document.lines[item + 1 :]:
        if line.strip() and len(line) - len(line.lstrip()) <= depth:
            break
        lines.append(line)
    return lines


def _option(number: str, title: str, said: str, gain: str, knobs: tuple[str, ...], line: int) -> PlanOption:
    slug = "-".join(normal(title).split()[:4]) or f"line-{line + 1}"
    return PlanOption(number or slug, title, _state(said), said, _plain(gain), knobs, line + 1)


def _state(said: str) -> State:
    word = normal(said)
    for state, group in _GROUPS.items():
        if re.match(rf"(?:{group})\b", word):
            return state
    return "proposed"


def _named(text: str, words: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The knobs that a text names, the one with the longest name first."""
    strength = {name: mentions(text, called) for name, called in words.items()}
    return tuple(sorted((name for name, score in strength.items() if score), key=lambda name: -strength[name]))


def _plain(text: str) -> str:
    bare = re.sub(r"[*_`]+", "", re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text))
    return " ".join(bare.split()).strip(" |:—–-")


def _end_of(document: Outline, line: int) -> int:
    return next((heading.end for heading in document.headings if heading.line == line), line + 1)


def _same(one: PlanOption, other: PlanOption) -> bool:
    """Whether a row or an item only points to a section that says more."""
    titles = {normal(one.title), normal(other.title)}
    alike = len(titles) == 1 or any(a and f" {a} " in f" {b} " for a in titles for b in titles if a != b)
    return alike or (one.id.isdigit() and one.id == other.id) or (bool(one.knobs) and one.knobs[:1] == other.knobs[:1])
