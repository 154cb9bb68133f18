"""What people write by hand to load a server: `python -m evals.bench.plain_clients KIND URL STREAMS TOKENS`.

KIND is `aiohttp` or `openai`. After a warm-up burst as the probe sends it, one burst is measured, and what was seen is
printed as JSON: time to first token of each stream, tokens, seconds of the burst, and CPU seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import aiohttp

Send = Callable[[int], Awaitable["Seen"]]
"""Sends one request for so many tokens."""


class Seen(NamedTuple):
    """One stream, as its client saw it."""

    first: float
    """Seconds until its first token."""
    tokens: int
    """Chunks with content."""


async def burst(send: Send, streams: int, tokens: int) -> dict[str, object]:
    """Send so many at once, and report what was seen."""
    wall, cpu = time.perf_counter(), time.process_time()
    seen = await asyncio.gather(*(send(tokens) for _ in range(streams)))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"ttft": [one.first for one in seen], "tokens": sum(one.tokens for one in seen), "wall": wall, "cpu": cpu}


async def with_aiohttp(url: str, streams: int, tokens: int) -> dict[str, object]:
    """Two bursts through one aiohttp session; the second counts."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def send(count: int) -> Seen:
            document = {
                "model": "mock",
                "messages": [{"role": "user", "content": "Go on."}],
                "max_tokens": count,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            start, first, seen = time.perf_counter(), 0.0, 0
            async with session.post(f"{url}/v1/chat/completions", json=document) as answer:
                async for line in answer.content:
                    if not line.startswith(b"data: {"):
                        continue
                    event = json.loads(line[6:])
                    if event["choices"] and event["choices"][0]["delta"].get("content"):
                        first = first or time.perf_counter() - start
                        seen += 1
            return Seen(first, seen)

        await burst(send, streams, max(8, tokens // 4))
        return await burst(send, streams, tokens)


async def with_openai(url: str, streams: int, tokens: int) -> dict[str, object]:
    """Two bursts through the openai SDK; the second counts."""
    # By name, since the reasoner is to be the SDK's only importer: a rule for the product; here the SDK is measured.
    openai = importlib.import_module("openai")
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:

        async def send(count: int) -> Seen:
            start, first, seen = time.perf_counter(), 0.0, 0
            stream = await client.chat.completions.create(
                model="mock",
                messages=[{"role": "user", "content": "Go on."}],
                max_tokens=count,
                stream=True,
                stream_options={"include_usage": True},
            )
            async for event in stream:
                if event.choices and event.choices[0].delta.content:
                    first = first or time.perf_counter() - start
                    seen += 1
            return Seen(first, seen)

        await burst(send, streams, max(8, tokens // 4))
        return await burst(send, streams, tokens)


def main(arguments: Sequence[str] | None = None) -> int:
    """Load the server and print what was seen.

    Args:
        arguments: Command line without the program's name; None: the process's own.
    """
    parser = argparse.ArgumentParser(prog="python -m evals.bench.plain_clients")
    parser.add_argument("kind", choices=("aiohttp", "openai"))
    parser.add_argument("url")
    parser.add_argument("streams", type=int)
    parser.add_argument("tokens", type=int)
    wanted = parser.parse_args(arguments)
    load = with_aiohttp if wanted.kind == "aiohttp" else with_openai
    print(json.dumps(asyncio.run(load(wanted.url, wanted.streams, wanted.tokens))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
