"""Operators' English -> wishes, without a model: verbs, knob names, numbers and conditions.

It errs on the side of asking. A verb of change without a knob, a knob without a value, two knobs, a negation or a
worker that was not meant all end in a question, never in a guess.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from agent.domain import Knob

Verb = Literal["set", "raise", "lower", "turn_on", "turn_off", "unset"]

_VERBS: tuple[tuple[Verb, str], ...] = (
    ("turn_on", r"(?:turn|switch|flip|put)\s+on|enable|activate|re-enable"),
    ("turn_off", r"(?:turn|switch|flip|put)\s+off|disable|deactivate|get\s+rid\s+of"),
    ("unset", r"unset|remove|delete"),
    ("raise", r"raise|increase|bump(?:\s+up)?|up|lift|grow|push\s+up"),
    ("lower", r"lower|reduce|decrease|drop|cut|shrink|bring\s+down"),
    ("set", r"set|change|make|put|move|go\s+with"),
)
_SPLIT_SWITCH = re.compile(r"\b(?:turn|switch|flip|put|set|make|want)\b.{0,60}?\b(on|off)\b")
_UNSAFE = r"(?:unsafe|not\s+safe|risky|dangerous)"
_IS = r"(?:(?:it|that|this)\b)?\s*(?:is|'s|isn't|is\s+not)?\s*"
_CONDITION = re.compile(
    r"(?:[,;.]|\b(?:but|and)\b)?\s*(?:please\s+)?"
    rf"(?:skip\s+(?:it|(?:that|this)(?:\s+one)?|[\w #-]{{1,30}}?)(?:\s+for\s+now)?\s+if\s+{_IS}{_UNSAFE}"
    rf"|(?:only\s+)?if\s+{_IS}safe"
    rf"|unless\s+{_IS}{_UNSAFE})"
)
_NEGATION = re.compile(r"\b(?:do\s+not|don't|don’t|dont|never|must\s+not|mustn't|shouldn't|stop)\b")
_ROLL_BACK = re.compile(
    r"\b(?:roll\s*-?\s*back|undo|revert|take\s+back|back\s+out)\b\s+(?:the\s+|that\s+|my\s+|our\s+)?"
    r"(?:last|latest|previous|most\s+recent)?\s*(?:change|one|edit|it|that|this)\b"
    r"|^\W*(?:please\s+)?(?:roll\s*-?\s*back|undo|revert)\W*(?:please\W*)?$"
)
_ARROW = re.compile(r"\s*(?:->|=>|→)")
_CONDITIONAL = re.compile(
    r"\b(?:if|when|whenever|unless|until|while|after|before|except|but\s+not|not|tomorrow|tonight|later|next\s+week"
    r"|on\s+(?:mon|tues|wednes|thurs|fri|satur|sun)days?|(?:all|every|each|both)\s+(?:the\s+)?(?:other\s+)?workers?)\b"
)
_OTHER_ACTION = re.compile(
    r"\b(?:re-?start|reboot|upgrade|downgrade|install|deploy|re-?deploy|start|stop|kill|drain|flush|delete|migrate|scale"
    r"|swap|replace|add|create|run|benchmark|test|cancel|abort|clear|wipe|reset|rename)\b"
)
_WH = re.compile(
    r"^(?:(?:so|ok|okay|hey|hi|please|and|tell\s+me|show\s+me|say)[\s,]+)*"
    r"(?:what|which|how|why|when|who|where|is|are|does|do(?!\s+not|n't)|did|was|were|has|have|should|would\s+it|show|list|tell)\b"
)
_NUMBER = re.compile(r"(?<![\w.-])(-?\d+(?:\.\d+)?)(\s*%)?(?![\w%])(?!\.\d)")
_CLAIM = re.compile(r"\b(?:is|are|was|were|looks?|seems?|has|have|had|got|there's)\b")
_ROLE = re.compile(
    r"\b(?:on|for|of|at)\s+(?:the\s+|our\s+)?(prefill|decode|router|proxy|gateway)\b|\b(prefill|router)\s+(?:worker|server|side|node)s?\b"
)
_POLITE = re.compile(
    r"\b(?:can|could|would|will)\s+(?:you|we)\b(?:\s+please)?|\bplease\b|\blet's\b"
    r"|\bi(?:'d|\s+would)\s+like\s+(?:you\s+)?to\b|\bi\s+want\s+(?:you\s+)?to\b"
)


class Mention(NamedTuple):
    """A knob where the text names it."""

    knob: Knob
    """Which."""
    literal: bool
    """True where it is named by its spelling, so that "on" and "off" speak of the flag itself."""
    start: int
    """First character."""
    end: int
    """One past the last."""


class Number(NamedTuple):
    """A number in the text."""

    value: float
    """Its value; a percentage is divided by 100."""
    start: int
    """First character."""
    end: int
    """One past the last."""


class Clause(NamedTuple):
    """One thing that a request wants done."""

    verb: Verb | None
    """The verb, None for `name=value`."""
    mention: Mention | None
    """The knob, None where the object is not one that we know."""
    by: bool
    """The number is a difference."""
    value: Number | None
    """The number."""
    was: Number | None
    """The old value, as the request has it."""
    words: str
    """The words, verbatim."""


def normal(text: str) -> str:
    """Lower case, typographic quotes and dashes made plain, same length as the text wherever possible."""
    return text.lower().replace("’", "'").replace("–", "-").replace("—", "-")


def mentions(text: str, knobs: Sequence[Knob]) -> tuple[Mention, ...]:
    """Find the knobs that a text names; the longest name wins where two overlap."""
    found: list[Mention] = []
    for knob in knobs:
        literal = {knob.name.lower(), *(s.text.lower().lstrip("-") for s in knob.spellings)}
        for name in literal:
            pattern = r"(?<![\w-])-{0,2}" + re.sub(r"[-_]", "[-_]", re.escape(name).replace(r"\-", "-")) + r"(?![\w-])"
            found += [Mention(knob, True, m.start(), m.end()) for m in re.finditer(pattern, text)]
        for words in knob.words:
            pattern = r"(?<![\w-])" + r"[\s-]+".join(map(re.escape, words.lower().split())) + r"(?![\w-])"
            found += [Mention(knob, False, m.start(), m.end()) for m in re.finditer(pattern, text)]
    chosen: list[Mention] = []
    for mention in sorted(found, key=lambda m: (m.start - m.end, not m.literal, m.start)):
        if all(mention.end <= other.start or other.end <= mention.start for other in chosen):
            chosen.append(mention)
    return tuple(sorted(chosen, key=lambda m: m.start))


def numbers(text: str, taken: Sequence[Mention]) -> tuple[Number, ...]:
    """Find the numbers that are not part of a knob's name."""
    return tuple(
        Number(float(m[1]) / (100 if m[2] else 1), m.start(), m.end())
        for m in _NUMBER.finditer(text)
        if not any(t.start <= m.start() < t.end for t in taken)
    )


