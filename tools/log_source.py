"""Where a worker's log is: a file, or what journald keeps of its unit. A mark now, and later what came after it."""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

from agent.errors import HostError
from tools.host import Completed, Host
from tools.service import ServiceSpec, SystemdService

JOURNAL = "journal"
"""What the settings say in place of a path where journald keeps the log."""
BYTES_PER_LINE = 100
"""How long a line of a log is at least, on average: the journal is asked for lines and the caller thinks in bytes. The
recorded lines have 150 to 250."""
MOST_LINES = 10_000_000
"""A larger number of lines than this is asked for as all of them: journalctl counts in 31 bits."""
QUESTION_SECONDS = 20.0
"""Limit for a question to the log that brings a line or two."""
READ_SECONDS = 120.0
"""Limit for reading a large part of it."""
_MARK = re.compile(rb"\d+ \d+:\d+")
_CURSOR = re.compile(rb"^-- cursor: (\S+)\s*$", re.MULTILINE)


class Tail(NamedTuple):
    """The end of a log."""

    text: bytes
    """Its lines."""
    whole: bool
    """Nothing older was left out: the text begins at the mark, or at the beginning."""


class LogSource(Protocol):
    """A log that only grows, or is replaced by a new one."""

    @property
    def name(self) -> str:
        """What messages call it."""

    def mark(self) -> str | None:
        """Where its end is now, as a text that can be kept; None: it cannot be read."""

    def tail(self, window: int, *, after: str = "") -> Tail | None:
        """Its last `window` bytes or so, but nothing that was there at the mark; None: it cannot be read."""


def log_of(host: Host, log: str, service: ServiceSpec) -> LogSource:
    """The log that the settings name: a path, or `journal` for that of a unit."""
    if log == JOURNAL and isinstance(service, SystemdService):
        return JournalLog(host, service.unit, service.scope)
    return FileLog(host, log)


class FileLog:
    """A log file. Its mark is a size and the file's identity, so that a log that was rotated is read from its start."""

    def __init__(self, host: Host, path: str) -> None:
        """Take the host and the file's absolute path on it."""
        self._host = host
        self._path = path

    @property
    def name(self) -> str:
        """The path."""
        return self._path

    def mark(self) -> str | None:
        """Size and identity of the file."""
        done = _answer(self._host, ["stat", "-L", "-c", "%s %d:%i", "--", self._path], QUESTION_SECONDS)
        found = _MARK.fullmatch(done.stdout.strip()) if done else None
        return found[0].decode() if found else None

    def tail(self, window: int, *, after: str = "") -> Tail | None:
        """The end of the file, as far as it was written after the mark."""
        here = self.mark()
        if here is None:
            return None
        (size, file), (before, same) = _parted(here), _parted(after)
        begin = before if same == file and before <= size else 0
        first = max(begin, size - window)
        if begin == size:
            return Tail(b"", True)
        # From a place and not so many bytes from the end, because the file may grow before it is read.
        done = _answer(self._host, ["tail", "-c", f"+{first + 1}", "--", self._path], READ_SECONDS)
        return Tail(done.stdout, first == begin) if done else None


class JournalLog:
    """What journald keeps of a unit. Its mark is a cursor, which no other entry of any boot shares."""

    def __init__(self, host: Host, unit: str, scope: str) -> None:
        """Take the host, the unit and whose manager keeps it: `system` or `user`."""
        self._host = host
        self._unit = unit
        self._ask = ["journalctl", "--no-pager", "--quiet", "--all", "--output=cat"]
        self._which = [f"--user-unit={unit}" if scope == "user" else f"--unit={unit}"]

    @property
    def name(self) -> str:
        """The journal, and of what."""
        return f"the journal of unit {self._unit}"

    def mark(self) -> str | None:
        """The cursor of the newest entry that this login may see, of whatever unit."""
        done = _answer(self._host, [*self._ask, "--lines=1", "--show-cursor"], QUESTION_SECONDS)
        found = _CURSOR.search(done.stdout) if done else None
        return found[1].decode() if found else None

    def tail(self, window: int, *, after: str = "") -> Tail | None:
        """The unit's newest lines, or all of them after the mark.

        After a cursor journalctl counts lines from there on and not from the end, so that all are asked for: a mark is
        as old as the run that made it.
        """
        lines = max(1, window // BYTES_PER_LINE)
        all_of_it = bool(after) or lines > MOST_LINES
        which = [f"--after-cursor={after}"] if after else [f"--lines={'all' if all_of_it else lines}"]
        done = _answer(self._host, [*self._ask, *self._which, *which], READ_SECONDS)
        return Tail(done.stdout, all_of_it or done.stdout.count(b"\n") < lines) if done else None


def _answer(host: Host, argv: list[str], limit: float) -> Completed | None:
    try:
        done = host.run(argv, timeout=limit)
    except HostError:
        return None
    return done if done.status == 0 else None


def _parted(mark: str) -> tuple[int, str]:
    size, _, file = mark.partition(" ")
    return int(size or 0), file
