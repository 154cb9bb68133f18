"""Record -> the plan document: the decision is written where a person would look for it, and nothing else changes.

The document stays the people's. What is added can be read without Prudent, what somebody else saves at the same
moment is not lost, and nothing here can make a run fail: what could not be done is said in the notes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from agent.domain import Record
from tools.plan_block import STATE_WORDS, render
from tools.plan_commit import Repository
from tools.plan_entry import Written, with_record
from tools.plan_file import exchange

__all__ = ["PlanWrite", "append_record", "render"]

FALLBACK_IDENTITY = ("Prudent", "prudent@localhost")
"""Name and address for a commit where the repository knows nobody."""
ATTEMPTS = 50
"""How often a document that somebody keeps saving is taken up again before it is left alone."""
NEW_DOCUMENT = b"# Performance plan\n"
"""What a document begins with where there is none yet."""


class PlanWrite(NamedTuple):
    """What became of a record's way into the plan document."""

    written: bool
    """Whether this call put the record into the document."""
    committed: str | None
    """Hash of the commit that holds it; None: not committed, and where there is a repository the notes say why."""
    notes: tuple[str, ...] = ()
    """Where it stands, and what else a person should know."""


class _Outcome(NamedTuple):
    """What the document holds after the attempt."""

    written: bool
    base: bytes
    """The document without this record's block, as people left it."""
    content: bytes
    notes: tuple[str, ...]


class _LeftAlone(Exception):
    """The document is left as it is, for the reason given."""


def append_record(
    path: Path,
    record: Record,
    *,
    words: Sequence[str] = (),
    fallback_identity: tuple[str, str] = FALLBACK_IDENTITY,
) -> PlanWrite:
    """Write a record into a plan document, and commit it where the document lies in a repository.

    A document that has this run's record is left as it is; one that does not exist is made. The commit holds this file
    only, and is made only where nobody else's edits of it would go with it.

    Args:
        path: The document.
        record: The record, as it was chained.
        words: What the changed knobs are called: names, spellings and operators' words from the catalogue.
        fallback_identity: Name and address of the committer where the repository knows nobody.

    Returns:
        What was done. Nothing is raised for a document or a repository that does not play along.
    """
    try:
        path = path.resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        made = _made(path)
        done = _write(path, record, words)
    except (OSError, _LeftAlone) as problem:
        return PlanWrite(False, None, (f"{path} was not written: {problem}",))
    repository = Repository.around(path)
    if repository is None:
        mute = any((folder / ".git").exists() for folder in path.parents)
        why = ("not committed: git is missing, or does not trust the repository here",) if mute else ()
        return PlanWrite(done.written, None, (*done.notes, *why))
    before = repository.committed()
    if before == done.content:
        return PlanWrite(done.written, repository.holder(), done.notes)
    why_not = _why_not_committed(repository, before, made=made, done=done, again=(record, words))
    if why_not is not None:
        return PlanWrite(done.written, None, (*done.notes, f"not committed: {path.name} {why_not}"))
    commit, notes = repository.commit(done.content, _message(record), fallback_identity, new=made)
    return PlanWrite(done.written, commit, (*done.notes, *notes))


def _why_not_committed(
    repository: Repository, before: bytes | None, *, made: bool, done: _Outcome, again: tuple[Record, Sequence[str]]
) -> str | None:
    """The reason why a commit would take somebody else's work with it; None: it would not."""
    if repository.ignored():
        return "is ignored by the repository"
    if made:
        return None
    if before is None:
        return "has never been committed"
    if repository.staged():
        return "has edits of somebody else in the index"
    if done.base == before:
        return None
    left_by_a_crash = not done.written and _applied(before, *again)[0] == done.content
    return None if left_by_a_crash else "had edits that nobody has committed"


def _made(path: Path) -> bool:
    """Make the document where there is none."""
    try:
        with path.open("xb") as new:
            new.write(NEW_DOCUMENT)
    except FileExistsError:
        return False
    return True


def _write(path: Path, record: Record, words: Sequence[str]) -> _Outcome:
    """Put the record into the file by compare-and-set; what somebody saves meanwhile is taken up.

    Raises:
        _LeftAlone: it is not a text, or somebody saves it faster than it can be taken up.
    """
    base = path.read_bytes()
    content, written = _applied(base, record, words)
    if written is None:
        return _Outcome(False, base, base, ("the document has this record already",))
    expected = base
    met: tuple[str, ...] = ()
    for _ in range(ATTEMPTS):
        displaced = exchange(path, content)
        if displaced == expected:
            return _Outcome(written is not None, base, content, (*(written.notes if written else ()), *met))
        met = ("somebody saved the document at the same moment, and both are in it",)
        base, expected = displaced, content
        content, written = _applied(displaced, record, words)
    exchange(path, base)
    raise _LeftAlone("somebody keeps saving it, and their version stands")


def _applied(content: bytes, record: Record, words: Sequence[str]) -> tuple[bytes, Written | None]:
    """The bytes of a document with the record in it; None as the second: they had it already.

    Raises:
        _LeftAlone: the document is not UTF-8 text.
    """
    if b"\0" in content or content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _LeftAlone("it is not a UTF-8 text")
    written = with_record(content.decode("utf-8", "surrogateescape"), record, words)
    return (content if written is None else written.text.encode("utf-8", "surrogateescape")), written


def _message(record: Record) -> str:
    what = record.change.summary if record.change is not None else record.request.text
    subject = " ".join(f"Record {record.run}: {STATE_WORDS[record.verdict.decision]}: {what}".split())
    return f"{subject[:100]}\n\nRecord {record.seq}, {record.hash}"
