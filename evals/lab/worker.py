"""The worker's process: argv and environment in, an SGLang 0.5.14 decode worker out."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

from aiohttp import ClientSession, web

from evals.lab import private
from evals.lab.arguments import Launch, parse, recorded, resolve
from evals.lab.books import Books
from evals.lab.cards import Held
from evals.lab.clock import Clock
from evals.lab.dialect import Dialect
from evals.lab.endpoints import Endpoints
from evals.lab.failures import KilledError, StandstillError, StartError, envelope, pass_failure, refused
from evals.lab.faults import Conditions, Faults, build
from evals.lab.kernels import CompilingPace, Kernels
from evals.lab.log import Log
from evals.lab.memory import allocate, truncated
from evals.lab.metrics import Metrics
from evals.lab.model import Model
from evals.lab.pace import Noise
from evals.lab.pair import NOWHERE, Side, paired
from evals.lab.process import absent_of, asks_for_help, become, born, listen
from evals.lab.reports import SglangReports
from evals.lab.scheduler import ADMISSION_RATIO, Limits, OutOfMemoryError, Scheduler
from evals.lab.sides import side_of
from evals.lab.specimen import SPECIMENS, Specimen
from evals.lab.startup import START_NOISE, Started, start

_WARNING = """{path}:55: UserWarning: 'python -m sglang.launch_server' is still supported, but 'sglang serve' is the \
recommended entrypoint.
  Example: sglang serve --model-path <model> [options]
  warnings.warn("""


def main(argv: Sequence[str], environ: Mapping[str, str], ground: Path, program: str) -> None:
    """Run a worker until it is told to end.

    Args:
        argv: The words after the program.
        environ: Its environment.
        ground: The ground that it belongs to.
        program: Path of the launched file, for the warning at the start.

    Raises:
        SystemExit: 2 for arguments that the engine refuses, 1 where its configuration does.
    """
    nature = private.read(ground)
    specimen = SPECIMENS[nature.specimen]
    clock = Clock(nature.start_speed, born())
    print(_WARNING.format(path=program), file=sys.stderr, flush=True)
    books = Books(ground)
    if asks_for_help(argv):
        parse(argv, absent_of(nature, environ, private.Shelf(ground)), Dialect(nature.version))
    become(argv, environ, nature, books, private.Shelf(ground))
    boot = books.boot = private.next_boot(ground)
    books.launched(argv, environ)
    chance = Random(f"{nature.seed}/{boot}")
    faults = build(nature.faults, f"{nature.seed}/{boot}", private.Shelf(ground))
    early = Conditions(nature.engine, nature.version, boot, environ=environ)
    dialect = Dialect(nature.version)
    values = _parsed(argv, faults.absent(early), dialect)
    turned = faults.turn(values, early)
    environ = faults.felt(environ, early)
    launch, obeyed = _resolved(turned, specimen, chance.getrandbits(30), faults, early, dialect)
    log = Log(launch.arguments["tp_size"], milliseconds=_switched(environ, "SGLANG_LOG_MS"))
    noise = Noise(nature.boot_noise, nature.run_noise)
    overlap = not launch.arguments["disable_overlap_schedule"]
    kernels = Kernels(private.Shelf(ground), specimen, cold=nature.cold)
    stretch = math.exp(Random(chance.random()).gauss(0.0, START_NOISE * nature.boot_noise))
    faults.meet(_conditions(obeyed, values, early, environ))

    def go() -> Started:
        found = specimen._replace(cards=faults.card(specimen.cards))
        slight = Random(chance.random())
        return start(
            obeyed, found, environ, clock, log, stretch=stretch, chance=slight, faults=faults, echoed=launch,
            compiling=kernels.starting(),
        )  # fmt: skip

    started = _come_up(go, clock, log, books)
    pace = CompilingPace(
        specimen.curve, started.sizes, overlap=overlap, noise=noise, chance=Random(chance.random()), kernels=kernels
    )
    faults.ready()
    _note_start(books, launch, specimen, started, [name for name in values if values[name] != turned[name]])
    serving = Clock(nature.serve_speed)
    mode = launch.arguments["disaggregation_mode"]
    kind = "unified" if mode == "null" else mode
    metrics = Metrics.sglang(launch.arguments["served_model_name"], os.getpid(), engine_type=kind)
    name = f"{SystemRandom().getrandbits(64):016x}"

    def stale() -> bool:
        held = faults.stale()
        if held:
            books.note("stale", "a start of the other side that is gone")
        return held

    side = side_of(launch.arguments, environ, name, stale, specimen, serving, log, metrics)

    model = Model(nature.errors, nature.seed)

    def schedule() -> Scheduler:
        tokens, interval = started.allocation.tokens, launch.arguments["decode_log_interval"]
        numbered = _switched(environ, "SGLANG_LOG_FORWARD_ITERS")
        queues = side.queues if side is not None else lambda: None
        reports = SglangReports(
            tokens, interval, ADMISSION_RATIO, specimen, serving, log, metrics, numbered=numbered, queues=queues
        )
        return Scheduler(_limits(obeyed, started), pace, faults, specimen, serving, reports, books, model)

    seed = Random(chance.random())
    asyncio.run(_serve(launch, started, specimen, schedule, side, serving, log, metrics, seed, faults, books, environ))


def _parsed(argv: Sequence[str], absent: frozenset[str], dialect: Dialect) -> dict[str, Any]:
    """The arguments as parsed.

    Raises:
        SystemExit: 2 for what the parser refuses, 1 for a configuration file that is none.
    """
    try:
        return parse(argv, absent, dialect)
    except (OSError, ValueError) as failure:
        print(refused(failure), file=sys.stderr, flush=True)
        raise SystemExit(1) from None


def _resolved(
    values: dict[str, Any], specimen: Specimen, seed: int, faults: Faults, early: Conditions, dialect: Dialect
) -> tuple[Launch, Launch]:
    """The arguments as the engine echoes them, and those that it goes by.

    Raises:
        SystemExit: 1, for combinations that the engine refuses.
    """
    heeded = faults.heed(values, recorded()["server_args"], early)
    try:
        launch = resolve(values, specimen, seed, dialect)
        return launch, resolve(heeded, specimen, seed, dialect) if heeded != values else launch
    except ValueError as failure:
        print(refused(failure), file=sys.stderr, flush=True)
        raise SystemExit(1) from None


def _switched(environ: Mapping[str, str], name: str) -> bool:
    """Whether a variable that is off by default is on."""
    return environ.get(name, "").lower() in {"1", "true", "yes", "on", "y"}


def _come_up(go: Callable[[], Started], clock: Clock, log: Log, books: Books) -> Started:
    """Start, or end as failed starts end."""
    try:
        return go()
    except StandstillError:
        books.write("hung")
        while True:
            signal.pause()
    except KilledError:
        books.write("killed")
    except StartError as failure:
        for pause in envelope(str(failure), log, os.getpid()):
            time.sleep(clock.wall(pause))
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("not reached")


def _conditions(
    launch: Launch, values: Mapping[str, object], early: Conditions, environ: Mapping[str, str]
) -> Conditions:
    """How the worker is started, for the faults."""
    arguments = launch.arguments
    sizes = truncated(launch.sizes, arguments["max_running_requests"] or max(launch.sizes, default=0))
    return early._replace(
        overlap=not arguments["disable_overlap_schedule"],
        captured=max(sizes, default=0),
        tp=arguments["tp_size"],
        running=arguments["max_running_requests"] or 0,
        fraction=arguments["mem_fraction_static"],
        chunk=arguments["chunked_prefill_size"],
        arguments=arguments,
        asked=values,
        environ=environ,
    )


def _note_start(books: Books, launch: Launch, specimen: Specimen, started: Started, turned: Sequence[str]) -> None:
    """Write down what was asked for, by the formulas, and what it came to."""
    due = allocate(launch.arguments, specimen)
    books.write(
        "ready",
        places=[due.requests, started.allocation.requests],
        captured=[max(truncated(launch.sizes, due.requests), default=0), max(started.sizes, default=0)],
        tokens=[due.tokens, started.allocation.tokens],
        turned=turned,
    )


def _limits(launch: Launch, started: Started) -> Limits:
    arguments = launch.arguments
    chunk = arguments["chunked_prefill_size"]
    return Limits(
        running=started.allocation.requests,
        queued=arguments["max_queued_requests"],
        tokens=started.allocation.tokens,
        chunk=min(chunk if chunk > 0 else arguments["max_prefill_tokens"], arguments["max_prefill_tokens"]),
        free=started.free,
        cached=not arguments["disable_radix_cache"],
        mode=arguments["disaggregation_mode"],
    )


async def _serve(
    launch: Launch,
    started: Started,
    specimen: Specimen,
    schedule: Callable[[], Scheduler],
    side: Side | None,
    clock: Clock,
    log: Log,
    metrics: Metrics,
    chance: Random,
    faults: Faults,
    books: Books,
    environ: Mapping[str, str],
) -> None:
    """Open the port, warm up, and serve until a signal or a failure ends it."""
    scheduler = schedule()
    endpoints = Endpoints(
        launch, started.allocation, started.graphs, specimen, scheduler, clock, log, metrics,
        Random(chance.random()), environ,
    )  # fmt: skip
    _first_gauges(launch, started, specimen, metrics)
    leaving = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leaving.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, leaving.set)
    application = endpoints.application()
    if side is not None:
        application.middlewares.append(paired(side, launch.arguments["disaggregation_bootstrap_port"]))
    runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    log.server(f"INFO:     Started server process [{os.getpid()}]")
    log.server("INFO:     Waiting for application startup.")
    if launch.arguments["skip_tokenizer_init"]:
        log.server("Failed to get yes/no token IDs dynamically: 'NoneType' object has no attribute 'encode'")
        log.server("Using fallback token IDs for yes/no (9693/2152)")
    await runner.setup()
    log.server("INFO:     Application startup complete.")
    host, port = launch.arguments["host"], launch.arguments["port"]
    try:
        listening = listen(host, port)
        if side is not None:
            await side.open()
    except OSError as failure:
        log.server(
            f"ERROR:    [Errno {failure.errno}] error while attempting to bind on address ({host!r}, {port}):"
            " address already in use"
        )
        log.server("INFO:     Waiting for application shutdown.")
        log.server("INFO:     Application shutdown complete.")
        raise SystemExit(1) from None
    await web.SockSite(runner, listening, backlog=2048).start()
    log.server(f"INFO:     Uvicorn running on http://{host}:{port} (Press CTRL+C to quit)")
    loop = asyncio.create_task(scheduler.run())
    warm = asyncio.create_task(_warm_up(endpoints, launch, log))
    watch = asyncio.create_task(_watchdog(scheduler, launch, clock, log))
    beside = [asyncio.create_task(fault.attend(scheduler, clock)) for fault in faults.companions()]
    beside.append(asyncio.create_task(books.keep(scheduler, clock, _held(launch, specimen))))
    end = asyncio.create_task(leaving.wait())
    await asyncio.wait({loop, end, watch}, return_when=asyncio.FIRST_COMPLETED)
    if loop.done() or watch.done():
        books.write("lost", why=repr(loop.exception()) if loop.done() else "watchdog")
        await _crash(loop, specimen, clock, log)
    warm.cancel()
    endpoints.leaving = True
    log.server("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
    await _drain(endpoints, clock, log)
    for companion in beside:
        companion.cancel()
    if not endpoints.answers.open_requests:
        faults.left()
        books.write("left")
    log.server(f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=True, pid={os.getpid()}")
    os.kill(os.getpid(), signal.SIGKILL)


def _held(launch: Launch, specimen: Specimen) -> Held:
    """The cards that this worker works on."""
    return Held(specimen.cards, launch.arguments["tp_size"])


def _first_gauges(launch: Launch, started: Started, specimen: Specimen, metrics: Metrics) -> None:
    """Gauges that the start sets once."""
    tokens = started.allocation.tokens
    metrics.set("max_total_num_tokens", tokens)
    page = launch.arguments["page_size"]
    metrics.set("page_size", page)
    metrics.set("num_pages", tokens // page)
    metrics.set("context_len", launch.arguments["context_length"] or specimen.context)
    metrics.set("startup_available_gpu_memory_gb", started.free)
    metrics.set("kv_available_tokens", tokens)


async def _warm_up(endpoints: Endpoints, launch: Launch, log: Log) -> None:
    """The engine's own first requests, over its own port."""
    host = launch.arguments["host"]
    base = f"http://{'127.0.0.1' if host in {'0.0.0.0', '::'} else host}:{launch.arguments['port']}"
    if not launch.arguments["skip_server_warmup"]:
        async with ClientSession() as client:
            await (await client.get(f"{base}/model_info")).read()
            if launch.arguments["disaggregation_mode"] == "null":
                body = {"text": "The capital city of France is", "sampling_params": {"max_new_tokens": 8}}
                await (await client.post(f"{base}/generate", json=body)).read()
            else:
                await _warm_side(client, base, log)
    endpoints.status = "Up"
    log.server("The server is fired up and ready to roll!")


async def _warm_side(client: ClientSession, base: str, log: Log) -> None:
    """The first request of a side of a pair, which meets nobody."""
    log.server("Start of pd disaggregation warmup ...")
    sampling = {"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": True}
    body = {"sampling_params": sampling, "bootstrap_host": [NOWHERE], "bootstrap_room": [0], "input_ids": [0, 1, 2, 3]}
    async with client.post(f"{base}/generate", json=body) as answer:
        said = await answer.json()
    log.server(f"Disaggregation warmup request completed with status {answer.status}, resp: {said}")
    log.server("End of disaggregation warmup")


async def _watchdog(scheduler: Scheduler, launch: Launch, clock: Clock, log: Log) -> None:
    """End when a batch has stood still for longer than `--watchdog-timeout`."""
    limit = float(launch.arguments["watchdog_timeout"])
    while True:
        await asyncio.sleep(clock.wall(max(limit / 10, 1.0)))
        if not scheduler.idle and clock.now() - scheduler.heartbeat > limit:
            log.ranks(f"Scheduler watchdog timeout (self.watchdog_timeout={limit:g}, self.soft=False)")
            return


async def _crash(loop: asyncio.Task[None], specimen: Specimen, clock: Clock, log: Log) -> None:
    """What follows when the scheduler is lost while serving."""
    if loop.done():
        failure = loop.exception()
        if isinstance(failure, KilledError):
            os.kill(os.getpid(), signal.SIGKILL)
        if not isinstance(failure, OutOfMemoryError):
            text = "".join(traceback.format_exception(failure)) if failure else "the loop ended"
            log.rank(f"Scheduler hit an exception: {text}")
        else:
            said = pass_failure(failure.needed, failure.free, specimen, prefill=failure.prefill)
            log.rank(f"Scheduler hit an exception: {said}")
    log.server("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
    log.server("Sleeping 5 seconds before crash diagnostics to let GPU activity settle.")
    await asyncio.sleep(clock.wall(5.0))
    log.server("No live scheduler processes found; skipping py-spy and CUDA coredump.")
    log.server(f"kill_process_tree called: parent_pid={os.getpid()}, include_parent=True, pid={os.getpid()}")
    os.kill(os.getpid(), signal.SIGKILL)


async def _drain(endpoints: Endpoints, clock: Clock, log: Log) -> None:
    """Wait for open requests, however long they take; a server that failed its health check does not wait."""
    while endpoints.answers.open_requests:
        if endpoints.status == "UnHealthy":
            log.server("Signal SIGTERM received while health check failed. Force exiting.")
            return
        left = endpoints.answers.open_requests
        log.server(
            f"Gracefully exiting... Remaining number of requests {len(left)}. Remaining requests remaining_rids={left}."
        )
        until = clock.now() + 5.0
        while endpoints.answers.open_requests and clock.now() < until:
            await asyncio.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1:], os.environ, Path.cwd(), __file__)
