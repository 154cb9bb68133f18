"""The load: one file, standard library only, Python 3.10 or newer, run on the worker's host as `PYTHON probe.py`.

It reads one JSON object on stdin, streams JSON lines on stdout and ends: progress lines (at least one a second, at most
four), then one `{"event": "result", ...}` or `{"event": "invalid", "why": ...}`.

    kind         what it does                                            what it wants besides base_url and seed
    sessions     multi-turn tool-call sessions whose right calls are     concurrency [..], count (sessions in all),
                 known, validated from the streamed chunks               turns, tokens (of a reply), padding (words),
                                                                         depths [tokens, ..], stop_at, acts [a, b],
                                                                         sequential {ok, bad, error, cap},
                                                                         texts (long ones, of TEXT_TOKENS each),
                                                                         ramp (seconds until all have begun)
    throughput   bursts of C streams at once, after a warm-up round      concurrency [..], count (runs each), tokens,
                 that is discarded                                       words (of a prompt), raw, token_ids
    aborts       storms of streams that are cut off, then one canary     concurrency [..], count (streams a storm),
                 that must get tokens within a number of steps           tokens, fractions, storms (at each), steps,
                                                                         floor_seconds
    overload     more streams than the worker runs, so many times, with  concurrency [..], count (overloads), tokens
                 a crowd that hangs up in between, and whether it is
                 what it was once they are gone
    soak         sessions one after the other for some time: progress,   concurrency [..], seconds, tokens, pid
                 memory of the worker and of its cards, rate             (of the worker's main process)
    canary       one request                                             tokens
    counters     requests in flight, from counters that can be trusted   window_seconds

Common fields: `deadline` (seconds for everything), `timeout` (seconds for one request), `api_key_env` (name of the
variable that holds the key; never the key), `counters_url` (where the engine itself is asked what it counts, where load
goes through a router; left out: base_url).

Times are seconds. Tokens per second are the generated tokens of a burst (by the server's `usage`) over the time from
the moment when its requests are written until its last stream has ended. Inter-token times are those between chunks:
a server that puts several tokens into one chunk shows in `tokens_per_chunk`.

It never outlives its run: every request and the whole run have a deadline, the kernel's alarm stands behind both, and
it ends, closing its connections, on SIGTERM, on SIGINT, when its parent is gone and when nobody reads its stdout.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import itertools
import json
import math
import os
import random
import re
import resource
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

PROGRESS_SECONDS = 0.25
LAG_INTERVAL_SECONDS = 0.02
"""Looking every 10 ms cost 2.5 of the 15 microseconds of CPU that a token cost (2026-11-29)."""
TIMER_GRAIN_SECONDS = 0.001
"""asyncio rounds timeouts up to milliseconds, so that a lag below this cannot be told from the timer's own."""
LAG_OF_GAP = 0.1
"""Latencies are invalid when the event loop's p99 lag exceeds this share of the median gap between chunks."""
LAG_OF_BURST = 0.01
"""A rate is invalid when the lag at the end of a burst exceeds this share of it: that is how late the end was seen."""
SENT_LATE_SECONDS = 0.01
"""As much later than scheduled may a request of a burst be sent beside that share: writing 256 takes about as long."""
BUSY_LIMIT = 0.5
"""A rate is invalid when the client itself used more than this share of a core: it may have been the bottleneck."""
ATTEMPTS = 3
"""A burst that is invalid because of the client is repeated, but not for ever."""
RATE_KEPT = 0.8
"""Share of its rate that a worker has to have again afterwards: the median of three short bursts strays by 4 %."""
KV_KEPT = 0.01
"""Share of the KV pool that may be in use at rest beyond what was before; at rest a sound worker uses next to none."""
LOOK_STREAMS = 8
"""Most streams of a look at the worker at rest: a look that presses would bring about what it looks for, and call the
worker after the crowd as good as before."""
CARD_SECONDS = 5.0
"""Between two looks at the memory of the cards, at most: starting `nvidia-smi` costs a tenth of a second of a core."""
CARD_LOOKS = 20
"""Looks that a short soak has all the same; a slope takes some."""
CARD_ANSWER_SECONDS = 20.0
"""For one look: without persistence mode the driver is loaded first, which takes some seconds."""
ABOVE = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512)
"""Thresholds for the exposure, sizes at which decode graphs are usually captured up to."""
WORDS_PER_TOKEN = 0.75
"""Words of English filler that make a token, as tokenizers of large models cut it; depths are meant to the order."""
TEXT_TOKENS = 600
"""Length of a long text: what a drafting head or a broken cache does to a reply showed after hundreds of tokens."""
LONG_ENOUGH = 500
"""Tokens from which a text counts as long; one that the model ended earlier shows nothing of what comes later."""
SILENT_SECONDS = 90.0
"""Without a token on any stream, after which what is in flight is given up: three times what silent wedges were noticed
by, and longer than the slowest compilation of kernels in the middle of serving that was recorded (8 s)."""
READ_STDIN_SECONDS = 30
PR_SET_PDEATHSIG = 1
SPECIAL = re.compile(rb'"(?:usage|error)"\s*:\s*\{|"finish_reason"\s*:\s*["{]|\[DONE\]')
"""Events worth parsing after the first token; a quote inside generated text is escaped, so it never matches."""


# ------------------------------------------------------------------------------------------------- measuring


def percentile(values: Iterable[float], share: float) -> float | None:
    """Nearest-rank percentile; None of nothing."""
    ranked = sorted(values)
    if not ranked:
        return None
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def summary(values: Iterable[float]) -> dict[str, float | int | None]:
    """Sample size, p50 and p99, in the unit of the values."""
    ranked = sorted(values)
    return {"n": len(ranked), "p50": percentile(ranked, 0.5), "p99": percentile(ranked, 0.99)}


class Load:
    """Requests in flight and streams decoding, by time and by tokens."""

    def __init__(self, size: int) -> None:
        self.in_flight = 0
        self.decoding = 0
        self.peak = 0
        self.decoding_peak = 0
        self.tokens = [0] * (size + 2)
        self._seconds = [0.0] * (size + 2)
        self._decoding_seconds = [0.0] * (size + 2)
        self._since = time.perf_counter()

    def move(self, *, in_flight: int = 0, decoding: int = 0) -> None:
        """Note that so many more, or fewer, are there from now on."""
        now = time.perf_counter()
        self._seconds[self.in_flight] += now - self._since
        self._decoding_seconds[self.decoding] += now - self._since
        self._since = now
        self.in_flight += in_flight
        self.decoding += decoding
        self.peak = max(self.peak, self.in_flight)
        self.decoding_peak = max(self.decoding_peak, self.decoding)

    def share_between(self, above: int, up_to: int) -> float | None:
        """Share of the tokens that came while more than one number and at most another decoded; None: no tokens."""
        total = sum(self.tokens[1:])
        return sum(self.tokens[above + 1 : up_to + 1]) / total if total else None

    def report(self) -> dict[str, Any]:
        """Peak, means over the time with anything in flight, and shares of tokens and time above the thresholds."""
        self.move()
        top = [size for size in ABOVE if size < self.peak]
        return {
            "peak": self.peak,
            "mean": _weighted(self._seconds),
            "decoding_peak": self.decoding_peak,
            "decoding_mean": _weighted(self._decoding_seconds),
            "tokens_above": {str(size): _share_above(self.tokens, size) for size in top},
            "time_above": {str(size): _share_above(self._seconds, size) for size in top},
        }


def _weighted(weights: Sequence[float]) -> float:
    total = sum(weights[1:])
    return sum(level * weight for level, weight in enumerate(weights)) / total if total else 0.0


def _share_above(weights: Sequence[float], size: int) -> float:
    total = sum(weights[1:])
    return sum(weights[size + 1 :]) / total if total else 0.0


class Meter:
    """What the client itself was up to: lag of its event loop and use of its core."""

    def __init__(self) -> None:
        self._lags = array("d")
        self._due = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def __enter__(self) -> Meter:
        self._wall = time.perf_counter()
        self._cpu = time.process_time()
        self._look_later()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.lag_at_end = max([*self._lags[-5:], time.perf_counter() - self._due, TIMER_GRAIN_SECONDS])
        self.lag_at_end -= TIMER_GRAIN_SECONDS
        self.wall = time.perf_counter() - self._wall
        self.cpu = time.process_time() - self._cpu

    def _look_later(self) -> None:
        self._due = time.perf_counter() + LAG_INTERVAL_SECONDS
        self._timer = asyncio.get_running_loop().call_later(LAG_INTERVAL_SECONDS, self._look)

    def _look(self) -> None:
        self._lags.append(max(0.0, time.perf_counter() - self._due))
        self._look_later()

    @property
    def lag(self) -> float:
        """The p99 lag of the event loop, less the timer's own grain; infinite when it never got a turn."""
        lag = percentile(self._lags, 0.99)
        if lag is None:
            return self.wall if self.wall > 2 * LAG_INTERVAL_SECONDS else 0.0
        return max(0.0, lag - TIMER_GRAIN_SECONDS)

    def report(self, replies: Sequence[Reply]) -> dict[str, Any]:
        """The figures on which validity is judged."""
        tokens = sum(reply.tokens for reply in replies)
        return {
            "lag_p99": self.lag,
            "lag_at_end": self.lag_at_end,
            "utilisation": self.cpu / self.wall if self.wall else 0.0,
            "cpu_per_token": self.cpu / tokens if tokens else None,
            "connection_failures": sum(1 for reply in replies if reply.kind == "connection"),
            "send_delay_p99": percentile([reply.sent - reply.scheduled for reply in replies if reply.sent], 0.99),
        }


# ------------------------------------------------------------------------------------------------------ HTTP


class Target(NamedTuple):
    """Where requests go."""

    address: str
    port: int
    name: str
    """Host as the URL spells it, for the Host header and the certificate."""
    prefix: str
    """Path of the base URL without a final slash."""
    tls: ssl.SSLContext | None
    headers: str
    """Header lines that every request carries."""


