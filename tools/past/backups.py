"""A folder of script backups -> the changes between them, in the order of the dates in their names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tools.past.change import Read, clean
from tools.past.versions import Step, Subject, changes_of, digest

LARGEST = 4_000_000
"""Bytes of a launch file that is read; the largest known has some thousand."""
_DATE = re.compile(
    r"(?<!\d)(?P<year>20\d\d)(?P<sep>[-_.]?)(?P<month>0[1-9]|1[0-2])(?P=sep)(?P<day>0[1-9]|[12]\d|3[01])"
    r"(?:[-_.T ]?(?P<hour>[01]\d|2[0-3])[-_.:h]?(?P<minute>[0-5]\d)(?:[-_.:m]?(?P<second>[0-5]\d))?)?(?P<utc>Z)?(?!\d)"
)
_EPOCH = re.compile(r"(?<!\d)(1[4-9]\d{8})(?!\d)")
_KEPT = re.compile(r"(?:bak|bkp|backup|old|orig|save|saved|prev|copy|before|was|good|working|v?\d+)", re.IGNORECASE)
_JUNK = (".swp", ".swo", ".gz", ".xz", ".zst", ".bz2", ".zip", ".tar")


class Version(NamedTuple):
    """One version of the script."""

    content: bytes
    name: str
    at: datetime
    named: bool
    """Whether its name says when, and not only its file's time."""
    zoned: bool
    """Whether it is known in which time zone that is."""
    current: bool
    """Whether it is the script itself."""


def read_backups(folder: Path, subject: Subject) -> Read:
    """Read the versions of a worker's script in a folder and in the folders right below it.

    A backup is taken before an edit, so it says what was before its date, and the change came after it.

    Args:
        folder: The folder.
        subject: Whose script.
    """
    versions, left_out = [], []
    for path in sorted({*folder.glob("*"), *folder.glob("*/*")}):
        if path.is_symlink() or not path.is_file() or not belongs(path.name, subject.script):
            continue
        try:
            packed, size = path.name.lower().endswith(_JUNK), path.stat().st_size
            if packed or size > LARGEST:
                left_out.append(
                    f"{path.name} is {'packed or an editor' if packed else 'too large to be'}"
                    f"{chr(39) + 's own file' if packed else ' a launch file'}."
                )
                continue
            versions.append(_version(path, folder, subject.script))
        except OSError as error:
            left_out.append(f"{path.name} cannot be read: {error.strerror}.")
    versions.sort(key=lambda one: (one.current and not one.named, one.at, one.name))
    if len(versions) == 1:
        left_out.append(f"{versions[0].name} is the only version of {subject.script} in {folder.name}.")
    read = changes_of(tuple(_steps(versions)), subject, kind="backups")
    return Read(read.changes, (*left_out, *read.left_out))


def belongs(name: str, script: str) -> bool:
    """Whether a file name is the script's, or one that people give to its backups."""
    if name == script:
        return True
    stem, dot, ending = script.rpartition(".")
    rest = None
    if name.startswith(script):
        rest = name[len(script) :]
    elif name.endswith(script):
        rest = name[: -len(script)]
    elif stem and name.startswith(stem) and name.endswith(dot + ending):
        rest = name[len(stem) : -len(dot + ending)]
    if rest is None or not (rest[0] in "._-~ " or rest[-1] in "._- "):
        return False
    return "~" in rest or bool(_DATE.search(rest) or _EPOCH.search(rest) or _KEPT.search(rest))


def date_in(name: str) -> tuple[datetime, bool] | None:
    """The date in a name, taken as UTC, and whether it is known to be; None: there is none."""
    found = _DATE.search(name)
    if found is not None:
        parts = [int(found[part] or 0) for part in ("year", "month", "day", "hour", "minute", "second")]
        try:
            return datetime(*parts, tzinfo=UTC), found["utc"] is not None  # type: ignore[misc,arg-type] # six numbers
        except ValueError:
            return None
    epoch = _EPOCH.search(name)
    return None if epoch is None else (datetime.fromtimestamp(int(epoch[1]), UTC), True)


def _version(path: Path, folder: Path, script: str) -> Version:
    beside = path.parent.name if path.parent != folder else ""
    dated = date_in(path.name) or date_in(beside)
    at, zoned = dated or (datetime.fromtimestamp(path.stat().st_mtime, UTC), True)
    name = f"{beside}/{path.name}" if beside else path.name
    return Version(path.read_bytes(), clean(name), at, dated is not None, zoned, path.name == script and not beside)


def _steps(versions: list[Version]) -> Iterator[Step]:
    for before, after in pairwise(versions):
        if before.content == after.content:
            continue
        unsure = [
            f"It was changed between {before.at:%Y-%m-%d} and {after.at:%Y-%m-%d}; the earlier day is taken,"
            " because a backup is made before an edit."
        ]
        loose = [one.name for one in (before, after) if not one.named]
        if loose:
            unsure.append(f"No date in the name of {' and '.join(loose)}: the file's own time is taken.")
        if not all(one.zoned for one in (before, after)):
            unsure.append("The time zone of the dates is not known; UTC is taken.")
        yield Step(
            before.content,
            after.content,
            key=f"{digest(before.content)} {digest(after.content)} {before.name if before.named else ''}",
            source=f"{before.name} ({digest(before.content)}) -> {after.name} ({digest(after.content)})",
            at=before.at,
            by=None,
            words="",
            unsure=tuple(unsure),
        )
