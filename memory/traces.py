"""Record -> what it leaves in the index, so that a change finds its precedents without reading them all.

A record leaves traces: the knobs that it set, the values that it set them to and took them from, the metrics that it
broke. A path asks for one trace, and says what a record is worth that left it; a store walks the heaviest paths first.
Subsystems and couplings are not kept: they are the catalogue's, which knows more in every version.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import NamedTuple

from agent.domain import Change, Knob, Record
from memory.incidents import is_on, number_in
from memory.told import breached_metrics, is_echo

LONGEST_WORD = 64
"""Characters: no knob's name has a longer word, and a server's text index takes none beyond 2 KB."""
MOST_SWITCHES = 4
"""Settings of one change up to which switches are told from other values: each doubles its entries in the index."""
MOST_PROSE = 100_000
"""Characters of a record's text that are indexed."""


class Trace(NamedTuple):
    """One entry of the index."""

    metric: str = ""
    """A metric that the record broke; empty: whatever it broke."""
    knob: str = ""
    """A knob that it set; empty: whatever it set."""
    aim: str = ""
    """`to:` with every value that it set, `from` with one that it set away from, `kept`, `undoes:` with a run;
    empty: whatever it was after. Of an imported record each begins with `told `."""


class Path(NamedTuple):
    """Where to look for records, and what they weigh there."""

    weight: int
    """What a record is worth that is found here."""
    trace: Trace = Trace()
    """The trace that it has to have left."""
    worker: str | None = None
    """The worker that it has to be about; None: any."""
    phrase: str = ""
    """Words that its text has to hold, as `plain` writes them; with a phrase the trace does not count."""


def is_silent(record: Record) -> bool:
    """Whether a record says nothing about a change: a question, a worker that was as asked, a deferral told again."""
    return record.verdict.decision in {"answered", "unchanged"} or is_echo(record)


def is_imported(record: Record) -> bool:
    """Whether a record only tells what somebody's files say of the time before us."""
    return record.verdict.decision == "imported"


def told_of(aim: str) -> str:
    """The aim by which an imported record is found: apart from ours, so that many of them hide none that is proven."""
    return f"told {aim}"


def traces_of(record: Record) -> frozenset[Trace]:
    """Everything that a record can be found by."""
    change, decision = record.change, record.verdict.decision
    if is_silent(record):
        return frozenset()
    metrics = ("", *breached_metrics(record))
    found = {Trace(metric=metric) for metric in metrics if metric}
    if change is None:
        return frozenset(found)
    if decision == "kept":
        found.add(Trace(aim="kept"))
        if change.undoes is not None:
            found.add(Trace(aim=f"undoes:{change.undoes}"))
    found |= {Trace(metric, aim=aim) for metric in metrics for aim in _goals(change)}
    for setting in change.settings:
        aims = [""]
        if decision == "kept":
            pairs = zip(_values(setting.old), _values(setting.new), strict=True)
            aims += [f"from{old}" for old, new in pairs if old != new]
        found |= {Trace(metric, setting.knob, aim) for metric in metrics for aim in aims}
    if is_imported(record):
        found = {trace._replace(aim=told_of(trace.aim)) for trace in found}
    return frozenset(found)


def to_values(change: Change, knobs: Mapping[str, Knob]) -> str:
    """The aim of records that set exactly these knobs to these values, as far as the engine sees a difference."""
    exact = len(change.settings) > MOST_SWITCHES
    return _goal((s.knob, _exact(s.new) if exact else _value(knobs.get(s.knob), s.new)) for s in change.settings)


def from_value(knob: Knob | None, value: str | None) -> str:
    """The aim of records that were kept and set a knob away from a value."""
    return f"from{_value(knob, value)}"


def prose_of(record: Record) -> str:
    """What can be searched of a record: who it is about, and its words, but for the names of the knobs that it set.

    Those are found by their traces; left in, they would hide the few records that only speak of a knob.
    """
    if is_silent(record):
        return ""
    said = [record.request.text, record.verdict.why, record.verdict.reopen_when or "", *record.notes]
    if record.approval is not None:
        said.append(record.approval.reason)
    text = plain(" ".join(said)[:MOST_PROSE])
    own = {setting.knob for setting in record.change.settings} if record.change else set()
    for name in sorted(map(plain, own), key=len, reverse=True):
        text = f" {text} ".replace(f" {name} ", "  ").strip()
    return f"{worker_word(record.worker)} {' '.join(text.split())}"


def worker_word(worker: str) -> str:
    """A worker's name as one word that no text holds by chance."""
    return f"w{worker.encode().hex()}w"


def plain(text: str) -> str:
    """Words of ASCII letters and digits in lower case with single spaces, which every text index splits alike."""
    return " ".join(word for word in re.findall(r"[a-z0-9]+", text.lower()) if len(word) <= LONGEST_WORD)


def names_of(knob: Knob) -> tuple[str, ...]:
    """Phrases by which a text speaks of a knob: its name and spellings; a single short word would be anything."""
    phrases = (plain(name) for name in (knob.name, *(spelling.text for spelling in knob.spellings)))
    return tuple(dict.fromkeys(phrase for phrase in phrases if " " in phrase))


def speaks_of(record: Record, phrases: Iterable[str]) -> bool:
    """Whether a record's text holds one of the phrases."""
    prose = f" {prose_of(record)} "
    return any(f" {phrase} " in prose for phrase in phrases)


def _goals(change: Change) -> Iterator[str]:
    """What a change set, with each value as it is and, because the record does not know which it is, as a switch."""
    if not change.settings:
        return
    exact = len(change.settings) > MOST_SWITCHES
    ways = [[_exact(s.new)] if exact else list(_values(s.new)) for s in change.settings]
    for values in product(*ways):
        yield _goal((setting.knob, value) for setting, value in zip(change.settings, values, strict=True))


def _goal(pairs: Iterable[tuple[str, str]]) -> str:
    return f"to:{_short('+'.join(sorted(f'{knob}{value}' for knob, value in pairs)))}"


def _values(value: str | None) -> Iterator[str]:
    """A value as it is indexed: exactly, and as a switch, because a record does not know which of both it is."""
    yield _exact(value)
    yield ":on" if is_on(value) else ":off"


def _value(knob: Knob | None, value: str | None) -> str:
    if knob is not None and knob.value == "switch":
        return ":on" if is_on(value) else ":off"
    return _exact(value)


def _exact(value: str | None) -> str:
    if value is None:
        return ":none"
    number = number_in(value)
    # Adding zero makes one number of the two zeros that floating point has.
    return f"={_short(value.strip())}" if number is None else f"#{number + 0.0!r}"


def _short(text: str) -> str:
    """A long text, or one that a server's text cannot hold, as its hash: an index entry has to fit a page."""
    fits = len(text) <= 100 and text.isprintable()
    return text if fits else f"sha256:{hashlib.sha256(text.encode(errors='replace')).hexdigest()}"
