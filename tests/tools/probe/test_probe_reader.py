"""An answer is read the same, however its bytes arrive."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import pytest

from tools.on_host import probe

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _chunk(document: object, separators: tuple[str, str] = (",", ":")) -> bytes:
    data = b"data: " + json.dumps(document, separators=separators).encode() + b"\n\n"
    return b"%x\r\n" % len(data) + data + b"\r\n"


def _delta(finish: str | None = None, **other: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": "so"}, "finish_reason": finish}], **other}


PLAIN = _chunk(_delta())
USAGE = _chunk({"choices": [], "usage": {"completion_tokens": 7}})
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
ANSWERS = {
    "tokens": [PLAIN] * 6 + [_chunk(_delta("stop")), USAGE, END],
    "spaces in the JSON": [_chunk(_delta(), (", ", ": "))] * 6 + [_chunk(_delta("stop"), (", ", ": ")), USAGE, END],
    "usage in each chunk": [_chunk(_delta(usage={"completion_tokens": n})) for n in range(1, 7)]
    + [_chunk(_delta("stop", usage={"completion_tokens": 7})), END],
    "two events in a chunk": [
        b"%x\r\n" % (2 * len(b"data: {}\n\n")) + b"data: {}\n\n" * 2 + b"\r\n",
        *[PLAIN] * 6,
        _chunk(_delta("stop")),
        USAGE,
        END,
    ],
    "chunk extensions": [PLAIN.replace(b"\r\n", b";a=b\r\n", 1)] * 6 + [_chunk(_delta("stop")), USAGE, END],
    "an error in the middle": [PLAIN] * 3 + [_chunk({"error": {"message": "out of memory", "code": 500}}), END],
    "words that look like the end": [
        _chunk({"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]})
        for word in ("a", '"finish_reason":"stop"', "[DONE]", '"usage":{', '"error":{', "\n\n")
    ]
    + [_chunk(_delta("length")), USAGE, END],
}


def _read(parts: list[bytes], *, read_all: bool = False) -> tuple[Any, ...]:
    async def reading() -> tuple[Any, ...]:
        reply = probe.Reply(b"", probe.Load(4), streaming=True, read_all=read_all)
        for part in parts:
            reply.get_buffer(len(part))[: len(part)] = part
            reply.buffer_updated(len(part))
        reply.connection_lost(None)
        return reply.kind, reply.why, reply.chunks, reply.tokens, reply.usage, reply.finish

    return asyncio.run(reading())


@pytest.mark.parametrize("name", ANSWERS)
def test_however_the_bytes_are_cut(name: str) -> None:
    """Chunk by chunk, all at once, byte by byte or in any pieces, and parsed to the last event: it is the same."""
    whole = HEAD + b"".join(ANSWERS[name])
    wanted = _read([HEAD, *ANSWERS[name]])

    assert wanted[2] >= 3
    assert _read([whole]) == wanted
    assert _read([whole[at : at + 1] for at in range(len(whole))]) == wanted
    assert _read([HEAD, *ANSWERS[name]], read_all=True) == wanted
    chance = Random(name)
    for _ in range(50):
        cuts = sorted(chance.sample(range(1, len(whole)), chance.randrange(1, 12)))
        assert _read([whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]) == wanted
