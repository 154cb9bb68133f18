"""Versions of a launch file, one after the other -> the changes between them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple

from agent.domain import Origin
from agent.errors import Refused
from tools.engines.catalogue import Engine
from tools.past.change import NO_AUTHOR, NO_OUTCOME, PastChange, Read
from tools.past.launch_settings import Launched, difference, launched


class Subject(NamedTuple):
    """The worker whose past is read."""

    script: str
    """File name of its launch file."""
    engine: Engine
    """Its engine."""
    launch: str | None
    """Which launch of the file is meant, as in the settings."""


class Step(NamedTuple):
    """Two versions of which the later came out of the earlier."""

    before: bytes
    after: bytes
    key: str
    """What the step is known by when it is read again."""
    source: str
    """Where both are, for people."""
    at: datetime | None
    by: str | None
    words: str
    """What people wrote about it; empty: nothing."""
    unsure: tuple[str, ...]
    """What is not known of when and how."""


def changes_of(steps: Sequence[Step], subject: Subject, *, kind: Literal["backups", "git"]) -> Read:
    """Read what each step sets differently; a step that changes no setting is no change."""
    known: dict[bytes, Launched | str] = {}
    changes, left_out = [], []
    for step in steps:
        before, after = (_read(content, subject, known) for content in (step.before, step.after))
        unread = next((one for one in (before, after) if isinstance(one, str)), None)
        if isinstance(before, str) or isinstance(after, str):
            left_out.append(f"{step.source}: {unread}")
            continue
        differs = difference(before, after)
        if not differs.settings:
            continue
        unsure = [*step.unsure, *differs.unsure, NO_OUTCOME]
        if step.by is None:
            unsure.insert(0, NO_AUTHOR)
        origin = Origin(kind=kind, sources=(step.source,), at=step.at, by=step.by, unsure=tuple(unsure))
        changes.append(PastChange(step.key, origin, differs.settings, step.words))
    return Read(tuple(changes), tuple(left_out))


def digest(content: bytes) -> str:
    """The first digits of a version's SHA-256, by which it is told from others."""
    return hashlib.sha256(content).hexdigest()[:12]


def _read(content: bytes, subject: Subject, known: dict[bytes, Launched | str]) -> Launched | str:
    """What a version sets, or why that cannot be said."""
    if content not in known:
        try:
            known[content] = launched(content, path=subject.script, engine=subject.engine, launch=subject.launch)
        except Refused as refusal:
            known[content] = refusal.sentence
    return known[content]
