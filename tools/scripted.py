"""A host that answers from a script, for tests: the same promise, no machine."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from agent.errors import HostError, NoAnswer
from tools.host import Completed, HttpAnswer

Answer = Callable[[Sequence[str], bytes], Completed | Exception]
"""What a command answers, from its argv and its input; an exception is raised."""


class Call(NamedTuple):
    """A command that was run."""

    argv: tuple[str, ...]
    """Command and arguments."""
    stdin: bytes
    """Its input."""


class ScriptedHost:
    """Answers commands from a function, files and HTTP from dictionaries, and remembers every call.

    Args:
        answer: What `run` and `stream` answer.
        files: Content by path.
        http: Answers by `(method, url)`; an exception is raised.
        name: What messages call it.
        directory: Prudent's own directory, as commands are told it.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        files: Mapping[str, bytes] | None = None,
        http: Mapping[tuple[str, str], HttpAnswer | Exception] | None = None,
        name: str = "scripted",
        directory: str = "/var/lib/prudent",
    ) -> None:
        self._answer = answer
        self._http = dict(http or {})
        self._name = name
        self._directory = directory
        self.files: dict[str, bytes] = dict(files or {})
        """Files by path, the shipped ones among them."""
        self.calls: list[Call] = []
        """Every command, in order."""

    @property
    def name(self) -> str:
        """What messages call it."""
        return self._name

    @property
    def python(self) -> str:
        """The interpreter's name on this host."""
        return "python3"

    @property
    def directory(self) -> str:
        """Prudent's own directory."""
        return self._directory

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float,
        environ: Mapping[str, str] | None = None,
    ) -> Completed:
        """Answer from the script.

        Raises:
            Exception: whatever the script returned as one.
        """
        self.calls.append(Call(tuple(argv), stdin))
        answer = self._answer(argv, stdin)
        if isinstance(answer, Exception):
            raise answer
        return answer

    @contextlib.contextmanager
    def stream(self, argv: Sequence[str], *, stdin: bytes = b"", silence: float) -> Iterator[ScriptedLines]:
        """Hand out the lines of the script's answer."""
        yield ScriptedLines(self.run(argv, stdin=stdin, timeout=silence))

    def read(self, path: str, *, tail: int | None = None) -> bytes:
        """Return a file's bytes, or its last `tail` bytes.

        Raises:
            HostError: there is no such file.
        """
        if path not in self.files:
            raise HostError(self._name, ("read", path), 2, "No such file or directory")
        content = self.files[path]
        return content if tail is None else content[max(0, len(content) - tail) :]

    def http(self, method: str, url: str, *, timeout: float, body: bytes = b"") -> HttpAnswer:
        """Answer from the dictionary.

        Raises:
            NoAnswer: nothing is written down for this request.
        """
        answer = self._http.get((method, url))
        if answer is None:
            raise NoAnswer(self._name, (method, url), None, "Connection refused")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ship(self, name: str, content: bytes) -> str:
        """Keep a file under a path that holds its hash."""
        path = f"{self.directory}/shipped/{hashlib.sha256(content).hexdigest()[:16]}/{name}"
        self.files[path] = content
        return path


class ScriptedLines:
    """The lines of an answer."""

    def __init__(self, answer: Completed) -> None:
        self._answer = answer
        self._status: int | None = None

    @property
    def status(self) -> int | None:
        """Exit status once the lines are at their end; None before."""
        return self._status

    def __iter__(self) -> Iterator[bytes]:
        """Yield each line."""
        yield from self._answer.stdout.splitlines()
        self._status = self._answer.status
