"""The router before a pair: gives each request a room, sends it to both sides, and passes the decode side's answer on.

It behaves like the small load balancer that comes with SGLang's router (`--pd-disaggregation --mini-lb`): sides are
drawn at random, the prefill side's own answer is read and dropped, and nobody is looked after: a side that is down is
an error for whoever asks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Sequence
from random import SystemRandom
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, TCPConnector, web

_BOOTSTRAP = 8998
_HOP = {"transfer-encoding", "content-length", "connection", "server", "date", "content-encoding"}


class Prefill(NamedTuple):
    """A prefill worker."""

    url: str
    """Its address."""
    bootstrap: int
    """Its bootstrap port."""


class Router:
    """Sends requests to both sides.

    Args:
        prefills: The prefill workers.
        decodes: Addresses of the decode workers.
        timeout: Longest time that a request may take, in seconds.
    """

    def __init__(self, prefills: Sequence[Prefill], decodes: Sequence[str], timeout: float) -> None:
        self._prefills = prefills
        self._decodes = decodes
        self._timeout = timeout
        self._chance = SystemRandom()
        self._client: ClientSession | None = None

    def application(self) -> web.Application:
        """Everything that is answered."""
        made = web.Application(client_max_size=64 * 2**20)
        made.router.add_get("/health", self.health)
        made.router.add_get("/health_generate", self.health_generate)
        made.router.add_post("/flush_cache", self.flush_cache)
        for path in ("/generate", "/v1/chat/completions", "/v1/completions"):
            made.router.add_post(path, self.serve)
        for path in ("/v1/models", "/model_info", "/get_model_info"):
            made.router.add_get(path, self.of_prefill)
        for path in ("/server_info", "/get_server_info"):
            made.router.add_get(path, self.server_info)
        made.cleanup_ctx.append(self._connected)
        made.on_response_prepare.append(_noted)
        return made

    async def _connected(self, _: web.Application) -> Any:
        async with ClientSession(
            connector=TCPConnector(limit=0), timeout=ClientTimeout(total=self._timeout), auto_decompress=False
        ) as self._client:
            yield

    @property
    def client(self) -> ClientSession:
        """The connections to both sides."""
        assert self._client is not None
        return self._client

    async def health(self, request: web.Request) -> web.Response:
        """That the router itself is there."""
        return web.Response()

    async def health_generate(self, request: web.Request) -> web.Response:
        """Ask every worker to generate; 503 where one does not."""
        urls = [f"{url}/health_generate" for url in (*(one.url for one in self._prefills), *self._decodes)]
        answers = await asyncio.gather(*(_status(self.client.get(url)) for url in urls))
        return web.Response(status=200 if set(answers) == {200} else 503)

    async def flush_cache(self, request: web.Request) -> web.Response:
        """Have every worker forget cached prompts."""
        urls = [f"{url}/flush_cache" for url in (*(one.url for one in self._prefills), *self._decodes)]
        await asyncio.gather(*(_status(self.client.post(url)) for url in urls))
        return web.Response()

    async def of_prefill(self, request: web.Request) -> web.Response:
        """What the first prefill worker says."""
        async with self.client.get(f"{self._prefills[0].url}{request.path}") as answer:
            return web.Response(body=await answer.read(), status=answer.status, content_type=answer.content_type)

    async def server_info(self, request: web.Request) -> web.Response:
        """What all of them say."""
        prefill = [await self._json(f"{one.url}/server_info") for one in self._prefills]
        decode = [await self._json(f"{url}/server_info") for url in self._decodes]
        states = [state for one in decode for state in one.get("internal_states", [])]
        return web.json_response({"internal_states": states, "prefill": prefill, "decode": decode})

    async def _json(self, url: str) -> dict[str, Any]:
        async with self.client.get(url) as answer:
            said: dict[str, Any] = await answer.json()
            return said

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer one request by both sides."""
        try:
            body = json.loads(await request.read())
        except ValueError:
            body = None
        if not isinstance(body, dict):
            return web.json_response({"detail": "the body is no JSON object"}, status=400)
        prefill, decode = self._chance.choice(self._prefills), self._chance.choice(self._decodes)
        body["bootstrap_host"] = urlsplit(prefill.url).hostname
        body["bootstrap_port"] = prefill.bootstrap
        body["bootstrap_room"] = self._chance.getrandbits(63)
        computed = asyncio.create_task(_whole(self.client.post(f"{prefill.url}{request.path}", json=body)))
        decoded = asyncio.create_task(_begun(self.client.post(f"{decode}{request.path}", json=body)))
        try:
            await asyncio.wait((computed, decoded), return_when=asyncio.FIRST_COMPLETED)
            if not decoded.done() and computed.result().status != 200:
                # The decode side would wait for a prompt that nobody computes.
                refused = computed.result()
                return web.Response(body=refused.body, status=refused.status, content_type=refused.kind)
            async with await decoded as answer:
                return await _passed(request, answer)
        finally:
            # A client that goes away takes both requests with it.
            for asked in (computed, decoded):
                asked.cancel()
            await asyncio.gather(computed, decoded, return_exceptions=True)


