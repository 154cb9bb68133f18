"""Lines as the engine prints them: a time in brackets, the rank where there are several, no level word."""

from __future__ import annotations

import sys
import time


class Log:
    """Writes to the process's stderr, a line at a time.

    Args:
        ranks: Number of ranks; with more than one, lines of a rank carry it.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def server(self, message: str) -> None:
        """A line of the HTTP server's process."""
        self._print(f"[{_stamp()}] {message}")

    def rank(self, message: str, rank: int = 0) -> None:
        """A line of one rank's process."""
        self._print(f"[{_stamp()} TP{rank}] {message}" if self._ranks > 1 else f"[{_stamp()}] {message}")

    def ranks(self, message: str) -> None:
        """The same line of every rank."""
        for rank in range(self._ranks):
            self.rank(message, rank)

    def raw(self, text: str) -> None:
        """Text without a time: progress bars, warnings, tracebacks of other libraries."""
        self._print(text)

    def _print(self, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _stamp() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")
