"""An engine's log -> what its starts were given differently, one after the other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from agent.domain import Knob, Origin, Setting
from tools.engines.catalogue import Engine, canonical, knobs
from tools.engines.engine import engine_of
from tools.engines.facts import StartupFacts
from tools.engines.log_lines import lines_of
from tools.engines.vllm_start import YEAR
from tools.past.change import NO_AUTHOR, NO_DATE, PastChange, Read

MOST = 500
"""Starts of a log that are read, the newest."""
DERIVED = "The engine prints what it works with: a value may follow from another one, or from the machine."
SILENT = "Environment variables are not in it."


def starts_in(path: Path, engine: Engine) -> tuple[StartupFacts, ...]:
    """The starts that a log holds, the oldest first; none: it is no log of this engine."""
    with path.open("rb") as content:
        log = engine_of(engine).read_log(lines_of(content), earlier=MOST)
    return (*log.earlier, log.facts) if log.facts is not None else ()


def read_log(name: str, starts: Sequence[StartupFacts], engine: Engine) -> Read:
    """Compare each start of a log with the one before it.

    Args:
        name: The log's name, for sources.
        starts: Its starts, the oldest first.
        engine: Whose log it is.
    """
    changes, left_out = [], []
    said = [start for start in starts if start.settings]
    if len(said) < len(starts):
        left_out.append(f"{name}: {len(starts) - len(said)} of {len(starts)} starts do not print their settings.")
    if len(said) == 1:
        left_out.append(f"{name} holds one start that prints its settings: there is nothing to compare it with.")
    for number, (before, after) in enumerate(pairwise(said), start=2):
        settings = tuple(_difference(_values(before, engine), _values(after, engine), engine))
        upgrade = _upgrade(before, after)
        if not settings and not upgrade:
            continue
        at = _time(after.begun_at)
        unsure = [NO_AUTHOR, DERIVED, SILENT]
        unsure.append(f"What came of it is not known, but that the start {_ended(after)}.")
        if at is None:
            unsure += [NO_DATE, "The log does not say the time of that start with its year."]
        else:
            unsure.append("The time zone of the log is not known; UTC is taken.")
        if settings and upgrade:
            unsure.append("The engine's version changed with it: settings may differ by its defaults alone.")
        if len(settings) > 1:
            unsure.append(f"{len(settings)} settings differ at once: what each of them did cannot be told apart.")
        when = (after.begun_at or f"start {number}").removeprefix(f"{YEAR}-")
        changes.append(
            PastChange(
                key=f"{when} {sorted(after.settings.items())}",
                origin=Origin(
                    kind="log",
                    sources=(f"{name}, start {number} of {len(said)} ({when})",),
                    at=at,
                    outcome=f"the start {_ended(after)}",
                    unsure=tuple(unsure),
                ),
                settings=settings,
                words=upgrade,
            )
        )
    return Read(tuple(changes), tuple(left_out))


def _values(start: StartupFacts, engine: Engine) -> Mapping[str, str]:
    """Settings of the catalogue by knob name, as the start printed them."""
    found = {}
    for knob in knobs(engine):
        fields = (*knob.effective, knob.name.replace("-", "_"), *(_field(s.text) for s in knob.spellings))
        value = next((start.settings[field] for field in fields if field in start.settings), None)
        if value is not None and knob.kind == "flag":
            found[knob.name] = canonical(knob, value)
    return found


def _difference(before: Mapping[str, str], after: Mapping[str, str], engine: Engine) -> Iterator[Setting]:
    for knob in knobs(engine):
        old, new = before.get(knob.name), after.get(knob.name)
        if old == new:
            continue
        if knob.value == "switch":
            old, new = _switch(knob, old), _switch(knob, new)
        if old != new:
            yield Setting(knob=knob.name, kind="flag", spelling=knob.spellings[0].text, old=old, new=new)


def _switch(knob: Knob, value: str | None) -> str | None:
    """A printed switch as a script has it, an empty text where it is on; one that is on by itself says on or off."""
    if (knob.default or "").split(" ")[0] == "on":
        return value or "on"
    return "" if value == "on" else None if value == "off" else value


def _upgrade(before: StartupFacts, after: StartupFacts) -> str:
    """The change of the engine's version, in words; empty: none that the log tells of."""
    if before.version is None or after.version is None or before.version == after.version:
        return ""
    return f"engine version {before.version} -> {after.version}"


def _ended(start: StartupFacts) -> str:
    if not start.ready:
        return "did not come up, by its log"
    took = f" after {start.log_seconds:.0f} s" if start.log_seconds is not None else ""
    return f"came up{took}"


def _time(text: str | None) -> datetime | None:
    """A log's time, taken as UTC where it does not say a zone."""
    if text is None or not re.match(r"\d{4}-\d\d-\d\d", text) or text.startswith(YEAR):
        return None
    try:
        at = datetime.fromisoformat(text.replace(",", "."))
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _field(spelling: str) -> str:
    return spelling.lstrip("-").replace("-", "_")
