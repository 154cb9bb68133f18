"""The structure of a plan document: headings in any style, the section of an option, and where a record belongs."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

MARKER = re.compile(r"^ {0,3}<!-- prudent-record: (?P<run>\S+) (?P<hash>[0-9a-f]{64}) -->\s*$")
"""The line by which a block of ours is known."""
END_MARKER = re.compile(r"^ {0,3}<!-- prudent-record end: (?P<run>\S+) -->\s*$")
"""The line that ends it."""
BOLD = 7
"""Level of a line of its own in bold, which many documents use below their headings."""
DECISIONS = re.compile(
    r"^(\d+\.? )?(the |our )?((decisions?|changes?|experiments?) (records?|logs?|history|journal|taken|made|so far)"
    r"|decisions?|changelog|log|history|journal|records?)$"
)
"""What a document's section for decisions is called, normalised."""
RESULTS = re.compile(r"^(\d+\.? )*(decisions?|outcomes?|verdicts?|results?|history|log|records?)$")
"""What an option's own sub-section for them is called."""
GENERAL = re.compile(
    r"\b(background|overview|introduction|intro|summary|context|goals?|scope|baseline|current|environment|setup|hardware"
    r"|references?|appendix|glossary|notes|method(ology)?|how to|contents|conventions|links)\b"
)
"""Sections that mention an option without being its section."""


class Heading(NamedTuple):
    """A heading and the section that it opens, by line numbers from 0."""

    line: int
    """Its own line."""
    body: int
    """The line after it."""
    end: int
    """The line after its section, sub-sections included."""
    level: int
    """1 to 6, `BOLD`, or one more for a block of ours below such a line."""
    text: str
    """Its words."""
    style: Literal["atx", "closed", "setext", "bold"]
    """How it is written."""
    ours: bool
    """Whether it opens a block of ours."""


class Outline(NamedTuple):
    """A document taken apart."""

    lines: tuple[str, ...]
    """Its lines with their endings."""
    headings: tuple[Heading, ...]
    """Its headings, in order."""
    prose: tuple[bool, ...]
    """For each line whether it is text, and not code, front matter, a comment, or within a block of ours (whose
    heading counts as text)."""

    @property
    def titled(self) -> bool:
        """Whether the first heading is the title of it all."""
        first = self.headings[0] if self.headings else None
        return first is not None and first.end == len(self.lines) and first.level < BOLD

    def sections(self) -> Iterator[Heading]:
        """Headings of the document's own, without its title."""
        for place, heading in enumerate(self.headings):
            if not heading.ours and self.prose[heading.line] and not (place == 0 and self.titled):
                yield heading


class Option(NamedTuple):
    """What a document's option is recognised by."""

    words: tuple[str, ...]
    """What the knobs are called, normalised, the longest first."""
    numbers: tuple[str, ...]
    """Numbers by which somebody referred to the option, such as the 2 of `#2`."""
    values: tuple[str, ...]
    """Values to write: of two sections about one knob, the one that names the value is meant."""


def option(words: Iterable[str], *, asked: str = "", values: Iterable[str | None] = ()) -> Option:
    """Describe the option that a change belongs to.

    Args:
        words: Names, spellings and other words of the knobs.
        asked: The request, which may name the option by its number.
        values: The values to write.
    """
    known = sorted({normal(word) for word in words} - {""}, key=lambda word: (-len(word), word))
    numbers = re.findall(r"(?:#|\b(?:option|lever|item|step|idea)\s+#?)(\d+)\b", asked.lower())
    return Option(tuple(known), tuple(numbers), tuple(value for value in values if value))


def normal(text: str) -> str:
    """Lower case, with everything but letters, digits and dots turned into single spaces."""
    return " ".join(word for part in re.sub(r"[^\w.]+|_+", " ", text.lower()).split() if (word := part.strip(".")))


def mentions(text: str, words: Sequence[str]) -> int:
    """How strongly a text names one of some words: the length of the longest that stands in it as a whole, or 0."""
    padded = f" {normal(text)} "
    return max((len(word) for word in words if f" {word} " in padded), default=0)


def outline(text: str) -> Outline:
    """Take a document apart.

    Args:
        text: The document; a byte order mark and any line endings are kept in its lines.
    """
    lines = tuple(re.findall(r"[^\n]*\n|[^\n]+\Z", text))
    prose = _prose(lines)
    found = [heading for place in range(len(lines)) if (heading := _heading_at(lines, prose, place)) is not None]
    return Outline(lines, _ended(found, len(lines)), prose)


