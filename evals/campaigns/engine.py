"""One start of a worker on virtual time, as a function of how it was started and of what was sent to it since.

What it prints and answers depends on nothing else, so that it is computed once and then looked up: in a crash matrix
the same start is met a thousand times.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from evals.lab import private

PORT = 28417
"""The port in everything that is kept; whoever uses it puts the real one in."""
REST = 1.0
"""Seconds that pass between two things that are sent; in life they vary, and nothing of a worker depends on them."""
SETTLE = 2.0
"""Seconds from the open port to the last line of the start."""
FOLLOWING = 0.2
"""Seconds after a load in which the last lines that it caused are printed."""


class Line(NamedTuple):
    """Something that a worker printed."""

    at: float
    """Seconds since whatever caused it."""
    text: str
    """With its newline, where it has one."""


class Outcome(NamedTuple):
    """What came of a start, or of one thing that was sent."""

    answer: Any
    """What was answered; None: nothing."""
    seconds: float
    """How long it took; for a start, until the port was open."""
    lines: tuple[Line, ...]
    """What was printed meanwhile."""
    died: bool
    """Whether the process ended with it."""


class Launch(NamedTuple):
    """How a worker was started."""

    argv: tuple[str, ...]
    """The server's own arguments, the port among them."""
    environ: tuple[tuple[str, str], ...]
    """Variables that the engine reads, sorted."""
    nature: private.Nature
    """What is wrong with it, and the seed."""
    boot: int
    """Which start of this configuration it is, from 1: it decides how this one deviates."""

    @property
    def key(self) -> str:
        """Equal for two starts that behave alike."""
        said = [list(self.argv), list(self.environ), self.nature._asdict(), self.boot]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:24]


class Engine:
    """A started worker.

    Args:
        launch: How it was started.
        sent: Loads that were sent to it so far, in order, each as JSON.
        program: The load program.
        kept: Folder of what was computed before; shared by everybody.
    """

    def __init__(self, launch: Launch, sent: Sequence[str], program: Path, kept: Path) -> None:
        self._launch = launch
        self._sent = list(sent)
        self._program = program
        self._kept = kept
        self._live: _Process | None = None

    def boot(self) -> Outcome:
        """The start itself."""
        return self._known("boot", lambda: self._alive().born)

    def get(self, path: str) -> Outcome:
        """A question over HTTP, which changes nothing."""
        return self._known(f"get {path}", lambda: self._alive().say({"get": path}))

    def look(self, wish: Mapping[str, Any]) -> Outcome:
        """A load program's look at the worker, which changes nothing worth remembering."""
        return self._known(f"look {_text(wish)}", lambda: self._alive().load(self._program, wish))

    def load(self, wish: Mapping[str, Any]) -> Outcome:
        """A load; from now on the worker is one that has had it."""
        text = _text(wish)
        outcome = self._known(f"load {text}", lambda: self._alive().load(self._program, wish))
        self._sent.append(text)
        if self._live is not None and self._live.history != self._sent:
            self.close()
        return outcome

    def close(self) -> None:
        """End the process, where one is there."""
        if self._live is not None:
            self._live.close()
            self._live = None

    def _known(self, what: str, compute: Any) -> Outcome:
        program = hashlib.sha256(self._program.read_bytes()).hexdigest() if "{" in what else ""
        name = hashlib.sha256(json.dumps([self._launch.key, self._sent, what, program]).encode()).hexdigest()[:32]
        path = self._kept / name
        with contextlib.suppress(FileNotFoundError):
            answer, seconds, lines, died = json.loads(path.read_bytes())
            return Outcome(answer, seconds, tuple(Line(*line) for line in lines), died)
        outcome: Outcome = compute()
        part = path.with_name(f"{name}.{os.getpid()}")
        part.write_text(json.dumps(outcome), encoding="utf-8")
        part.replace(path)
        return outcome

    def _alive(self) -> _Process:
        """A process that has had everything that was sent."""
        if self._live is None or self._live.history != self._sent:
            self.close()
            self._live = _Process(self._launch, self._kept.parent)
            for text in self._sent:
                self._live.load(self._program, json.loads(text))
        return self._live


def _text(wish: Mapping[str, Any]) -> str:
    return json.dumps(wish, sort_keys=True)


class _Process:
    """The process of `evals.lab.virtual`."""

    def __init__(self, launch: Launch, room: Path) -> None:
        self.history: list[str] = []
        self._folder = tempfile.TemporaryDirectory(prefix="engine-", dir=room)
        ground = Path(self._folder.name)
        private.write(ground, launch.nature)
        for _ in range(launch.boot - 1):
            private.next_boot(ground)
        ours, theirs = socket.socketpair()
        environ = {name: os.environ[name] for name in ("HOME", "LANG", "PATH", "TZ") if name in os.environ}
        environ |= {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", **dict(launch.environ)}
        argv = [sys.executable, "-m", "evals.lab.virtual", str(ground), "/opt/sglang/sglang/launch_server.py"]
        self._child = subprocess.Popen(
            [*argv, str(theirs.fileno()), "--", *launch.argv],
            pass_fds=[theirs.fileno()],
            env=environ,
            cwd=Path(__file__).resolve().parents[2],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        self._socket = ours
        self._stream: BinaryIO = ours.makefile("rwb")  # type: ignore[assignment]
        self._now = 0.0
        self.born = self._birth()

    def _birth(self) -> Outcome:
        opened, lines, _, died = self._hear("open", 0.0)
        if died:
            return Outcome(None, self._now, lines, died)
        settled = self._after({"rest": SETTLE}, 0.0)
        return Outcome(None, float(opened), (*lines, *settled.lines), settled.died)

    def load(self, program: Path, wish: Mapping[str, Any]) -> Outcome:
        """Send a load after a rest."""
        self._after({"rest": REST}, self._now)
        begun = self._now
        outcome = self._after({"load": str(program), "wish": wish}, begun)
        after = self._after({"rest": FOLLOWING}, begun)
        if wish["kind"] != "counters":
            self.history.append(_text(wish))
        return outcome._replace(lines=(*outcome.lines, *after.lines), died=outcome.died or after.died)

    def say(self, wish: Mapping[str, Any]) -> Outcome:
        """Say one thing and hear what comes of it."""
        return self._after(wish, self._now)

    def _after(self, wish: Mapping[str, Any], begun: float) -> Outcome:
        try:
            self._stream.write(json.dumps(wish).encode() + b"\n")
            self._stream.flush()
        except (BrokenPipeError, ConnectionResetError):
            return Outcome(None, 0.0, (), True)
        answer, lines, at, died = self._hear("done", begun)
        return Outcome(answer, at - begun, lines, died)

    def _hear(self, end: str, begun: float) -> tuple[Any, tuple[Line, ...], float, bool]:
        lines: list[Line] = []
        for raw in self._heard():
            event = json.loads(raw)
            if "broken" in event:
                raise RuntimeError(f"the virtual worker broke: {event['broken']}")
            self._now = float(event["at"])
            if end in event:
                return event[end], tuple(lines), self._now, False
            if "log" in event:
                lines.append(Line(self._now - begun, event["log"]))
        return None, tuple(lines), self._now, True

    def _heard(self) -> Iterator[bytes]:
        """What it says until it ends; one that dies with something unread resets the connection."""
        with contextlib.suppress(ConnectionResetError):
            while raw := self._stream.readline():
                yield raw

    def close(self) -> None:
        """End it."""
        # What was said to a process that had died meanwhile still lies in the buffer.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._stream.close()
        self._socket.close()
        self._child.kill()
        self._child.wait()
        self._folder.cleanup()