class ToolCall:
    """A tool call as its deltas add up."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments = ""


class Reply(asyncio.BufferedProtocol):
    """One HTTP exchange on a connection of its own, timed, with its event stream read as it comes.

    A buffered protocol, because the plain kind, which asyncio's stream classes use, allocates 256 KiB for each read: 27
    microseconds against 5 where that was measured (2026-11-29), with one read for nearly every token.
    """

    _arrived = memoryview(bytearray(65536))
    """What the socket reads into. One for all: whatever arrives is taken out before the event loop goes on."""

    def __init__(self, request: bytes, load: Load, *, streaming: bool, read_all: bool) -> None:
        loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = loop.create_future()
        self.request = request
        self.scheduled = self.sent = self.first = self.ended = 0.0
        self.status = 0
        self.kind = ""
        """Empty: it went well; else connection, timeout, http, stream, cut, malformed, or ours (we cut it)."""
        self.why = ""
        self.finish = ""
        self.usage: int | None = None
        self.chunks = 0
        self.times = array("d")
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[int, ToolCall] = {}
        self.body: list[bytes] = []
        self.cut_after: int | None = None
        self._load = load
        self._streaming = streaming
        self._read_all = read_all
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._rest = b""
        self._line = b""
        self._left: int | None = None
        self._chunked = False
        self._skims = False
        self._closed_cleanly = False
        self._terminated = False

    # what callers use

    @property
    def ok(self) -> bool:
        """Whether the whole answer came."""
        return not self.kind

    @property
    def reason(self) -> str:
        """Why it is not ok, in a few words."""
        return self.why if self.kind in ("", "ours") else f"{self.kind}: {self.why}"

    @property
    def tokens(self) -> int:
        """Generated tokens: by the server's usage, by chunks where it gave none."""
        return self.chunks if self.usage is None else self.usage

    @property
    def text(self) -> str:
        """What it said, reasoning first."""
        return "".join(self.reasoning) + "".join(self.content)

    @property
    def gaps(self) -> list[float]:
        """Seconds between chunks that carried tokens."""
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]

    def send(self, timeout: float, left: float) -> None:
        """Write the request; from here its time counts.

        Args:
            timeout: Seconds that the server has for it.
            left: Seconds until the run ends; a request that this cuts short did not fail.
        """
        self.sent = time.perf_counter()
        self.scheduled = self.scheduled or self.sent
        if self._transport is None or self.done.done():
            return
        if self._streaming:
            self._load.move(in_flight=1)
        late = ("timeout", f"not done in {timeout:.1f} s") if timeout <= left else ("ours", "the time was up")
        self._timer = asyncio.get_running_loop().call_later(min(timeout, left), self.end, *late)
        self._transport.write(self.request)

    def end(self, kind: str = "", why: str = "") -> None:
        """Close the connection and settle what came of it; the first word counts."""
        if self.done.done():
            return
        self.kind, self.why, self.ended = kind, clipped(why, 200), time.perf_counter()
        self._skims = False
        if self._timer is not None:
            self._timer.cancel()
            if self._streaming:
                self._load.move(in_flight=-1, decoding=-1 if self.first else 0)
        if self._transport is not None:
            self._transport.abort()
        self.done.set_result(None)

    # the protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection; nothing is sent yet."""
        self._transport = transport  # type: ignore[assignment]  # a socket's transport both reads and writes

    def connection_lost(self, exc: Exception | None) -> None:
        """Complete only if the body may end so."""
        if exc is None and self._closed_cleanly:
            self._complete()
        else:
            self.end("cut" if self.status else "connection", str(exc) if exc else "the connection was closed early")

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to read into."""
        return self._arrived

    def buffer_updated(self, nbytes: int) -> None:
        """Take what came, at the time when it came."""
        now = time.perf_counter()
        data = bytes(self._arrived[:nbytes])
        if self._skims and not self._rest and not self._line and _plain_token(data):
            self._token(now)
            return
        if self._rest:
            data = self._rest + data
            self._rest = b""
        try:
            if not self.status:
                data = self._head(data)
            if data and not self.done.done():
                self._body(data, now)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            self.end("malformed", f"{type(error).__name__}: {error}"[:200])

    def _head(self, data: bytes) -> bytes:
        while not self.status:
            head, found, data = data.partition(b"\r\n\r\n")
            if not found:
                self._rest = head
                return b""
            lines = head.decode("latin-1").split("\r\n")
            if not lines[0].startswith("HTTP/1."):
                raise ValueError(f"not an HTTP answer: {lines[0][:80]!r}")
            status = int(lines[0].split(" ", 2)[1])
            if status >= 200:
                self.status = status
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        self._chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        if not self._chunked and "content-length" in headers:
            self._left = int(headers["content-length"])
        if self._left == 0 or self.status in (204, 304):
            self._complete()
        self._closed_cleanly = not self._chunked and self._left is None
        return data

    def _body(self, data: bytes, now: float) -> None:
        if not self._chunked:
            self._payload(data, now)
            if self._left is not None:
                self._left -= len(data)
                if self._left <= 0:
                    self._complete()
            return
        at = 0
        while not self.done.done():
            line = data.find(b"\r\n", at)
            if line < 0:
                break
            size = int(data[at:line].partition(b";")[0], 16)
            if not size:
                self._complete()
                return
            if len(data) < line + size + 4:
                break
            self._payload(data[line + 2 : line + 2 + size], now)
            at = line + size + 4
        self._rest = data[at:]

    def _payload(self, payload: bytes, now: float) -> None:
        if self.status != 200 or not self._streaming:
            self.body.append(payload)
            return
        if self._line:
            payload = self._line + payload
        *lines, self._line = payload.split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                if self._read_all or not self.first or SPECIAL.search(line):
                    self._event(line[5:].strip(), now)
                else:
                    self._token(now)
                if self.done.done():
                    return

    def _token(self, now: float) -> None:
        if not self.first:
            self.first = now
            self._load.move(decoding=1)
            self._skims = self._chunked and not self._read_all
        self.chunks += 1
        self.times.append(now)
        self._load.tokens[self._load.decoding] += 1
        if self.chunks == self.cut_after:
            self.end("ours", "cut off on purpose")

    def _event(self, payload: bytes, now: float) -> None:
        if payload == b"[DONE]":
            self._terminated = True
            return
        event = json.loads(payload)
        if event.get("error"):
            error = event["error"]
            said = error if isinstance(error, dict) else {"message": str(error)}
            self.end("stream", f"{said.get('code', '')} {said.get('message', '')}".strip()[:200])
            return
        usage = event.get("usage") or event.get("meta_info") or {}
        if usage.get("completion_tokens") is not None:
            self.usage = int(usage["completion_tokens"])
        if "meta_info" in event:
            self._raw(event, now)
        for choice in event.get("choices") or ():
            if self._delta(choice.get("delta") or {}) or choice.get("text"):
                self._token(now)
            self.finish = choice.get("finish_reason") or self.finish

    def _raw(self, event: dict[str, Any], now: float) -> None:
        finish = event["meta_info"].get("finish_reason")
        if finish:
            self.finish = finish.get("type", "stop") if isinstance(finish, dict) else str(finish)
        if event.get("text") or event.get("output_ids"):
            self.content = [event.get("text") or ""]
            self._token(now)

    def _delta(self, delta: dict[str, Any]) -> bool:
        content, reasoning = delta.get("content"), delta.get("reasoning_content") or delta.get("reasoning")
        if content:
            self.content.append(content)
        if reasoning:
            self.reasoning.append(reasoning)
        for piece in delta.get("tool_calls") or ():
            call = self.calls.setdefault(int(piece.get("index") or 0), ToolCall())
            function = piece.get("function") or {}
            call.id = piece.get("id") or call.id
            call.name += function.get("name") or ""
            call.arguments += function.get("arguments") or ""
        return bool(content or reasoning or delta.get("tool_calls"))

    def _complete(self) -> None:
        if self.status != 200:
            said = b"".join(self.body)[:200].decode("utf-8", "replace").strip()
            self.end("http", f"status {self.status}: {said}")
        elif not self._streaming:
            self.end()
        elif self.finish == "abort":
            self.end("stream", "the server aborted the request")
        elif self.finish or self._terminated:
            self.end()
        else:
            self.end("cut", "the stream ended without a finish reason")


def _plain_token(data: bytes) -> bool:
    """Whether this is one HTTP chunk of one event with a token and nothing else to be read, as nearly all are.

    What does not look exactly like it goes the long way, which finds the same: a token, and 2.5 microseconds later.
    """
    line = data.find(b"\r\n")
    return (
        data.startswith(b"data:", line + 2)
        and data.endswith(b"}\n\n\r\n")
        and data.count(b"\n") == 4
        and data[:line] == b"%x" % (len(data) - line - 4)
        and data.count(b'"finish_reason":') == data.count(b'"finish_reason":null') == 1
        and b'"usage"' not in data
        and b'"error"' not in data
    )


class Client:
    """Sends requests to one target and keeps every reply of the run."""

    def __init__(
        self, target: Target, load: Load, *, timeout: float, until: float, engine: Client | None = None
    ) -> None:
        self.target = target
        self.engine = engine
        self.load = load
        self.timeout = timeout
        self.until = until
        self.model = "default"
        self.replies: list[Reply] = []
        self.silent: str | None = None
        """Why nothing more is sent: for too long no stream got a token."""

    @property
    def left(self) -> float:
        """Seconds until the whole run's deadline."""
        return max(0.0, self.until - time.perf_counter())

    async def open(
        self, path: str, document: object | None, *, streaming: bool = True, read_all: bool = False
    ) -> Reply:
        """Connect for one request, without sending it yet; a failure to connect is a reply that is done."""
        body = b"" if document is None else json.dumps(document, separators=(",", ":")).encode()
        head = f"{'GET' if document is None else 'POST'} {self.target.prefix}{path} HTTP/1.1\r\n{self.target.headers}"
        if document is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        reply = Reply(head.encode("latin-1") + b"\r\n" + body, self.load, streaming=streaming, read_all=read_all)
        if streaming:
            self.replies.append(reply)
        target = self.target
        loop = asyncio.get_running_loop()
        connecting = loop.create_task(
            loop.create_connection(
                lambda: reply,
                target.address,
                target.port,
                ssl=target.tls,
                server_hostname=target.name if target.tls else None,
            )
        )
        try:
            await asyncio.wait({connecting}, timeout=min(self.timeout, self.left))
            if not connecting.done():
                reply.end("connection" if self.left else "ours", "no connection in time")
            elif connecting.exception() is not None:
                reply.end("connection", str(connecting.exception())[:200])
        finally:
            connecting.cancel()
        return reply

    async def ask(
        self,
        path: str,
        document: object | None,
        *,
        streaming: bool = True,
        read_all: bool = False,
        timeout: float | None = None,
    ) -> Reply:
        """Send one request and wait until it is answered, failed or out of time."""
        reply = await self.open(path, document, streaming=streaming, read_all=read_all)
        reply.send(self.timeout if timeout is None else timeout, self.left)
        await self.finish(reply)
        return reply

    async def finish(self, reply: Reply) -> None:
        """Wait for a reply that was sent; its connection is closed whatever happens."""
        try:
            await reply.done
        finally:
            reply.end("ours", "given up")

    async def get(self, path: str, *, timeout: float = 5.0) -> bytes | None:
        """Body of a GET, or None where there is no good answer."""
        reply = await self.ask(path, None, streaming=False, timeout=timeout)
        return b"".join(reply.body) if reply.ok else None

    async def ask_engine(self, path: str, *, timeout: float = 5.0) -> bytes | None:
        """Body of a GET from the engine itself, behind whatever router the load goes through."""
        return await (self.engine or self).get(path, timeout=timeout)

    async def find_model(self) -> None:
        """Learn the model's name from the server; one that lists none is asked for `default`."""
        with contextlib.suppress(ValueError, KeyError, IndexError, TypeError):
            self.model = str(json.loads(await self.get("/v1/models") or b"")["data"][0]["id"])

    async def listen(self, steps: float) -> None:
        """Give up what is in flight once no stream has got a token for long, until cancelled.

        A worker that stands still would otherwise be waited for until each request is out of time.

        Args:
            steps: Of the worker's own decode steps that it may be silent for, where that is longer.
        """
        made, since = -1, time.perf_counter()
        while True:
            await asyncio.sleep(1.0)
            now, total = time.perf_counter(), sum(self.load.tokens)
            if total != made or not self.load.in_flight:
                made, since = total, now
                continue
            gap = percentile([gap for reply in self.replies[-64:] for gap in reply.gaps[-16:]], 0.5) or 0.0
            if now - since > (patience := max(SILENT_SECONDS, steps * gap)):
                self.silent = f"no stream got a token for {patience:.0f} s"
                for reply in self.replies:
                    if reply.sent:
                        reply.end("timeout", self.silent)

    def failures(self) -> dict[str, Any]:
        """Requests that came to an end, those that failed, statuses and reasons; what we cut ourselves did neither."""
        ended = [reply for reply in self.replies if reply.kind != "ours"]
        failed = [reply for reply in ended if reply.kind]
        return {
            "n": len(ended),
            "cut_by_us": len(self.replies) - len(ended),
            "bad": len(failed),
            "statuses": dict(Counter(str(reply.status) for reply in self.replies if reply.status)),
            "errors": dict(Counter(reply.kind for reply in failed)),
            "first": failed[0].reason if failed else None,
        }

    def latency(self, replies: Sequence[Reply]) -> dict[str, Any]:
        """Time to first token and between chunks, and tokens against chunks."""
        good = [reply for reply in replies if reply.ok]
        chunks = sum(reply.chunks for reply in good)
        return {
            "ttft": summary(reply.first - reply.sent for reply in good if reply.first),
            "gap": summary(gap for reply in good for gap in reply.gaps),
            "tokens": sum(reply.tokens for reply in good),
            "chunks": chunks,
            "tokens_per_chunk": sum(reply.tokens for reply in good) / chunks if chunks else None,
            "without_usage": sum(1 for reply in good if reply.usage is None),
            "fewer_than_seen": sum(1 for reply in good if reply.usage is not None and reply.usage < reply.chunks),
        }


