"""What somebody's files say was changed once, with where it stands and what nobody can say of it any more."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import NamedTuple

from agent.domain import Change, Evidence, Origin, Record, Request, Setting, Verdict

NOTHING_BEFORE = "0" * 64
"""Stands in a record that no chain has placed yet."""
LONGEST = 2000
"""Characters of somebody's words that a record keeps."""
NO_BEFORE = "What the value was before is not known."
NO_AUTHOR = "Who changed it is not known."
NO_DATE = "When it was changed is not known."
NO_OUTCOME = "What came of it is not known."
CLAIMED = "What came of it is somebody's word; nothing was measured here."


class PastChange(NamedTuple):
    """One change of the past, as it was read."""

    key: str
    """What it is known by when it is read again, whatever folder it is read from."""
    origin: Origin
    """Where it was read, and what is not certain."""
    settings: tuple[Setting, ...]
    """What was set; none: the words name no value of a setting."""
    words: str
    """What people wrote about it; empty: nothing."""
    names: tuple[str, ...] = ()
    """Knobs that the words name without a value."""
    from_known: bool = True
    """Whether the source says what the values were before; where it does not, they are not known and not absent."""
    reopen_when: str | None = None
    """The condition under which a deferred one may be tried again, in the words of its source."""

    @property
    def summary(self) -> str:
        """The change in the field's words, else what people wrote."""
        told = ", ".join(
            f"{s.knob} {_value(s.old) if self.from_known else 'not known'} -> {_value(s.new)}" for s in self.settings
        )
        return told or " ".join(self.words.split())[:120]


class Read(NamedTuple):
    """What one source holds."""

    changes: tuple[PastChange, ...]
    """The changes in the order in which they were made, as far as that is known."""
    left_out: tuple[str, ...] = ()
    """What could not be read or compared, each in one sentence."""


def record_of(past: PastChange, *, worker: str, imported_by: str, now: datetime) -> Record:
    """A change of the past -> the record that is chained: it claims nothing that nobody proved.

    Args:
        past: The change.
        worker: The worker that it is about.
        imported_by: Who imports it.
        now: The time of the import; the change's own time stands in the origin.
    """
    run = run_of(past, worker)
    origin = past.origin
    when = origin.at or now
    came = f"It is said of it: {_cut(origin.outcome)}" if origin.outcome else NO_OUTCOME
    return Record(
        seq=0,
        run=run,
        worker=worker,
        at=now,
        request=Request(
            run=run,
            text=_cut(past.words) or past.summary,
            worker=worker,
            door="import",
            by=origin.by or "not known",
            at=when,
        ),
        change=Change(worker=worker, operation="set", settings=past.settings, summary=past.summary)
        if past.settings
        else None,
        evidence=tuple(
            Evidence(id=f"e{number}", what=f"says: {past.summary}", source=source, at=when, tainted=True, claimed=True)
            for number, source in enumerate(origin.sources, start=1)
        ),
        verdict=Verdict(
            decision="imported",
            state="unknown",
            why=f"Imported from {origin.sources[0]}, unproven. {came}",
            reopen_when=past.reopen_when,
        ),
        notes=(
            f"Imported by {imported_by} on {now:%Y-%m-%d}; it proves nothing.",
            *((f"It names {', '.join(past.names)}.",) if past.names else ()),
        ),
        origin=origin,
        previous=NOTHING_BEFORE,
    )


def run_of(past: PastChange, worker: str) -> str:
    """The id of its run: the same for the same change of the same worker, so that it is imported once."""
    told = json.dumps([worker, past.origin.kind, past.key, [s.model_dump() for s in past.settings]])
    return f"i-{hashlib.sha256(told.encode(errors='surrogatepass')).hexdigest()[:10]}"


def clean(text: str) -> str:
    """Text from a file as a record can keep it: bytes that were no UTF-8 are replaced."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace").replace("\0", "\ufffd")


def _cut(text: str | None) -> str:
    text = clean(text or "").strip()
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _value(value: str | None) -> str:
    return "not set" if value is None else (value or "set")
