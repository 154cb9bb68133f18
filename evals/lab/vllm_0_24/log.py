"""Lines as vLLM prints them: the process, the level, a time without a year, file and line."""

from __future__ import annotations

import sys
import time

_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class VllmLog:
    """Writes what the server's and the engine's process say.

    Args:
        pid: Process id of both: the practice worker is one process.
        ranks: Number of cards; with more than one, what concerns a card comes from its worker.
        level: The lowest level that is printed (`VLLM_LOGGING_LEVEL`).
    """

    def __init__(self, pid: int, ranks: int = 1, level: str = "INFO") -> None:
        self._pid = pid
        self._ranks = ranks
        self._least = _LEVELS.index(level.upper()) if level.upper() in _LEVELS else 1

    def shared(self, ranks: int) -> VllmLog:
        """The same log once the number of cards is known."""
        return VllmLog(self._pid, ranks, _LEVELS[self._least])

    def bare(self, level: str, where: str, message: str) -> None:
        """A line from before the processes have names."""
        self._line("", level, where, message)

    def server(self, message: str, where: str, level: str = "INFO") -> None:
        """A line of the API server."""
        self._line(f"(APIServer pid={self._pid}) ", level, where, message)

    def engine(self, message: str, where: str, level: str = "INFO") -> None:
        """A line of the engine's core."""
        self._line(f"(EngineCore pid={self._pid}) ", level, where, message)

    def cards(self, message: str, where: str, level: str = "INFO") -> None:
        """A line of each card's worker; with one card that is the engine's core itself."""
        if self._ranks == 1:
            self.engine(message, where, level)
            return
        for rank in range(self._ranks):
            self._line(f"(Worker_TP{rank} pid={self._pid}) ", level, where, message)

    def card(self, message: str, where: str) -> None:
        """A line that the first card's worker says for all."""
        if self._ranks == 1:
            self.engine(message, where)
        else:
            self._line(f"(Worker_TP0 pid={self._pid}) ", "INFO", where, message)

    def uvicorn(self, message: str) -> None:
        """A line of the HTTP server, which has its own form."""
        self._print(f"(APIServer pid={self._pid}) {message}")

    def spoken(self, text: str, *, engine: bool = True) -> None:
        """A line that a process wrote past the logger: tracebacks."""
        name = "EngineCore" if engine else "APIServer"
        for line in text.splitlines():
            self._print(f"({name} pid={self._pid}) {line}")

    def raw(self, text: str) -> None:
        """Text without anything in front: progress bars."""
        self._print(text)

    def _line(self, who: str, level: str, where: str, message: str) -> None:
        if _LEVELS.index(level) < self._least:
            return
        stamp = time.strftime("%m-%d %H:%M:%S")
        for line in message.split("\n"):
            self._print(f"{who}{level} {stamp} [{where}] {line}")

    def _print(self, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
