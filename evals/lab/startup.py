"""From exec to the moment before the port opens: the log line by line, on the start-up clock.

Figures in the lines are life's (`elapsed=27.31 s`); the time in front of a line is the wall's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from evals.lab.arguments import Launch
from evals.lab.clock import Clock, Walk
from evals.lab.failures import StandstillError, no_graph, no_pool, no_workspace
from evals.lab.faults import Faults
from evals.lab.log import Log, progress
from evals.lab.memory import Allocation, allocate, context_length, first_graph, prefill_plan, static_buffers, truncated
from evals.lab.specimen import Specimen

# Seconds of life of stretches that are alike everywhere; with a capture of about ten they make the seed's 70 to 75
# seconds to ready.
START_NOISE = 1.6
"""How much more starts vary than what is served: 4.1 % in the recording of five starts, the cold one aside."""
_MODEL_CODE = 1.6
_WEIGHTS = 28.0
_DUMMY_WEIGHTS = 0.13
_PREFILL_GRAPH = 0.31
_POOLS = 0.9
_WARM_KERNELS = 2.6
_LAST = 1.2


class Started(NamedTuple):
    """A worker that is about to open its port."""

    allocation: Allocation
    """Where its memory went."""
    sizes: list[int]
    """Batch sizes that were captured, smallest first."""
    graphs: float
    """GiB that capture took."""
    free: float
    """GiB that are free now."""


def start(
    launch: Launch,
    specimen: Specimen,
    environ: Mapping[str, str],
    clock: Clock,
    log: Log,
    *,
    stretch: float,
    chance: Random,
    faults: Faults | None = None,
    echoed: Launch | None = None,
    compiling: float = 0.0,
) -> Started:
    """Go through a start.

    Args:
        launch: The resolved arguments.
        specimen: Model and cards.
        environ: The server's environment.
        clock: Start-up clock, running since exec.
        log: Where the lines go.
        stretch: Factor on every duration: this boot's deviation.
        chance: Small differences between the ranks.
        faults: What is wrong with it.
        echoed: The arguments as the engine echoes them, where it goes by others; None: it goes by what it echoes.
        compiling: Seconds of life that go into kernels which no earlier start has left.

    Raises:
        StartError: it does not fit; what the scheduler printed is in the error.
        StandstillError: it stands still for ever.
        KilledError: somebody has killed it.
    """
    faults = faults or Faults()
    walk = Walk(clock, stretch, faults.lived)
    _server_lines(echoed or launch, specimen, walk, log)
    allocation = _load(launch, specimen, walk, log, chance, faults)
    sizes = truncated(launch.sizes, allocation.requests)
    free = allocation.before_capture
    # Versions with flat names capture decode first.
    for phase in ("decode", "prefill") if launch.dialect.flat else ("prefill", "decode"):
        if phase == "prefill":
            free = _prefill_graphs(launch, specimen, allocation, free, walk, log)
        else:
            walk.on(0.0 if sizes else compiling)
            after = _capture(sizes, launch, specimen, environ, free, walk, log, faults, compiling)
            graphs, free = free - after, after
    free -= faults.captured(allocation, free)
    arguments = launch.arguments
    log.rank(
        f"max_total_num_tokens={allocation.tokens}, chunked_prefill_size={arguments['chunked_prefill_size']},"
        f" max_prefill_tokens={arguments['max_prefill_tokens']}, max_running_requests={allocation.requests},"
        f" context_len={context_length(arguments, specimen)}, available_gpu_mem={free:.2f} GB"
    )
    hybrid = specimen.swa_ratio > 0
    cache = f"{'SWA' if hybrid else ''}{'ChunkCache' if arguments['disable_radix_cache'] else 'RadixCache'}"
    log.rank(
        f"Tree cache initialized: source=default impl={cache} hybrid_swa={hybrid} hybrid_ssm=False"
        f" hierarchical={arguments['enable_hierarchical_cache']} streaming_wrapped=False"
    )
    walk.on(_LAST)
    return Started(allocation, sizes, graphs, free)


def _server_lines(launch: Launch, specimen: Specimen, walk: Walk, log: Log) -> None:
    """What the server's process says before it spawns the schedulers."""
    arguments = launch.arguments
    walk.on(specimen.imports)
    _missing_file(arguments, log)
    if arguments["skip_tokenizer_init"]:
        log.server(
            "skip_tokenizer_init=True: string-based stop conditions (stop, stop_regex) and min_new_tokens are"
            " unavailable."
        )
    if specimen.remarks:
        log.server(_NO_FUSION)
    if specimen.settings:
        name = specimen.architecture
        log.server(f"Setting KV cache dtype to {arguments['kv_cache_dtype']} for {name}.")
        log.server(
            f"Use {arguments['attention_backend']} attention backend for {name},"
            f" setting page_size to {arguments['page_size']}."
        )
        log.server(f"Setting swa_full_tokens_ratio to {arguments['swa_full_tokens_ratio']} for {name}.")
    if arguments["disaggregation_mode"] == "decode" and arguments["disable_radix_cache"]:
        log.server("KV cache is forced as chunk cache for decode server")
    log.server("Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit")
    log.server(f"server_args={launch.dialect.shown(arguments)}")
    if arguments["skip_tokenizer_init"]:
        log.server("No HuggingFace chat template found")
        log.server("No chat template found, defaulting to 'string' content format")
    else:
        log.server("Using default HuggingFace chat template with detected content format: string")
    for _ in range(2 if specimen.remarks else 0):
        log.raw(_NO_FUSION)
    walk.on(specimen.spawn)


