"""A server whose timing is known: `python -m evals.bench.mock_engine`.

It streams chat completions as an engine does, one token to every stream in each step, and writes down when it really
did. First tokens come after a delay that is fixed by the place of a request in its burst, not all on steps, so that a
percentile of them is no matter of which step it falls on. It prints its port and, once its stdin ends, what it did as
JSON: for each request arrival, first and last chunk, in seconds of the machine's monotonic clock, which its clients
read too, and its tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import Sequence

STEP_SECONDS = 0.05
"""A decode step of a large model with many streams."""
FIRST_SECONDS = (0.2, 0.6)
"""The delay of the first and of the last of `PLACES` requests; those between are spread evenly."""
PLACES = 256
_TOKENS = re.compile(rb'"max_(?:completion_)?tokens":\s*(\d+)')
_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def _event(document: object) -> bytes:
    data = b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _chunk(delta: dict[str, str], finish: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return _event({"id": "m", "object": "chat.completion.chunk", "created": 1, "model": "mock", "choices": [choice]})


_TOKEN = _chunk({"content": " token"}, None)
_FINISH = _chunk({}, "stop")
_DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
_MODELS = json.dumps({"object": "list", "data": [{"id": "mock", "object": "model", "owned_by": "lab"}]}).encode()


class Exchange(asyncio.Protocol):
    """A connection: requests come one after the other, each is answered by the engine or at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._data = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it."""
        self.transport = transport  # type: ignore[assignment]  # a socket's transport both reads and writes

    def data_received(self, data: bytes) -> None:
        """Answer every whole request."""
        arrived = time.perf_counter()
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            found = _LENGTH.search(self._data, 0, end)
            size = end + 4 + (int(found[1]) if found else 0)
            if len(self._data) < size:
                return
            request, self._data = self._data[:size], self._data[size:]
            self._answer(request, request[end + 4 :], arrived)

    def _answer(self, request: bytes, body: bytes, arrived: float) -> None:
        assert self.transport is not None
        if request.startswith(b"POST") and b"/chat/completions" in request[:64]:
            found = _TOKENS.search(body)
            self._engine.take(Stream(self.transport, arrived, max(2, int(found[1])) if found else 16))
            return
        known = request.startswith((b"GET /v1/models ", b"GET /health "))
        status, answer = ("200 OK", _MODELS) if known else ("404 Not Found", b"{}")
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(answer)}\r\n\r\n"
        self.transport.write(head.encode() + answer)


class Stream:
    """One request that is being answered."""

    def __init__(self, transport: asyncio.Transport, arrived: float, tokens: int) -> None:
        self.transport = transport
        self.arrived = arrived
        self.tokens = tokens
        self.left = tokens
        self.first = self.last = 0.0

    def begin(self) -> None:
        """Write the head and the first token."""
        self.first = time.perf_counter()
        self.transport.write(_HEAD + _TOKEN)
        self.left -= 1

    def step(self) -> None:
        """Write the next token, and with the last one how it ended."""
        self.left -= 1
        if self.left:
            self.transport.write(_TOKEN)
            return
        usage = {"prompt_tokens": 8, "completion_tokens": self.tokens, "total_tokens": self.tokens + 8}
        end = {
            "id": "m",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "mock",
            "choices": [],
            "usage": usage,
        }
        self.last = time.perf_counter()
        self.transport.write(_TOKEN + _FINISH + _event(end) + _DONE)


class Engine:
    """Steps all streams together."""

    def __init__(self) -> None:
        self._streams: list[Stream] = []
        self._place = 0
        self.done: list[Stream] = []

    def take(self, stream: Stream) -> None:
        """Begin to answer; a burst begins anew once nothing is left of the last one."""
        self._place = self._place + 1 if self._streams else 0
        first, last = FIRST_SECONDS
        delay = first + (last - first) * (self._place % PLACES) / PLACES
        asyncio.get_running_loop().call_later(stream.arrived + delay - time.perf_counter(), stream.begin)
        self._streams.append(stream)

    async def run(self) -> None:
        """Step for ever, at the times when steps are due."""
        due = time.perf_counter()
        while True:
            due = max(due + STEP_SECONDS, time.perf_counter())
            await asyncio.sleep(due - time.perf_counter())
            left: list[Stream] = []
            for stream in self._streams:
                if stream.transport.is_closing():
                    continue
                if stream.first:
                    stream.step()
                (left if stream.left else self.done).append(stream)
            self._streams = left


async def serve() -> None:
    """Serve until stdin ends, then say what was done."""
    loop = asyncio.get_running_loop()
    engine = Engine()
    server = await loop.create_server(lambda: Exchange(engine), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    stepping = loop.create_task(engine.run())
    await loop.run_in_executor(None, sys.stdin.read)
    stepping.cancel()
    server.close()
    did = [[one.arrived, one.first, one.last, one.tokens] for one in engine.done]
    print(json.dumps(did), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve on a free port of the loopback.

    Args:
        arguments: Command line without the program's name; None: the process's own.
    """
    parser = argparse.ArgumentParser(
        prog="python -m evals.bench.mock_engine", description=(__doc__ or "").split(":")[0]
    )
    parser.parse_args(arguments)
    asyncio.run(serve())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
