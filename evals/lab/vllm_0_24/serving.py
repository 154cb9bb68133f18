"""A started vLLM until its end: the port, the line of every ten seconds, and how it goes down."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import traceback
from collections.abc import Callable, Mapping
from random import Random

from aiohttp import web

from evals.lab.books import Books
from evals.lab.cards import Held
from evals.lab.clock import Clock
from evals.lab.failures import KilledError
from evals.lab.faults import Faults
from evals.lab.metrics import Metrics
from evals.lab.scheduler import OutOfMemoryError, Scheduler
from evals.lab.specimen import Specimen
from evals.lab.vllm_0_24.arguments import Launch
from evals.lab.vllm_0_24.endpoints import Endpoints
from evals.lab.vllm_0_24.failures import death, no_pass
from evals.lab.vllm_0_24.log import VllmLog
from evals.lab.vllm_0_24.reports import INTERVAL, VllmReports
from evals.lab.vllm_0_24.startup import Started


class Serving:
    """A started worker, until its end.

    Args:
        launch: How it was started.
        started: What came of it.
        specimen: Model and cards.
        environ: Its environment.
        clock: Serving clock.
        log: Where lines go.
        counted: Its metrics.
        reports: Its line every ten seconds.
        faults: What is wrong with it.
        books: Where it is written down what came of that.
    """

    def __init__(
        self,
        launch: Launch,
        started: Started,
        specimen: Specimen,
        environ: Mapping[str, str],
        clock: Clock,
        log: VllmLog,
        counted: Metrics,
        reports: VllmReports,
        faults: Faults,
        books: Books,
    ) -> None:
        self._launch = launch
        self._started = started
        self._specimen = specimen
        self._environ = environ
        self._clock = clock
        self._log = log
        self._counted = counted
        self._reports = reports
        self._faults = faults
        self._books = books

    async def run(self, schedule: Callable[[], Scheduler], port: socket.socket, chance: Random) -> int:
        """Serve until a signal or a failure ends it; return the exit status."""
        scheduler = schedule()
        log = self._log
        log.server("Supported tasks: ['generate']", "api_server.py:592")
        if self._launch.values["enable_auto_tool_choice"]:
            log.server('"auto" tool choice has been enabled.', "parser_manager.py:202")
        values = self._launch.values
        log.server(
            f"Starting vLLM server on http://{values['host'] or '0.0.0.0'}:{values['port']}", "api_server.py:596"
        )
        endpoints = Endpoints(
            self._launch, self._started, self._specimen, self._environ, scheduler, log, self._counted, chance
        )
        leaving = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, leaving.set)
        runner = web.AppRunner(
            endpoints.application(), access_log=None, handler_cancellation=True, shutdown_timeout=1.0
        )
        log.uvicorn(f"INFO:     Started server process [{os.getpid()}]")
        log.uvicorn("INFO:     Waiting for application startup.")
        await runner.setup()
        await web.SockSite(runner, port, backlog=2048).start()
        log.uvicorn("INFO:     Application startup complete.")
        loop = asyncio.create_task(scheduler.run())
        beside = [asyncio.create_task(fault.attend(scheduler, self._clock)) for fault in self._faults.companions()]
        held = Held(self._specimen.cards, values["tensor_parallel_size"])
        beside.append(asyncio.create_task(self._books.keep(scheduler, self._clock, held)))
        beside.append(asyncio.create_task(self._speak(scheduler)))
        end = asyncio.create_task(leaving.wait())
        await asyncio.wait({loop, end}, return_when=asyncio.FIRST_COMPLETED)
        lost = loop.done()
        if lost:
            self._die(loop, endpoints)
        else:
            await self._end(endpoints)
        for task in (*beside, loop, end):
            task.cancel()
        log.uvicorn("INFO:     Shutting down")
        await runner.cleanup()
        log.uvicorn("INFO:     Waiting for application shutdown.")
        log.uvicorn("INFO:     Application shutdown complete.")
        log.uvicorn(f"INFO:     Finished server process [{os.getpid()}]")
        return int(lost)

    async def _speak(self, scheduler: Scheduler) -> None:
        """The line of every ten seconds."""
        while True:
            await asyncio.sleep(self._clock.wall(INTERVAL))
            self._reports.speak(scheduler.load)

    def _die(self, loop: asyncio.Task[None], endpoints: Endpoints) -> None:
        """What follows when the engine is lost while serving: everybody is told, and the server ends."""
        failure = loop.exception()
        self._books.write("lost", why=repr(failure))
        if isinstance(failure, KilledError):
            os.kill(os.getpid(), signal.SIGKILL)
        if isinstance(failure, OutOfMemoryError):
            said = no_pass(failure.needed, failure.free, self._specimen)
        else:
            said = "".join(traceback.format_exception(failure)) if failure else "the loop ended"
        death(said, self._log)
        endpoints.answers.release()

    async def _end(self, endpoints: Endpoints) -> None:
        """An end that was asked for: open requests get `--shutdown-timeout` seconds, none by default."""
        patience = float(self._launch.values["shutdown_timeout"])
        self._log.engine(f"Shutdown initiated (timeout={patience:g})", "core.py:1238")
        until = self._clock.now() + patience
        while endpoints.answers.open_requests and self._clock.now() < until:
            await asyncio.sleep(0.02)
        if not endpoints.answers.open_requests:
            self._faults.left()
            self._books.write("left")
        endpoints.answers.release()
        self._log.engine("Shutdown complete", "core.py:1261")
