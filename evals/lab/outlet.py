"""Sends a stream's chunks the moment they are due.

A batch of hundreds of streams is due at one instant. So what a stream will send next is made ready while the step still
runs, and the loop itself hands it to the socket when the step ends; waking a task for each would smear one step's
tokens over tens of milliseconds, and a client would measure that instead of the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aiohttp import web

from evals.lab.ask import Ask
from evals.lab.replies import Token

_FULL = 1 << 20
"""Bytes that wait for a slow client before the stream goes back to waiting for it."""
Chunks = Callable[[Iterable[Token]], bytes]


class Outlet:
    """Writes to one client's connection, past the task that answers it.

    Args:
        request: The request.
        response: Its answer, whose head and first chunk are out.
        ask: What is generated.
        chunks: Tokens as they go over the wire.
    """

    __slots__ = ("_ask", "_chunks", "_fired", "_frames", "_ready", "_token", "_transport")

    def __init__(self, request: web.Request, response: web.StreamResponse, ask: Ask, chunks: Chunks) -> None:
        self._ask = ask
        self._chunks = chunks
        self._transport = request.transport
        self._frames = response.headers.get("Transfer-Encoding") == "chunked"
        self._token: Token | None = None
        self._ready = b""
        self._fired = False

    def prepare(self) -> None:
        """Make ready what the next token will be sent as, where that is known."""
        token = self._ask.coming()
        if token is not self._token or token is None:
            self._token = token
            self._ready = b"" if token is None else self._wire((token,))

    def fire(self) -> bool:
        """Send what was made ready, if anything was; what follows is `send`."""
        self._fired = self._token is not None and self._transport is not None
        if self._fired and self._ready:
            assert self._transport is not None
            self._transport.write(self._ready)
        return self._fired

    def send(self) -> None:
        """Send what has been generated and not sent; a client that does not read is left to its task."""
        ask, transport = self._ask, self._transport
        new = ask.produced[ask.taken :]
        if transport is None or transport.is_closing() or not new:
            return
        if not (self._fired and len(new) == 1 and new[0] is self._token):
            transport.write(self._wire(new))
        ask.taken = len(ask.produced)
        self._token, self._fired = None, False
        if transport.get_write_buffer_size() > _FULL:
            ask.outlet = None
            ask.news.set()

    def _wire(self, tokens: Iterable[Token]) -> bytes:
        data = self._chunks(tokens)
        return b"%x\r\n%b\r\n" % (len(data), data) if data and self._frames else data


async def streamed(
    request: web.Request, response: web.StreamResponse, ask: Ask, opening: Callable[[], bytes], chunks: Chunks
) -> None:
    """Send everything but the end of an answer, as it comes.

    Args:
        request: The request.
        response: Its answer, prepared.
        ask: What is generated; over when this returns.
        opening: What is sent before the first token.
        chunks: Tokens as they go over the wire.
    """
    data = opening()
    outlet = Outlet(request, response, ask, chunks)
    try:
        while True:
            data += chunks(await ask.fresh())
            if data:
                await response.write(data)
            data = b""
            outlet.send()
            if ask.finish is not None:
                return
            ask.outlet = outlet
            while ask.outlet is not None and ask.finish is None:
                ask.news.clear()
                await ask.news.wait()
    finally:
        ask.outlet = None