def section_of(document: Outline, wanted: Option) -> Heading | None:
    """Find the section of an option: its heading names it, or it is the only one whose text does, or the title does.

    Args:
        document: The document.
        wanted: The option.

    Returns:
        The section; None: there is none, or it is not clear which.
    """
    logs = [heading for heading in document.sections() if DECISIONS.match(normal(heading.text))]
    sections = [
        heading
        for heading in document.sections()
        if not any(log.line <= heading.line < max(log.end, log.line + 1) for log in logs)
    ]
    scored = [(score, heading) for heading in sections if (score := _score(heading, wanted, sections))]
    if scored:
        best = max(score for score, _ in scored)
        return next(heading for score, heading in scored if score == best)
    names = [word for word in wanted.words if " " in word]
    inside = [
        heading
        for heading in sections
        if not GENERAL.search(normal(heading.text)) and mentions(_own_text(document, heading), names)
    ]
    followed = zip(inside, [*(other.line for other in inside), len(document.lines)][1:], strict=True)
    innermost = [heading for heading, next_line in followed if next_line >= heading.end]
    if len(innermost) == 1:
        return innermost[0]
    title = document.headings[0] if document.titled else None
    return title if title is not None and not inside and mentions(title.text, wanted.words) else None


def decisions_in(document: Outline, within: Heading | None) -> Heading | None:
    """Find the section for decisions: of an option, or of the whole document."""
    for heading in document.sections():
        if within is not None:
            if within.line < heading.line < within.end and RESULTS.match(normal(heading.text)):
                return heading
        elif heading.level < BOLD and DECISIONS.match(normal(heading.text)):
            return heading
    return None


def place_in(document: Outline, section: Heading | None) -> int:
    """The line before which a new block of a section stands; None: of the whole document.

    A list of dated entries with the newest on top is continued on top; else the end of the section is the place, before
    the rules and blank lines that lead over to what follows.
    """
    if section is not None:
        dated = [
            (heading.line, found.group())
            for heading in document.headings
            if section.line < heading.line < section.end and (found := re.search(r"\d{4}-\d\d-\d\d", heading.text))
        ]
        if len(dated) > 1 and dated[0][1] > dated[-1][1]:
            return dated[0][0]
    first, end = (section.body, section.end) if section is not None else (0, len(document.lines))
    while end > first and (_leads_over(document.lines[end - 1])):
        end -= 1
    return end


def _score(heading: Heading, wanted: Option, sections: Sequence[Heading]) -> int:
    strength = mentions(heading.text, wanted.words)
    number = re.match(r"^\W*(?:option|lever|item|step|idea)?\s*#?\s*(\d+)\b", heading.text.lower())
    score = 100 + strength if strength else 0
    if number is not None and number[1] in wanted.numbers:
        score = score + 50 if score else 90
    named = mentions(heading.text, tuple(normal(value) for value in wanted.values))
    if not score and named:
        around = [other for other in sections if other.line < heading.line < other.end]
        score = max((100 + found for o in around if (found := mentions(o.text, wanted.words))), default=0)
    return score + 50 if score and named else score


def _own_text(document: Outline, heading: Heading) -> str:
    """The sentences of a section: without its sub-sections, code, lists and tables, which name many options."""
    following = bisect_right(document.headings, heading.line, key=lambda other: other.line)
    end = document.headings[following].line if following < len(document.headings) else heading.end
    return "\n".join(
        document.lines[place]
        for place in range(heading.body, min(end, heading.end))
        if document.prose[place] and not re.match(r"^\s*(?:[-*+|]|\d+[.)])\s*\S", document.lines[place])
    )


def _leads_over(line: str) -> bool:
    bare = line.strip()
    rule = re.fullmatch(r"(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,}", bare)
    aside = re.fullmatch(r"<!--.*-->", bare) and not MARKER.match(line)
    reference = re.match(r"^ {0,3}\[[^\]^]+\]:\s*\S+", line)
    return not bare or rule is not None or bool(aside) or reference is not None


