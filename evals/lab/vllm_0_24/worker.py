"""The worker's process: argv and environment in, a vLLM 0.24 out."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from aiohttp import web

from evals.lab import private
from evals.lab.books import Books
from evals.lab.clock import Clock, Walk
from evals.lab.failures import KilledError, StandstillError
from evals.lab.failures import StartError as SharedStartError
from evals.lab.faults import Conditions, Faults, build
from evals.lab.metrics import Metrics
from evals.lab.model import Model
from evals.lab.pace import Noise, Pace
from evals.lab.process import absent_of, asks_for_help, become, born, listen
from evals.lab.scheduler import Limits, OutOfMemoryError, Scheduler
from evals.lab.specimen import SPECIMENS, Specimen
from evals.lab.startup import START_NOISE
from evals.lab.vllm_0_24.arguments import Launch, defaults, named, parse, resolve
from evals.lab.vllm_0_24.endpoints import Endpoints
from evals.lab.vllm_0_24.failures import StartError, death, envelope, no_pass, refused
from evals.lab.vllm_0_24.log import VllmLog
from evals.lab.vllm_0_24.memory import allocate
from evals.lab.vllm_0_24.metrics import metrics as metrics_of
from evals.lab.vllm_0_24.reports import INTERVAL, VllmReports
from evals.lab.vllm_0_24.startup import Started, announce, start

_CACHE = "kernels"
"""Where the private folder keeps what earlier starts have compiled."""


def main(argv: Sequence[str], environ: Mapping[str, str], ground: Path) -> None:
    """Run a worker until it is told to end.

    Args:
        argv: The words after the program, `serve` first.
        environ: Its environment.
        ground: The ground that it belongs to.

    Raises:
        SystemExit: 2 for arguments that the engine refuses, 1 for a configuration that it refuses or a start that
            failed, 0 after an end that was asked for.
    """
    nature = private.read(ground)
    specimen = SPECIMENS[nature.specimen]
    clock = Clock(nature.start_speed, born())
    books, shelf = Books(ground), private.Shelf(ground)
    if asks_for_help(argv):
        parse(argv, absent_of(nature, environ, shelf))
    become(argv, environ, nature, books, shelf)
    boot = books.boot = private.next_boot(ground)
    books.launched(argv, environ)
    chance = Random(f"{nature.seed}/{boot}")
    faults = build(nature.faults, f"{nature.seed}/{boot}", shelf)
    early = Conditions(nature.engine, nature.version, boot, environ=environ)
    log = VllmLog(os.getpid(), level=environ.get("VLLM_LOGGING_LEVEL", "INFO"))
    environ = faults.felt(environ, early)
    noise = Noise(nature.boot_noise, nature.run_noise)
    stretch = math.exp(Random(chance.random()).gauss(0.0, START_NOISE * nature.boot_noise))
    walk = Walk(clock, stretch, faults.lived)
    values, launch, obeyed, port = _understood(argv, specimen, faults, early, walk, log)
    log = log.shared(launch.values["tensor_parallel_size"])
    faults.meet(_conditions(obeyed, values, early, environ))
    key = f"{obeyed.model} {obeyed.batched} {obeyed.values['tensor_parallel_size']} {obeyed.capture.mode}"
    known = shelf.read(_CACHE) or []

    def go() -> Started:
        found = specimen._replace(cards=faults.card(specimen.cards))
        slight = Random(chance.random())
        warm = key in known or not nature.cold
        return start(obeyed, found, environ, walk, log, chance=slight, compiled=warm, faults=faults, echoed=launch)

    started = _come_up(go, clock, log, books)
    shelf.write(_CACHE, sorted({*known, key}))
    faults.ready()
    pace = Pace(specimen.curve, started.sizes, overlap=launch.asynchronous, noise=noise, chance=Random(chance.random()))
    books.write(
        "ready",
        places=[launch.seqs, started.seqs],
        captured=[launch.capture.largest or 0, max(started.sizes, default=0)],
        tokens=[_due(launch, specimen, environ), started.allocation.tokens],
        memory={
            "free": started.allocation.free,
            "weights": started.allocation.weights,
            "estimate": started.allocation.estimate,
            "pool": started.allocation.pool,
            "graphs": started.graphs,
        },
        sizes=launch.capture.sizes,
    )
    serving = Clock(nature.serve_speed)
    counted = metrics_of(launch, started.allocation, os.getpid())
    reports = VllmReports(
        started.allocation.tokens, serving, log, counted, quiet=bool(launch.values["disable_log_stats"])
    )

    def schedule() -> Scheduler:
        return Scheduler(
            _limits(obeyed, started), pace, faults, specimen, serving, reports, books, Model(nature.errors, nature.seed)
        )

    served = _Served(launch, started, specimen, environ, serving, log, counted, reports, faults, books)
    raise SystemExit(asyncio.run(served.run(schedule, port, Random(chance.random()))))


def _understood(
    argv: Sequence[str], specimen: Specimen, faults: Faults, early: Conditions, walk: Walk, log: VllmLog
) -> tuple[dict[str, Any], Launch, Launch, socket.socket]:
    """The arguments as asked, as the engine echoes them and as it goes by them; and the port, held already.

    Raises:
        SystemExit: 2 for what the parser refuses, 1 for a configuration that is refused or a port that is held.
    """
    try:
        values = named(parse(argv, faults.absent(early)), log)
        port = listen(values["host"] or "0.0.0.0", values["port"])
        announce(values, walk, log)
        turned = faults.turn(values, early)
        launch = resolve(turned, specimen)
        heeded = faults.heed(turned, defaults(), early)
        return values, launch, resolve(heeded, specimen) if heeded != turned else launch, port
    except KilledError:
        os.kill(os.getpid(), signal.SIGKILL)
    except (ValueError, TypeError, OSError) as failure:
        log.spoken(refused(failure), engine=False)
    raise SystemExit(1)


def _due(launch: Launch, specimen: Specimen, environ: Mapping[str, str]) -> int:
    """Tokens that the KV pool should have by the formulas."""
    return allocate(launch, specimen, environ).tokens


def _come_up(go: Callable[[], Started], clock: Clock, log: VllmLog, books: Books) -> Started:
    """Start, or end as failed starts end."""
    try:
        return go()
    except StandstillError:
        books.write("hung")
        while True:
            signal.pause()
    except KilledError:
        books.write("killed")
        os.kill(os.getpid(), signal.SIGKILL)
    except (StartError, SharedStartError) as failure:
        for pause in envelope(str(failure), log):
            time.sleep(clock.wall(pause))
    raise SystemExit(1)


def _conditions(
    launch: Launch, values: Mapping[str, object], early: Conditions, environ: Mapping[str, str]
) -> Conditions:
    """How the worker is started, for the faults; what both engines have goes by SGLang's name too."""
    both = {
        "disable_radix_cache": not launch.prefixes,
        "disable_overlap_schedule": not launch.asynchronous,
        "tp_size": launch.values["tensor_parallel_size"],
        "max_running_requests": launch.seqs,
        "chunked_prefill_size": launch.batched,
        "speculative_algorithm": (launch.values["speculative_config"] or {}).get("method"),
    }
    # vLLM's switch of the side streams says the opposite of SGLang's.
    streams = "0" if environ.get("VLLM_DISABLE_SHARED_EXPERTS_STREAM", "0") == "1" else "1"
    return early._replace(
        overlap=launch.asynchronous,
        captured=max(launch.capture.full or launch.capture.piecewise, default=0),
        tp=launch.values["tensor_parallel_size"],
        running=launch.seqs,
        fraction=launch.values["gpu_memory_utilization"],
        chunk=launch.batched,
        arguments={**both, **launch.values},
        asked=values,
        environ={"SGLANG_OPT_USE_MULTI_STREAM_OVERLAP": streams, **environ},
    )


def _limits(launch: Launch, started: Started) -> Limits:
    return Limits(
        running=started.seqs,
        queued=None,
        tokens=started.allocation.tokens,
        chunk=launch.batched,
        free=started.free,
        cached=launch.prefixes,
    )


class _Served:
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
        beside.append(asyncio.create_task(self._books.keep(scheduler, self._clock)))
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
