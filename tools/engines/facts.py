"""What a start of an engine said about itself: the nouns that both log readers fill.

All "GB" are GiB, as the engines' logs mean it. Where ranks differ, a figure is the one of the worst rank: least free
memory, most used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from agent.domain import Noun

FailureKind = Literal[
    "oom_while_starting",  # GPU memory ran out before any capture began
    "oom_at_capture",  # GPU memory ran out while graphs were captured
    "oom_at_run_time",  # GPU memory ran out while serving
    "kv_pool_exhausted",  # the KV pool could not take the batch: the engine gave up or failed the requests
    "not_enough_memory",  # weights leave no room for a KV pool under the memory fraction
    "unknown_flag",  # the argument parser does not know a flag
    "ambiguous_flag",  # an abbreviation or a removed flag fits several
    "bad_value",  # a value or a combination that the engine refuses
    "port_in_use",  # something else listens on the port
    "watchdog",  # a step took longer than the watchdog allows
    "collective_timeout",  # a collective of the GPUs did not come back
    "nccl",  # NCCL or the process group failed otherwise
    "scheduler_died",  # a worker process ended on its own, or its parent saw it die
    "health",  # the health endpoint could not get its token
    "warm_up_failed",  # the first request of the engine to itself failed
    "unbalanced_memory",  # the GPUs of a group have unequal free memory: somebody else holds some
    "exception",  # an exception of no kind above ended a process
]


class Failure(Noun):
    """Something that went wrong, with the line that says so."""

    kind: FailureKind
    """What kind of failure."""
    fatal: bool
    """Whether the worker cannot go on after it."""
    line: str
    """The line, at most 600 characters."""
    number: int
    """Its number in what was read, from 1."""
    at: str | None = None
    """Its timestamp as the log has it; None: it has none."""
    tried_gb: float | None = None
    """For GPU memory: what was asked for, GB."""
    free_gb: float | None = None
    """For GPU memory: what was free."""


class CaptureStep(Noun):
    """One graph of a capture, from its progress bar."""

    size: int
    """Batch size or number of tokens."""
    free_gb: float
    """Free memory when it was begun, GB, rounded to 0.01 by the engine."""


class Capture(Noun):
    """One capture of graphs."""

    phase: str
    """`decode`, `prefill`, `verify`, `draft decode`, `draft extend`; for vLLM `graphs`, which are all of them."""
    backend: str | None = None
    """What captures: full, tc_piecewise and so on; None: not said."""
    sizes: tuple[int, ...] = ()
    """What was captured: batch sizes, for prefill token counts, ascending."""
    gb: float | None = None
    """Memory that it took, GB; None: it did not end."""
    seconds: float | None = None
    """Time that it took by the engine's own clock; None: it did not end."""
    free_before_gb: float | None = None
    """Free memory when it began."""
    free_after_gb: float | None = None
    """Free memory when it ended."""
    steps: tuple[CaptureStep, ...] = ()
    """Its graphs in the order of capture, the largest first, as far as progress bars tell."""
    done: int = 0
    """Graphs that its progress bars count as captured; where several bars follow each other, all of them."""
    of: int = 0
    """Graphs that its progress bars count in all, as far as they have begun."""


class DecodeBatch(Noun):
    """One progress line of decoding."""

    at: str | None
    """Timestamp as the log has it."""
    running: int
    """Requests that were decoding."""
    queued: int
    """Requests that were waiting."""
    usage: float
    """Share of the KV pool in use, 0 to 1; the fullest of several pools."""
    captured: bool | None
    """Whether the step ran as a captured graph; None: the engine does not say (vLLM)."""
    tokens_per_second: float
    """Generated tokens per second since the line before."""


class Serving(Noun):
    """What the log tells of serving after the start."""

    captured_lines: int = 0
    """Decode lines that ran as graphs."""
    eager_lines: int = 0
    """Decode lines that ran without."""
    largest_captured: int = 0
    """Largest batch of a decode line that ran as a graph."""
    largest_batch: int = 0
    """Largest batch of any decode line."""
    largest_prefill_tokens: int = 0
    """Most new tokens of one prefill batch."""
    prefill_batches: int = 0
    """Prefill lines."""
    retractions: int = 0
    """How often the pool was full and requests had to be taken back."""
    last: tuple[DecodeBatch, ...] = ()
    """The last decode lines, oldest first."""


