"""The worker's process: argv and environment in, a vLLM 0.24 out."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from evals.lab import private
from evals.lab.books import Books
from evals.lab.clock import Clock, Walk
from evals.lab.failures import KilledError, StandstillError
from evals.lab.failures import StartError as SharedStartError
from evals.lab.faults import Conditions, Faults, build
from evals.lab.kernels import CompilingPace, Kernels
from evals.lab.model import Model
from evals.lab.pace import Noise
from evals.lab.process import absent_of, asks_for_help, become, born, listen
from evals.lab.scheduler import Limits, Scheduler
from evals.lab.specimen import SPECIMENS, Specimen
from evals.lab.startup import START_NOISE
from evals.lab.vllm_0_24.arguments import Launch, defaults, named, parse, resolve
from evals.lab.vllm_0_24.configuration import announce
from evals.lab.vllm_0_24.failures import StartError, envelope, refused
from evals.lab.vllm_0_24.log import VllmLog
from evals.lab.vllm_0_24.memory import allocate
from evals.lab.vllm_0_24.metrics import metrics as metrics_of
from evals.lab.vllm_0_24.reports import VllmReports
from evals.lab.vllm_0_24.serving import Serving
from evals.lab.vllm_0_24.startup import Started, start

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
    kernels = Kernels(shelf, specimen, cold=nature.cold, told=lambda: _compiled_late(log))
    pace = CompilingPace(
        specimen.curve,
        started.sizes,
        overlap=launch.asynchronous,
        noise=noise,
        chance=Random(chance.random()),
        kernels=kernels,
    )
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

    served = Serving(launch, started, specimen, environ, serving, log, counted, reports, faults, books)
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


def _compiled_late(log: VllmLog) -> None:
    """The warning that a kernel was compiled while requests waited."""
    log.cards(
        "Triton kernel JIT compilation during inference: fused_moe_kernel. This causes a latency spike; consider"
        " extending warmup to cover this shape/config.",
        "jit_monitor.py:103",
        "WARNING",
    )


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
