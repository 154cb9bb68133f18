"""A script's git history -> the changes that its commits made."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from agent.errors import UnreadableScript
from tools.past.change import Read, clean
from tools.past.versions import Step, Subject, changes_of

SECONDS = 60.0
"""Patience with git; the log of one file of a large repository takes a few seconds."""
MOST = 2000
"""Commits of one script that are read, the newest: more than people make in years."""
_SEPARATOR = "\x1e"
_ID = re.compile(r"[0-9a-f]{40,64}")


class _Commit(NamedTuple):
    id: str
    parent: str
    at: datetime
    by: str
    words: str
    status: str
    """A, M, D, R or C, with a number behind the last two."""
    before: str
    """Path in the parent."""
    path: str
    """Path in the commit."""


def tracked(folder: Path, script: str) -> tuple[str, ...]:
    """Paths of files of that name in the history of what is checked out, from its top; none: there are none.

    Args:
        folder: A folder in the repository.
        script: The script's file name.
    """
    top = _git(folder, "rev-parse", "--show-toplevel", check=False)
    if not top:
        return ()
    said = _git(
        Path(top.decode("utf-8", "surrogateescape").rstrip("\n")),
        "log", "--format=", "--name-only", "-z", "--", f":(glob)**/{script}", check=False,
    )  # fmt: skip
    return tuple(dict.fromkeys(filter(None, said.decode("utf-8", "surrogateescape").split("\0"))))


def read_git(folder: Path, path: str, subject: Subject) -> Read:
    """Read the history of one file, followed through renames, each commit against its own parent.

    Args:
        folder: A folder in the repository.
        path: The file's path from the top of the repository.
        subject: Whose script.

    Raises:
        UnreadableScript: git refuses, with git's own words.
    """
    top = Path(_git(folder, "rev-parse", "--show-toplevel").decode("utf-8", "surrogateescape").rstrip("\n"))
    left_out = []
    steps = []
    for commit in _commits(top, path):
        if commit.status[0] in "AD":
            if commit.status[0] == "D":
                left_out.append(f"commit {commit.id[:12]} took {commit.before} away.")
            continue
        before = _git(top, "show", f"{commit.parent}:{commit.before}", check=False)
        after = _git(top, "show", f"{commit.id}:{commit.path}", check=False)
        if not before or not after:
            left_out.append(f"commit {commit.id[:12]}: git cannot show the file before it or after it.")
            continue
        steps.append(
            Step(
                before,
                after,
                key=f"{commit.id} {commit.path}",
                source=f"git commit {commit.id[:12]}, {clean(commit.path)}",
                at=commit.at,
                by=commit.by,
                words=commit.words,
                unsure=("The commit says when it was written down, not when the worker was started with it.",),
            )
        )
    if not steps and not left_out:
        left_out.append(f"git knows one version of {path} only.")
    read = changes_of(steps, subject, kind="git")
    return Read(read.changes, (*left_out, *read.left_out))


def _commits(top: Path, path: str) -> Iterator[_Commit]:
    """The commits that touched a file, the oldest first."""
    form = "%x00".join((f"{_SEPARATOR}%H", "%P", "%aI", "%an", "%B"))
    said = _git(
        top, "log", f"-n{MOST}", "--follow", "--topo-order", "--name-status", "-z", f"--format={form}%x00", "--", path
    ).decode("utf-8", "surrogateescape")
    for block in reversed(said.split(_SEPARATOR)):
        parts = block.split("\0")
        if len(parts) < 5 or not _ID.fullmatch(parts[0]) or not parts[1]:
            # The first commit has nothing before it; the separator may also stand in somebody's message.
            continue
        names = [part.lstrip("\n") for part in parts[5:] if part.strip("\n")]
        with suppress(ValueError):
            if len(names) >= 2:
                at = datetime.fromisoformat(parts[2])
                words = clean(parts[4]).strip()
                yield _Commit(parts[0], parts[1].split()[0], at, clean(parts[3]), words, names[0], names[1], names[-1])


def _git(folder: Path, *argv: str, check: bool = True) -> bytes:
    """Ask git; nothing of the repository's own is run: no hooks, pagers, filters or file monitors.

    Raises:
        UnreadableScript: it refuses, is not installed, or takes too long.
    """
    quiet = ("-c", "core.fsmonitor=false", "-c", "core.quotepath=off", "-c", "log.showSignature=false")
    safe = ("--no-ext-diff", "--no-textconv") if argv[0] in {"log", "show"} else ()
    command = ["git", "-C", str(folder), *quiet, "--no-pager", argv[0], *safe, *argv[1:]]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, stdin=subprocess.DEVNULL, check=False)
    except FileNotFoundError as error:
        raise UnreadableScript("There is no git on this machine.", "Install it, or import elsewhere.") from error
    except subprocess.TimeoutExpired as error:
        raise UnreadableScript(
            f"git took longer than {SECONDS:.0f} s in {folder}.", "Look at the repository."
        ) from error
    if done.returncode != 0:
        if not check:
            return b""
        said = done.stderr.decode("utf-8", "replace").strip()
        raise UnreadableScript(f"git refuses in {folder}: {said}.", "See that it is a whole repository of your own.")
    return done.stdout