async def find_target(base_url: str, api_key: str | None) -> Target:
    """Resolve a base URL once, and pick the first of its addresses that accepts a connection.

    Raises:
        ValueError: it is no http or https URL, or its host has no address.
    """
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"not an http or https URL: {base_url!r}")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(f"no address for {parts.hostname!r}: {error}") from error
    addresses = [str(entry[4][0]) for entry in found]
    address = addresses[0]
    for candidate in addresses if len(addresses) > 1 else ():
        with contextlib.suppress(OSError):
            transport, _ = await loop.create_connection(asyncio.Protocol, candidate, port)
            transport.abort()
            address = candidate
            break
    shown = parts.netloc.rpartition("@")[2]
    key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
    headers = f"Host: {shown}\r\nUser-Agent: probe\r\nAccept: */*\r\nConnection: close\r\n{key}"
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    return Target(address, port, parts.hostname, parts.path.rstrip("/"), tls, headers)


# ---------------------------------------------------------------------------------------------------- prompts

WORDS = (
    "anchor",
    "basin",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "garnet",
    "harbor",
    "island",
    "jasper",
    "kernel",
    "lagoon",
)
FILLERS = (
    "Nobody needs to be paged about this today.",
    "Lunch will be late again.",
    "Somebody left the door to the cold aisle open.",
    "Please keep the notes friendly.",
    "The dashboards were slow this morning.",
    "We will talk about the budget next week.",
    "Thanks for the quick work yesterday.",
    "The new badges arrive on Friday.",
)
ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
ATTRIBUTES = {"rack": "rk", "owner": "ow", "zone": "zn", "image": "im"}
"""Attributes that facts are about, each with the prefix of its values."""
PLANTED = re.compile(r"\b(?:node|rk|ow|zn|im)-[a-z0-9]{7}\b")
MARKUP = re.compile(r"</?[|｜]\w|</?(?:tool_calls?|function_calls?|invoke)\b")
"""Markup that a server takes out of what is visible; what is thought may well speak of it."""
MISREAD = re.compile("\u00c3[\u0080-\u00bf]|\u00e2[\u0080\u20ac]")
"""UTF-8 that somebody read as Latin-1 or as Windows-1252, sign by sign."""
DRAWN = frozenset("-=_*#~.|+:/\\\u2500\u2501\u2550\u2014\u2013\u00b7\u2022")
"""Signs that people draw lines with."""
SYSTEM = (
    "You operate a cluster by calling tools. Use only facts that the user stated; the latest statement counts. "
    "Answer each order with exactly one tool call."
)


def prose(rng: random.Random, words: int) -> str:
    """Words that no cache has seen: the first ones already differ between any two."""
    nonce = "".join(rng.choices(ALPHABET, k=12))
    return f"{nonce} " + " ".join(rng.choices(WORDS, k=max(1, words - 1)))


