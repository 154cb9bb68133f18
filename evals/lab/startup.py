"""From exec to the moment before the port opens: the log line by line, on the start-up clock.

Figures in the lines are life's (`elapsed=27.31 s`); the time in front of a line is the wall's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import NamedTuple

from evals.lab.arguments import Launch, shown
from evals.lab.clock import Clock
from evals.lab.log import Log
from evals.lab.memory import Allocation, allocate, context_length, first_graph, prefill_plan, static_buffers, truncated
from evals.lab.specimen import Specimen

# Seconds of life of each stretch; their sum and a capture of about ten make the seed's 70 to 75 seconds to ready.
_IMPORTS = 13.0
_SPAWN = 8.5
_PROCESS_GROUP = 3.6
_MODEL_CODE = 1.6
_WEIGHTS = 28.0
_DUMMY_WEIGHTS = 0.13
_PREFILL_GRAPH = 0.31
_POOLS = 0.9
_WARM_KERNELS = 2.6
_LAST = 1.2
_HINTS = """Possible solutions:
1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)
2. set --cuda-graph-max-bs-decode to a smaller value (e.g., 16)
3. disable decode CUDA graph by --cuda-graph-backend-decode=disabled. (Not recommended. Huge performance loss)
Open an issue on GitHub https://github.com/sgl-project/sglang/issues/new/choose 
"""  # noqa: W291 - the engine prints that blank
_BAR = " ▏▎▍▌▋▊▉"


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


class StartError(Exception):
    """The scheduler's process died; the text is its traceback from the first frame on."""


