"""The lines of a command that runs at the other end of a connection."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence

from agent.errors import NoAnswer
from tools.ssh_wire import Frames


class SshLines:
    """The lines of a command that runs at the other end."""

    def __init__(
        self, host: str, argv: Sequence[str], frames: Frames, silence: float, clock: Callable[[], float]
    ) -> None:
        self._host = host
        self._argv = argv
        self._frames = frames
        self._silence = silence
        self._clock = clock
        self._status: int | None = None
        self.complaints = b""
        """What it wrote to stderr, once it has ended."""

    @property
    def status(self) -> int | None:
        """Exit status once the lines are at their end; None before, and where the connection broke."""
        return self._status

    def __iter__(self) -> Iterator[bytes]:
        """Yield each line until the command ends.

        Raises:
            NoAnswer: nothing came for longer than the silence that was allowed, or the connection broke.
        """
        rest = b""
        while self._status is None:
            try:
                part = self._hear(self._clock() + self._silence)
            except TimeoutError as error:
                raise NoAnswer(self._host, self._argv, None, f"no line for {self._silence:g} s") from error
            except EOFError as error:
                raise NoAnswer(self._host, self._argv, None, "the connection broke") from error
            *lines, rest = (rest + part).split(b"\n")
            yield from lines
        if rest:
            yield rest

    def finish(self, deadline: float) -> None:
        """Let the rest go by until the command has ended, or nothing more is to be heard."""
        with contextlib.suppress(TimeoutError, EOFError):
            while self._status is None:
                self._hear(deadline)

    def _hear(self, deadline: float) -> bytes:
        kind, part = self._frames.next(deadline)
        if kind == "E":
            self.complaints += part
        elif kind == "S":
            self._status = int(json.loads(part)["status"])
        return part if kind == "O" else b""