def chat_load(client: Client, prompt: str, tokens: int) -> tuple[str, dict[str, Any]]:
    """A chat request that generates exactly so many tokens."""
    return "/v1/chat/completions", {
        "model": client.model,
        "messages": [{"role": "user", "content": f"{prompt}\nContinue this list of words for as long as you can."}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def raw_load(rng: random.Random, prompt: str, tokens: int, *, ids: bool) -> tuple[str, dict[str, Any]]:
    """The same for the engine's own endpoint; as token ids where the server has no tokenizer."""
    start = {"input_ids": [rng.randrange(1000, 30000) for _ in prompt.split()]} if ids else {"text": prompt}
    parameters = {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0}
    return "/generate", {**start, "sampling_params": parameters, "stream": True}


# --------------------------------------------------------------------------------------------------- sessions


class Fact(NamedTuple):
    """One planted statement."""

    attribute: str
    subject: str
    value: str

    def __str__(self) -> str:
        return f"The {self.attribute} of {self.subject} is {self.value}."


class Turn(NamedTuple):
    """What the user says, and the one right call."""

    text: str
    wanted: Fact
    replaced: frozenset[str]
    """Values that the wanted one replaced in this turn or before."""


@dataclass
class Session:
    """A conversation whose right calls are known."""

    number: int
    turns: list[Turn]
    known: set[str]
    """Every subject and value of this session."""


class Fault(NamedTuple):
    """What is wrong with a reply."""

    kind: str
    says: str


def plant(rng: random.Random, number: int, turns: int, padding: int, taken: dict[str, int]) -> Session:
    """Write a session: facts about a few nodes, an order each turn, later orders about earlier facts.

    Args:
        rng: Randomness of this session alone.
        number: Its number in the run.
        turns: Orders in it.
        padding: Words of filler in front of the first order, for depth.
        taken: Every subject and value planted so far, with the session that owns it; grows by this one's.
    """

    def fresh(prefix: str) -> str:
        while True:
            name = f"{prefix}-{''.join(rng.choices(ALPHABET, k=7))}"
            if taken.setdefault(name, number) == number and name not in known:
                known.add(name)
                return name

    known: set[str] = set()
    stale: dict[tuple[str, str], set[str]] = {}
    current: dict[tuple[str, str], str] = {}
    subjects = [fresh("node") for _ in range(3)]
    pairs = [(attribute, subject) for subject in subjects for attribute in ATTRIBUTES]
    rng.shuffle(pairs)
    ordered: set[tuple[str, str]] = set()
    script = []
    for turn in range(turns):
        stated = pairs[:5] if turn == 0 else [pairs[(4 + turn) % len(pairs)]]
        update = rng.choice(list(current)) if turn and rng.random() < 0.5 else None
        if update:
            stated = [*stated, update]
        facts = []
        for pair in stated:
            if pair in current:
                stale.setdefault(pair, set()).add(current[pair])
            current[pair] = fresh(ATTRIBUTES[pair[0]])
            facts.append(str(Fact(*pair, current[pair])))
        open_pairs = [pair for pair in current if pair not in ordered] or list(current)
        earlier = [pair for pair in open_pairs if pair not in stated] or open_pairs
        # Half of the corrected facts are ordered at once: a model that lost the correction shows there.
        pair = update if update and rng.random() < 0.5 else rng.choice(earlier if turn else open_pairs)
        ordered.add(pair)
        sentences = []
        for fact in facts:
            sentences += [fact, rng.choice(FILLERS)] if rng.random() < 0.4 else [fact]
        if turn == 0 and padding:
            sentences.append(f"Notes that do not matter: {prose(rng, padding)}.")
        sentences.append(f"Call set_{pair[0]} for {pair[1]}.")
        script.append(Turn(" ".join(sentences), Fact(*pair, current[pair]), frozenset(stale.get(pair, ()))))
    return Session(number, script, known)


def tool_list() -> list[dict[str, Any]]:
    """The tools that every session offers."""
    return [
        {
            "type": "function",
            "function": {
                "name": f"set_{attribute}",
                "description": f"Set the {attribute} of a node.",
                "parameters": {
                    "type": "object",
                    "properties": {"node": {"type": "string"}, attribute: {"type": "string"}},
                    "required": ["node", attribute],
                },
            },
        }
        for attribute in ATTRIBUTES
    ]


def repeats(text: str) -> bool:
    """Whether a stretch of up to sixty words, or of up to thirty characters, comes over and over.

    Legitimate lists repeat a word or two; what a broken decode repeats fills its reply. So a cycle counts only when it
    covers 24 words in at least four rounds, or 60 characters in at least eight rounds, or 200 of nothing but signs that
    lines are drawn with, which no line of a table is long enough for.
    """
    words = text.split()
    for period in range(1, min(60, len(words) // 4) + 1):
        run = 0
        for earlier, later in zip(words, words[period:], strict=False):
            run = run + 1 if earlier == later else 0
            if run + period >= max(24, 4 * period):
                return True
    return any(
        len(found.group(0)) >= (200 if DRAWN.issuperset(found.group(1)) else 60)
        for found in re.finditer(r"(\S{1,30}?)\1{7,}", text[-4000:])
    )


def garbled(text: str) -> bool:
    """Whether text holds what no tokenizer makes of sound tokens: replacement or control characters, misread UTF-8."""
    return MISREAD.search(text) is not None or any(
        sign == "\ufffd" or (ord(sign) < 32 and sign not in "\n\r\t") or sign == "\x7f" for sign in text
    )


def fault_in(reply: Reply, turn: Turn, session: Session, taken: dict[str, int]) -> Fault | None:
    """Judge one complete reply from request and transcript alone; None: it is the one right call."""
    text = reply.text
    if garbled(text):
        return Fault("garbled_text", text)
    if repeats(text):
        return Fault("repetition", text[-200:])
    foreign = _of_others(text, session, taken)
    if foreign:
        return Fault("mixed_sessions", f"text names {foreign}: {text}")
    if not reply.calls:
        return Fault("never_ended" if reply.finish == "length" else "no_call", text)
    calls = [reply.calls[index] for index in sorted(reply.calls)]
    faults = [_fault_in_call(call, turn, session, taken) for call in calls]
    if faults[0] is not None:
        return faults[0]
    if len(calls) > 1:
        again = all(call.arguments == calls[0].arguments and call.name == calls[0].name for call in calls)
        return Fault("repetition" if again else "extra_call", _shown(calls[1]))
    return _leak(reply)


def _leak(reply: Reply) -> Fault | None:
    visible = "".join(reply.content)
    return Fault("leaked_markup", visible) if MARKUP.search(visible) else None


def fault_in_text(reply: Reply) -> Fault | None:
    """Judge one complete long text from its transcript alone; None: it is text to its end."""
    text = reply.text
    if garbled(text):
        return Fault("garbled_text", text[-200:])
    if repeats(text):
        return Fault("repetition", text[-200:])
    if re.search("[A-Za-z.,]{80,}", text):
        return Fault("words_run_together", text[-200:])
    return _leak(reply) if text.strip() else Fault("empty_text", text)


def _fault_in_call(call: ToolCall, turn: Turn, session: Session, taken: dict[str, int]) -> Fault | None:
    wanted, shown = turn.wanted, _shown(call)
    try:
        arguments = json.loads(call.arguments, object_pairs_hook=_each_once) if call.arguments.strip() else {}
    except ValueError:
        kind = "repetition" if repeats(call.arguments) else "malformed_json"
        return Fault(kind, shown)
    if not isinstance(arguments, dict):
        return Fault("malformed_json", shown)
    foreign = _of_others(call.arguments, session, taken)
    if foreign:
        return Fault("mixed_sessions", shown)
    if call.name != f"set_{wanted.attribute}":
        return Fault("wrong_tool", shown)
    if not arguments:
        return Fault("empty_arguments", shown)
    if arguments == {"node": wanted.subject, wanted.attribute: wanted.value}:
        return None
    said = arguments.get(wanted.attribute)
    lost = isinstance(said, str) and said in turn.replaced
    return Fault("lost_fact" if lost else "wrong_arguments", shown)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys come once each; which of two values counts is a matter of the reader."""
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("a key comes twice")
    return document


def _of_others(text: str, session: Session, taken: dict[str, int]) -> str | None:
    for name in PLANTED.findall(text):
        if name not in session.known and name in taken:
            return str(name)
    return None


def _shown(call: ToolCall) -> str:
    return f"{call.name}({call.arguments})"


def clipped(text: str, limit: int = 160) -> str:
    """One printable line of text from outside."""
    line = "".join(sign if sign.isprintable() else "·" for sign in text)
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


@dataclass
class Tally:
    """What came of the sessions so far."""

    right: int = 0
    bad: int = 0
    failed: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    first_bad: dict[str, Any] | None = None
    fruitless: int = 0
    """Requests that failed since the last one that was answered."""


class Sequential:
    """Wald's test: whether what was counted suffices either way (policies/sequential.py judges by the same ratio)."""

    def __init__(self, wish: dict[str, Any], count: int) -> None:
        test = wish.get("sequential")
        self.count = count
        self.cap = max(count, int(test["cap"])) if test else count
        self._stop_at = wish.get("stop_at")
        self._up = self._down = self._reach = math.inf
        if test:
            ok, bad, error = float(test["ok"]), float(test["bad"]), float(test["error"])
            if not 0 < ok < bad < 1 or not 0 < error < 0.5:
                raise ValueError("a sequential test wants 0 < ok < bad < 1 and 0 < error < 0.5")
            self._up, self._down = math.log(bad / ok), math.log((1 - ok) / (1 - bad))
            self._reach = math.log((1 - error) / error)

    def over(self, n: int, bad: int) -> bool:
        """Whether no further session is needed: it is bad, or it is acceptable and enough were sent."""
        if self._stop_at is not None and bad >= self._stop_at:
            return True
        if math.isinf(self._reach):
            return False
        ratio = bad * self._up - (n - bad) * self._down
        return ratio >= self._reach or (ratio <= -self._reach and n >= self.count)

    def needed(self, bad: int) -> int:
        """Sessions that suffice if no further one is bad, and never more than the cap."""
        if math.isinf(self._reach):
            return self.count
        return min(self.cap, max(self.count, bad + math.ceil((bad * self._up + self._reach) / self._down - 1e-9)))


class Sessions:
    """Tool-call sessions, so many at once."""

    def __init__(self, client: Client, wish: dict[str, Any], report: Report) -> None:
        self._client = client
        self._report = report
        self._tokens = int(wish.get("tokens", 256))
        self._turns = int(wish.get("turns", 3))
        self._padding = int(wish.get("padding", 0))
        self._seed = wish.get("seed", 0)
        self._depths = [int(depth) for depth in wish.get("depths") or ()] or [0]
        self._by_depth = [Tally() for _ in self._depths]
        self._acts = wish.get("acts")
        self._wish = wish
        self._taken: dict[str, int] = {}
        self._tally = Tally()
        self._replaced = 0
        self._running = 0
        self._texts = int(wish.get("texts") or 0)
        self._long: list[int] = []
        self._ramp = float(wish.get("ramp", 0.0))
        self._enough = Sequential({}, 0)

    async def run(self, concurrency: Sequence[int], count: int) -> dict[str, Any]:
        """Run `count` sessions, an equal part at each concurrency; where a test is given, as many as settle it."""
        self._enough = Sequential(self._wish, count)
        stopped = None
        before = passes_made(await self._client.ask_engine("/metrics"))
        with Meter() as meter:
            for index, at_once in enumerate(concurrency):
                numbers = range(index, self._enough.cap, len(concurrency))
                stopped = await self._part(numbers, at_once, self._enough.cap)
                if stopped:
                    break
            asked_for_texts = self._texts and not stopped and not self._tally.bad
            if asked_for_texts:
                await together(self._text(number) for number in range(self._texts))
        tally = self._tally
        settled = self._settled()
        return {
            "sessions": {
                "planned": tally.right + tally.bad if settled else self._enough.cap,
                "n": tally.right + tally.bad,
                "bad": tally.bad,
                "failed": tally.failed,
                "kinds": dict(tally.kinds),
            },
            "first_bad": tally.first_bad,
            "depths": [
                {"tokens": depth, "n": part.right + part.bad, "bad": part.bad}
                for depth, part in zip(self._depths, self._by_depth, strict=True)
            ],
            "texts": {"asked": self._texts if asked_for_texts else 0, "long": len(self._long)},
            "exposure": self._client.load.share_between(*self._acts) if self._acts else None,
            "passes": _passes_between(before, passes_made(await self._client.ask_engine("/metrics"))),
            "decoded": sum(self._client.load.tokens),
            "requests": self._client.failures(),
            "in_flight": self._client.load.report(),
            "latency": self._client.latency(self._client.replies),
            "validity": meter.report(self._client.replies),
            "stopped": stopped,
        }

    @property
    def tally(self) -> Tally:
        """What came of the sessions so far."""
        return self._tally

    async def keep_busy(self, at_once: int, seconds: float, most: int | None) -> str | None:
        """Run sessions one after the other, so many at once, until the time is over; why it ended earlier.

        Args:
            at_once: Sessions in flight.
            seconds: The time.
            most: Sessions in all that may be begun; None: as many as there is time for.
        """
        self._enough = Sequential({}, 10**9)
        over = time.perf_counter() + min(seconds, self._client.left)
        numbers = itertools.count() if most is None else iter(range(most))
        patience = max(8, 2 * at_once)
        spent = False

        async def one_after_the_other(number: int) -> None:
            nonlocal spent
            await self._wait_for_turn(number, at_once)
            while time.perf_counter() < over and self._tally.fruitless < patience and not self._client.silent:
                following = next(numbers, None)
                if following is None:
                    spent = True
                    return
                await self._session(self._plant(following))

        await together(one_after_the_other(number) for number in range(at_once))
        if self._client.silent:
            return self._client.silent
        if self._tally.fruitless >= patience:
            return f"the last {patience} requests all failed"
        return f"the {most} sessions that the run may send were spent" if spent else None

    async def _wait_for_turn(self, number: int, at_once: int) -> None:
        """Begin one after the other: prompts that all come at the same moment are a crowd, which is another check."""
        await asyncio.sleep(min(self._ramp * number / at_once, self._client.left))

    def _settled(self) -> bool:
        return self._enough.over(self._tally.right + self._tally.bad, self._tally.bad)

    def _depth(self, number: int) -> int:
        """The stratum of a session: its index among the depths."""
        return number % len(self._depths)

    def _plant(self, number: int) -> Session:
        rng = random.Random(f"{self._seed}:session:{number}")
        words = self._padding + round(self._depths[self._depth(number)] * WORDS_PER_TOKEN)
        return plant(rng, number, self._turns, words, self._taken)

    def _next(self, waiting: Iterator[int], total: int) -> Session | None:
        """The next session; at their end a new one for each that failed, so that a hiccup leaves the sample whole."""
        # Those in flight may suffice; more than that would be load for nothing.
        underway = self._tally.right + self._tally.bad + self._running
        if self._settled() or underway >= self._enough.needed(self._tally.bad):
            return None
        number = next(waiting, None)
        if number is None and self._replaced < min(self._tally.failed, max(2, total // 10)):
            self._replaced += 1
            number = total + self._replaced
        return None if number is None else self._plant(number)

    async def _part(self, numbers: Sequence[int], at_once: int, total: int) -> str | None:
        waiting = iter(numbers)
        stopped: list[str] = []
        patience = max(8, 2 * at_once)

        async def one_after_the_other(number: int) -> None:
            if judged <= 0:
                await self._wait_for_turn(number, at_once)
            while (session := self._next(waiting, total)) is not None:
                if not self._client.left:
                    stopped.append("the time was up")
                if self._tally.fruitless >= patience:
                    stopped.append(f"the last {self._tally.fruitless} requests all failed")
                if self._client.silent:
                    stopped.append(self._client.silent)
                if stopped:
                    return
                self._running += 1
                try:
                    await self._session(session)
                finally:
                    self._running -= 1
                done = self._tally.right + self._tally.bad + self._tally.failed
                likely = self._enough.count if done <= self._enough.count else total
                self._report.progress(
                    min(done, likely), likely, bad=self._tally.bad, in_flight=self._client.load.in_flight
                )

        judged = -1
        # A session that was in flight when the rest sufficed may take that back: then it goes on.
        while not stopped and not self._settled() and judged < self._tally.right + self._tally.bad:
            judged = self._tally.right + self._tally.bad
            await together(one_after_the_other(number) for number in range(min(at_once, len(numbers))))
        if not self._client.left:
            return "the time was up"
        return stopped[0] if stopped else None

    async def _text(self, number: int) -> None:
        """A long text, which counts as a session: it has to stay text to its end."""
        rng = random.Random(f"{self._seed}:text:{number}")
        asked = f"Write a long and detailed story in which these matter: {prose(rng, 12)}."
        document = {
            "model": self._client.model,
            "messages": [{"role": "user", "content": asked}],
            "max_tokens": TEXT_TOKENS,
            "temperature": 0.7,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        reply = await self._client.ask("/v1/chat/completions", document, read_all=True)
        if reply.kind == "ours":
            return
        if not reply.ok:
            self._tally.failed += 1
            return
        fault = fault_in_text(reply)
        if fault is None:
            if reply.tokens >= LONG_ENOUGH:
                self._tally.right += 1
                self._long.append(reply.tokens)
            return
        self._tally.bad += 1
        self._tally.kinds[fault.kind] += 1
        if self._tally.first_bad is None:
            got, wanted = clipped(fault.says) or "nothing", "a long text"
            self._tally.first_bad = {"session": number, "turn": 1, "kind": fault.kind, "wanted": wanted, "got": got}

    async def _session(self, session: Session) -> None:
        messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
        for number, turn in enumerate(session.turns, start=1):
            messages.append({"role": "user", "content": turn.text})
            document = {
                "model": self._client.model,
                "messages": messages,
                "tools": tool_list(),
                "max_tokens": self._tokens,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            reply = await self._client.ask("/v1/chat/completions", document, read_all=True)
            if reply.kind == "ours":
                return
            if not reply.ok:
                self._tally.failed += 1
                self._tally.fruitless += 1
                return
            self._tally.fruitless = 0
            fault = fault_in(reply, turn, session, self._taken)
            if fault is not None:
                self._note(fault, session, number, turn)
                return
            call = reply.calls[min(reply.calls)]
            spoken = {"name": call.name, "arguments": call.arguments}
            made = {"id": call.id or f"call_{number}", "type": "function", "function": spoken}
            messages.append({"role": "assistant", "content": "".join(reply.content) or None, "tool_calls": [made]})
            messages.append({"role": "tool", "tool_call_id": made["id"], "content": "ok"})
        self._tally.right += 1
        self._by_depth[self._depth(session.number)].right += 1

    def _note(self, fault: Fault, session: Session, number: int, turn: Turn) -> None:
        self._tally.bad += 1
        self._by_depth[self._depth(session.number)].bad += 1
        self._tally.kinds[fault.kind] += 1
        if self._tally.first_bad is None:
            fact = turn.wanted
            self._tally.first_bad = {
                "session": session.number,
                "turn": number,
                "kind": fault.kind,
                "wanted": f"set_{fact.attribute}(node={fact.subject}, {fact.attribute}={fact.value})",
                "got": clipped(fault.says) or "nothing",
            }


async def together(work: Iterable[Awaitable[None]]) -> None:
    """Do all at once; the first exception, or our own end, ends all of them."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        for task in tasks:
            await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# ------------------------------------------------------------------------------------------------- throughput


class Throughput:
    """Closed bursts: so many streams at once, all of the same length."""

    def __init__(self, client: Client, wish: dict[str, Any], report: Report) -> None:
        self._client = client
        self._report = report
        self._seed = wish.get("seed", 0)
        self._tokens = int(wish.get("tokens", 128))
        self._words = int(wish.get("words", 100))
        self._raw = bool(wish.get("raw", False))
        self._ids = bool(wish.get("token_ids", False))

    async def run(self, concurrency: Sequence[int], runs: int) -> dict[str, Any]:
        """Warm every concurrency up, then measure `runs` rounds, each through all of them in a new order.

        Rounds, and not all runs of one concurrency in a row, so that a drift touches every concurrency alike.
        """
        total = len(concurrency) * (runs + 1)
        bursts: list[dict[str, Any]] = []
        measured: dict[int, list[Reply]] = {size: [] for size in concurrency}
        stopped = None
        before = await self._calm()
        for number in range(-1, runs):
            order = list(concurrency)
            random.Random(f"{self._seed}:order:{number}").shuffle(order)
            for size in order:
                if not self._client.left or self._client.silent:
                    stopped = self._client.silent or "the time was up"
                    break
                if number < 0:
                    await self._burst(size, min(self._tokens, max(8, self._tokens // 4)), f"warm:{size}")
                else:
                    replies, burst = await self._repeated(size, f"{number}:{size}")
                    bursts.append({"round": number, **burst})
                    measured[size] += replies
                self._report.progress((number + 1) * len(order) + order.index(size) + 1, total, concurrency=size)
        after = await counters(self._client)
        return {
            "tokens": self._tokens,
            "bursts": bursts,
            "latency": {str(size): self._client.latency(replies) for size, replies in measured.items()},
            "requests": self._client.failures(),
            "in_flight": self._client.load.report(),
            "foreign": foreign(before, after, self._client.replies),
            "stopped": stopped,
        }

    async def _calm(self) -> dict[str, float | None]:
        """The counters, once what was cut off just before us has left the engine; it gets two seconds for that."""
        for _ in range(8):
            seen = await counters(self._client)
            if not seen["loads"]:
                break
            await asyncio.sleep(0.25)
        return seen

    async def _repeated(self, size: int, name: str) -> tuple[list[Reply], dict[str, Any]]:
        attempt = 0
        while True:
            attempt += 1
            replies, burst = await self._burst(size, self._tokens, f"{name}:{attempt}")
            if not burst["client_at_fault"] or attempt == ATTEMPTS or not self._client.left:
                return replies, {**burst, "attempts": attempt}

    async def _burst(self, size: int, tokens: int, name: str) -> tuple[list[Reply], dict[str, Any]]:
        client = self._client
        rng = random.Random(f"{self._seed}:burst:{name}")
        opening = []
        for _ in range(size):
            prompt = prose(rng, self._words)
            path, document = (
                raw_load(rng, prompt, tokens, ids=self._ids) if self._raw else chat_load(client, prompt, tokens)
            )
            opening.append(client.open(path, document))
        replies = list(await asyncio.gather(*opening))
        with Meter() as meter:
            start = time.perf_counter()
            for reply in replies:
                reply.scheduled = start
                reply.send(client.timeout, client.left)
            await together(client.finish(reply) for reply in replies)
            wall = max(reply.ended for reply in replies) - start
        figures = meter.report(replies)
        failed = [reply for reply in replies if not reply.ok]
        generated = sum(reply.tokens for reply in replies if reply.ok)
        latency = client.latency(replies)
        ours = _client_at_fault(figures, wall)
        why = self._why_not(failed, latency) or ours
        return replies, {
            "concurrency": size,
            "wall": wall,
            "tokens": generated,
            "tokens_per_second": None if why else generated / wall,
            "why_not": why,
            "client_at_fault": why is not None and why == ours,
            "short": sum(1 for reply in replies if reply.ok and reply.tokens < tokens),
            "failed": len(failed),
            "latency_invalid": _lag_against_gap(figures["lag_p99"], latency["gap"]["p50"]),
            "validity": figures,
        }

    def _why_not(self, failed: Sequence[Reply], latency: dict[str, Any]) -> str | None:
        if failed:
            return f"{len(failed)} requests failed, the first: {failed[0].reason}"
        if not latency["tokens"]:
            return "no token was generated"
        if latency["fewer_than_seen"]:
            return f"{latency['fewer_than_seen']} replies count fewer tokens than came"
        return None


def _client_at_fault(figures: dict[str, Any], wall: float) -> str | None:
    if figures["utilisation"] > BUSY_LIMIT:
        return f"the client used {figures['utilisation']:.0%} of its core, over {BUSY_LIMIT:.0%}"
    if (figures["send_delay_p99"] or 0.0) > LAG_OF_BURST * wall + SENT_LATE_SECONDS:
        return f"the client sent {figures['send_delay_p99'] * 1000:.0f} ms late in a burst of {wall:.2f} s"
    if figures["lag_at_end"] > LAG_OF_BURST * wall:
        return f"the client lagged {figures['lag_at_end'] * 1000:.0f} ms at the end of a burst of {wall:.2f} s"
    return None


def _lag_against_gap(lag: float, gap: float | None) -> str | None:
    if gap is not None and lag > LAG_OF_GAP * gap:
        return f"p99 lag of the client {lag * 1000:.1f} ms, over {LAG_OF_GAP:.0%} of the median gap {gap * 1000:.1f} ms"
    return None


# ----------------------------------------------------------------------------------------------------- aborts


class Aborts:
    """Storms of streams that are cut off, each followed by one canary."""

    def __init__(self, client: Client, wish: dict[str, Any], report: Report) -> None:
        self._client = client
        self._report = report
        self._rng = random.Random(f"{wish.get('seed', 0)}:aborts")
        self._tokens = int(wish.get("tokens", 128))
        self._fractions = [float(part) for part in wish.get("fractions", (0.1, 0.5, 0.9))]
        self._storms = int(wish.get("storms") or len(self._fractions))
        self._steps = float(wish.get("steps", 150))
        self._floor = float(wish.get("floor_seconds", 6.0))
        self._step = 0.0
        self._ttft = 0.0

    @property
    def limit(self) -> float:
        """Seconds within which a lone request gets a token: a number of the worker's own steps, or the floor."""
        return max(self._floor, self._steps * self._step)

    def _patience(self, replies: Sequence[Reply]) -> float:
        """Seconds without a token on any stream of a storm after which its streams are given up.

        A step of a full batch takes longer than a lone one, and before the first token there are prompts to read.
        """
        if not any(reply.first for reply in replies):
            return 3 * self.limit
        gap = percentile([gap for reply in replies[:32] for gap in reply.gaps[-16:]], 0.5) or 0.0
        return max(self.limit, self._steps / 3 * gap)

    async def run(self, concurrency: Sequence[int], count: int) -> dict[str, Any]:
        """So many storms at each concurrency, the fractions in turn; the first wedge ends it."""
        before = await self._canary(self._client.timeout, tokens=32)
        if not before.ok or not before.chunks:
            why = f"no answer before the first storm: {before.reason or 'no token came'}"
            return {"storms": [], "rests": [], "stopped": why}
        self._step = percentile(before.gaps, 0.5) or 0.0
        self._ttft = before.first - before.sent
        fractions = [self._fractions[number % len(self._fractions)] for number in range(self._storms)]
        plans = [(size, fraction) for size in concurrency for fraction in fractions]
        storms: list[dict[str, Any]] = []
        stopped = None
        rests = Rests(self._client, self._rng, min(concurrency))
        await rests.note(self.limit)
        with Meter() as meter:
            for size, fraction in plans:
                if self._client.left < self.limit:
                    stopped = "the time was up"
                    break
                storms.append(await self._storm(size, count, fraction))
                self._report.progress(len(storms), len(plans), wedged=sum(storm["wedged"] for storm in storms))
                if storms[-1]["wedged"] or storms[-1]["undecided"]:
                    stopped = "wedged" if storms[-1]["wedged"] else storms[-1]["undecided"]
                    break
                await rests.note(self.limit)
        return {
            "storms": storms,
            "rests": rests.seen,
            "planned": len(plans),
            "step": self._step,
            "requests": self._client.failures(),
            "in_flight": self._client.load.report(),
            "validity": meter.report(self._client.replies),
            "stopped": stopped,
        }

    async def _canary(self, timeout: float, tokens: int = 8) -> Reply:
        path, document = chat_load(self._client, prose(self._rng, 12), tokens)
        return await self._client.ask(path, document, timeout=timeout)

    async def _storm(self, size: int, count: int, fraction: float) -> dict[str, Any]:
        cut = set(self._rng.sample(range(count), min(count, max(1, round(fraction * count)))))
        moment = self._rng.uniform(0.2, 0.6) * self._tokens
        slots = asyncio.Semaphore(size)
        replies: list[Reply] = []
        plans = [self._phase(number in cut, moment) for number in range(count)]
        tokens_before = tokens_made(await self._client.ask_engine("/metrics", timeout=2.0))
        await together(self._stream(plan, slots, replies) for plan in plans)
        calm = time.perf_counter()
        canary, undecided = await self._first_sign()
        tokens_after = tokens_made(await self._client.ask_engine("/metrics", timeout=2.0))
        moved = None if tokens_before is None or tokens_after is None else tokens_after - tokens_before
        still = loads_of(await self._client.ask_engine("/v1/loads", timeout=2.0))
        for _ in range(8 if canary.ok else 0):
            if not still:
                break
            await asyncio.sleep(0.25)
            still = loads_of(await self._client.ask_engine("/v1/loads", timeout=2.0))
        return {
            "concurrency": size,
            "fraction": fraction,
            "streams": count,
            "aborted": sum(1 for reply in replies if reply.kind == "ours" and reply.why != "given up"),
            "phases": dict(Counter(plan[0] for plan in plans)),
            "survivors_failed": sum(1 for reply in replies if not reply.ok and reply.kind != "ours"),
            "stalled": sum(1 for reply in replies if reply.kind == "timeout"),
            "limit": self.limit,
            "recovered_after": canary.first - calm if canary.first else None,
            "canary": {"ok": canary.ok, "tokens": canary.chunks, "why_not": canary.reason},
            "counter_moved": moved,
            "still_counted": still,
            "wedged": undecided is None and not (canary.ok and canary.chunks),
            "undecided": undecided,
        }

    def _phase(self, cut: bool, moment: float) -> tuple[str, float]:
        """When one stream is cut: a cascade is many at nearly the same moment, so mid-decode cuts share theirs."""
        if not cut:
            return "none", 0.0
        phase = self._rng.choice(("before first token", "first token", "mid decode"))
        if phase == "before first token":
            return phase, self._rng.uniform(0.0, self._ttft)
        return phase, 1 if phase == "first token" else max(2.0, moment + self._rng.uniform(-2, 2))

    async def _stream(self, plan: tuple[str, float], slots: asyncio.Semaphore, replies: list[Reply]) -> None:
        phase, at = plan
        async with slots:
            path, document = chat_load(self._client, prose(self._rng, 40), self._tokens)
            reply = await self._client.open(path, document)
            replies.append(reply)
            if phase != "none":
                reply.cut_after = 1 if phase == "before first token" else round(at)
            reply.send(self._client.timeout, self._client.left)
            if phase == "before first token":
                asyncio.get_running_loop().call_later(at, reply.end, "ours", "cut off on purpose")
            await self._watched(reply, replies)

    async def _watched(self, reply: Reply, storm: Sequence[Reply]) -> None:
        """Wait for a stream, but no longer than our patience after the last token of any stream of the storm."""
        try:
            seen, since = -1, time.perf_counter()
            while not reply.done.done():
                await asyncio.wait({reply.done}, timeout=self._floor / 10)
                made = sum(self._client.load.tokens)
                if made != seen:
                    seen, since = made, time.perf_counter()
                elif time.perf_counter() - since > (patience := self._patience(storm)):
                    reply.end("timeout", f"no stream got a token for {patience:.1f} s")
        finally:
            reply.end("ours", "given up")

    async def _first_sign(self) -> tuple[Reply, str | None]:
        """One canary; where it starves while the engine still makes tokens for others, the storm proves nothing."""
        canary_task = asyncio.ensure_future(self._canary(self.limit))
        try:
            await asyncio.wait({canary_task}, timeout=self.limit / 2)
            halfway = (
                None if canary_task.done() else tokens_made(await self._client.ask_engine("/metrics", timeout=2.0))
            )
            canary = await canary_task
        finally:
            canary_task.cancel()
        if (canary.ok and canary.chunks) or halfway is None:
            return canary, None
        at_end = tokens_made(await self._client.ask_engine("/metrics", timeout=2.0))
        if at_end is not None and at_end > halfway and canary.kind == "timeout":
            return canary, f"the canary starved while {at_end - halfway:.0f} tokens were made for others"
        return canary, None


class Rests:
    """What the worker is like when nothing runs: what it still counts, what of the KV pool is used, how fast it is.

    Args:
        client: Sends the looks.
        rng: Decides their prompts.
        crowd: Streams of the load around them; a look takes a quarter of it at most.
    """

    def __init__(self, client: Client, rng: random.Random, crowd: int) -> None:
        self._client = client
        self._rng = rng
        self._size = max(1, min(LOOK_STREAMS, crowd // 4))
        self.seen: list[dict[str, float | None]] = []

    async def note(self, limit: float) -> dict[str, float | None]:
        """Wait until nothing runs any more, at most so long, then look and send a small burst."""
        begun = time.perf_counter()
        while True:
            at = idle_figures(await self._client.ask_engine("/v1/loads"), await self._client.ask_engine("/metrics"))
            counted = (at["running"] or 0) + (at["waiting"] or 0)
            if not counted or time.perf_counter() - begun > limit or not self._client.left:
                break
            await asyncio.sleep(0.25)
        at["settled_after"] = None if counted else time.perf_counter() - begun
        at["rate"], at["first_token"] = await self._speed()
        self.seen.append(at)
        return at

    async def _speed(self) -> tuple[float | None, float | None]:
        """Tokens a second, and seconds to the first, of three bursts, the medians: a single short one strays."""
        rates, firsts = [], []
        for _ in range(3):
            if not self._client.left or self._client.silent:
                return None, None
            replies = []
            for _ in range(self._size):
                path, document = chat_load(self._client, prose(self._rng, 20), 24)
                replies.append(await self._client.open(path, document))
            start = time.perf_counter()
            for reply in replies:
                reply.send(self._client.timeout, self._client.left)
            await together(self._client.finish(reply) for reply in replies)
            if any(not reply.ok for reply in replies):
                return None, None
            rates.append(sum(reply.tokens for reply in replies) / (max(reply.ended for reply in replies) - start))
            firsts.append(percentile([reply.first - reply.sent for reply in replies], 0.5) or 0.0)
        return sorted(rates)[1], sorted(firsts)[1]


def idle_figures(loads: bytes | None, metrics: bytes | None) -> dict[str, float | None]:
    """Requests running and waiting, and the share of the KV pool in use; None for each that the engine does not say.

    SGLang's scheduler says it itself (`/v1/loads`), and of the pool also what it is now (`kv_now`); of vLLM there are
    gauges, which stay as they were for a while.
    """
    text = metrics or b""
    found: dict[str, float | None] = {
        "running": series(text, "num_requests_running"),
        "waiting": series(text, "num_requests_waiting"),
        "kv": series(text, "kv_cache_usage_perc"),
        "kv_now": None,
    }
    with contextlib.suppress(ValueError, KeyError, TypeError, ZeroDivisionError):
        ranks = json.loads(loads or b"")["loads"]
        found["running"] = float(sum(rank["num_running_reqs"] for rank in ranks))
        found["waiting"] = float(sum(rank["num_waiting_reqs"] for rank in ranks))
        used = sum(rank["num_used_tokens"] for rank in ranks)
        found["kv"] = found["kv_now"] = used / sum(rank["max_total_num_tokens"] for rank in ranks)
    return found


# ------------------------------------------------------------------------------------------ overload and soak


class Overload:
    """More streams than the worker runs at once, and what it is like when they are gone."""

    def __init__(self, client: Client, wish: dict[str, Any], report: Report) -> None:
        self._client = client
        self._report = report
        self._rng = random.Random(f"{wish.get('seed', 0)}:overload")
        self._tokens = int(wish.get("tokens", 64))
        self._limit = max(float(wish.get("floor_seconds", 6.0)), 1.0)
        self._steps = float(wish.get("steps", 150))

    async def run(self, concurrency: Sequence[int], count: int) -> dict[str, Any]:
        """So many overloads at each concurrency; the first from which it does not come back ends it.

        Between two of them comes a crowd that hangs up, most of it while it waits: whoever is not answered does. What
        the worker keeps of it is missing in the next one.
        """
        overloads: list[dict[str, Any]] = []
        stopped = None
        with Meter() as meter:
            for size in concurrency:
                rests = Rests(self._client, self._rng, size)
                first = await rests.note(self._limit)
                stayed: list[dict[str, Any]] = []
                for number in range(2 * count - 1):
                    if not self._client.left or self._client.silent:
                        stopped = self._client.silent or "the time was up"
                        break
                    leave = stayed[-1]["seconds"] if number % 2 else None
                    overloads.append(await self._once(size, rests, first, stayed, leave))
                    stayed += [overloads[-1]] if leave is None else []
                    stuck = sum(one["stuck"] is not None for one in overloads)
                    self._report.progress(len(overloads), (2 * count - 1) * len(concurrency), stuck=stuck)
                    if overloads[-1]["stuck"]:
                        stopped = str(overloads[-1]["stuck"])
                        break
        return {
            "overloads": overloads,
            "planned": (2 * count - 1) * len(concurrency),
            "requests": self._client.failures(),
            "in_flight": self._client.load.report(),
            "validity": meter.report(self._client.replies),
            "stopped": stopped,
        }

    async def _once(
        self,
        size: int,
        rests: Rests,
        first: dict[str, float | None],
        stayed: Sequence[dict[str, Any]],
        leave: float | None,
    ) -> dict[str, Any]:
        """One crowd and the worker after it.

        Args:
            size: Streams.
            rests: Looks at the worker at rest.
            first: The look before anything pressed.
            stayed: The crowds so far that stayed to their end.
            leave: Seconds within which this one hangs up; None: it stays.
        """
        loop = asyncio.get_running_loop()
        replies = []
        for _ in range(size):
            path, document = chat_load(self._client, prose(self._rng, 60), self._tokens)
            replies.append(await self._client.open(path, document))
        start = time.perf_counter()
        for reply in replies:
            reply.send(self._client.timeout, self._client.left)
            if leave is not None:
                loop.call_later(self._rng.uniform(0.1, 0.6) * leave, reply.end, "ours", "cut off on purpose")
        await together(self._client.finish(reply) for reply in replies)
        seconds = time.perf_counter() - start
        turned_away = sum(1 for reply in replies if reply.status in (429, 503))
        broken = [
            reply for reply in replies if not reply.ok and reply.kind != "ours" and reply.status not in (429, 503)
        ]
        gap = percentile([gap for reply in replies for gap in reply.gaps[-8:]], 0.5) or 0.0
        at_once = most_at_once(replies)
        after = await rests.note(max(self._limit, self._steps * gap))
        before = max((one["at_once"] for one in stayed), default=0) if leave is None else 0
        return {
            "streams": size,
            "seconds": seconds,
            "hung_up": sum(1 for reply in replies if reply.kind == "ours"),
            "at_once": at_once,
            "turned_away": turned_away,
            "failed": len(broken),
            "rate_before": first["rate"],
            "rate_after": after["rate"],
            "stuck": self._stuck(broken, first, after) or self._fewer(at_once, before),
        }

    @staticmethod
    def _fewer(at_once: int, before: int) -> str | None:
        """Why the worker has fewer places than before, by the streams that decoded at once; None: it has as many."""
        if at_once < RATE_KEPT * before:
            return f"{at_once} streams decoded at once where {before} did before"
        return None

    def _stuck(
        self, broken: Sequence[Reply], first: dict[str, float | None], after: dict[str, float | None]
    ) -> str | None:
        """Why it is worse than before; None where it came back."""
        if broken:
            return f"{len(broken)} streams that were let in failed, the first: {broken[0].reason}"
        if after["settled_after"] is None:
            return f"{after['running']:.0f} requests run and {after['waiting']:.0f} wait with nothing in flight"
        if after["rate"] is None:
            return "a small burst afterwards failed"
        if first["rate"] and after["rate"] < RATE_KEPT * first["rate"]:
            return f"a small burst runs at {after['rate']:.0f} tokens/s where it ran at {first['rate']:.0f} before"
        if (after["kv_now"] or 0.0) > (first["kv_now"] or 0.0) + KV_KEPT:
            used = after["kv_now"]
            return f"{used:.1%} of the KV pool are in use at rest where {first['kv_now'] or 0.0:.1%} were before"
        return None


def most_at_once(replies: Sequence[Reply]) -> int:
    """Streams that decoded at the same time, at the most."""
    moments = sorted(
        [(reply.first, 1) for reply in replies if reply.first] + [(r.ended, -1) for r in replies if r.first]
    )
    return max(itertools.accumulate(step for _, step in moments), default=0)


class Soak:
    """Sessions one after the other for some time: progress, memory and rate meanwhile, and a look before and after."""

    def __init__(self, client: Client, wish: dict[str, Any], report: Report) -> None:
        self._client = client
        self._report = report
        self._seconds = float(wish["seconds"])
        self._most = None if wish.get("most") is None else int(wish["most"])
        self._pid = None if wish.get("pid") is None else int(wish["pid"])
        self._rng = random.Random(f"{wish.get('seed', 0)}:soak")
        self._limit = max(float(wish.get("floor_seconds", 6.0)), 1.0)
        self._sessions = Sessions(client, wish, report)
        self._windows: list[int] = []
        self._memory: list[tuple[float, float]] = []
        self._cards = Cards(self._pid, min(CARD_SECONDS, self._seconds / CARD_LOOKS))

    async def run(self, concurrency: Sequence[int], _: int) -> dict[str, Any]:
        """Keep the first concurrency busy until the time is over; windows of a second, memory every second."""
        rests = Rests(self._client, self._rng, concurrency[0])
        await rests.note(self._limit)
        with Meter() as meter:
            watching = [asyncio.ensure_future(self._watch()), asyncio.ensure_future(self._cards.watch())]
            try:
                stopped = await self._sessions.keep_busy(concurrency[0], self._seconds, self._most)
            finally:
                for each in watching:
                    each.cancel()
                await asyncio.gather(*watching, return_exceptions=True)
        if not stopped:
            await rests.note(self._limit)
        tally = self._sessions.tally
        return {
            "seconds": self._seconds,
            "windows": self._windows,
            "memory": self._memory,
            "cards": self._cards.report(),
            "rests": rests.seen,
            "sessions": {"n": tally.right + tally.bad, "bad": tally.bad, "failed": tally.failed},
            "first_bad": tally.first_bad,
            "requests": self._client.failures(),
            "in_flight": self._client.load.report(),
            "validity": meter.report(self._client.replies),
            "stopped": stopped,
            "silent": self._client.silent,
        }

    async def _watch(self) -> None:
        begun, before = time.perf_counter(), sum(self._client.load.tokens)
        while True:
            await asyncio.sleep(max(0.0, len(self._windows) + 1 - (time.perf_counter() - begun)))
            made = sum(self._client.load.tokens)
            self._windows.append(made - before)
            before = made
            if self._pid is not None and (memory := memory_of(self._pid)) is not None:
                self._memory.append((time.perf_counter() - begun, memory))
            self._report.progress(len(self._windows), math.ceil(self._seconds), made=self._windows[-1])


class Cards:
    """Memory of the GPUs over time, by the driver's own word (`nvidia-smi`): no endpoint of an engine says it.

    What the worker's processes hold, where the driver knows them by the ids that we know; in a container it often does
    not, and then what all processes on the cards hold. The first look decides which, so that a series is one of one
    kind.

    Args:
        pid: The worker's main process; None: nobody knows it.
        pause: Seconds between two looks.
    """

    def __init__(self, pid: int | None, pause: float) -> None:
        self._pid = pid
        self._pause = pause
        self._own: bool | None = None
        self._samples: list[tuple[float, float]] = []
        self._why = "" if pid is not None else "nobody said which process the worker is"

    async def watch(self) -> None:
        """Look every few seconds, until cancelled or until it turns out that the cards cannot be asked."""
        begun = time.perf_counter()
        while not self._why and self._pid is not None:
            # In a thread: whoever waits for the driver would keep the streams waiting.
            held = await asyncio.to_thread(self._look, self._pid)
            if held is not None:
                self._samples.append((time.perf_counter() - begun, held))
            await asyncio.sleep(self._pause)

    def report(self) -> dict[str, Any]:
        """Seconds and GB (2**30) of each look, whose memory it is, and why there is none."""
        whose = "its processes" if self._own else "all processes on the cards"
        return {"samples": self._samples, "of": whose, "why_not": self._why or None}

    def _look(self, pid: int) -> float | None:
        tool = which_smi(pid)
        if tool is None:
            self._why = "there is no nvidia-smi on the host to ask the cards with"
            return None
        try:
            if self._own is not False:
                held = self._of_family(tool, pid)
                self._own = held is not None if self._own is None else True
                if self._own:
                    return held
            rows = smi(tool, "--query-gpu=memory.used")
            return sum(float(row[0]) for row in rows) / 1024 if rows else None
        except (OSError, ValueError, IndexError) as error:
            self._why = clipped(f"nvidia-smi: {error}")
            return None

    def _of_family(self, tool: str, pid: int) -> float | None:
        members = family_of(pid)
        held = [
            float(row[1])
            for row in smi(tool, "--query-compute-apps=pid,used_memory")
            if len(row) > 1 and row[0].isdigit() and int(row[0]) in members and row[1].replace(".", "").isdigit()
        ]
        return sum(held) / 1024 if held else None


def which_smi(pid: int) -> str | None:
    """Path of the `nvidia-smi` that the worker itself would find, then of ours; None: neither.

    The worker's search path is taken only from a process of our own user, since whoever sets it says what we execute.
    """
    paths = []
    with contextlib.suppress(OSError):
        if Path(f"/proc/{pid}").stat().st_uid == os.geteuid():
            variables = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "surrogateescape").split("\0")
            paths += [one[5:] for one in variables if one.startswith("PATH=")]
    paths.append(os.environ.get("PATH", os.defpath))
    return shutil.which("nvidia-smi", path=os.pathsep.join(paths))


def smi(tool: str, query: str) -> list[list[str]]:
    """The rows that `nvidia-smi` answers.

    Raises:
        OSError: it cannot be asked, says no, or does not answer in time.
    """
    argv, pipe = [tool, query, "--format=csv,noheader,nounits"], subprocess.PIPE
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    # A wait with a limit of its own would look again and again whether it is over.
    late = threading.Timer(CARD_ANSWER_SECONDS, child.kill)
    late.start()
    try:
        said, complained = (part.decode("utf-8", "replace") for part in child.communicate())
    finally:
        late.cancel()
    if child.returncode == -signal.SIGKILL:
        raise OSError(f"no answer within {CARD_ANSWER_SECONDS:g} s")
    if child.returncode:
        raise OSError(f"status {child.returncode}: {(complained or said).strip()}")
    return [[word.strip() for word in line.split(",")] for line in said.splitlines() if line.strip()]


def family_of(pid: int) -> set[int]:
    """A process and its descendants."""
    family = {pid}
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = stat.read_text(encoding="utf-8", errors="replace")
            parents[int(stat.parent.name)] = int(text[text.rindex(")") + 2 :].split()[1])
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    return family


def memory_of(pid: int) -> float | None:
    """Memory of a process and its descendants on the host, in GB (2**30).

    None: it cannot be read. Shared pages count once for each process, so only the growth means something.
    """
    total = 0.0
    for one in family_of(pid):
        with contextlib.suppress(OSError, ValueError, IndexError):
            resident = int(Path(f"/proc/{one}/statm").read_text(encoding="ascii").split()[1])
            total += resident * os.sysconf("SC_PAGE_SIZE") / 2**30
    return total or None


# --------------------------------------------------------------------------------------- canary and counters


async def look(client: Client, wish: dict[str, Any]) -> dict[str, Any]:
    """One request as a user would send it."""
    rng = random.Random(f"{wish.get('seed', 0)}:canary:{time.time_ns()}")
    document = {
        "model": client.model,
        "messages": [{"role": "user", "content": f"Note {prose(rng, 3)}. Say hello in one short sentence."}],
        "max_tokens": int(wish.get("tokens", 16)),
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    reply = await client.ask("/v1/chat/completions", document, read_all=True)
    text = reply.text
    return {
        "answered": reply.ok and reply.chunks > 0,
        "status": reply.status or None,
        "first_token": reply.first - reply.sent if reply.first else None,
        "seconds": reply.ended - reply.sent,
        "tokens": reply.tokens,
        "text": clipped(text, 80),
        "sound": bool(text.strip()) and not garbled(text) and not repeats(text),
        "why_not": None if reply.ok and reply.chunks else reply.reason or "no token came",
    }


SERIES = re.compile(r"^(?:sglang|vllm):(\w+)(?:\{([^}]*)\})? ([-+0-9.eEinfNa]+)", re.MULTILINE)


def series(metrics: bytes, name: str) -> float | None:
    """Sum of a Prometheus series over its labels, counting each tensor-parallel rank's copy once; None: not there."""
    found = [
        float(value)
        for metric, labels, value in SERIES.findall(metrics.decode("utf-8", "replace"))
        if metric == name and not re.search(r'tp_rank="[1-9]', labels)
    ]
    total = sum(found)
    return total if found and math.isfinite(total) else None


def tokens_made(metrics: bytes | None) -> float | None:
    """Tokens generated so far, by the counter that is brought up to date the most often; None: no counter.

    `generation_tokens_total` grows when a request ends, `realtime_tokens_total` every few decode steps; either moving
    means that the engine makes progress, so they are added up.
    """
    if metrics is None:
        return None
    known = [series(metrics, name) for name in ("generation_tokens_total", "realtime_tokens_total")]
    found = [value for value in known if value is not None]
    return sum(found) if found else None


def passes_made(metrics: bytes | None) -> dict[str, float] | None:
    """Decode passes so far, those replayed from a graph and eager ones, by SGLang's counter; None: it has none."""
    found = {
        mode: float(value)
        for metric, labels, value in SERIES.findall((metrics or b"").decode("utf-8", "replace"))
        if metric == "cuda_graph_passes_total" and not re.search(r'tp_rank="[1-9]', labels)
        for mode in re.findall(r'mode="(decode_\w+)"', labels)
    }
    if not found:
        return None
    return {
        "eager": found.get("decode_none", 0.0),
        "captured": math.fsum(found.values()) - found.get("decode_none", 0.0),
    }


def _passes_between(before: dict[str, float] | None, after: dict[str, float] | None) -> dict[str, float] | None:
    """Passes of each kind in between; None: it was not counted, or was counted from nought again."""
    if before is None or after is None or any(after[kind] < before[kind] for kind in before):
        return None
    return {kind: after[kind] - before[kind] for kind in before}


def loads_of(body: bytes | None) -> int | None:
    """Running and waiting requests by the scheduler's own word; None: it gave none."""
    try:
        document = json.loads(body or b"")
        entries = document["loads"] if isinstance(document, dict) else document
        if not isinstance(entries, list) or not entries:
            return None
        return sum(
            int(entry["num_running_reqs"]) + int(entry["num_waiting_reqs"])
            if "num_running_reqs" in entry
            else int(entry["num_reqs"])
            for entry in entries
        )
    except (ValueError, KeyError, TypeError):
        return None


async def counters(client: Client) -> dict[str, float | None]:
    """What the engine counts right now; None for each that it does not."""
    metrics, scheduler = await asyncio.gather(client.ask_engine("/metrics"), client.ask_engine("/v1/loads"))
    loads = loads_of(scheduler)
    if loads is None:
        loads = loads_of(await client.ask_engine("/get_load"))
    text = metrics or b""

    def first_of(*names: str) -> float | None:
        return next((value for value in (series(text, name) for name in names) if value is not None), None)

    return {
        "running": first_of("num_running_reqs", "num_requests_running"),
        "queued": first_of("num_queue_reqs", "num_requests_waiting"),
        "loads": None if loads is None else float(loads),
        "tokens": tokens_made(metrics),
        "finished": first_of("num_requests_total", "request_success_total"),
    }


def foreign(before: dict[str, float | None], after: dict[str, float | None], ours: Sequence[Reply]) -> dict[str, Any]:
    """Requests of others that the engine finished while ours ran, or that were there when ours began; None: unknown."""
    sent = sum(1 for reply in ours if reply.sent)
    grown = None
    if before["finished"] is not None and after["finished"] is not None:
        grown = max(0, round(after["finished"] - before["finished"]) - sent)
    return {"finished": grown, "in_flight_before": before["loads"]}


async def count(client: Client, wish: dict[str, Any]) -> dict[str, Any]:
    """Requests in flight, from the scheduler where it answers, from gauges only while something moves.

    A gauge stays as it was after the last request for as long as half a minute, so that a gauge above zero counts only
    with a counter that moves; otherwise we look again until the time is up, and then nobody knows.
    """
    window = float(wish.get("window_seconds", 1.0))
    first = await counters(client)
    while True:
        await asyncio.sleep(min(window, client.left))
        second = await counters(client)
        moved = _grew(first, second, "tokens") or _grew(first, second, "finished")
        live, basis = _live(first, second, moved)
        if live is not None or basis != "stale" or client.left < 2 * window:
            break
    answer: dict[str, Any] = {"live": live, "basis": basis, "moved": moved, "first": first, "last": second}
    return answer


def _grew(first: dict[str, float | None], second: dict[str, float | None], name: str) -> bool:
    earlier, later = first[name], second[name]
    return earlier is not None and later is not None and later > earlier


def _live(first: dict[str, float | None], second: dict[str, float | None], moved: bool) -> tuple[int | None, str]:
    loads = [at["loads"] for at in (first, second) if at["loads"] is not None]
    if loads:
        return max(int(max(loads)), 1 if moved else 0), "loads"
    gauges = [at["running"] + (at["queued"] or 0) for at in (first, second) if at["running"] is not None]
    if not gauges:
        return None, "no counter"
    if moved:
        return max(int(max(gauges)), 1), "gauges, and tokens moved"
    if gauges[-1] == 0 and second["tokens"] is not None:
        return 0, "gauges, and no token moved"
    return None, "stale"


# ------------------------------------------------------------------------------------------- the way in and out


class Report:
    """Lines on stdout: never so many that they cost, never so few that silence could be a hang, never blocking."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._parent = os.getppid()
        self._state: dict[str, Any] = {"done": 0, "total": None}
        self._started = time.perf_counter()
        self._said = 0.0
        self._changed = True

    def progress(self, done: int, total: int, **more: object) -> None:
        """Note how far it is; the ticker says it when it is time."""
        self._state = {"done": done, "total": total, **more}
        self._changed = True

    async def tick(self, stop: Callable[[str], None]) -> None:
        """Say progress at its pace, and call `stop` once nobody is there to hear it."""
        while True:
            now = time.perf_counter()
            if self._changed or now - self._said >= 1.0:
                self._said, self._changed = now, False
                spent = round(now - self._started, 2)
                self.line({"event": "progress", "kind": self._kind, "seconds": spent, **self._state}, patience=0.0)
            await asyncio.sleep(PROGRESS_SECONDS)
            if os.getppid() != self._parent:
                stop("the parent is gone")
            if self._deaf():
                stop("nobody reads the output")

    def line(self, document: dict[str, Any], *, patience: float = 10.0) -> None:
        """Write a line, waiting for the reader no longer than `patience` seconds; what does not fit is dropped."""
        data = json.dumps(document, separators=(",", ":")).encode() + b"\n"
        poll = select.poll()
        poll.register(1, select.POLLOUT)
        # A pipe that polls as writable takes a page without blocking, so that a line is written in such pieces.
        for at in range(0, len(data), select.PIPE_BUF):
            ready = poll.poll((patience if at == 0 else 10.0) * 1000)
            if not ready or ready[0][1] & (select.POLLERR | select.POLLHUP):
                return
            with contextlib.suppress(BrokenPipeError):
                os.write(1, data[at : at + select.PIPE_BUF])

    def _deaf(self) -> bool:
        poll = select.poll()
        poll.register(1, 0)
        return any(event & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, event in poll.poll(0))


async def measure(wish: dict[str, Any], report: Report) -> dict[str, Any]:
    """Do what is wished for.

    Raises:
        ValueError: the wish cannot be met as it stands.
    """
    kind = wish["kind"]
    sizes = [int(size) for size in wish.get("concurrency", [1])]
    amount = int(wish.get("count", 1))
    if not sizes or min(sizes) < 1 or amount < 1:
        raise ValueError("concurrency and count have to be at least 1")
    widest = max(*sizes, amount) if kind == "aborts" else max(sizes)
    _allow_files(widest + 64)
    deadline = float(wish["deadline"])
    key = wish.get("api_key_env")
    if key and key not in os.environ:
        raise ValueError(f"the variable {key} is not set")
    target = await find_target(str(wish["base_url"]), os.environ[key] if key else None)
    load, until = Load(widest + 8), time.perf_counter() + deadline
    timeout = float(wish.get("timeout", max(5.0, deadline / 3)))
    engine = None
    if wish.get("counters_url", wish["base_url"]) != wish["base_url"]:
        beside = await find_target(str(wish["counters_url"]), os.environ[key] if key else None)
        engine = Client(beside, load, timeout=timeout, until=until)
    client = Client(target, load, timeout=timeout, until=until, engine=engine)
    if kind == "counters":
        return await count(client, wish)
    await client.find_model()
    if kind == "canary":
        return await look(client, wish)
    gc.collect()
    gc.freeze()
    kinds: dict[str, Any] = {
        "sessions": Sessions,
        "throughput": Throughput,
        "overload": Overload,
        "soak": Soak,
        "aborts": Aborts,
    }
    listening = asyncio.ensure_future(client.listen(float(wish.get("steps", 150))))
    try:
        made: dict[str, Any] = await kinds[kind](client, wish, report).run(sizes, amount)
        return made
    finally:
        listening.cancel()


def _allow_files(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted and soft != resource.RLIM_INFINITY:
        if hard not in (resource.RLIM_INFINITY,) and hard < wanted:
            raise ValueError(f"{wanted} open files are needed and {hard} are allowed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def perform(wish: dict[str, Any], report: Report) -> int:
    """Measure under the deadline and say the result; the status to exit with."""
    loop = asyncio.get_running_loop()
    work = loop.create_task(measure(wish, report))
    ended: list[str] = []

    def stop(why: str) -> None:
        ended.append(why)
        work.cancel()

    def orphaned(parent: int) -> None:
        # The kernel sends it when the thread that started us ends, which need not be the end of its process.
        if os.getppid() != parent:
            stop("the parent is gone")

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop, f"told to stop by signal {number.value}")
    loop.add_signal_handler(signal.SIGUSR1, orphaned, os.getppid())
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGUSR1.value, 0, 0, 0)
    ticker = loop.create_task(report.tick(stop))
    started = time.perf_counter()
    # The kinds end at the deadline by themselves; this is for the one that does not.
    backstop = loop.call_later(float(wish["deadline"]) + 5.0, stop, "the deadline passed and the run did not end")
    try:
        result = await work
    except asyncio.CancelledError:
        why = ended[0] if ended else "cancelled"
        report.line({"event": "invalid", "kind": wish["kind"], "why": why}, patience=0.0)
        return 143
    except (ValueError, KeyError, TypeError) as error:
        report.line({"event": "invalid", "kind": wish["kind"], "why": f"{type(error).__name__}: {error}"})
        return 1
    finally:
        backstop.cancel()
        ticker.cancel()
    seconds = time.perf_counter() - started
    report.line({"event": "result", "kind": wish["kind"], "seconds": seconds, **result})
    return 0


KINDS = ("sessions", "throughput", "aborts", "overload", "soak", "canary", "counters")


def wish_of(text: bytes) -> dict[str, Any]:
    """Parse what came on stdin.

    Raises:
        ValueError: it is not a wish that can be begun.
    """
    wish = json.loads(text)
    if not isinstance(wish, dict) or wish.get("kind") not in KINDS:
        raise ValueError(f"the kind has to be one of {', '.join(KINDS)}")
    if not isinstance(wish.get("deadline"), (int, float)) or not 0 < wish["deadline"] < 86400:
        raise ValueError("the deadline has to lie between 0 and 86400 seconds")
    if not wish.get("base_url"):
        raise ValueError("a base_url is needed")
    return wish


def main() -> int:
    """Read the wish, measure, say the result."""
    signal.alarm(READ_STDIN_SECONDS)
    report = Report("none")
    try:
        wish = wish_of(sys.stdin.buffer.read())
    except ValueError as error:
        report.line({"event": "invalid", "kind": None, "why": str(error)})
        return 2
    # Stands behind every deadline in Python: the kernel ends us even if the event loop never turns again.
    signal.alarm(math.ceil(wish["deadline"]) + 20)
    return asyncio.run(perform(wish, Report(wish["kind"])))


if __name__ == "__main__":
    sys.exit(main())
