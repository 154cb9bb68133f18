"""The prefill side of a pair: the bootstrap server, and the rooms in which decode workers wait for prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from aiohttp import web

from evals.lab.clock import Clock
from evals.lab.log import Log
from evals.lab.metrics import Metrics
from evals.lab.pair import Queues, Room, TransferError, handover
from evals.lab.specimen import Specimen

Told = TypeVar("Told")


class PrefillSide:
    """Keeps rooms.

    Args:
        host: Where the bootstrap server listens.
        port: Its port.
        instance: This start's own name; decode workers remember it.
        patience: How long a request waits for its decode worker, in seconds of life.
        stale: Asked when a decode worker comes back under an address that is known: whether this side goes on talking
            to the one that is gone.
        specimen: Model and cards.
        clock: Serving clock.
        log: Where lines go.
        metrics: Where figures go.
    """

    def __init__(
        self,
        host: str,
        port: int,
        instance: str,
        patience: float,
        stale: Callable[[], bool],
        specimen: Specimen,
        clock: Clock,
        log: Log,
        metrics: Metrics,
    ) -> None:
        self._host = host
        self._port = port
        self._instance = instance
        self._patience = patience
        self._stale = stale
        self._specimen = specimen
        self._clock = clock
        self._log = log
        self._metrics = metrics
        self._sessions: dict[str, str] = {}
        self._knocked: dict[int, asyncio.Future[str]] = {}
        self._done: dict[int, asyncio.Future[None]] = {}
        self._waiting = 0
        self._inflight = 0
        self._runner: web.AppRunner | None = None

    def queues(self) -> Queues | None:
        """Nothing that its lines say."""
        return None

    async def open(self) -> None:
        """Open the bootstrap server."""
        application = web.Application()
        application.router.add_get("/health", self._health)
        application.router.add_get("/route", self._route)
        application.router.add_post("/room/{number}", self._room)
        self._runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port, reuse_address=True).start()
        self._log.rank(f"CommonKVBootstrapServer started on {self._host}:{self._port}")

    async def close(self) -> None:
        """Close it."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def before(self, room: Room, rid: str, length: int) -> None:
        """Wait until the decode worker has said where the KV cache is to go."""
        self._count(waiting=1)
        try:
            async with asyncio.timeout(self._clock.wall(self._patience)):
                await asyncio.shield(_of(self._knocked, room.number))
        except TimeoutError:
            self._forget(room)
            self._metrics.add("num_bootstrap_failed_reqs_total")
            self._log.rank(
                "Some requests timed out when bootstrapping, which means prefill instances fail to receive the KV"
                " indices from the decode instance of this request. If a greater mean TTFT is acceptable, you can"
                " 'export SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT=600' (10 minutes) to relax the timeout condition. "
            )
            raise TransferError(
                f"Prefill bootstrap failed for request rank=0 req.rid={rid!r} req.bootstrap_room={room.number} with"
                f" exception KVTransferError(bootstrap_room={room.number}): Request {room.number} timed out after"
                f" {self._patience:.1f}s in KVPoll.Bootstrapping"
            ) from None
        finally:
            self._count(waiting=-1)

    async def after(self, room: Room, length: int, *, served: bool) -> None:
        """Hand the KV cache over, and let the decode worker go on."""
        if not served:
            self._forget(room)
            return
        self._count(inflight=1)
        try:
            await asyncio.sleep(self._clock.wall(handover(length, self._specimen)))
            done = _of(self._done, room.number)
            if not done.done():
                done.set_result(None)
        finally:
            self._count(inflight=-1)
            self._knocked.pop(room.number, None)

    def _forget(self, room: Room) -> None:
        self._knocked.pop(room.number, None)
        self._done.pop(room.number, None)

    def _count(self, *, waiting: int = 0, inflight: int = 0) -> None:
        self._waiting += waiting
        self._inflight += inflight
        self._metrics.set("num_prefill_bootstrap_queue_reqs", self._waiting)
        self._metrics.set("num_prefill_inflight_queue_reqs", self._inflight)

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(text="OK")

    async def _route(self, request: web.Request) -> web.Response:
        """Whom a decode worker talks to from now on."""
        return web.json_response({"instance": self._instance, "rank_ip": self._host, "rank_port": self._port})

    async def _room(self, request: web.Request) -> web.Response:
        """A decode worker knocks and is answered when its prompt is there, or told that it means another start."""
        body: dict[str, Any] = await request.json()
        number, address, session = int(request.match_info["number"]), str(body["address"]), str(body["session"])
        if body["instance"] != self._instance:
            return web.json_response({"gone": True}, status=410)
        known = self._sessions.setdefault(address, session)
        if known != session:
            if self._stale():
                # What is handed over goes to a worker that is gone; whoever waits here waits in vain.
                await asyncio.Event().wait()
            self._sessions[address] = session
        knocked = _of(self._knocked, number)
        if not knocked.done():
            knocked.set_result(session)
        try:
            await asyncio.shield(_of(self._done, number))
        finally:
            self._done.pop(number, None)
        return web.json_response({"success": True})


def _of(among: dict[int, asyncio.Future[Told]], number: int) -> asyncio.Future[Told]:
    """The future of a room, made by whoever comes first."""
    if number not in among:
        among[number] = asyncio.get_running_loop().create_future()
    return among[number]
