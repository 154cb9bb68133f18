"""A process whose clock stands still until nothing else is left to do, and then jumps."""

from __future__ import annotations

import asyncio
import socket
import time
import types

import pytest
from aiohttp import ClientSession, web

from evals.lab.virtual import EPOCH, VirtualLoop, VirtualTime


def ran(work):
    """What came of a coroutine, and the second of virtual time at which it ended."""
    clock, opened = VirtualTime(), []
    loop = VirtualLoop(clock, lambda: opened.append(clock.now))
    try:
        return loop.run_until_complete(work), clock.now, opened
    finally:
        loop.close()


def test_an_hour_of_waiting_takes_no_time():
    """Timers ring in their order, however far they lie apart, and nobody waits."""

    async def work():
        heard = []

        async def ring(seconds):
            await asyncio.sleep(seconds)
            heard.append(seconds)

        await asyncio.gather(*(ring(seconds) for seconds in (3600, 1, 60)))
        return heard

    begun = time.monotonic()
    heard, now, _ = ran(work())
    assert heard == [1, 60, 3600]
    assert now == 3600
    assert time.monotonic() - begun < 60


def test_a_server_is_reached_from_the_same_loop_and_time_passes_only_in_its_handler():
    """An answer that takes three seconds takes three seconds of virtual time, and its bytes take none."""

    async def work():
        async def answer(_):
            await asyncio.sleep(3)
            return web.Response(text="x" * 1_000_000)

        application = web.Application()
        application.router.add_get("/", answer)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        await web.SockSite(runner, listening).start()
        async with ClientSession() as client:
            asked = await asyncio.gather(*(client.get(f"http://127.0.0.1:{port}/") for _ in range(8)))
            bodies = [len(await one.text()) for one in asked]
        await runner.cleanup()
        return bodies

    bodies, now, opened = ran(work())
    assert bodies == [1_000_000] * 8
    assert now == 3
    assert opened == [0.0]


def test_nobody_listens_where_nothing_is_served():
    """A port of the machine is none of this network's."""

    async def work():
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", 9)

    ran(work())


def test_a_standstill_is_said_and_not_waited_for():
    """Where nothing could ever happen again, the loop says so."""
    with pytest.raises(RuntimeError, match="nothing is left"):
        ran(asyncio.Event().wait())


def test_a_clock_that_is_replaced_tells_virtual_time():
    """Everything that a worker asks a `time` module for follows the virtual time."""
    clock = types.SimpleNamespace(**{name: getattr(time, name) for name in dir(time) if not name.startswith("_")})
    virtual = VirtualTime()
    virtual.replace(clock)
    clock.sleep(90.5)
    assert (clock.monotonic(), clock.perf_counter(), clock.time()) == (90.5, 90.5, EPOCH + 90.5)
    assert clock.strftime("%S", clock.gmtime()) == time.strftime("%S", time.gmtime(EPOCH + 90.5))