def split_condition(text: str) -> tuple[str, bool]:
    """Take "skip it if it's unsafe" out of a text and say whether it was there."""
    without = _CONDITION.sub(" ", text)
    return without, without != text


def is_question(text: str) -> bool:
    """Whether a text asks something instead of asking for something."""
    plain = text.strip()
    return bool(_WH.match(plain)) and not _POLITE.match(plain)


def is_hypothetical(text: str) -> bool:
    """Whether a question asks what would be, why, or whether one should."""
    return bool(re.search(r"\b(?:would|should|could|if|why|happens?|recommend|better|best|safe)\b", text))


def is_roll_back(text: str) -> bool:
    """Whether a text wants the last change taken back."""
    return bool(_ROLL_BACK.search(text))


def negated(text: str) -> bool:
    """Whether a text says that something is not to be done."""
    return bool(_NEGATION.search(text))


def other_role(text: str, worker: str) -> str | None:
    """The role that a text names ("on the prefill worker") if the worker's name does not hold it."""
    for match in _ROLE.finditer(text):
        role = match[1] or match[2]
        if role not in worker.lower():
            return role
    return None


def claims(text: str, knobs: Sequence[Knob]) -> tuple[str, ...]:
    """Clauses that state something about the worker and ask for nothing."""
    stated = []
    for piece in re.split(r"[,;.!]\s|\bso\b|\band\b", text):
        clause = piece.strip(" ,;.!?")
        if clause and _CLAIM.search(normal(clause)) and not clauses(normal(clause), knobs):
            stated.append(clause)
    return tuple(stated)


