"""From exec to the moment before the port opens, as vLLM 0.24 tells it, on the start-up clock.

Figures in the lines are life's; the time in front of a line is the wall's. Order and wording are those of engine facts,
section 5, and of public logs of 0.22 to 0.24.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import NamedTuple

from evals.lab.clock import Walk
from evals.lab.failures import StandstillError
from evals.lab.faults import Faults
from evals.lab.log import progress
from evals.lab.memory import GIB, Allocation, weights
from evals.lab.specimen import Specimen
from evals.lab.vllm_0_24 import failures, memory
from evals.lab.vllm_0_24.arguments import Launch
from evals.lab.vllm_0_24.configuration import configuration
from evals.lab.vllm_0_24.log import VllmLog

# Seconds of life of each stretch, after a public log of 0.22 whose cache of compiled graphs was empty.
_CONFIGURATION = 6.0
_SPAWN = 9.0
_PROCESS_GROUP = 2.4
_MODEL_CODE = 3.0
_WEIGHTS = 26.0
_DUMMY_WEIGHTS = 0.4
_DYNAMO = 5.7
_COMPILE = 44.3
_DYNAMO_WARM = 4.1
_LOAD_COMPILED = 1.6
_PROFILE = 6.0
_ESTIMATE_A_MODE = 1.6
_KERNELS = 4.0
_LAST = 4.5
_PIECE_SHARE = 0.55
"""Part of a whole graph's time that one between the attention layers takes."""


class Started(NamedTuple):
    """A worker that is about to open its port."""

    allocation: memory.Allocation
    """Where its memory went before capture."""
    graphs: float
    """GiB that capture took."""
    free: float
    """GiB that are free now, the cards' own reserve included."""
    sizes: list[int]
    """Decode batch sizes that run captured, smallest first."""
    seqs: int
    """Requests that may run in one step."""


def start(
    launch: Launch,
    specimen: Specimen,
    environ: Mapping[str, str],
    walk: Walk,
    log: VllmLog,
    *,
    chance: Random,
    compiled: bool,
    faults: Faults | None = None,
    echoed: Launch | None = None,
) -> Started:
    """Go through a start.

    Args:
        launch: The resolved arguments.
        specimen: Model and cards.
        environ: The server's environment.
        walk: The start-up clock with this boot's deviation.
        log: Where the lines go.
        chance: Ports and small differences.
        compiled: An earlier start has left its compiled graphs in the cache.
        faults: What is wrong with it.
        echoed: The arguments as the engine echoes them, where it goes by others; None: it goes by what it echoes.

    Raises:
        StartError: it does not fit; what the engine printed is in the error.
        StandstillError: it stands still for ever.
        KilledError: somebody has killed it.
    """
    faults, echoed = faults or Faults(), echoed or launch
    walk.on(_CONFIGURATION)
    _decisions(echoed, specimen, log)
    walk.on(_SPAWN)
    log.engine(configuration(echoed, specimen), "core.py:114")
    _processes(launch, walk, log, chance)
    faults.check(specimen.cards)
    try:
        memory.check_share(launch, specimen)
    except ValueError as failure:
        raise failures.no_share(failure) from failure
    _load(launch, specimen, walk, log)
    began = walk.at
    compilation = _compile(launch, walk, log, compiled=compiled)
    walk.on(_PROFILE)
    log.card(f"Initial profiling/warmup run took {_PROFILE:.2f} s", "monitor.py:81")
    allocation, seqs = _allotted(launch, _pool(launch, specimen, environ, walk, log), faults, log)
    log.engine(f"GPU KV cache size: {allocation.tokens:,} tokens", "kv_cache_utils.py:2146")
    log.engine(
        f"Maximum concurrency for {launch.context:,} tokens per request: {allocation.tokens / launch.context:.2f}x",
        "kv_cache_utils.py:2147",
    )
    graphs, free = _capture(launch, specimen, allocation, walk, log, faults)
    free -= faults.captured(_shared(launch, allocation), free)
    walk.on(_KERNELS)
    took = f"{walk.at - began:.2f} s"
    log.engine(
        f"init engine (profile, create kv cache, warmup model) took {took}"
        + (f" (compilation: {compilation:.2f} s)" if compilation else ""),
        "core.py:344",
    )
    walk.on(_LAST)
    sizes = launch.capture.full or launch.capture.piecewise
    return Started(allocation, graphs, free, sizes, seqs)


def _shared(launch: Launch, made: memory.Allocation) -> Allocation:
    """The layout of memory in the terms that both engines share."""
    return Allocation(
        weights=made.weights,
        after_weights=made.free - made.weights,
        pool=made.pool,
        tokens=made.tokens,
        requests=launch.seqs,
        after_pool=made.before_capture,
        before_capture=made.before_capture,
        prefill_graphs=0.0,
    )


