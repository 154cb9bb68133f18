"""A plan document -> what its decision log and the states of its options say was done."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from agent.domain import Knob, Origin, Setting
from tools.engines.catalogue import Engine, canonical, knobs
from tools.past.change import CLAIMED, NO_AUTHOR, NO_BEFORE, NO_DATE, NO_OUTCOME, PastChange, Read
from tools.plan_markdown import BOLD, DECISIONS, RESULTS, Heading, Outline, mentions, normal, outline
from tools.plan_options import PlanOption, options_of
from tools.plan_state import KNOWN

PAST = frozenset({"kept", "rolled back", "deferred", "rejected", "needs a human"})
"""States of options that say that something happened."""
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_ISO = re.compile(r"(?<!\d)(20\d\d)[-/.](0?[1-9]|1[0-2])[-/.](0?[1-9]|[12]\d|3[01])(?!\d)")
_WORDED = re.compile(
    rf"\b(?:(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\.? (?P<month>{'|'.join(MONTHS)})[a-z]*\.?|(?P<month2>{'|'.join(MONTHS)})"
    r"[a-z]*\.? (?P<day2>\d{1,2})(?:st|nd|rd|th)?),? (?P<year>20\d\d)\b",
    re.IGNORECASE,
)
_VALUE = r"(?P<{}>\d+(?:\.\d+)?(?![\w%.]|\s*(?:%|tok|ms\b|s\b|GB|GiB))|true\b|false\b|on\b|off\b|auto\b)"
_ARROW = re.compile(
    rf"{_VALUE.format('old')}[`*_]*\s*(?:-+>|=>|→|⇒|\bto\b)\s*[`*_]*{_VALUE.format('new')}", re.IGNORECASE
)
_TO = re.compile(rf"(?:\bto\b|\bat\b|=|:|-+>|→)\s*[`*_]*{_VALUE.format('new')}", re.IGNORECASE)
_OFF = re.compile(r"\b(off|disabled?|disabling|without|dropped?|removed?|turned off|switched off)\b", re.IGNORECASE)
_ON = re.compile(r"\b(on|enabled?|enabling|turned on|switched on|added?)\b", re.IGNORECASE)
_WORD = re.compile(rf"\b(?P<word>{KNOWN})\b", re.IGNORECASE)
_BY = re.compile(
    r"^\W*(?:by|author|owner|who|decided by|approved by)\W*[:—–-]\s*(?P<who>[^|\n]{1,80}?)\W*$", re.I | re.M
)
_REOPEN = re.compile(
    r"(?:reopen|revisit|try again|retry|again|until|once|unless)\b(?: (?:when|if|once))?[:,]?"
    r"\s*(?P<when>[^.\n|]{3,200})",
    re.IGNORECASE,
)
_ITEM = re.compile(r"^[-*+]\s+(?P<text>\S.*)$|^\d+[.)]\s+(?P<numbered>\S.*)$")


class _Entry(NamedTuple):
    """One entry of a decision log."""

    title: str
    body: str
    line: int
    """From 1."""
    around: str
    """Headings above it, for what it is about."""


def read_plan(text: str, name: str, engine: Engine) -> Read:
    """Read what a document says was tried, decision records of ours excepted: the store has those.

    Args:
        text: The document.
        name: Its file name, for sources.
        engine: Whose settings it speaks of.
    """
    document = outline(text)
    known = knobs(engine)
    called = {knob.name: (knob.name, *(s.text for s in knob.spellings), *knob.words) for knob in known}
    options = options_of(text, called)
    entries = tuple(_entries(document))
    changes = [_of_entry(entry, name, known, called) for entry in entries]
    logged = {entry.line for entry in entries}
    options = tuple(option for option in options if option.line not in logged)
    tried = [option for option in options if option.state in PAST]
    changes += [_of_option(option, document, name, known) for option in tried]
    left_out = []
    if len(tried) < len(options):
        left_out.append(
            f"{name}: {len(options) - len(tried)} of {len(options)} options were not tried, by their state."
        )
    if not changes:
        left_out.append(f"{name} has no decision log and no option whose state says that it was tried.")
    return Read(tuple(changes), tuple(left_out))


def _entries(document: Outline) -> Iterator[_Entry]:
    """What stands in sections for decisions: their sub-sections, else their list items, else their text."""
    logs = [h for h in document.sections() if DECISIONS.match(normal(h.text)) or RESULTS.match(normal(h.text))]
    logs = [h for h in logs if not any(o.line < h.line < o.end for o in logs)]
    for log in logs:
        above = [h.text for h in document.sections() if h.line < log.line < h.end]
        inner = [h for h in document.headings if log.line < h.line < log.end and not h.ours and document.prose[h.line]]
        level = min((h.level for h in inner), default=BOLD)
        entries = [h for h in inner if h.level == level]
        if entries:
            for entry in entries:
                yield _Entry(entry.text, _text(document, entry.body, entry.end), entry.line + 1, " ".join(above))
        items = tuple(_items(document, log, entries[0].line if entries else log.end, " ".join(above)))
        yield from items
        prose = _text(document, log.body, log.end)
        if prose and not items and not inner and not above:
            yield _Entry(prose.splitlines()[0], "\n".join(prose.splitlines()[1:]), log.body + 1, "")


def _items(document: Outline, log: Heading, end: int, around: str) -> Iterator[_Entry]:
    """List items, or paragraphs with a date, between a heading and its first sub-section."""
    at = log.body
    while at < end:
        line = document.lines[at].rstrip("\r\n")
        found = _ITEM.match(line) if document.prose[at] else None
        dated = document.prose[at] and date_of(line) is not None
        last = at + 1
        if found is not None or dated:
            while last < end and document.prose[last] and document.lines[last].strip():
                if _ITEM.match(document.lines[last]) or (found is None and date_of(document.lines[last])):
                    break
                last += 1
            cells = [cell.strip() for cell in line.strip("| ").split("|")]
            title = (found["text"] or found["numbered"]) if found else " · ".join(cells)
            yield _Entry(title, _text(document, at + 1, last), at + 1, around)
        at = last


def date_of(text: str) -> datetime | None:
    """The first date in a text, taken as UTC; None: there is none."""
    found = _ISO.search(text)
    numbers = None if found is None else tuple(map(int, found.groups()))
    if numbers is None:
        worded = _WORDED.search(text)
        if worded is None:
            return None
        month = MONTHS.index((worded["month"] or worded["month2"])[:3].lower()) + 1
        numbers = (int(worded["year"]), month, int(worded["day"] or worded["day2"]))
    try:
        return datetime(numbers[0], numbers[1], numbers[2], tzinfo=UTC)
    except ValueError:
        return None


def settings_of(text: str, named: Sequence[str], known: Sequence[Knob]) -> tuple[tuple[Setting, ...], tuple[str, ...]]:
    """The one setting that a text says was made, and what is unsure of it; none where it names several or no value."""
    knob = next((one for one in known if named and one.name == named[0]), None)
    if knob is None:
        return (), ("It names no setting that Prudent knows.",)
    unsure = []
    if len(named) > 1:
        unsure.append(f"It names {', '.join(named)}; the first is taken.")
    old: str | None = None
    if knob.value == "switch":
        off, on = _OFF.search(_without_flags(text)), _ON.search(_without_flags(text))
        if (off is None) == (on is None):
            return (), (*unsure, f"It does not say whether {knob.name} was set or taken out.")
        there = (on is not None) != knob.inverted
        new: str | None = ("1" if there else "0") if knob.kind == "env" else ("" if there else None)
        old = ("0" if there else "1") if knob.kind == "env" else (None if there else "")
        unsure.append("Its words were read as switching it " + ("on." if on is not None else "off."))
    else:
        arrow = _ARROW.search(_without_dates(text))
        found = arrow or _TO.search(_without_dates(text))
        if found is None:
            return (), (*unsure, f"It gives no value of {knob.name}.")
        new = canonical(knob, found["new"])
        old = canonical(knob, found["old"]) if arrow is not None else None
        if arrow is None:
            unsure.append(NO_BEFORE)
    setting = Setting(knob=knob.name, kind=knob.kind, spelling=knob.spellings[0].text, old=old, new=new)
    return (setting,), tuple(unsure)


def _of_entry(entry: _Entry, name: str, known: Sequence[Knob], called: Mapping[str, Sequence[str]]) -> PastChange:
    whole = f"{entry.title}\n{entry.body}".strip()
    words = {knob: tuple(normal(word) for word in names if normal(word)) for knob, names in called.items()}
    named = _named(entry.title, words) or _named(entry.body, words) or _named(entry.around, words)
    settings, unsure = settings_of(entry.title, named, known)
    if not settings:
        settings, unsure = settings_of(whole, named, known)
    state = _WORD.search(entry.body) or _WORD.search(entry.title)
    at = date_of(entry.title) or date_of(entry.body)
    who = _BY.search(entry.body)
    outcome = entry.body.strip() or (state["word"] if state is not None else None)
    return PastChange(
        key=hashlib.sha256(normal(whole).encode(errors="replace")).hexdigest(),
        origin=Origin(
            kind="plan",
            sources=(f"{name}, line {entry.line}",),
            at=at,
            by=who["who"].strip() if who else None,
            outcome=outcome,
            unsure=_doubts(at, who["who"] if who else None, outcome, unsure),
        ),
        settings=settings,
        words=whole,
        names=() if settings else tuple(named),
        from_known=NO_BEFORE not in unsure,
        reopen_when=_reopening(whole, state["word"] if state else ""),
    )


def _of_option(option: PlanOption, document: Outline, name: str, known: Sequence[Knob]) -> PastChange:
    settings, unsure = settings_of(f"{option.title} {option.about}", option.knobs, known)
    section = next((h for h in document.headings if h.line == option.line - 1), None)
    own = _text(document, section.body, section.end) if section is not None else document.lines[option.line - 1]
    at = date_of(option.said) or date_of(own)
    outcome = option.said or option.state
    who = _BY.search(own)
    return PastChange(
        key=hashlib.sha256(f"{option.id} {option.title} {outcome}".encode(errors="replace")).hexdigest(),
        origin=Origin(
            kind="plan",
            sources=(f"{name}, line {option.line}, option {option.id}",),
            at=at,
            by=who["who"].strip() if who else None,
            outcome=outcome,
            unsure=_doubts(at, who["who"] if who else None, outcome, unsure),
        ),
        settings=settings,
        words=f"{option.title}: {outcome}\n{own.strip()}" if section is not None else f"{option.title}: {outcome}",
        names=() if settings else option.knobs,
        from_known=NO_BEFORE not in unsure,
        reopen_when=option.waits or (_reopening(own, outcome) if option.state == "deferred" else None) or None,
    )


def _doubts(at: datetime | None, who: str | None, outcome: str | None, unsure: Sequence[str]) -> tuple[str, ...]:
    return (
        *((NO_DATE,) if at is None else ()),
        *((NO_AUTHOR,) if who is None else ()),
        NO_OUTCOME if outcome is None else CLAIMED,
        *unsure,
    )


def _reopening(text: str, state: str) -> str | None:
    if not re.match(r"deferred|postponed|blocked|on hold|parked|waiting", state, re.IGNORECASE):
        return None
    found = _REOPEN.search(text)
    return " ".join(found["when"].split()) if found else None


def _named(text: str, words: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    strength = {name: mentions(text, called) for name, called in words.items()}
    return tuple(sorted((name for name, score in strength.items() if score), key=lambda name: -strength[name]))


def _text(document: Outline, start: int, end: int) -> str:
    lines = [document.lines[place] for place in range(start, end) if document.prose[place]]
    return re.sub(r"(?:\s*^ {0,3}(?:-{3,}|\*{3,}|_{3,})\s*)+\Z", "", "".join(lines), flags=re.MULTILINE).strip()


def _without_dates(text: str) -> str:
    return _WORDED.sub(" ", _ISO.sub(" ", text))


def _without_flags(text: str) -> str:
    """Without names such as `--disable-overlap-schedule`, whose words say nothing of what was done."""
    return re.sub(r"(?<!\w)--?[A-Za-z][\w-]*|\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b", " ", text)
