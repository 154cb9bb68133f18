"""A way to a machine that can be cut in two, go silent without a word, or do either at one byte of what passes.

It is a real TCP connection on each side, so that what a program meets is what a firewall, a dying router or a train in
a tunnel does to it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Literal

Direction = Literal["there", "back"]


class Relay:
    """The way from a loopback port of its own to another port of this machine.

    Args:
        port: The other port.
    """

    def __init__(self, port: int) -> None:
        self._far = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        """Where whoever wants to get there connects to."""
        self.accepted = 0
        """Connections so far."""
        self._ways = {"there": _Way(), "back": _Way()}
        self._ends: list[socket.socket] = []
        self._down = False
        threading.Thread(target=self._accept, daemon=True).start()

    def passed(self, direction: Direction) -> int:
        """Bytes that have come through so far."""
        return self._ways[direction].passed

    def hush(self, *directions: Direction) -> None:
        """Let nothing through any more and keep it; said of no direction, of both."""
        for direction in directions or ("there", "back"):
            self._ways[direction].passing.clear()

    def speak(self) -> None:
        """Let through what was kept, and all that follows."""
        for way in self._ways.values():
            way.passing.set()

    def at(self, direction: Direction, count: int, do: Callable[[], None]) -> None:
        """Do something once so many further bytes have come through, before any other does."""
        self._ways[direction].arm(count, do)

    def cut(self) -> None:
        """End every connection, as a firewall that has forgotten them does; what was kept is lost."""
        for end in list(self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def block(self) -> None:
        """End every connection, and every new one as soon as it is made."""
        self._down = True
        self.cut()

    def unblock(self) -> None:
        """Take connections again."""
        self._down = False

    def close(self) -> None:
        """End it with all its connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self.speak()
        for end in list(self._ends):
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.accepted += 1
                if self._down:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._far))
                self._ends += (near, far)
                for one, other, way in ((near, far, self._ways["there"]), (far, near, self._ways["back"])):
                    threading.Thread(target=self._pass, args=(one, other, way), daemon=True).start()

    @staticmethod
    def _pass(one: socket.socket, other: socket.socket, way: _Way) -> None:
        with contextlib.suppress(OSError):
            while part := one.recv(65536):
                way.send(other, part)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class _Way:
    """One direction of all connections."""

    def __init__(self) -> None:
        self.passing = threading.Event()
        self.passing.set()
        self.passed = 0
        self._turn = threading.Lock()
        self._left: int | None = None
        self._do: Callable[[], None] = lambda: None

    def arm(self, count: int, do: Callable[[], None]) -> None:
        with self._turn:
            self._left, self._do = count, do

    def send(self, to: socket.socket, part: bytes) -> None:
        while part:
            self.passing.wait()
            with self._turn:
                due = self._left is not None and len(part) >= self._left
                now = part[: self._left] if due else part
                self.passed += len(now)
                if self._left is not None:
                    self._left = None if due else self._left - len(now)
                do = self._do
            to.sendall(now)
            part = part[len(now) :]
            if due:
                do()