@web.middleware
async def unreachable(request: web.Request, handler: Any) -> web.StreamResponse:
    """A worker that does not answer is a 502 that says which."""
    try:
        answered: web.StreamResponse = await handler(request)
    except (ClientError, TimeoutError) as failure:
        return web.json_response({"detail": f"Failed to reach a worker: {failure!r}"}, status=502)
    return answered


async def _passed(request: web.Request, answer: ClientResponse) -> web.StreamResponse:
    """Hand an answer on as it comes."""
    headers = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
    passed = web.StreamResponse(status=answer.status, headers=headers)
    await passed.prepare(request)
    try:
        async for part in answer.content.iter_any():
            await passed.write(part)
        await passed.write_eof()
    except (ClientError, TimeoutError):
        # The head is out; a stream that broke off can only be broken off.
        if request.transport is not None:
            request.transport.abort()
    return passed


class _Whole(NamedTuple):
    """An answer that was read to its end."""

    status: int
    body: bytes
    kind: str


async def _whole(asked: Awaitable[ClientResponse]) -> _Whole:
    response = await asked
    async with response:
        return _Whole(response.status, await response.read(), response.content_type)


async def _begun(asked: Awaitable[ClientResponse]) -> ClientResponse:
    return await asked


async def _status(asked: Awaitable[ClientResponse]) -> int:
    """Status of an answer; 0: none."""
    try:
        response = await asked
        async with response:
            await response.read()
            return response.status
    except (ClientError, TimeoutError):
        return 0


async def _noted(request: web.Request, response: web.StreamResponse) -> None:
    """The access line."""
    peer = request.transport.get_extra_info("peername") if request.transport else None
    host, port = peer[:2] if peer else ("127.0.0.1", 0)
    _print(
        f'INFO:     {host}:{port} - "{request.method} {request.path_qs} HTTP/1.1" {response.status} {response.reason}'
    )


def _print(line: str) -> None:
    print(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {line}", flush=True)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the arguments.

    Raises:
        SystemExit: 2, for arguments that the router does not take.
    """
    words = argparse.ArgumentParser(prog="launch_router.py")
    words.add_argument("--host", default="0.0.0.0")
    words.add_argument("--port", type=int, default=30000)
    words.add_argument("--pd-disaggregation", action="store_true")
    words.add_argument("--mini-lb", action="store_true")
    words.add_argument("--prefill", nargs="+", action="append", required=True, metavar="URL [BOOTSTRAP_PORT]")
    words.add_argument("--decode", action="append", required=True, metavar="URL")
    words.add_argument("--policy", default="random", choices=["random"])
    words.add_argument("--request-timeout-secs", type=int, default=1800)
    read = words.parse_args(argv)
    if not (read.pd_disaggregation and read.mini_lb):
        words.error("this router only knows --pd-disaggregation with --mini-lb")
    if any(len(one) > 2 or not all(part.isdigit() for part in one[1:]) for one in read.prefill):
        words.error("--prefill takes an address and a port")
    return read


def main(argv: Sequence[str]) -> int:
    """Run a router until it is told to end.

    Returns:
        The exit status.
    """
    read = parse(argv)
    prefills = [Prefill(url.rstrip("/"), int(port[0]) if port else _BOOTSTRAP) for url, *port in read.prefill]
    decodes = [url.rstrip("/") for url in read.decode]
    _print(f"Router for PD disaggregation: prefill {[one.url for one in prefills]}, decode {decodes}")
    application = Router(prefills, decodes, read.request_timeout_secs).application()
    application.middlewares.append(unreachable)
    web.run_app(
        application,
        host=read.host,
        port=read.port,
        print=None,
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=1.0,
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
