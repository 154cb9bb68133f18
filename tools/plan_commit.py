"""The git repository around a plan document: what it has committed, and one commit of one file."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

PATIENCE = 60.0
"""Seconds for one git command; a hook may run tests."""
OUR_CALLERS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR")
"""Variables by which a git that called us would point us at its own repository."""


class Committed(NamedTuple):
    """What became of a commit."""

    commit: str | None
    """Its hash; None: there is none."""
    notes: tuple[str, ...]
    """Why not, or what else a person should know."""


class Repository:
    """The repository that one file lies in."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def around(cls, path: Path) -> Repository | None:
        """The repository of a file; None: it lies in none, or git is not installed."""
        if not path.parent.is_dir():
            return None
        found = cls(path)
        return found if found._ask("rev-parse", "--is-inside-work-tree") == b"true\n" else None

    def committed(self) -> bytes | None:
        """The file as a fresh checkout would have it; None: the last commit does not have it."""
        return self._ask("cat-file", "--filters", f"HEAD:./{self._path.name}")

    def staged(self) -> bool:
        """Whether somebody has put a change of the file into the index."""
        return self._ask("diff", "--cached", "--quiet", "--", self._path.name) is None

    def ignored(self) -> bool:
        """Whether the repository is told not to have the file."""
        return self._ask("check-ignore", "--quiet", "--", self._path.name) is not None

    def holder(self) -> str | None:
        """The last commit that touched the file."""
        answer = self._ask("log", "-1", "--format=%H", "--", self._path.name)
        return answer.decode().strip() or None if answer is not None else None

    def commit(self, content: bytes, message: str, fallback: tuple[str, str], *, new: bool) -> Committed:
        """Commit this file and nothing else; whatever else is staged stays staged.

        Args:
            content: What the file holds, to notice somebody who saves at the same moment.
            message: The commit's message.
            fallback: Name and address where the configuration has none.
            new: The file is ours and has to be added first.
        """
        notes = self._others()
        if new and self._run("add", "--", self._path.name).returncode != 0:
            return Committed(None, (*notes, "not committed: the new file could not be added"))
        done = self._run(*self._identity(fallback), "commit", "--quiet", "-m", message, "--only", "--", self._path.name)
        if done.returncode != 0:
            said = " ".join((done.stderr or done.stdout).decode(errors="replace").split())
            return Committed(None, (*notes, f"not committed: git said: {said[:300] or 'nothing'}"))
        if self.committed() != content:
            notes = (*notes, "the commit also holds an edit that somebody saved at the same moment")
        return Committed(self.holder(), notes)

    def _others(self) -> tuple[str, ...]:
        listed = self._ask("status", "--porcelain", "-z", "--", ":/", f":(exclude){self._path.name}")
        count = len([entry for entry in (listed or b"").split(b"\0") if entry])
        return (f"the working tree was not clean: {count} other file(s) had changes",) if count else ()

    def _identity(self, fallback: tuple[str, str]) -> list[str]:
        options = []
        for key, value in zip(("user.name", "user.email"), fallback, strict=True):
            if not self._ask("config", "--get", key):
                options += ["-c", f"{key}={value}"]
        return options

    def _ask(self, *arguments: str) -> bytes | None:
        done = self._run(*arguments)
        return done.stdout if done.returncode == 0 else None

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        command: Sequence[str] = ("git", "-C", str(self._path.parent), *arguments)
        environ = {key: value for key, value in os.environ.items() if key not in OUR_CALLERS}
        environ |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_EDITOR": "true"}
        try:
            return subprocess.run(
                command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, -1, b"", b"no answer in time")
        except OSError as problem:
            return subprocess.CompletedProcess(command, -1, b"", str(problem).encode())