def start(
    launch: Launch,
    specimen: Specimen,
    environ: Mapping[str, str],
    clock: Clock,
    log: Log,
    *,
    stretch: float,
    chance: Random,
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

    Raises:
        StartError: it does not fit; what the scheduler printed is in the error.
    """
    walk = _Walk(clock, stretch)
    _server_lines(launch, specimen, walk, log)
    allocation = _load(launch, specimen, walk, log, chance)
    free = _prefill_graphs(launch, specimen, allocation, walk, log)
    sizes = truncated(launch.sizes, allocation.requests)
    after = _capture(sizes, launch, specimen, environ, free, walk, log)
    graphs, free = free - after, after
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


class _Walk:
    """Where a start is, in seconds of life."""

    def __init__(self, clock: Clock, stretch: float) -> None:
        self._clock = clock
        self._stretch = stretch
        self.at = 0.0

    def on(self, seconds: float) -> float:
        """Let a stretch pass; return how long it took."""
        seconds *= self._stretch
        self.at += seconds
        self._clock.sleep_until(self.at)
        return seconds


def _server_lines(launch: Launch, specimen: Specimen, walk: _Walk, log: Log) -> None:
    """What the server's process says before it spawns the schedulers."""
    arguments = launch.arguments
    walk.on(_IMPORTS)
    if specimen.settings:
        name = specimen.architecture
        log.server(f"Setting KV cache dtype to {arguments['kv_cache_dtype']} for {name}.")
        log.server(
            f"Use {arguments['attention_backend']} attention backend for {name},"
            f" setting page_size to {arguments['page_size']}."
        )
        log.server(f"Setting swa_full_tokens_ratio to {arguments['swa_full_tokens_ratio']} for {name}.")
    log.server("Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit")
    log.server(f"server_args={shown(arguments)}")
    log.server("Using default HuggingFace chat template with detected content format: string")
    walk.on(_SPAWN)


def _load(launch: Launch, specimen: Specimen, walk: _Walk, log: Log, chance: Random) -> Allocation:
    """Process group, weights and pools.

    Raises:
        StartError: nothing is left for the KV pool, or for the first matrix product.
    """
    ranks = range(launch.arguments["tp_size"])
    log.ranks("Init torch distributed begin.")
    took = walk.on(_PROCESS_GROUP)
    for rank in ranks:
        log.rank(
            f"Init torch distributed ends. elapsed={took + chance.uniform(-0.03, 0.03):.2f} s,"
            f" mem usage={specimen.cards.communication:.2f} GB",
            rank,
        )
    walk.on(_MODEL_CODE)
    # Free memory differs a little between cards; sizes follow the least, which is rank 0's here.
    more = [0.0, *(round(chance.uniform(0.0, 0.03), 3) for _ in ranks[1:])]
    for rank in ranks:
        log.rank(f"Load weight begin. avail mem={specimen.cards.free + more[rank]:.2f} GB", rank)
    took = walk.on(_DUMMY_WEIGHTS) if launch.arguments["load_format"] == "dummy" else _shards(specimen, walk, log)
    try:
        allocation = allocate(launch.arguments, specimen)
    except (ValueError, RuntimeError) as failure:
        raise StartError(_traceback(_POOL_FRAMES, f"{type(failure).__name__}: {failure}")) from failure
    quantized = f"{specimen.quantization}, " if specimen.quantization else ""
    for rank in ranks:
        log.rank(
            f"Load weight end. elapsed={took + chance.uniform(-0.05, 0.05):.2f} s, type={specimen.architecture},"
            f" {quantized}avail mem={allocation.after_weights + more[rank]:.2f} GB,"
            f" mem usage={allocation.weights:.2f} GB.",
            rank,
        )
    walk.on(_POOLS)
    _pools(specimen, allocation, log)
    for rank in ranks:
        log.rank(f"Memory pool end. avail mem={max(allocation.after_pool, 0.0) + more[rank]:.2f} GB", rank)
    if allocation.after_pool < specimen.cards.workspace:
        raise StartError(
            _traceback(_WORKSPACE_FRAMES, f"torch.OutOfMemoryError: {_oom(32 / 1024, allocation.after_pool, specimen)}")
        )
    return allocation


def _shards(specimen: Specimen, walk: _Walk, log: Log) -> float:
    """Read the weight files; return how long it took."""
    took = 0.0
    for fifth in range(1, 6):
        took += walk.on(_WEIGHTS / 5)
        log.raw(_bar("Multi-thread loading shards", specimen.shards * fifth // 5, specimen.shards, took))
    return took


def _pools(specimen: Specimen, allocation: Allocation, log: Log) -> None:
    """What the KV pool's making says; DeepSeek-V4's sizes follow from its compression ratios, 4 and 128."""
    full = allocation.tokens
    if specimen.pool != "dsv4":
        half = f"{allocation.pool / 2:.2f} GB"
        sizes = f"K size: {half}, V size: {half}" if specimen.pool == "mha" else f"KV size: {allocation.pool:.2f} GB"
        log.ranks(f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {full}, {sizes}")
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


def _prefill_graphs(launch: Launch, specimen: Specimen, allocation: Allocation, walk: _Walk, log: Log) -> float:
    """Warm the kernels and capture prefill graphs where the configuration has them; return what is free afterwards.

    Raises:
        StartError: they did not fit.
    """
    free = allocation.before_capture
    sizes = prefill_plan(launch.arguments)
    if not sizes:
        log.rank(
            "Disable prefill CUDA graph because cuda_graph_config resolved prefill.backend='disabled'"
            " (e.g. via --cuda-graph-backend-prefill=disabled or auto-disable rules)."
        )
        walk.on(_WARM_KERNELS)
        return free
    backend = launch.arguments["cuda_graph_config"]["prefill"]["backend"]
    log.ranks(
        f"Capture target prefill CUDA graph begin. backend={backend}, num_tokens={sizes}, avail mem={free:.2f} GB"
    )
    log.raw(f"\n{_bar('', 0, len(sizes), 0.0)}")
    took = 0.0
    for verb, seconds in (("Compiling", 0.5 * _PREFILL_GRAPH), ("Capturing", 0.5 * _PREFILL_GRAPH)):
        for done, size in enumerate(reversed(sizes)):
            words = f"{verb} num tokens (num_tokens={size}{f' avail_mem={free:.2f} GB' if verb == 'Capturing' else ''})"
            log.raw(_bar(words, done, len(sizes), took))
            took += walk.on(seconds)
            if verb == "Capturing":
                free -= specimen.prefill_graph_each
            if free < 0:
                raise StartError(_traceback(_CAPTURE_FRAMES, _capture_failure(0.1, free, specimen, phase="prefill")))
    log.ranks(
        f"Capture target prefill CUDA graph end. elapsed={took:.2f} s, mem usage={allocation.prefill_graphs:.2f} GB,"
        f" avail mem={free:.2f} GB."
    )
    return free


def _capture(
    sizes: Sequence[int],
    launch: Launch,
    specimen: Specimen,
    environ: Mapping[str, str],
    free: float,
    walk: _Walk,
    log: Log,
) -> float:
    """Capture decode graphs, the largest first, into what is free; return what is free afterwards.

    Raises:
        StartError: a graph did not fit.
    """
    if not sizes:
        return free
    before = free
    log.ranks(
        f"Capture target decode CUDA graph begin. backend={launch.arguments['cuda_graph_config']['decode']['backend']},"
        f" num_tokens_per_bs=1, bs={sizes}, avail mem={free:.2f} GB"
    )
    free -= static_buffers(sizes[-1], specimen)
    log.raw(f"\n{_bar('', 0, len(sizes), 0.0)}")
    took = 0.0
    for done, size in enumerate(reversed(sizes)):
        log.raw(_bar(f"Capturing batches (bs={size} avail_mem={max(free, 0.0):.2f} GB)", done, len(sizes), took))
        first = done == 0
        needed = first_graph(size, launch.arguments, specimen, environ) if first else specimen.graph_each
        if needed > free:
            raise StartError(_traceback(_CAPTURE_FRAMES, _capture_failure(needed, free, specimen)))
        took += walk.on(specimen.capture_first if first else specimen.capture_each)
        free -= needed
        log.raw(_bar(f"Capturing batches (bs={size} avail_mem={free:.2f} GB)", done + 1, len(sizes), took))
    if launch.arguments["tp_size"] > 1:
        log.ranks(f"Registering {2 * len(sizes) * specimen.layers} cuda graph addresses")
    log.ranks(
        f"Capture target decode CUDA graph end. elapsed={took:.2f} s,"
        f" mem usage={before - free:.2f} GB, avail mem={free:.2f} GB."
    )
    return free


def _capture_failure(needed: float, free: float, specimen: Specimen, *, phase: str = "decode") -> str:
    """The engine's words for graphs that did not fit, hints included."""
    hints = _HINTS
    if phase == "prefill":
        hints = hints.replace("decode", "prefill").replace("(e.g., 16)", "(e.g., 2048)")
    what = "cuda graph" if phase == "decode" else "prefill CUDA graph"
    return f"Exception: Capture {what} failed: {_oom(needed, free, specimen)}\n{hints}"


def _oom(needed: float, free: float, specimen: Specimen) -> str:
    """PyTorch's sentence about memory that is not there; `needed` and `free` in GiB."""
    free = max(free, 0.0)
    used = specimen.cards.total - free
    torch = used - specimen.cards.communication
    tried = f"{needed:.2f} GiB" if needed >= 1 else f"{needed * 1024:.2f} MiB"
    left = f"{free:.2f} GiB" if free >= 1 else f"{free * 1024:.2f} MiB"
    return (
        f"CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total capacity of {specimen.cards.total:.2f} GiB"
        f" of which {left} is free. Including non-PyTorch memory, this process has {used:.2f} GiB memory in use. Of the"
        f" allocated memory {torch:.2f} GiB is allocated by PyTorch, and 38.56 MiB is reserved"
        " by PyTorch but unallocated. If reserved but unallocated memory is large try setting"
        " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory"
        " Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )


def pass_failure(needed: float, free: float, specimen: Specimen, *, prefill: bool) -> str:
    """The traceback of a pass that did not fit into what capture left free."""
    frames = (*_LOOP_FRAMES, _EXTEND_FRAME if prefill else _DECODE_FRAME, _ACTIVATION_FRAME)
    return _traceback(frames, f"torch.OutOfMemoryError: {_oom(min(needed, needed / 2 + free), free, specimen)}\n")


def _bar(words: str, done: int, total: int, seconds: float) -> str:
    """A progress bar as tqdm draws it."""
    eighths = 80 * done // total
    bar = ("█" * (eighths // 8) + (_BAR[eighths % 8] if eighths % 8 else "")).ljust(10)
    clock = f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"
    if done:
        rate = done / seconds if seconds else 0.0
        left = int(seconds / done * (total - done))
        pace = f"{left // 60:02d}:{left % 60:02d}, " + (f"{rate:.2f}it/s" if rate >= 1 else f"{1 / rate:.2f}s/it")
    else:
        pace = "?, ?it/s"
    if words == "Multi-thread loading shards":
        return f"{words}: {100 * done // total:3d}% Completed | {done}/{total} [{clock}<{pace}]"
    return f"{words + ': ' if words else ''}{100 * done / total:3.0f}%|{bar}| {done}/{total} [{clock}<{pace}]"


def _traceback(frames: Sequence[tuple[str, int, str, str]], failure: str) -> str:
    lines = "".join(f'  File "/opt/{path}", line {line}, in {name}\n    {code}\n' for path, line, name, code in frames)
    return f"Traceback (most recent call last):\n{lines}{failure}"


def envelope(traceback: str, log: Log, pid: int) -> Iterator[float]:
    """What is printed when a scheduler dies while the server starts, and the pauses in between, in seconds of life."""
    log.rank(f"Scheduler hit an exception: {traceback}\n")
    yield 0.2
    log.server("Received sigquit from a child process. It usually means the child failed.")
    log.server(f"kill_process_tree called: parent_pid={pid}, include_parent=True, pid={pid}")


# Frames as the recordings q_oom_mf99 and q_oom_mf999 have them; the model's own are DeepSeek's.
_INIT_FRAMES = (
    ("sglang/sglang/srt/managers/scheduler.py", 4211, "run_scheduler_process", "scheduler = Scheduler("),
    ("sglang/sglang/srt/managers/scheduler.py", 436, "__init__", "self.init_model_worker()"),
)
_POOL_FRAMES = (
    *_INIT_FRAMES,
    ("sglang/sglang/srt/managers/scheduler.py", 862, "init_model_worker", "self.init_memory_pool()"),
    (
        "sglang/sglang/srt/model_executor/model_runner_kv_cache_mixin.py",
        1012,
        "init_memory_pool",
        "self._profile_available_bytes(pre_model_load_memory)",
    ),
)
_BACKEND_FRAMES = (
    *_INIT_FRAMES,
    ("sglang/sglang/srt/managers/scheduler.py", 871, "init_model_worker", "self.init_all_attention_backends()"),
)
_WORKSPACE_FRAMES = (
    *_BACKEND_FRAMES,
    (
        "sglang/sglang/srt/managers/tp_worker.py",
        345,
        "init_attention_backends",
        "self.model_runner.init_attention_backends()",
    ),
    ("sglang/sglang/srt/model_executor/model_runner.py", 867, "init_attention_backends", "self.init_cublas()"),
    ("sglang/sglang/srt/model_executor/model_runner.py", 2389, "init_cublas", "c = a @ b"),
)
_CAPTURE_FRAMES = (
    *_INIT_FRAMES,
    ("sglang/sglang/srt/managers/scheduler.py", 874, "init_model_worker", "self.init_cuda_graphs()"),
    ("sglang/sglang/srt/model_executor/model_runner.py", 2571, "init_decode_cuda_graph", "DecodeCudaGraphRunner(self)"),
    ("sglang/sglang/srt/model_executor/runner/decode_cuda_graph_runner.py", 611, "__init__", "raise Exception("),
)
_LOOP_FRAMES = (
    ("sglang/sglang/srt/managers/scheduler.py", 4227, "run_scheduler_process", "scheduler.run_event_loop()"),
    ("sglang/sglang/srt/managers/scheduler.py", 1486, "run_event_loop", "dispatch_event_loop(self)"),
    ("sglang/sglang/srt/managers/scheduler.py", 1523, "event_loop_normal", "result = self.run_batch(batch)"),
    ("sglang/sglang/srt/managers/tp_worker.py", 507, "forward_batch_generation", "out = self.model_runner.forward("),
    ("sglang/sglang/srt/model_executor/model_runner.py", 3065, "_forward_raw", "ret = self.eager_runner.execute("),
)
_EXTEND_FRAME = (
    "sglang/sglang/srt/model_executor/runner/eager_runner.py",
    345,
    "_execute_extend",
    "ret = model_runner.model.forward(",
)
_DECODE_FRAME = (
    "sglang/sglang/srt/model_executor/runner/eager_runner.py",
    291,
    "_execute_decode",
    "ret = model_runner.model.forward(",
)
_ACTIVATION_FRAME = (
    "sglang/sglang/srt/layers/activation.py", 105, "forward_cuda",
    "out = torch.empty(output_shape, dtype=x.dtype, device=x.device)",
)  # fmt: skip
