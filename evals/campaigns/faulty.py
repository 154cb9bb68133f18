"""A transport that fails at one call: what an agent sees of it, and what of it reaches the host."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar, get_args
from urllib.parse import urlsplit

from agent.errors import NoAnswer
from evals.campaigns.behind import Behind
from evals.campaigns.mortal import Act, Fate, name_of
from tools.host import Completed, Host, HttpAnswer, LineStream

Failure = Literal["dropped before", "dropped after", "cut", "late", "empty", "garbled", "down"]
"""`late`: it is done after the agent has given it up. `down`: from here on nothing goes through for a while."""
FAILURES: tuple[Failure, ...] = get_args(Failure)
DOWN_CALLS = 6
"""Calls that a link which is down loses."""
Answer = TypeVar("Answer")


class FaultyHost(Behind):
    """A host behind a link that fails at one act.

    Args:
        host: The host.
        fate: Counts the acts.
        act: Where it fails.
        failure: How.
    """

    def __init__(self, host: Host, fate: Fate, act: Act, failure: Failure) -> None:
        super().__init__(host)
        self._fate = fate
        self._act = act
        self._failure = failure
        self._down = 0
        self._late: list[Callable[[], object]] = []
        self.met = False
        """Whether the act came."""

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float,
        environ: Mapping[str, str] | None = None,
    ) -> Completed:
        """Execute a command over the link.

        Raises:
            NoAnswer: it was lost, or its answer was.
        """

        def really() -> Completed:
            return self._host.run(argv, stdin=stdin, timeout=timeout, environ=environ)

        def spoilt(done: Completed, failure: Failure) -> Completed:
            return Completed(0, _spoilt(done.stdout, failure), b"")

        return self._over(name_of(argv, stdin), argv, really, spoilt)

    @contextlib.contextmanager
    def stream(self, argv: Sequence[str], *, stdin: bytes = b"", silence: float) -> Iterator[LineStream]:
        """Start a command over the link.

        Raises:
            NoAnswer: it was lost.
        """

        def really() -> Sequence[bytes]:
            with self._host.stream(argv, stdin=stdin, silence=silence) as lines:
                return list(lines)

        def spoilt(lines: Sequence[bytes], failure: Failure) -> Sequence[bytes]:
            return _spoilt(b"\n".join(lines), failure).split(b"\n")

        yield _Lines(self._over(name_of(argv, stdin), argv, really, spoilt))

    def read(self, path: str, *, tail: int | None = None) -> bytes:
        """Return a file's bytes over the link.

        Raises:
            NoAnswer: they were lost.
        """
        return self._over(f"read {Path(path).name}", ("read", path), lambda: self._host.read(path, tail=tail), _spoilt)

    def http(self, method: str, url: str, *, timeout: float, body: bytes = b"") -> HttpAnswer:
        """Ask an HTTP endpoint over the link.

        Raises:
            NoAnswer: the question or its answer was lost.
        """

        def really() -> HttpAnswer:
            return self._host.http(method, url, timeout=timeout, body=body)

        def spoilt(answer: HttpAnswer, failure: Failure) -> HttpAnswer:
            return HttpAnswer(answer.status, _spoilt(answer.body, failure))

        return self._over(f"http {urlsplit(url).path}", (method, url), really, spoilt)

    def ship(self, name: str, content: bytes) -> str:
        """Put a file into Prudent's directory over the link.

        Raises:
            NoAnswer: it was lost.
        """
        return self._over(f"ship {name}", ("ship", name), lambda: self._host.ship(name, content), lambda path, _: path)

    def arrive(self) -> None:
        """Let what was late arrive at last; what came of it nobody hears."""
        while self._late:
            with contextlib.suppress(Exception):
                self._late.pop(0)()

    def _over(
        self,
        name: str,
        argv: Sequence[str],
        really: Callable[[], Answer],
        spoilt: Callable[[Answer, Failure], Answer],
    ) -> Answer:
        with self._fate.act(name) as act:
            if self._down:
                self._down -= 1
                raise NoAnswer(self.name, argv, None, "the link is down")
            if act != self._act:
                answer = really()
                self.arrive()
                return answer
            self.met = True
            if self._failure == "late":
                self._late.append(really)
                raise NoAnswer(self.name, argv, None, "no end in time")
            if self._failure in {"dropped before", "down"}:
                self._down = DOWN_CALLS if self._failure == "down" else 0
                raise NoAnswer(self.name, argv, None, "the link broke before it was sent")
            answer = really()
            if self._failure == "dropped after":
                raise NoAnswer(self.name, argv, None, "the link broke before the answer came")
            return spoilt(answer, self._failure)


def _spoilt(text: bytes, failure: Failure) -> bytes:
    """What comes through: half of it, nothing, or the same with every seventh byte turned over."""
    if failure == "cut":
        return text[: len(text) // 2]
    if failure == "garbled":
        return bytes(byte ^ 0x15 if at % 7 == 3 else byte for at, byte in enumerate(text))
    return b""


class _Lines:
    """Lines that came through."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines
        self.status: int | None = None

    def __iter__(self) -> Iterator[bytes]:
        yield from self._lines
        self.status = 0
