"""The texts of a worker that does not come up or dies: tracebacks, PyTorch's sentence, hints, and what follows them.

Wording and frames are those of the recordings `q_oom_mf99` and `q_oom_mf999` and of engine facts, section 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evals.lab.dialect import Dialect
from evals.lab.log import Log
from evals.lab.specimen import Cards, Specimen

Frame = tuple[str, int, str, str]
"""File below the root of the installation, line, function, code."""


class KilledError(Exception):
    """The process was killed with SIGKILL from outside; it says nothing more."""


class StandstillError(Exception):
    """The start stands still for ever; nothing is said."""


class StartError(Exception):
    """The scheduler's process died; the text is its traceback from the first frame on."""


def refused(failure: Exception) -> str:
    """The server's traceback over arguments that make no sense together, or a configuration file that is none."""
    frames: Sequence[Frame] = (
        ("sglang/sglang/launch_server.py", 60, "<module>", "server_args = prepare_server_args(sys.argv[1:])"),
        ("sglang/sglang/srt/server_args.py", 7093, "prepare_server_args", "return ServerArgs.from_cli_args(raw_args)"),
    )
    return _traceback(frames, f"{type(failure).__name__}: {failure}")


def no_pool(failure: Exception) -> StartError:
    """The weights left nothing for the KV pool."""
    return StartError(_traceback(_POOL_FRAMES, f"{type(failure).__name__}: {failure}"))


def no_workspace(free: float, specimen: Specimen) -> StartError:
    """The pools left nothing for the first matrix product, which wants 32 MiB at a time."""
    failure = f"torch.OutOfMemoryError: {out_of_memory(32 / 1024, free, specimen)}"
    return StartError(_traceback(_WORKSPACE_FRAMES, failure))


def no_graph(needed: float, free: float, specimen: Specimen, dialect: Dialect, *, phase: str = "decode") -> StartError:
    """A graph did not fit: the engine's words, hints included; `needed` and `free` in GiB."""
    return StartError(_traceback(_CAPTURE_FRAMES, dialect.no_graph(phase, out_of_memory(needed, free, specimen))))


def out_of_memory(needed: float, free: float, specimen: Specimen) -> str:
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
    failure = out_of_memory(min(needed, needed / 2 + free), free, specimen)
    return _traceback(frames, f"torch.OutOfMemoryError: {failure}\n")


def _traceback(frames: Sequence[Frame], failure: str) -> str:
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


def unbalanced(engine: str, cards: Cards, fraction: float, wanted: float) -> StartError:
    """A check before the weights finds less memory than it wants; figures in GiB."""
    if engine == "vllm":
        return StartError(
            f"ValueError: Free memory on device cuda:0 ({cards.free:.2f}/{cards.total:.2f} GiB) on startup is less than"
            f" desired GPU memory utilization ({fraction:g}, {wanted:.2f} GiB). Decrease GPU memory utilization or"
            " reduce GPU memory used by other processes."
        )
    failure = (
        "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes."
        f" pre_model_load_memory={cards.free:.2f}, local_gpu_memory={wanted / 0.9:.2f},"
        f" local_gpu_memory * 0.9={wanted:.2f}"
    )
    return StartError(_traceback(_MEMORY_CHECK_FRAMES, failure))


def sampler(engine: str, requests: int, needed: float, free: float, specimen_total: float) -> StartError:
    """The sampler's buffers do not fit beside the pool; figures in GiB."""
    if engine == "vllm":
        return StartError(
            f"RuntimeError: CUDA out of memory occurred when warming up sampler with {requests} dummy requests. Please"
            " try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
        )
    failure = (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {needed:.2f} GiB. GPU 0 has a total capacity of"
        f" {specimen_total:.2f} GiB of which {max(free, 0.0):.2f} GiB is free."
    )
    return StartError(_traceback(_SAMPLER_FRAMES, failure))


def grown(before: float, after: float) -> StartError:
    """Free memory grew while a vLLM measured what it needs; figures in GiB."""
    return StartError(
        f"AssertionError: Error in memory profiling. Initial free memory {before:.2f} GiB, current free memory"
        f" {after:.2f} GiB. This happens when other processes sharing the same container release GPU memory while vLLM"
        " is profiling during initialization. To fix this, ensure consistent GPU memory allocation or isolate vLLM in"
        " its own container."
    )


def compiled_cache(engine: str) -> StartError:
    """Kernels that an earlier start stored cannot be loaded."""
    frames = _VLLM_CACHE_FRAMES if engine == "vllm" else _CACHE_FRAMES
    return StartError(_traceback(frames, "RuntimeError: CUDA driver error: invalid device kernel image"))


def combination(engine: str) -> StartError:
    """Graph buffers could not be shared between the cards: a line of C++ and no traceback."""
    folder = "/workspace/csrc" if engine == "vllm" else "/sgl-kernel/csrc/allreduce"
    return StartError(f"Failed: Cuda error {folder}/custom_all_reduce.cuh:455 'invalid argument'")


_MEMORY_CHECK_FRAMES = (
    *_INIT_FRAMES,
    ("sglang/sglang/srt/model_executor/model_runner.py", 604, "initialize", "self.init_torch_distributed()"),
    ("sglang/sglang/srt/model_executor/model_runner.py", 1271, "init_torch_distributed", "raise ValueError("),
)
_SAMPLER_FRAMES = (
    *_INIT_FRAMES,
    ("sglang/sglang/srt/layers/sampler.py", 148, "forward", "probs = torch.softmax(logits, dim=-1)"),
)
_CACHE_FRAMES = (
    *_INIT_FRAMES,
    ("sglang/sglang/srt/managers/scheduler.py", 874, "init_model_worker", "self.init_cuda_graphs()"),
    ("triton/runtime/jit.py", 744, "run", "kernel = self._do_compile(key, signature, device, constexprs, options)"),
    ("triton/compiler/compiler.py", 463, "_init_handles", "self.module, self.function, *_ = load_binary("),
)
_VLLM_CACHE_FRAMES = (
    ("vllm/v1/engine/core.py", 1104, "run_engine_core", "engine_core = EngineCoreProc(*args, **kwargs)"),
    ("vllm/v1/worker/gpu_worker.py", 612, "compile_or_warm_up_model", "self.model_runner.capture_model()"),
    ("triton/compiler/compiler.py", 463, "_init_handles", "self.module, self.function, *_ = load_binary("),
)
