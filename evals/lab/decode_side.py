"""The decode side of a pair: knocks at the prefill side, and waits there until a prompt's KV cache has come over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector

from evals.lab.clock import Clock
from evals.lab.log import Log
from evals.lab.metrics import Metrics
from evals.lab.pair import Queues, Room, TransferError

_HEARTBEAT = 5.0
"""Seconds of life between two looks at a prefill side (`SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL`)."""
_FAILURES = 2
"""Looks in a row without an answer after which it counts as lost (`..._HEARTBEAT_MAX_FAILURE`)."""


class DecodeSide:
    """Fetches what prefill workers have computed.

    Args:
        address: Where this worker serves; prefill workers know it by that.
        session: This start's own name.
        patience: How long a request waits for its KV cache, in seconds of life.
        stale: Asked when a prefill worker turns out to be another start than the one that is known: whether this side
            goes on talking to the one that is gone.
        clock: Serving clock.
        log: Where lines go.
        metrics: Where figures go.
    """

    def __init__(
        self,
        address: str,
        session: str,
        patience: float,
        stale: Callable[[], bool],
        clock: Clock,
        log: Log,
        metrics: Metrics,
    ) -> None:
        self._address = address
        self._session = session
        self._patience = patience
        self._stale = stale
        self._clock = clock
        self._log = log
        self._metrics = metrics
        self._instances: dict[str, str] = {}
        self._rooms: dict[Room, asyncio.Future[str]] = {}
        self._lengths: dict[Room, int] = {}
        self._asking = 0
        self._client: ClientSession | None = None
        self._heart: asyncio.Task[None] | None = None

    def queues(self) -> Queues:
        """Requests that ask, and those that wait with the room that is held for them."""
        return Queues(self._asking, len(self._rooms) - self._asking, sum(self._lengths.values()))

    async def open(self) -> None:
        """Get ready to talk to prefill workers."""
        self._client = ClientSession(connector=TCPConnector(limit=0), timeout=ClientTimeout(total=None))
        self._heart = asyncio.create_task(self._beat(self._client))

    async def close(self) -> None:
        """Hang up."""
        if self._heart is not None:
            self._heart.cancel()
        if self._client is not None:
            await self._client.close()

    async def before(self, room: Room, rid: str, length: int) -> None:
        """Wait for the prompt's KV cache."""
        assert self._client is not None
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._rooms[room], self._lengths[room] = lost, length
        self._show()
        try:
            async with asyncio.timeout(self._clock.wall(self._patience)):
                why = await self._first(asyncio.create_task(self._fetch(self._client, room)), lost)
        except TimeoutError:
            why = f"Request {room.number} timed out after {self._patience:.1f}s in KVPoll.WaitingForInput"
            self._log.rank(
                "Some requests fail to receive KV Cache transfer done signal after bootstrapping. If a greater mean"
                " TTFT is acceptable, you can 'export SGLANG_DISAGGREGATION_WAITING_TIMEOUT=600' (10 minutes) to"
                " relax the timeout condition. "
            )
        finally:
            self._rooms.pop(room, None)
            self._lengths.pop(room, None)
            self._show()
        if why is not None:
            self._metrics.add("num_transfer_failed_reqs_total")
            raise TransferError(
                f"Decode transfer failed for request rank=0 decode_req.req.rid={rid!r}"
                f" decode_req.req.bootstrap_room={room.number} with exception"
                f" KVTransferError(bootstrap_room={room.number}): {why}"
            )

    @staticmethod
    async def _first(transfer: asyncio.Task[str | None], lost: asyncio.Future[str]) -> str | None:
        """Why a transfer failed, or None: by its own word, or by the loss of the other side."""
        try:
            await asyncio.wait((transfer, lost), return_when=asyncio.FIRST_COMPLETED)
            return transfer.result() if transfer.done() else lost.result()
        finally:
            transfer.cancel()
            lost.cancel()

    async def after(self, room: Room, length: int, *, served: bool) -> None:
        """Nothing: the answer is all here."""

    async def _fetch(self, client: ClientSession, room: Room) -> str | None:
        """Knock until the prefill side answers; return why nothing came, or None."""
        tries = 0
        while True:
            try:
                if room.address not in self._instances:
                    self._asking += 1
                    self._show()
                    try:
                        self._instances[room.address] = (await _json(client, room, "route"))["instance"]
                    finally:
                        self._asking -= 1
                        self._show()
                said = await _json(
                    client,
                    room,
                    f"room/{room.number}",
                    {"instance": self._instances[room.address], "session": self._session, "address": self._address},
                )
            except (ClientError, OSError, ValueError, KeyError):
                tries += 1
                if tries == 5:
                    return f"Could not fetch prefill parallel info from {room.address} after {tries} attempts"
                await asyncio.sleep(self._clock.wall(1.0))
                continue
            if not said.get("gone"):
                return None
            if self._stale():
                # The indices go to a worker that is gone: nobody will ever answer.
                await asyncio.Event().wait()
            self._instances.pop(room.address, None)

    async def _beat(self, client: ClientSession) -> None:
        """See whether the prefill sides that are known still live, and forget those that do not."""
        missed: dict[str, int] = {}
        while True:
            await asyncio.sleep(self._clock.wall(_HEARTBEAT))
            for address in list(self._instances):
                try:
                    timeout = ClientTimeout(total=self._clock.wall(_HEARTBEAT))
                    async with client.get(f"http://{address}/health", timeout=timeout) as answer:
                        missed[address] = 0 if answer.status == 200 else missed.get(address, 0) + 1
                except (ClientError, OSError, TimeoutError):
                    missed[address] = missed.get(address, 0) + 1
                if missed[address] >= _FAILURES:
                    missed[address] = 0
                    self._lose(address)

    def _lose(self, address: str) -> None:
        """A prefill side is gone, and with it every request that waits for it."""
        if not self._stale():
            self._instances.pop(address, None)
        waiting = [lost for room, lost in self._rooms.items() if room.address == address and not lost.done()]
        for lost in waiting:
            lost.set_result(f"Lost connection with prefill instance (bootstrap_addr: {address})")
        self._log.rank(
            f"Lost connection with prefill instance (bootstrap_addr: {address}), {len(waiting)} requests affected"
        )

    def _show(self) -> None:
        self._metrics.set("num_decode_prealloc_queue_reqs", self._asking)
        self._metrics.set("num_decode_transfer_queue_reqs", len(self._rooms) - self._asking)


async def _json(client: ClientSession, room: Room, path: str, body: dict[str, str] | None = None) -> dict[str, Any]:
    """What the bootstrap server says.

    Raises:
        ClientError: it cannot be reached.
        ValueError: it says nothing of use.
    """
    async with client.request("GET" if body is None else "POST", f"http://{room.address}/{path}", json=body) as answer:
        if answer.status not in {200, 410}:
            raise ValueError(answer.status)
        said: dict[str, Any] = await answer.json()
        return said