_NO_FUSION = (
    "flashinfer.comm allreduce_fusion API is not available (No module named 'cuda.tile'), falling back to standard"
    " implementation"
)


def _missing_file(arguments: Mapping[str, Any], log: Log) -> None:
    """A model without weights has no generation config either."""
    if arguments["load_format"] == "dummy":
        path = arguments["model_path"]
        log.rank(
            f"Failed to load generation config for {path}: {path} does not appear to have a file named"
            f" generation_config.json. Checkout 'https://huggingface.co/{path}/tree/main' for available files.."
            " Proceeding without generation config."
        )


def _load(launch: Launch, specimen: Specimen, walk: Walk, log: Log, chance: Random, faults: Faults) -> Allocation:
    """Process group, weights and pools.

    Raises:
        StartError: nothing is left for the KV pool, or for the first matrix product.
    """
    ranks = range(launch.arguments["tp_size"])
    _missing_file(launch.arguments, log)
    log.ranks("Init torch distributed begin.")
    took = walk.on(specimen.process_group)
    for rank in ranks:
        log.rank(
            f"Init torch distributed ends. elapsed={took + chance.uniform(-0.03, 0.03):.2f} s,"
            f" mem usage={specimen.cards.communication:.2f} GB",
            rank,
        )
    for line in specimen.remarks:
        log.rank(line)
    walk.on(_MODEL_CODE)
    faults.check(specimen.cards)
    # Free memory differs a little between cards; sizes follow the least, which is rank 0's here.
    more = [0.0, *(round(chance.uniform(0.0, 0.03), 3) for _ in ranks[1:])]
    for rank in ranks:
        log.rank(f"Load weight begin. avail mem={specimen.cards.free + more[rank]:.2f} GB", rank)
    for line in specimen.loading:
        log.rank(line)
    took = walk.on(_DUMMY_WEIGHTS) if launch.arguments["load_format"] == "dummy" else _shards(specimen, walk, log)
    try:
        allocation = allocate(launch.arguments, specimen)
    except (ValueError, RuntimeError) as failure:
        raise no_pool(failure) from failure
    allocation, more_said = faults.allot(allocation)
    quantized = f"{specimen.quantization}, " if specimen.quantization else ""
    for rank in ranks:
        log.rank(
            f"Load weight end. elapsed={took + chance.uniform(-0.05, 0.05):.2f} s, type={specimen.architecture},"
            f" {quantized}avail mem={allocation.after_weights + more[rank]:.2f} GB,"
            f" mem usage={allocation.weights:.2f} GB.",
            rank,
        )
    if str(launch.arguments["kv_cache_dtype"]).startswith("fp8"):
        log.ranks(
            "Using FP8 KV cache but no scaling factors provided. Defaulting to scaling factors of 1.0."
            " This may lead to less accurate results!"
        )
    for line in (*more_said, *_cut(launch.arguments, allocation)):
        log.rank(line)
    walk.on(_POOLS)
    _pools(specimen, allocation, str(launch.arguments["kv_cache_dtype"]), log)
    for rank in ranks:
        log.rank(f"Memory pool end. avail mem={max(allocation.after_pool, 0.0) + more[rank]:.2f} GB", rank)
    if allocation.after_pool < specimen.cards.workspace:
        raise no_workspace(allocation.after_pool, specimen)
    return allocation


def _cut(arguments: Mapping[str, Any], allocation: Allocation) -> Iterator[str]:
    """Wishes that the KV pool does not grant."""
    tokens, requests = arguments["max_total_tokens"], arguments["max_running_requests"]
    if tokens and allocation.tokens < int(tokens) // arguments["page_size"] * arguments["page_size"]:
        yield (
            f"max_total_tokens={tokens} is larger than the profiled value {allocation.tokens}."
            " Use the profiled value instead."
        )
    asked = requests // arguments["dp_size"] if requests else 0
    if asked and allocation.tokens // 2 < asked:
        yield (
            f"max_running_requests was reduced from the requested {asked} to {allocation.requests} (per dp worker) due"
            " to the available KV cache capacity."
        )


