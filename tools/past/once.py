"""Several sources that tell of one change -> the change once, with all of its sources."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from agent.domain import Record, Setting
from tools.past.change import NO_AUTHOR, NO_BEFORE, NO_DATE, NO_OUTCOME, PastChange, clean, run_of

NEAR = timedelta(days=3)
"""How far apart two sources may date one change: it is committed, backed up and written up on different days."""
_TRUSTED = ("git", "log", "backups", "plan")
"""Kinds of sources, the one that dates a change best first."""
_HAPPENED = frozenset({"kept", "rolled_back", "deferred", "needs_human", "imported"})
"""Decisions of records that say that something was tried, or put off."""
SEVERAL = "Several sources tell of it; that they mean the same change was concluded from settings and dates."


def told_once(changes: Iterable[PastChange]) -> tuple[PastChange, ...]:
    """Put together what is told of one change, and say where a later one took it back; the oldest first."""
    found: list[PastChange] = []
    for change in sorted(changes, key=lambda one: _TRUSTED.index(one.origin.kind)):
        if any(other.key == change.key and other.origin.kind == change.origin.kind for other in found):
            continue
        same = [place for place, other in enumerate(found) if _is_same(change, other)]
        if len(same) == 1:
            found[same[0]] = _together(found[same[0]], change)
        else:
            found.append(change)
    ordered = sorted(found, key=lambda one: (one.origin.at is None, _moment(one.origin.at)))
    return tuple(_with_later(one, ordered[place + 1 :]) for place, one in enumerate(ordered))


def known_as(changes: Sequence[PastChange], records: Iterable[Record], worker: str) -> dict[str, str]:
    """Which of the changes a record tells of already, by key, with the run.

    Args:
        changes: The changes that were read.
        records: Records of the worker that may be of the same changes: our own, and what was imported before.
        worker: The worker.
    """
    known: dict[str, str] = {}
    wanted = {run_of(change, worker): change.key for change in changes}
    for record in records:
        if record.run in wanted:
            known.setdefault(wanted[record.run], record.run)
        elif record.change is not None and record.verdict.decision in _HAPPENED:
            at = record.at if record.origin is None else record.origin.at
            for change in changes:
                # Two entries of one source are two changes, and where it was told before its run is known.
                other = record.origin is None or record.origin.kind != change.origin.kind
                near = change.origin.at is None or at is None or _near(change.origin.at, at)
                if other and near and change.settings and _set_alike(change.settings, record.change.settings):
                    known.setdefault(change.key, record.run)
    return known


def _is_same(change: PastChange, other: PastChange) -> bool:
    if not change.settings or not _set_alike(change.settings, other.settings):
        return False
    one, two = change.origin, other.origin
    if one.kind == two.kind and one.kind != "plan":
        return False
    return one.at is None or two.at is None or _near(one.at, two.at)


def _set_alike(some: Sequence[Setting], others: Sequence[Setting]) -> bool:
    """Whether the same knobs were set to the same values; what they were before counts where both sources say it."""
    mine, theirs = ({setting.knob: setting for setting in one} for one in (some, others))
    return set(mine) == set(theirs) and all(
        mine[knob].new == theirs[knob].new
        and (None in {mine[knob].old, theirs[knob].old} or mine[knob].old == theirs[knob].old)
        for knob in mine
    )


def _near(one: datetime | None, other: datetime | None) -> bool:
    return one is not None and other is not None and abs(one - other) <= NEAR


def _together(first: PastChange, second: PastChange) -> PastChange:
    """What two sources tell of one change; the first dates it."""
    one, two = first.origin, second.origin
    said = " / ".join(dict.fromkeys(filter(None, (one.outcome, two.outcome)))) or None
    doubts = dict.fromkeys((*one.unsure, *two.unsure, SEVERAL))
    at, by = one.at or two.at, one.by or two.by
    from_known = first.from_known or second.from_known
    settled = {
        NO_AUTHOR: by is not None,
        NO_DATE: at is not None,
        NO_OUTCOME: said is not None,
        NO_BEFORE: from_known,
    }
    merged = one.model_copy(
        update={
            "sources": (*one.sources, *two.sources),
            "at": at,
            "by": by,
            "outcome": said,
            "unsure": tuple(doubt for doubt in doubts if not settled.get(doubt, False)),
        }
    )
    words = "\n".join(dict.fromkeys(filter(None, (first.words, second.words))))
    settings = first.settings if first.from_known or not second.from_known else second.settings
    return first._replace(
        origin=merged,
        settings=settings,
        from_known=from_known,
        words=words,
        reopen_when=first.reopen_when or second.reopen_when,
    )


def _with_later(change: PastChange, later: Sequence[PastChange]) -> PastChange:
    """Say where a later change took every setting of this one back."""
    for other in later:
        theirs = {setting.knob: setting for setting in other.settings}
        if change.settings and all(
            (back := theirs.get(setting.knob)) is not None and (back.old, back.new) == (setting.new, setting.old)
            for setting in change.settings
        ):
            when = f" on {other.origin.at:%Y-%m-%d}" if other.origin.at is not None else ""
            taken = f"taken back{when}, by {clean(other.origin.sources[0])}"
            said = f"{change.origin.outcome}; {taken}" if change.origin.outcome else taken
            doubts = tuple(d for d in change.origin.unsure if d != NO_OUTCOME)
            why = "Why it was taken back is concluded from nothing: the sources only show that it was."
            return change._replace(origin=change.origin.model_copy(update={"outcome": said, "unsure": (*doubts, why)}))
    return change


def _moment(at: datetime | None) -> float:
    return 0.0 if at is None else at.timestamp()