class StartupFacts(Noun):
    """One start of an engine, from its log; every figure is None where the log does not say it."""

    engine: Literal["sglang", "vllm"]
    """Which engine."""
    version: str | None = None
    """Its version, where it says so or was told; SGLang's log does not, vLLM's does."""
    wording: str | None = None
    """The versions whose wording the log has, such as `0.5.14 to 0.5.18`."""
    settings: Mapping[str, str] = {}
    """Settings in force as the engine printed them, by its own field names; nested ones dotted."""
    stated: tuple[str, ...] | None = None
    """Settings that differ from the defaults of the engine's parser, by its field names, where it lists them (vLLM);
    None: it does not."""
    deprecated: tuple[str, ...] = ()
    """Flags about which it warned."""
    model_type: str | None = None
    """Architecture of the model."""
    quantization: str | None = None
    """Number format of the weights, where it is said."""
    ranks: int = 0
    """How many ranks spoke; 1 where none is named."""
    free_before_weights_gb: float | None = None
    """Free memory before the weights, GB, after the process groups were made."""
    weights_gb: float | None = None
    """Memory of the weights."""
    free_after_weights_gb: float | None = None
    """Free memory after the weights."""
    weights_seconds: float | None = None
    """Time to load them."""
    kv_tokens: int | None = None
    """Tokens of the KV pool."""
    kv_gb: float | None = None
    """Memory of the KV pool."""
    kv_dtype: str | None = None
    """Its number format."""
    free_after_pool_gb: float | None = None
    """Free memory after KV pool and request table."""
    captures: tuple[Capture, ...] = ()
    """The captures in the order of the log."""
    prefill_capture_off: str | None = None
    """Why prefill was not captured, in the engine's words."""
    graph_estimate_gb: float | None = None
    """What the engine itself set aside for graphs before it captured (vLLM)."""
    max_total_tokens: int | None = None
    """Tokens that all requests together may hold."""
    chunked_prefill_size: int | None = None
    """Most tokens of a prefill step; -1 or None: no chunking or not known."""
    max_prefill_tokens: int | None = None
    """Most tokens of a prefill batch."""
    max_running_requests: int | None = None
    """Requests that may decode at once, per data-parallel worker."""
    context_length: int | None = None
    """Longest request in tokens."""
    free_after_capture_gb: float | None = None
    """Free memory once everything was captured."""
    gpu_total_gb: float | None = None
    """Memory of the GPU, where an out-of-memory message says it."""
    port_open: bool = False
    """Whether the HTTP port was opened."""
    ready: bool = False
    """Whether the engine said that it is ready."""
    begun_at: str | None = None
    """First timestamp of the start."""
    ready_at: str | None = None
    """Timestamp of the line that says ready."""
    log_seconds: float | None = None
    """Wall seconds between the two; the process itself is older by its imports, about 20 s for SGLang."""
    serving: Serving = Serving()
    """What came after."""
    asked_to_stop: bool = False
    """Whether it was told to end, so that the deaths of its children afterwards are no failures."""
    failures: tuple[Failure, ...] = ()
    """What went wrong, in the order of the log."""

    def capture(self, phase: str) -> Capture | None:
        """The capture of a phase, such as `decode`; None where there was none."""
        return next((capture for capture in self.captures if capture.phase == phase), None)

    @property
    def cause(self) -> Failure | None:
        """The fatal failure that says most: the first that is no mere report of a death; None where there is none."""
        fatal = [failure for failure in self.failures if failure.fatal]
        telling = [failure for failure in fatal if failure.kind not in ("exception", "scheduler_died")]
        return next(iter(telling or fatal), None)

    @property
    def decode_capture(self) -> Capture | None:
        """The capture that decoding runs on: plain decode, or the target's verify step with speculative decoding."""
        return self.capture("decode") or self.capture("verify") or self.capture("graphs")


class Log(Noun):
    """What was found in a log, or in the part of it that was read."""

    starts: int
    """How many starts it holds."""
    lines: int
    """How many lines were read."""
    facts: StartupFacts | None
    """The last start; None where nothing started."""
    earlier: tuple[StartupFacts, ...] = ()
    """Starts before it, oldest first, as many as were asked for: the history that a forecast gets narrower with."""
