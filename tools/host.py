"""The promise of a host: five verbs, whatever lies between us and it.

`run` and `stream` execute an argv list (never a shell line), `read` and `http` ask, `ship` puts one of our own files
into Prudent's own directory. Everything else that is written on a host is written by `on_host/transaction.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol


class Completed(NamedTuple):
    """A command that ended by itself."""

    status: int
    """Exit status; negative: the signal that ended it."""
    stdout: bytes
    """All that it printed."""
    stderr: bytes
    """All that it complained."""


class HttpAnswer(NamedTuple):
    """An HTTP answer of whatever status."""

    status: int
    """HTTP status code."""
    body: bytes
    """The body."""


class LineStream(Protocol):
    """The lines of a running command, and how it ended."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield each line without its newline until the command ends.

        Raises:
            NoAnswer: nothing came for longer than the silence that was allowed.
        """

    @property
    def status(self) -> int | None:
        """Exit status once the lines are at their end; None before."""


class Host(Protocol):
    """A machine on which a worker runs."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def python(self) -> str:
        """A Python 3.10 or newer on it, for the files that Prudent ships."""

    @property
    def directory(self) -> str:
        """Prudent's own directory on it, absolute, mode 0700."""

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float,
        environ: Mapping[str, str] | None = None,
    ) -> Completed:
        """Execute a command to its end, out of reach of the terminal's Ctrl-C.

        Args:
            argv: The command and its arguments.
            stdin: What it reads.
            timeout: Seconds after which it is given up and killed with its children.
            environ: Variables to add to the host's own.

        Raises:
            NoAnswer: it did not end in time, or the link broke.
            HostError: it could not be started.
        """

    def stream(self, argv: Sequence[str], *, stdin: bytes = b"", silence: float) -> AbstractContextManager[LineStream]:
        """Start a command and hand out its lines as they come; leaving the block ends it with its children.

        Args:
            argv: The command and its arguments.
            stdin: What it reads.
            silence: Seconds without a line after which it counts as stuck.

        Raises:
            HostError: it could not be started.
        """

    def read(self, path: str, *, tail: int | None = None) -> bytes:
        """Return a file's bytes, or its last `tail` bytes.

        Raises:
            HostError: it is not there or not readable; `said` is the system's own word.
        """

    def http(self, method: str, url: str, *, timeout: float, body: bytes = b"") -> HttpAnswer:
        """Ask an HTTP endpoint as the host itself would reach it.

        Raises:
            NoAnswer: nobody listens there, or no complete answer came in time.
        """

    def ship(self, name: str, content: bytes) -> str:
        """Put one of Prudent's own files into its directory, checked by hash; return the path.

        The path holds the hash, so that two versions never meet and a file that is there already is not written again.

        Raises:
            HostError: there is no room, or it may not be written.
        """