def _heading_at(lines: Sequence[str], prose: Sequence[bool], place: int) -> Heading | None:
    """The heading that stands on a line; its end is not known yet."""
    if not prose[place]:
        return None
    bare = lines[place].lstrip("\ufeff").rstrip()
    atx = re.match(r"^ {0,3}(#{1,6})(?=[ \t]|$)", bare)
    if atx is not None:
        words = bare[atx.end() :].strip()
        open_end = words.rstrip("#")
        closed = open_end != words and open_end[-1:] in {"", " ", "\t"}
        style: Literal["atx", "closed"] = "closed" if closed else "atx"
        text = open_end.rstrip() if closed else words
        return Heading(place, place + 1, 0, len(atx[1]), text, style, _opens_ours(lines, place + 1))
    if _underlined(lines, prose, place):
        level = 1 if lines[place + 1].lstrip().startswith("=") else 2
        return Heading(place, place + 2, 0, level, bare.strip(), "setext", _opens_ours(lines, place + 2))
    bold = re.match(r"^(?:\*\*|__)(?!\s)([^*_].*?)(?:\*\*|__):?$", bare)
    if bold is not None and (place == 0 or not lines[place - 1].strip()):
        ours = _opens_ours(lines, place + 1)
        return Heading(place, place + 1, 0, BOLD + ours, bold[1], "bold", ours)
    return None


def _opens_ours(lines: Sequence[str], place: int) -> bool:
    while place < len(lines) and not lines[place].strip():
        place += 1
    return place < len(lines) and MARKER.match(lines[place]) is not None


def _ended(headings: Sequence[Heading], last: int) -> tuple[Heading, ...]:
    """Give each heading the end of its section: the next heading that is not below it."""
    done = list(headings)
    under: list[int] = []
    for number, heading in enumerate(headings):
        while under and headings[under[-1]].level >= heading.level:
            closed = under.pop()
            done[closed] = headings[closed]._replace(end=heading.line)
        under.append(number)
    for number in under:
        done[number] = headings[number]._replace(end=last)
    return tuple(done)


def _underlined(lines: Sequence[str], prose: Sequence[bool], place: int) -> bool:
    """Whether a line is a heading by the line of `=` or `-` below it."""
    if place + 1 >= len(lines) or not prose[place + 1]:
        return False
    bare = lines[place].strip("\ufeff\r\n")
    before = lines[place - 1].strip() if place else ""
    return (
        re.match(r"^ {0,3}(=+|-+)[ \t]*\r?\n?$", lines[place + 1]) is not None
        and re.match(r"^ {0,3}[^\s>|#*+-]", bare) is not None
        and "|" not in bare
        and (not before or before.startswith(("#", "<!--", "---")) or not prose[place - 1])
    )


def _prose(lines: Sequence[str]) -> tuple[bool, ...]:
    """Mark the lines that are neither code, nor front matter, nor a comment of several lines, nor a block of ours."""
    marks: list[bool] = []
    ours = _blocks(lines)
    fence, comment = "", False
    front = _front_matter(lines)
    for place, line in enumerate(lines):
        opening = re.match(r"^ {0,3}(`{3,}|~{3,})", line)
        if place < front or place in ours:
            marks.append(False)
        elif fence:
            marks.append(False)
            if opening is not None and opening[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        elif comment:
            marks.append(False)
            comment = "-->" not in line
        elif opening is not None:
            marks.append(False)
            fence = opening[1]
        elif line.lstrip().startswith("<!--") and "-->" not in line:
            marks.append(False)
            comment = True
        else:
            marks.append(re.match(r"^(?: {4}|\t)", line) is None or bool(place and re.match(r"^\s*[-*+\d]", line)))
    return tuple(marks)


def _blocks(lines: Sequence[str]) -> frozenset[int]:
    """The lines of our blocks, from the marker to the end marker; without one, to the next heading."""
    inside: set[int] = set()
    for start, line in enumerate(lines):
        opened = MARKER.match(line)
        if opened is None:
            continue
        ends = (
            place + 1
            for place in range(start, len(lines))
            if (closed := END_MARKER.match(lines[place])) is not None and closed["run"] == opened["run"]
        )
        headings = (place for place in range(start, len(lines)) if re.match(r"^ {0,3}#{1,6}\s", lines[place]))
        inside.update(range(start, next(ends, next(headings, len(lines)))))
    return frozenset(inside)


def _front_matter(lines: Sequence[str]) -> int:
    """How many lines of YAML stand before the document."""
    if lines and lines[0].lstrip("\ufeff").rstrip() == "---":
        for place, line in enumerate(lines[1:], start=1):
            if line.rstrip() in {"---", "..."}:
                return place + 1
    return 0
