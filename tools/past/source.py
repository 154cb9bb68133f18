"""Files and folders -> the changes that they tell of, each read as what it is."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agent.errors import BadSettings, Refused
from tools.past.backups import belongs, read_backups
from tools.past.change import PastChange, Read, clean
from tools.past.engine_log import read_log, starts_in
from tools.past.git_history import read_git, tracked
from tools.past.plan_document import read_plan
from tools.past.versions import Subject

DOCUMENTS = (".md", ".markdown", ".mdown", ".mkd", ".rst")
"""Endings of plan documents."""
LARGEST_DOCUMENT = 10_000_000
"""Bytes of a document that is read."""


def read_sources(paths: Iterable[Path], subject: Subject, *, given: bool) -> Read:
    """Read every path as what it is: a document, a folder or repository, a script, a log.

    Args:
        paths: Where to look.
        subject: Whose past it is.
        given: Whether somebody named the paths; what the settings name may well tell of nothing.

    Raises:
        BadSettings: a path that somebody named does not exist or tells of nothing that can be read.
    """
    changes: list[PastChange] = []
    left_out: list[str] = []
    for path in paths:
        try:
            read = _read(path, subject)
        except OSError as error:
            raise BadSettings(f"{path} cannot be read: {error.strerror}.", "Check the path.") from error
        except BadSettings as refusal:
            if given:
                raise
            read = Read((), (refusal.sentence,))
        changes += read.changes
        left_out += read.left_out
    return Read(tuple(changes), tuple(dict.fromkeys(left_out)))


def _read(path: Path, subject: Subject) -> Read:
    if path.is_dir():
        return _folder(path, subject)
    if path.suffix.lower() in DOCUMENTS:
        return read_plan(_text(path), clean(path.name), subject.engine)
    if belongs(path.name, subject.script):
        return _folder(path.parent, subject)
    starts = starts_in(path, subject.engine)
    if starts:
        return read_log(clean(path.name), starts, subject.engine)
    raise BadSettings(
        f"{path} is no document ({', '.join(DOCUMENTS)}), no version of {subject.script}, and no log of"
        f" {subject.engine} in which it starts.",
        "Name what it is by its ending, or the script with --script.",
    )


def _folder(folder: Path, subject: Subject) -> Read:
    """A folder: its repository's history of the script, the backups in it, or both."""
    changes: list[PastChange] = []
    left_out: list[str] = []
    files = tracked(folder, subject.script)
    for file in files:
        try:
            read = read_git(folder, file, subject)
        except Refused as refusal:
            read = Read((), (refusal.sentence,))
        changes += read.changes
        left_out += read.left_out
    backups = read_backups(folder, subject)
    changes += backups.changes
    left_out += backups.left_out
    if not files and not changes and not left_out:
        raise BadSettings(
            f"{folder} holds neither backups nor a git history of {subject.script}.",
            "Name the script as it is called there with --script.",
        )
    return Read(tuple(changes), tuple(left_out))


def _text(path: Path) -> str:
    if path.stat().st_size > LARGEST_DOCUMENT:
        raise BadSettings(f"{path} is larger than {LARGEST_DOCUMENT // 1_000_000} MB.", "Name the document itself.")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadSettings(f"{path} is not UTF-8 text.", "Convert it first.") from error
