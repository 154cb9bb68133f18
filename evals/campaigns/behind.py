"""A host behind something of ours: it is called what the host is called, and its calls are the wrapper's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from tools.host import Completed, Host, HttpAnswer, LineStream


class Behind:
    """What every wrapper of a host hands through.

    Args:
        host: The host.
    """

    def __init__(self, host: Host) -> None:
        self._host = host

    @property
    def name(self) -> str:
        """What messages call it."""
        return self._host.name

    @property
    def python(self) -> str:
        """Its interpreter."""
        return self._host.python

    @property
    def directory(self) -> str:
        """Prudent's own directory."""
        return self._host.directory


class Passing(Behind):
    """A wrapper that hands every call through, for those that change one of them."""

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float,
        environ: Mapping[str, str] | None = None,
    ) -> Completed:
        """Execute a command."""
        return self._host.run(argv, stdin=stdin, timeout=timeout, environ=environ)

    @contextlib.contextmanager
    def stream(self, argv: Sequence[str], *, stdin: bytes = b"", silence: float) -> Iterator[LineStream]:
        """Start a command."""
        with self._host.stream(argv, stdin=stdin, silence=silence) as lines:
            yield lines

    def read(self, path: str, *, tail: int | None = None) -> bytes:
        """Return a file's bytes."""
        return self._host.read(path, tail=tail)

    def http(self, method: str, url: str, *, timeout: float, body: bytes = b"") -> HttpAnswer:
        """Ask an HTTP endpoint."""
        return self._host.http(method, url, timeout=timeout, body=body)

    def ship(self, name: str, content: bytes) -> str:
        """Put a file into Prudent's directory."""
        return self._host.ship(name, content)