def _allotted(launch: Launch, made: memory.Allocation, faults: Faults, log: VllmLog) -> tuple[memory.Allocation, int]:
    """What the pool comes to, and how many requests may run in one step."""
    before = _shared(launch, made)
    after, lines = faults.allot(before)
    for line in lines:
        log.engine(line, "kv_cache_utils.py:1157", "WARNING")
    blocks = after.tokens // launch.block
    fit = made._replace(
        pool=after.pool,
        blocks=blocks,
        tokens=blocks * launch.block,
        before_capture=made.before_capture + after.after_pool - before.after_pool,
    )
    return fit, after.requests


def _decisions(launch: Launch, specimen: Specimen, log: VllmLog) -> None:
    log.server(f"Resolved architecture: {specimen.architecture}", "model.py:598")
    log.server(f"Using max model len {launch.context}", "model.py:1725")
    log.server(f"Chunked prefill is enabled with max_num_batched_tokens={launch.batched}.", "scheduler.py:252")
    if launch.asynchronous:
        log.server("Asynchronous scheduling is enabled.", "vllm.py:1006")
    if launch.values["enforce_eager"]:
        log.server(
            "Enforce eager set, disabling torch.compile and CUDAGraphs. This is equivalent to setting -cc.mode=none"
            " -cc.cudagraph_mode=none",
            "vllm.py:1062",
            "WARNING",
        )
    log.server(
        "Final IR op priority after setting platform defaults: IrOpPriorityConfig(rms_norm=['native'],"
        " fused_add_rms_norm=['native'])",
        "kernel.py:276",
    )


def _processes(launch: Launch, walk: Walk, log: VllmLog, chance: Random) -> None:
    ranks = launch.values["tensor_parallel_size"]
    port = chance.randrange(40_000, 60_000)
    log.cards(
        f"world_size={ranks} rank=0 local_rank=0 distributed_init_method=tcp://127.0.0.1:{port} backend=nccl",
        "parallel_state.py:1588",
    )
    walk.on(_PROCESS_GROUP)
    log.card(
        f"rank 0 in world size {ranks} is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank 0, EP rank N/A,"
        " EPLB rank N/A",
        "parallel_state.py:1923",
    )


def _load(launch: Launch, specimen: Specimen, walk: Walk, log: VllmLog) -> None:
    began = walk.at
    walk.on(_MODEL_CODE)
    log.card(f"Starting to load model {launch.model}...", "gpu_model_runner.py:5105")
    log.card(
        f"Using {launch.values['attention_backend'] or 'FLASH_ATTN'} attention backend out of potential backends:"
        " ['FLASH_ATTN', 'FLASHINFER', 'TRITON_ATTN', 'FLEX_ATTENTION'].",
        "cuda.py:378",
    )
    if launch.values["load_format"] == "dummy":
        walk.on(_DUMMY_WEIGHTS)
    else:
        took = 0.0
        for fifth in range(1, 6):
            took += walk.on(_WEIGHTS / 5)
            done = specimen.shards * fifth // 5
            log.raw(progress("Loading safetensors checkpoint shards", done, specimen.shards, took))
        log.card(f"Loading weights took {took:.2f} seconds", "default_loader.py:430")
    taken = weights(specimen, launch.values["tensor_parallel_size"])
    log.card(f"Model loading took {taken:.2f} GiB memory and {walk.at - began:.6f} seconds", "gpu_model_runner.py:5200")


def _compile(launch: Launch, walk: Walk, log: VllmLog, *, compiled: bool) -> float:
    """Compile, or load what an earlier start has compiled; return the seconds of life it took."""
    if not launch.capture.compiled:
        return 0.0
    took = walk.on(_DYNAMO_WARM if compiled else _DYNAMO)
    cache = "/root/.cache/vllm/torch_compile_cache"
    log.card(
        f"Using cache directory: {cache}/0d712c7e8f/rank_0_0/backbone for vLLM's torch.compile", "backends.py:1089"
    )
    log.card(f"Dynamo bytecode transform time: {took:.2f} s", "backends.py:1148")
    span = f"(1, {launch.batched})"
    if compiled:
        loading = walk.on(_LOAD_COMPILED)
        log.card(
            f"Directly load the compiled graph(s) for compile range {span} from the cache, took {loading:.3f} s",
            "backends.py:292",
        )
        took += loading
    else:
        log.card(f"Cache the graph of compile range {span} for later use", "backends.py:378")
        compiling = walk.on(_COMPILE)
        log.card(f"Compiling a graph for compile range {span} takes {compiling:.2f} s", "backends.py:393")
        took += compiling
    log.card(f"torch.compile took {took:.2f} s in total", "monitor.py:53")
    return took


