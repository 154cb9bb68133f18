"""What the two sides of a disaggregated pair agree on: rooms, and what a request has to say to get into one.

A router sends each request to both sides under the number of a room. The decode side knocks at the prefill side's
bootstrap server, waits there until the prompt is computed and its KV cache handed over, and goes on from the first
token. Texts and time limits: engine facts, sections 1.6 and 2; that a side refuses a request without a room, with these
words, is what operators report of 0.5.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import SystemRandom
from typing import Any, NamedTuple, Protocol

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from evals.lab.bodies import chatted, error, prompted, read
from evals.lab.specimen import Specimen

NOWHERE = "2.2.2.2"
"""The bootstrap host of the engine's own health checks and warm-up: nothing is handed over."""
BOOTSTRAP_VARIABLE = "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT"
"""How long the prefill side waits for the decode side to knock, in seconds."""
WAITING_VARIABLE = "SGLANG_DISAGGREGATION_WAITING_TIMEOUT"
"""How long the decode side waits for the KV cache, in seconds."""
GENERATING = {"/generate", "/v1/chat/completions", "/v1/completions"}
"""Where both sides of a request have to meet."""
PATIENCE = 300.0
"""Both, in seconds of life, unless the environment says otherwise."""
_LINK = 40 * 2**30
"""Bytes of KV cache a second of life that a card hands over; one port of 400 Gbit/s."""


class Room(NamedTuple):
    """Where the two sides of one request meet."""

    host: str
    """The prefill side's host, or `NOWHERE`."""
    port: int
    """Its bootstrap port."""
    number: int
    """The room's number."""

    @property
    def real(self) -> bool:
        """Whether anything is handed over in it."""
        return self.host != NOWHERE

    @property
    def address(self) -> str:
        """The bootstrap server's address, as log lines have it."""
        return f"{self.host}:{self.port}"


class Queues(NamedTuple):
    """Requests of a decode side that are not in its loop yet."""

    asking: int
    """Those that ask for their prefill worker."""
    waiting: int
    """Those that wait for their KV cache."""
    tokens: int
    """Prompt tokens of the latter, for which room is held."""


class TransferError(Exception):
    """A request's KV cache did not get from one side to the other; the text is the engine's."""


class Side(Protocol):
    """What a worker does of a request beside its own loop."""

    def queues(self) -> Queues | None:
        """What waits before the loop, where the engine's lines say it."""

    async def before(self, room: Room, rid: str, length: int) -> None:
        """Wait until a request of so many prompt tokens may enter the loop.

        Raises:
            TransferError: it never may.
        """

    async def after(self, room: Room, length: int, *, served: bool) -> None:
        """What follows when the loop is through with a request of so many prompt tokens, or it was given up."""

    async def open(self) -> None:
        """Open what the other side needs.

        Raises:
            OSError: somebody holds the port.
        """

    async def close(self) -> None:
        """Let go of it."""


def paired(side: Side, port: int) -> Middleware:
    """A middleware that takes each request that generates through its room.

    Args:
        side: The worker's side.
        port: The bootstrap port of requests that name none.
    """

    @web.middleware
    async def through(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method != "POST" or request.path not in GENERATING:
            return await handler(request)
        body = await read(request)
        length = _length(request.path, body)
        rid = str(body.get("rid") or f"{SystemRandom().getrandbits(128):032x}")
        room = _room(body, port)
        if room is None:
            # The engine's own spelling.
            return error(
                f"Invalid request: Disaggregated request received without boostrap room id. req.rid={rid!r}", 400
            )
        if not room.real:
            return await handler(request)
        try:
            await side.before(room, rid, length)
        except TransferError as failure:
            return await _failed(request, str(failure), streamed=bool(body.get("stream")))
        served = False
        try:
            answered = await handler(request)
            served = answered.status == 200
        finally:
            await side.after(room, length, served=served)
        return answered

    return through


async def _failed(request: web.Request, why: str, *, streamed: bool) -> web.StreamResponse:
    """Nothing came over: 500, or an error event in a stream."""
    if not streamed:
        return error(why, 500)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    document = {"object": "error", "message": why, "type": "InternalServerError", "param": None, "code": 500}
    await response.write(f"data: {json.dumps({'error': document})}\n\ndata: [DONE]\n\n".encode())
    return response


def _length(path: str, body: Mapping[str, Any]) -> int:
    """Prompt tokens of a request; a side looks at what it is asked before it goes to the room.

    Raises:
        ValueError: it makes no sense.
    """
    if path == "/v1/chat/completions":
        return chatted(body).length
    prompt = {"text": body.get("prompt"), "input_ids": body.get("prompt")} if path == "/v1/completions" else body
    return prompted(prompt).length


def _room(body: Mapping[str, Any], port: int) -> Room | None:
    """The room that a request names; None: it names none.

    Args:
        body: The request.
        port: The bootstrap port when it names none.
    """
    number, host = _only(body.get("bootstrap_room")), _only(body.get("bootstrap_host"))
    if number is None:
        return None
    return Room(str(host or "127.0.0.1"), int(_only(body.get("bootstrap_port")) or port), int(number))


def _only(value: Any) -> Any:
    """A value, or the only one of a list, as batch requests spell it."""
    return value[0] if isinstance(value, list) and value else value


def handover(length: int, specimen: Specimen) -> float:
    """Seconds of life that the KV cache of so many tokens takes from one side to the other."""
    return 0.002 + length * specimen.bytes_per_token / _LINK


def patience(environ: Mapping[str, str], variable: str) -> float:
    """A time limit of the environment, in seconds of life."""
    try:
        return float(environ.get(variable) or PATIENCE)
    except ValueError:
        return PATIENCE
