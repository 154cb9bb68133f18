"""What goes over a channel: the orders for `on_host/launcher.py`, its frames, and plain HTTP."""

from __future__ import annotations

import http.client
import io
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from tools.host import HttpAnswer

BOOT = "import sys;exec(sys.stdin.buffer.read(int(sys.argv[1])))"
"""Reads the launcher and becomes it; a line that every shell takes as one quoted word."""
_PART = 65536


class Channel(Protocol):
    """One conversation within a connection."""

    def settimeout(self, timeout: float | None) -> None:
        """Limit what follows, in seconds."""

    def sendall(self, s: bytes) -> None:
        """Send all of it.

        Raises:
            TimeoutError: it did not go out in time.
            OSError: the other end is gone.
        """

    def recv(self, nbytes: int) -> bytes:
        """Receive something; nothing: the other end is done.

        Raises:
            TimeoutError: nothing came in time.
        """


class Order(NamedTuple):
    """A wish, ready to be sent."""

    line: str
    """The one line that the login's shell gets to see."""
    sent: bytes
    """What follows on standard input: the launcher, the wish, its input."""
    mark: bytes
    """What the launcher says first."""


def order(python: str, wish: Mapping[str, Any], content: bytes, *, mark: str, become: Sequence[str] = ()) -> Order:
    """Put a wish into the form in which the launcher takes it.

    Args:
        python: The interpreter there.
        wish: What the launcher shall do; see its docstring.
        content: The input that goes with it.
        mark: A text that nobody else says.
        become: Words before the interpreter, such as `sudo -n --`.
    """
    program = resources.files("tools.on_host").joinpath("launcher.py").read_bytes()
    argv = [*become, python, "-I", "-S", "-c", BOOT, str(len(program)), mark]
    text = json.dumps({**wish, "input": len(content)}).encode()
    return Order(shlex.join(argv), program + text + b"\n" + content, mark.encode())


class Frames:
    """The launcher's answer, frame by frame.

    Args:
        channel: Where it comes from.
        mark: What it begins with; everything before that is a shell's noise.
        clock: Seconds that only go forward.
    """

    def __init__(self, channel: Channel, mark: bytes, clock: Callable[[], float]) -> None:
        self._channel = channel
        self._mark = mark
        self._clock = clock
        self._heard = bytearray()
        self.began = False
        """Whether the launcher has spoken at all."""

    @property
    def noise(self) -> str:
        """The end of what was heard before the launcher spoke."""
        return "" if self.began else bytes(self._heard[-300:]).decode(errors="replace").strip()

    def next(self, deadline: float) -> tuple[str, bytes]:
        """The next frame: its letter and its bytes.

        Args:
            deadline: By the clock, when to give up.

        Raises:
            TimeoutError: it did not come in time.
            EOFError: the other end is done, or gone, in the middle of it.
        """
        while not self.began:
            _, found, after = bytes(self._heard).partition(self._mark)
            if found:
                self.began, self._heard = True, bytearray(after)
            else:
                self._hear(deadline)
        while len(self._heard) < 9:
            self._hear(deadline)
        kind, size = chr(self._heard[0]), int(self._heard[1:9], 16)
        while len(self._heard) < 9 + size:
            self._hear(deadline)
        content = bytes(self._heard[9 : 9 + size])
        del self._heard[: 9 + size]
        return kind, content

    def _hear(self, deadline: float) -> None:
        part = receive(self._channel, _PART, deadline - self._clock())
        if not part:
            raise EOFError
        self._heard += part


def send(channel: Channel, content: bytes, deadline: float, clock: Callable[[], float]) -> None:
    """Send bytes before a deadline.

    Raises:
        TimeoutError: they did not all go out in time.
        OSError: the other end is gone.
    """
    for begin in range(0, len(content), _PART):
        left = deadline - clock()
        if left <= 0:
            raise TimeoutError
        channel.settimeout(left)
        channel.sendall(content[begin : begin + _PART])


def receive(channel: Channel, size: int, left: float) -> bytes:
    """Receive bytes within so many seconds; none: the other end is done.

    Raises:
        TimeoutError: nothing came in time.
    """
    if left <= 0:
        raise TimeoutError
    channel.settimeout(left)
    return channel.recv(size)


class _Incoming(io.RawIOBase):
    """A channel to read from until a deadline, however little comes at a time."""

    def __init__(self, channel: Channel, deadline: float, clock: Callable[[], float]) -> None:
        self._channel = channel
        self._deadline = deadline
        self._clock = clock

    def readable(self) -> bool:
        """It is only read."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer with what has come."""
        view = memoryview(buffer)
        part = receive(self._channel, len(view), self._deadline - self._clock())
        view[: len(part)] = part
        return len(part)


class _Outgoing:
    """As much of a socket as an HTTP connection uses."""

    def __init__(self, channel: Channel, deadline: float, clock: Callable[[], float]) -> None:
        self._channel = channel
        self._deadline = deadline
        self._clock = clock

    def sendall(self, content: bytes) -> None:
        """Send all of it in time."""
        send(self._channel, content, self._deadline, self._clock)

    def makefile(self, _mode: str) -> io.BufferedReader:
        """The answer."""
        return io.BufferedReader(_Incoming(self._channel, self._deadline, self._clock))

    def close(self) -> None:
        """Nothing to do: whoever opened the channel closes it."""


def ask_http(
    channel: Channel, method: str, url: str, body: bytes, *, deadline: float, clock: Callable[[], float]
) -> HttpAnswer:
    """Send one HTTP request over a channel that leads to its server.

    Raises:
        TimeoutError: no complete answer came in time.
        OSError: the other end is gone.
        http.client.HTTPException: what came is no complete answer.
        ValueError: the address is none.
    """
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection = http.client.HTTPConnection(parts.netloc.rpartition("@")[2])
    connection.sock = _Outgoing(channel, deadline, clock)
    headers = {"accept": "*/*", "connection": "close", **({"content-type": "application/json"} if body else {})}
    connection.request(method, path, body=body or None, headers=headers)
    answer = connection.getresponse()
    return HttpAnswer(answer.status, answer.read())
