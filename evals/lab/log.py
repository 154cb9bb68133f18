"""Lines as the engine prints them: a time in brackets, the rank where there are several, no level word."""

from __future__ import annotations

import sys
import time

_BAR = " ▏▎▍▌▋▊▉"


class Log:
    """Writes to the process's stderr, a line at a time.

    Args:
        ranks: Number of ranks; with more than one, lines of a rank carry it.
        milliseconds: Times have milliseconds (`SGLANG_LOG_MS`).
    """

    def __init__(self, ranks: int, *, milliseconds: bool = False) -> None:
        self._ranks = ranks
        self._milliseconds = milliseconds

    def server(self, message: str) -> None:
        """A line of the HTTP server's process."""
        self._print(f"[{self._stamp()}] {message}")

    def rank(self, message: str, rank: int = 0) -> None:
        """A line of one rank's process."""
        self._print(f"[{self._stamp()} TP{rank}] {message}" if self._ranks > 1 else f"[{self._stamp()}] {message}")

    def ranks(self, message: str) -> None:
        """The same line of every rank."""
        for rank in range(self._ranks):
            self.rank(message, rank)

    def raw(self, text: str) -> None:
        """Text without a time: progress bars, warnings, tracebacks of other libraries."""
        self._print(text)

    def _stamp(self) -> str:
        now = time.time()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
        return f"{stamp}.{int(now % 1 * 1000):03d}" if self._milliseconds else stamp

    def _print(self, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def progress(words: str, done: int, total: int, seconds: float) -> str:
    """A progress bar as tqdm draws it.

    Args:
        words: What stands in front of it; empty: nothing.
        done: How many are done.
        total: Of how many.
        seconds: How long that took, in seconds of life.
    """
    eighths = 80 * done // total
    bar = ("█" * (eighths // 8) + (_BAR[eighths % 8] if eighths % 8 else "")).ljust(10)
    clock = f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
    if done:
        rate = done / seconds if seconds else 0.0
        left = int(seconds / done * (total - done))
        pace = f"{left // 60:02d}:{left % 60:02d}, " + (f"{rate:.2f}it/s" if rate >= 1 else f"{1 / rate:.2f}s/it")
    else:
        pace = "?, ?it/s"
    if words.endswith("shards"):
        return f"{words}: {100 * done // total:3d}% Completed | {done}/{total} [{clock}<{pace}]"
    return f"{words + ': ' if words else ''}{100 * done / total:3.0f}%|{bar}| {done}/{total} [{clock}<{pace}]"