def _shards(specimen: Specimen, walk: Walk, log: Log) -> float:
    """Read the weight files; return how long it took."""
    took = 0.0
    for fifth in range(1, 6):
        took += walk.on(_WEIGHTS / 5)
        log.raw(progress("Multi-thread loading shards", specimen.shards * fifth // 5, specimen.shards, took))
    return took


def _pools(specimen: Specimen, allocation: Allocation, dtype: str, log: Log) -> None:
    """What the KV pool's making says; DeepSeek-V4's sizes follow from its compression ratios, 4 and 128."""
    full = allocation.tokens
    if specimen.pool != "dsv4":
        half = f"{allocation.pool / 2:.2f} GB"
        sizes = f"K size: {half}, V size: {half}" if specimen.pool == "mha" else f"KV size: {allocation.pool:.2f} GB"
        kind = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}.get(dtype, "bfloat16")
        log.ranks(f"KV Cache is allocated. dtype: torch.{kind}, #tokens: {full}, {sizes}")
        return
    swa = int(full * specimen.swa_ratio)
    state4, state128 = swa // 128 * 8, swa // 128 * 128
    log.rank(
        f"DSV4 memory calculation: bytes_per_full_token={specimen.bytes_per_token:.2f},"
        f" available_bytes={allocation.pool:.2f} GB, full_token={full}"
    )
    log.rank(
        f"DSV4 pool sizes: full={full}, swa={swa}, c4={full // 4}, c128={full // 128},"
        f" c4_state={state4}, c128_state={state128}"
    )
    log.ranks(
        f"Initialize DeepSeekV4TokenToKVPool with max_num_reqs={allocation.requests} swa_size={swa} c4_size={full // 4}"
        f" c4_logical_size={full} c128_size={full // 128} c4_state_pool_size={state4} c128_state_pool_size={state128}"
    )


def _prefill_graphs(
    launch: Launch, specimen: Specimen, allocation: Allocation, free: float, walk: Walk, log: Log
) -> float:
    """Warm the kernels and capture prefill graphs where the configuration has them; return what is free afterwards.

    Raises:
        StartError: they did not fit.
    """
    sizes = prefill_plan(launch.arguments)
    if not sizes:
        log.rank(launch.dialect.prefill_off())
        walk.on(_WARM_KERNELS)
        return free
    backend = launch.arguments["cuda_graph_config"]["prefill"]["backend"]
    for line in launch.dialect.prefill_begins(backend, sizes, free):
        log.ranks(line)
    log.raw(f"\n{progress('', 0, len(sizes), 0.0)}")
    took = 0.0
    for verb, seconds in (("Compiling", 0.5 * _PREFILL_GRAPH), ("Capturing", 0.5 * _PREFILL_GRAPH)):
        for done, size in enumerate(reversed(sizes)):
            words = f"{verb} num tokens (num_tokens={size}{f' avail_mem={free:.2f} GB' if verb == 'Capturing' else ''})"
            log.raw(progress(words, done, len(sizes), took))
            took += walk.on(seconds)
            if verb == "Capturing":
                free -= specimen.prefill_graph_each
            if free < 0:
                raise no_graph(0.1, free, specimen, launch.dialect, phase="prefill")
    log.ranks(launch.dialect.ends("prefill", took, allocation.prefill_graphs, free))
    return free


def _capture(
    sizes: Sequence[int],
    launch: Launch,
    specimen: Specimen,
    environ: Mapping[str, str],
    free: float,
    walk: Walk,
    log: Log,
    faults: Faults,
    compiling: float,
) -> float:
    """Capture decode graphs, the largest first, into what is free; return what is free afterwards.

    Raises:
        StartError: a graph did not fit.
    """
    if not sizes:
        return free
    before = free
    backend = launch.arguments["cuda_graph_config"]["decode"]["backend"]
    for line in launch.dialect.decode_begins(backend, sizes, free):
        log.ranks(line)
    free -= static_buffers(sizes[-1], specimen)
    log.raw(f"\n{progress('', 0, len(sizes), 0.0)}")
    took = 0.0
    for done, size in enumerate(reversed(sizes)):
        log.raw(progress(f"Capturing batches (bs={size} avail_mem={max(free, 0.0):.2f} GB)", done, len(sizes), took))
        first = done == 0
        needed = first_graph(size, launch.arguments, specimen, environ) if first else specimen.graph_each
        needed += faults.capture(size) if first else 0.0
        if needed > free and faults.hangs():
            raise StandstillError
        if needed > free:
            raise no_graph(needed, free, specimen, launch.dialect)
        took += walk.on(specimen.capture_first + compiling if first else specimen.capture_each)
        for line in specimen.capturing if first else ():
            log.rank(line)
        free -= needed
        log.raw(progress(f"Capturing batches (bs={size} avail_mem={free:.2f} GB)", done + 1, len(sizes), took))
    if launch.arguments["tp_size"] > 1:
        log.ranks(f"Registering {2 * len(sizes) * specimen.layers} cuda graph addresses")
    log.ranks(launch.dialect.ends("decode", took, before - free, free))
    return free
