"""This machine as a host: real subprocesses, real files, real HTTP."""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import httpx

from agent.errors import HostError, NoAnswer
from tools.host import Completed, HttpAnswer

GRACE = 2.0  # seconds between asking a stream's command to end and killing it with its children
QUIET = 0.5  # seconds of silence after which a command that has ended is not waited for, whoever else holds its output


class LocalHost:
    """The machine that we run on.

    Args:
        directory: Prudent's own directory, absolute; made with mode 0700 when something is first shipped.
        python: The interpreter for shipped files; ours by default.
        clock: Seconds that only go forward, for time limits.
    """

    def __init__(
        self,
        directory: Path,
        *,
        python: str = sys.executable,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory.absolute()
        self._python = python
        self._clock = clock

    @property
    def name(self) -> str:
        """What messages call it."""
        return "local"

    @property
    def python(self) -> str:
        """The interpreter for shipped files."""
        return self._python

    @property
    def directory(self) -> str:
        """Prudent's own directory."""
        return str(self._directory)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float,
        environ: Mapping[str, str] | None = None,
    ) -> Completed:
        """Execute a command to its end, in a session of its own.

        Input and output are files without a name rather than pipes, so that a daemon which the command leaves behind,
        holding its output open, keeps nobody waiting. An exception in the waiting thread, such as Ctrl-C, leaves the
        command to its own end: a change that has begun is not cut off half way.

        Raises:
            NoAnswer: it did not end within `timeout` seconds and was killed with its process group.
            HostError: it could not be started.
        """
        with (
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as said,
            tempfile.TemporaryFile() as complained,
        ):
            given.write(stdin)
            given.seek(0)
            child = self._start(argv, environ, stdin=given.fileno(), stdout=said.fileno(), stderr=complained.fileno())
            if not _ended(child, timeout):
                _kill_group(child)
                complained.seek(0)
                tail = complained.read()[-500:].decode(errors="replace")
                raise NoAnswer(self.name, argv, None, f"no end within {timeout:g} s. {tail}")
            said.seek(0)
            complained.seek(0)
            return Completed(child.wait(), said.read(), complained.read())

    @contextlib.contextmanager
    def stream(self, argv: Sequence[str], *, stdin: bytes = b"", silence: float) -> Iterator[LocalLines]:
        """Start a command and hand out its lines; leaving the block ends it with its process group.

        Raises:
            HostError: it could not be started.
        """
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as complained:
            given.write(stdin)
            given.seek(0)
            child = self._start(argv, None, stdin=given.fileno(), stdout=subprocess.PIPE, stderr=complained.fileno())
            lines = LocalLines(self.name, argv, child, silence)
            try:
                yield lines
            finally:
                if child.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child.pid, signal.SIGTERM)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(GRACE)
                _kill_group(child)
                assert child.stdout is not None
                child.stdout.close()
                complained.seek(0)
                lines.complaints = complained.read()

    def read(self, path: str, *, tail: int | None = None) -> bytes:
        """Return a file's bytes, or its last `tail` bytes.

        Raises:
            HostError: it is not there or not readable.
        """
        try:
            with Path(path).open("rb") as file:
                if tail is not None:
                    size = file.seek(0, os.SEEK_END)
                    file.seek(max(0, size - tail))
                return file.read()
        except OSError as error:
            raise HostError(self.name, ("read", path), error.errno, error.strerror or str(error)) from error

    def http(self, method: str, url: str, *, timeout: float, body: bytes = b"") -> HttpAnswer:
        """Ask an HTTP endpoint; `timeout` seconds hold for the whole answer, however it trickles.

        Raises:
            NoAnswer: nobody listens there, or no complete answer came in time.
        """
        command = (method, url)
        end = self._clock() + timeout
        headers = {"content-type": "application/json"} if body else {}
        try:
            with (
                # Reading the certificates takes longer than most answers from the loopback.
                httpx.Client(trust_env=False, timeout=timeout, verify=not url.startswith("http:")) as client,
                client.stream(method, url, content=body, headers=headers) as answer,
            ):
                parts = []
                for part in answer.iter_bytes():
                    parts.append(part)
                    if self._clock() > end:
                        raise NoAnswer(self.name, command, None, f"no complete answer within {timeout:g} s")
                return HttpAnswer(answer.status_code, b"".join(parts))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NoAnswer(self.name, command, None, str(error) or type(error).__name__) from error

    def ship(self, name: str, content: bytes) -> str:
        """Put one of Prudent's own files into its directory; return the path, which holds the hash.

        Raises:
            HostError: there is no room, or it may not be written.
        """
        digest = hashlib.sha256(content).hexdigest()
        path = self._directory / "shipped" / digest[:16] / Path(name).name
        try:
            if not path.exists() or path.read_bytes() != content:
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                handle, part = tempfile.mkstemp(dir=path.parent)
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                Path(part).replace(path)
        except OSError as error:
            raise HostError(self.name, ("ship", name), error.errno, error.strerror or str(error)) from error
        return str(path)

    def _start(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str] | None,
        *,
        stdin: int,
        stdout: int,
        stderr: int,
    ) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                list(argv),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env={**os.environ, **environ} if environ else None,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            number = error.errno if isinstance(error, OSError) else None
            raise HostError(self.name, argv, number, str(error)) from error


class LocalLines:
    """The lines of a running command."""

    def __init__(self, host: str, argv: Sequence[str], child: subprocess.Popen[bytes], silence: float) -> None:
        self._host = host
        self._argv = argv
        self._child = child
        self._silence = silence
        self.complaints = b""
        """What it wrote to stderr, once the block has been left."""

    @property
    def status(self) -> int | None:
        """Exit status once the lines are at their end; None before."""
        return self._child.poll()

    def __iter__(self) -> Iterator[bytes]:
        """Yield each line until the command ends.

        Raises:
            NoAnswer: nothing came for longer than the silence that was allowed.
        """
        assert self._child.stdout is not None
        handle = self._child.stdout.fileno()
        rest = b""
        quiet = 0.0
        while True:
            ready, _, _ = select.select([handle], [], [], min(QUIET, self._silence))
            if not ready:
                quiet += min(QUIET, self._silence)
                if self._child.poll() is not None:
                    break
                if quiet >= self._silence:
                    said = f"no line for {self._silence:g} s"
                    raise NoAnswer(self._host, self._argv, None, said)
                continue
            quiet = 0.0
            part = os.read(handle, 65536)
            if not part:
                break
            *lines, rest = (rest + part).split(b"\n")
            yield from lines
        if rest:
            yield rest
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(self._silence)


def _ended(child: subprocess.Popen[bytes], timeout: float) -> bool:
    """Whether a command ends in time, told by the kernel: `Popen.wait` looks only every 50 ms."""
    handle = os.pidfd_open(child.pid)
    try:
        ready, _, _ = select.select([handle], [], [], timeout)
    finally:
        os.close(handle)
    return bool(ready)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """End a command and all that stayed in its session's first group, and collect its status."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