def _pool(
    launch: Launch, specimen: Specimen, environ: Mapping[str, str], walk: Walk, log: VllmLog
) -> memory.Allocation:
    """Profile, and make the KV pool of what is left.

    Raises:
        StartError: nothing is left, or not enough.
    """
    capture = launch.capture
    if capture.sizes and memory.estimates(environ):
        plans = [(name, sizes) for name, sizes in (("PIECEWISE", capture.piecewise), ("FULL", capture.full)) if sizes]
        told = ", ".join(f"{name}={len(sizes)} (largest={sizes[-1]})" for name, sizes in plans)
        log.cards(f"Profiling CUDA graph memory: {told}", "gpu_model_runner.py:6483")
        walk.on(_ESTIMATE_A_MODE * len(plans))
        estimate = memory.estimated_graphs(launch, specimen)
        log.cards(f"Estimated CUDA graph memory: {estimate:.2f} GiB total", "gpu_model_runner.py:6589")
    try:
        made = memory.allocate(launch, specimen, environ)
    except ValueError as failure:
        raise failures.no_pool(failure) from failure
    share = launch.values["gpu_memory_utilization"]
    total = specimen.cards.total
    log.cards(
        f"Free memory on device ({made.free:.2f}/{total:.2f} GiB) on startup. Desired GPU memory utilization is"
        f" ({share}, {made.wanted:.2f} GiB). Actual usage is {made.weights:.2f} GiB for weight, {made.peak:.2f} GiB for"
        f" peak activation, {made.outside:.2f} GiB for non-torch memory, and {made.estimate:.2f} GiB for CUDAGraph"
        f" memory. Replace gpu_memory_utilization config with `--kv-cache-memory={int(made.pool * GIB)}`"
        f" ({made.pool:.2f} GiB) to fit into requested memory.",
        "gpu_worker.py:700",
        "DEBUG",
    )
    log.cards(f"Available KV cache memory: {made.pool:.2f} GiB", "gpu_worker.py:508")
    if made.estimate:
        part = made.estimate / total
        log.cards(
            "CUDA graph memory profiling is enabled (default since v0.21.0). The current"
            f" --gpu-memory-utilization={share:.4f} is equivalent to --gpu-memory-utilization={share - part:.4f}"
            " without CUDA graph memory profiling. To maintain the same effective KV cache size as before, increase"
            f" --gpu-memory-utilization to {share + part:.4f}. To disable, set"
            " VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0.",
            "gpu_worker.py:523",
        )
    return made


def _capture(
    launch: Launch,
    specimen: Specimen,
    allocation: memory.Allocation,
    walk: Walk,
    log: VllmLog,
    faults: Faults,
) -> tuple[float, float]:
    """Capture into what is free; return what the graphs take and what is free afterwards, in GiB.

    Raises:
        StartError: a graph, or the sampler's rehearsal after them, did not fit.
    """
    free = allocation.before_capture
    costs = memory.graph_costs(launch, specimen)
    began, taken = walk.at, 0.0
    for mode in dict.fromkeys(mode for mode, _, _ in costs):
        sizes = [(size, cost) for name, size, cost in costs if name == mode]
        took = 0.0
        for done, (size, due) in enumerate(sizes):
            cost = due if taken else due + faults.capture(size)
            words = f"Capturing CUDA graphs ({mode})"
            if done == 0:
                log.raw(progress(words, 0, len(sizes), 0.0))
            if cost > free and faults.hangs():
                raise StandstillError
            if cost > free:
                raise failures.no_graph(cost, free, specimen)
            seconds = specimen.capture_first if taken == 0 else specimen.capture_each
            took += walk.on(seconds * (_PIECE_SHARE if "PIECEWISE" in mode else 1.0))
            free -= cost
            taken += cost
            log.raw(progress(words, done + 1, len(sizes), took))
    rows = launch.seqs * specimen.vocabulary * 4 * 2 / GIB
    if rows > free:
        raise failures.no_sampler(launch.seqs)
    if costs:
        log.cards(
            f"Graph capturing finished in {walk.at - began:.0f} secs, took {taken:.2f} GiB", "gpu_model_runner.py:6657"
        )
        if allocation.estimate:
            apart = abs(taken - allocation.estimate)
            log.cards(
                f"CUDA graph pool memory: {taken:.2f} GiB (actual), {allocation.estimate:.2f} GiB (estimated),"
                f" difference: {apart:.2f} GiB ({100 * apart / taken:.1f}%).",
                "gpu_worker.py:667",
            )
    return taken, free