def loose_condition(text: str) -> str | None:
    """A word of a normal text, its safety condition taken out, that makes more of it than one plain change."""
    found = _CONDITIONAL.search(text)
    return found[0] if found else None


def loose_numbers(text: str, knobs: Sequence[Knob], wanted: Sequence[Clause]) -> tuple[float, ...]:
    """Numbers of a normal text that belong to no clause and to no claim: something was not understood."""
    used = {number for clause in wanted for number in (clause.value, clause.was) if number is not None}
    stated = [text.find(normal(claim)) for claim in claims(text, knobs)]
    spans = [(at, at + len(claim)) for at, claim in zip(stated, claims(text, knobs), strict=True)]
    return tuple(
        number.value
        for number in numbers(text, mentions(text, knobs))
        if number not in used and not any(start <= number.start < end for start, end in spans)
    )


def clauses(text: str, knobs: Sequence[Knob]) -> tuple[Clause, ...]:
    """Cut a normal text into what it wants done."""
    named = mentions(text, knobs)
    digits = numbers(text, named)
    verbs = _verbs(text, named)
    if not verbs:
        return tuple(
            _clause(text, None, mention, digits, mention.start, _next_start(text, mention.end, named))
            for mention in named
            if re.match(r"\s*(?:=|:=|->|to\b)", text[mention.end :])
        )
    found = []
    for index, (verb, start, end) in enumerate(verbs):
        until = verbs[index + 1][1] if index + 1 < len(verbs) else len(text)
        inside = [m for m in named if start <= m.start < until]
        if verb is None:
            found.append(Clause(None, None, False, None, None, text[start:until].strip(" ,;.!?")))
            continue
        if not inside and verb == "set" and index + 1 < len(verbs):
            continue  # "go and bump": the next verb says what is meant
        if not inside:
            found.append(_clause(text, verb, None, digits, start, until))
        for position, mention in enumerate(inside):
            stop = inside[position + 1].start if position + 1 < len(inside) else until
            found.append(
                _clause(text, verb, mention, digits, start if position == 0 else mention.start, max(stop, end))
            )
    return tuple(found)


def _verbs(text: str, named: Sequence[Mention]) -> list[tuple[Verb | None, int, int]]:
    """Verbs with their places, none inside a knob's name or another verb; None: an action that is not ours."""
    places: list[tuple[Verb | None, int, int]] = [
        ("turn_on" if match[1] == "on" else "turn_off", match.start(), match.start() + 3)
        for match in _SPLIT_SWITCH.finditer(text)
        if not any(m.start <= match.start(1) < m.end for m in named)
    ]
    for verb, pattern in (*_VERBS, (None, _OTHER_ACTION.pattern)):
        for match in re.finditer(rf"\b(?:{pattern})\b(?!\s+to\s+date)", text):
            inside_name = any(m.start < match.end() and match.start() < m.end for m in named)
            overlaps = any(start < match.end() and match.start() < end for _, start, end in places)
            if not inside_name and not overlaps:
                places.append((verb, match.start(), match.end()))
    return sorted(places, key=lambda place: place[1])


def _next_start(text: str, start: int, named: Sequence[Mention]) -> int:
    later = [m.start for m in named if m.start >= start]
    return min(later, default=len(text))


def _clause(
    text: str, verb: Verb | None, mention: Mention | None, digits: Sequence[Number], start: int, stop: int
) -> Clause:
    inside = [n for n in digits if start <= n.start < stop]
    was = next((n for n in inside if re.search(r"\bfrom\s+$", text[: n.start]) or _ARROW.match(text, n.end)), None)
    rest = [n for n in inside if n is not was]
    target = next((n for n in rest if re.search(r"(?:\bto|\bat|=|->)\s*$", text[: n.start])), None)
    difference = next((n for n in rest if re.search(r"\bby\s+$", text[: n.start])), None)
    value = target or difference or (rest[0] if len(rest) == 1 else None)
    end = max([mention.end if mention else start, value.end if value else start])
    if end == start:
        end = stop
    trailing = re.match(r"\s+(?:on|off)\b", text[end:])
    words = text[start : end + (trailing.end() if trailing else 0)].strip(" ,;.!?")
    return Clause(verb, mention, value is not None and value is difference, value, was, words)
