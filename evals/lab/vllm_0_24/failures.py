"""The texts of a vLLM that does not come up or dies: the engine's traceback, then the server's.

Wording: engine facts, section 5, and public logs of 0.22 to 0.24.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evals.lab.failures import out_of_memory
from evals.lab.specimen import Specimen
from evals.lab.vllm_0_24.log import VllmLog

Frame = tuple[str, int, str, str]
"""File below `vllm`, line, function, code."""
_ROOT = "/opt/venv/lib/python3.12/site-packages/vllm"
_START: Sequence[Frame] = (
    ("v1/engine/core.py", 1345, "run_engine_core", "engine_core = EngineCoreProc("),
    ("v1/engine/core.py", 1041, "__init__", "super().__init__("),
)
_POOL: Sequence[Frame] = (
    *_START,
    ("v1/engine/core.py", 139, "__init__", "kv_cache_config = self._initialize_kv_caches(vllm_config)"),
    ("v1/core/kv_cache_utils.py", 1029, "check_enough_kv_cache_memory", "raise ValueError("),
)
_DEVICE: Sequence[Frame] = (
    *_START,
    ("v1/executor/abstract.py", 109, "__init__", "self._init_executor()"),
    ("v1/worker/utils.py", 412, "request_memory", "raise ValueError("),
)
_CAPTURE: Sequence[Frame] = (
    *_START,
    ("v1/worker/gpu_worker.py", 641, "compile_or_warm_up_model", "self.model_runner.capture_model()"),
    ("v1/worker/gpu_model_runner.py", 6638, "capture_model", "self._capture_cudagraphs("),
)
_STEP: Sequence[Frame] = (
    ("v1/engine/core.py", 1363, "run_engine_core", "engine_core.run_busy_loop()"),
    ("v1/engine/core.py", 487, "step_with_batch_queue", "exec_result = self.model_executor.execute_model("),
    ("v1/worker/gpu_model_runner.py", 4312, "execute_model", "model_output = self._model_forward("),
)


class StartError(Exception):
    """The engine's process died; the text is its traceback."""


def refused(failure: Exception) -> str:
    """The server's traceback over a configuration that makes no sense, or a port that somebody holds."""
    frames: Sequence[Frame] = (
        ("entrypoints/cli/main.py", 75, "main", "args.dispatch_function(args)"),
        ("entrypoints/cli/serve.py", 133, "cmd", "uvloop.run(run_server(args))"),
        ("engine/arg_utils.py", 1904, "create_engine_config", "config = VllmConfig("),
    )
    return _traceback(frames[:2] if isinstance(failure, OSError) else frames, f"{type(failure).__name__}: {failure}")


def no_share(failure: ValueError) -> StartError:
    """The card has not the free memory that was asked for."""
    return StartError(_traceback(_DEVICE, f"ValueError: {failure}"))


def no_pool(failure: ValueError) -> StartError:
    """Nothing, or not enough, is left for the KV pool."""
    return StartError(_traceback(_POOL, f"ValueError: {failure}"))


def no_graph(needed: float, free: float, specimen: Specimen) -> StartError:
    """A graph did not fit; `needed` and `free` in GiB."""
    return StartError(_traceback(_CAPTURE, f"torch.OutOfMemoryError: {out_of_memory(needed, free, specimen)}"))


def no_sampler(seqs: int) -> StartError:
    """The sampler's rehearsal did not fit."""
    return StartError(
        _traceback(
            _CAPTURE,
            f"RuntimeError: CUDA out of memory occurred when warming up sampler with {seqs} dummy requests. Please try"
            " lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine.",
        )
    )


def no_pass(needed: float, free: float, specimen: Specimen) -> str:
    """The traceback of a pass that did not fit while serving."""
    return _traceback(_STEP, f"torch.OutOfMemoryError: {out_of_memory(needed, free, specimen)}")


def _traceback(frames: Sequence[Frame], failure: str) -> str:
    lines = "".join(
        f'  File "{_ROOT}/{path}", line {line}, in {name}\n    {code}\n' for path, line, name, code in frames
    )
    return f"Traceback (most recent call last):\n{lines}{failure}"


def envelope(traceback: str, log: VllmLog) -> Iterator[float]:
    """What is printed when the engine dies while the server starts, and the pauses in between, in seconds of life."""
    log.engine(f"EngineCore failed to start.\n{traceback}", "core.py:1374", "ERROR")
    log.spoken(f"Process EngineCore:\n{traceback}")
    yield 2.0
    log.spoken(
        _traceback(
            (
                ("entrypoints/cli/serve.py", 133, "cmd", "uvloop.run(run_server(args))"),
                ("v1/engine/core_client.py", 588, "__init__", "with launch_core_engines("),
                ("v1/engine/utils.py", 1119, "wait_for_engine_startup", "raise RuntimeError("),
            ),
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        ),
        engine=False,
    )


def death(traceback: str, log: VllmLog) -> None:
    """What is printed when the engine dies while it serves."""
    log.engine(f"EngineCore encountered a fatal error.\n{traceback}", "core.py:1383", "ERROR")
    log.server(
        "AsyncLLM output_handler failed.\n"
        + _traceback(
            (
                ("v1/engine/async_llm.py", 765, "output_handler", "outputs = await engine_core.get_output_async()"),
                ("v1/engine/core_client.py", 1105, "get_output_async", "raise self._format_exception(outputs)"),
            ),
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for"
            " the root cause.",
        ),
        "async_llm.py:819",
        "ERROR",
    )
