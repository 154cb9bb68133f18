"""One line of a vLLM log -> what it means, and what may be ignored and why. Read in the released wheel of 0.24.0."""

# ruff: noqa: E501 - a pattern and its reason read best on one line

from __future__ import annotations

import re
from typing import Final

from tools.engines.sglang_lines import Sign

LOGGED: Final = re.compile(
    rb"(?:\((?P<who>[\w.-]+)(?: pid=\d+)?\) )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) "
    rb"(?P<month>\d\d)-(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d) \[(?P<where>[^\]]{1,120})\] ?(?P<says>.*)",
    re.DOTALL,
)
"""A line of vLLM's own logger: process, level, time without a year, file and line, message."""
SPOKEN: Final = re.compile(rb"\((?P<who>[\w.-]+)(?: pid=\d+)?\) (?P<says>.*)", re.DOTALL)
"""A line that a process wrote past the logger: progress bars, tracebacks, uvicorn."""

_NUMBER = rb"-?\d+(?:\.\d+)?"

PATTERNS: Final[dict[str, re.Pattern[bytes]]] = {
    name: re.compile(pattern.replace(b"NUMBER", _NUMBER))
    for name, pattern in {
        "banner": rb".*vLLM API server version v?(?P<version>\d+\.\d+\.\d+\S*)",
        "arguments": rb"non-default args: (?P<text>\{.*)",
        "configuration": rb"Initializing a V1 LLM engine \(v(?P<version>[^)]{1,40})\) with config: (?P<text>.*)",
        "memory": rb"Free memory on device(?: \S+)? \((?P<free>NUMBER)/(?P<total>NUMBER) GiB\) on startup\. Desired GPU memory utilization is \(NUMBER, NUMBER GiB\)\. Actual usage",
        "weights": rb"Model loading took (?P<gb>NUMBER) Gi?B(?: memory)? and (?P<seconds>NUMBER) seconds",
        "estimate": rb"Estimated CUDA graph memory: (?P<gb>NUMBER) GiB total",
        "profiling": rb"Profiling CUDA graph memory: ",
        "kv pool": rb"Available KV cache memory: (?P<gb>NUMBER) GiB",
        "kv tokens": rb"GPU KV cache size: (?P<tokens>[\d,]+) tokens",
        "concurrency": rb"Maximum concurrency for (?P<context>[\d,]+) tokens per request: (?P<times>NUMBER)x",
        "capture step": rb"Capturing CUDA graphs(?: \((?P<what>[^)]{1,80})\))?:.*?(?P<done>\d+)/(?P<of>\d+) \[",
        "capture end": rb"Graph capturing finished in (?P<seconds>NUMBER) secs?, took (?P<gb>NUMBER) GiB",
        "graph pool": rb"CUDA graph pool memory: (?P<gb>NUMBER) GiB \(actual\), (?P<estimate>NUMBER) GiB \(estimated\)",
        "engine ready": rb"init engine \(profile, create kv cache, warmup model\) took (?P<seconds>NUMBER) s",
        "port open": rb"Starting vLLM (?:API )?server(?: \d+)? on ",
        "server process": rb"INFO: +(?:Started server process|Waiting for application startup|Shutting down|Waiting for application shutdown|Finished server process|Uvicorn running on)",
        "ready": rb"(?:INFO: +)?Application startup complete\.",
        "access": rb'INFO: +[\d.:a-fA-F\[\]]+ - "[A-Z]+ [^"]*" \d{3}',
        "serving": (
            rb"Engine \d+: Avg prompt throughput: (?P<prompt>NUMBER) tokens/s, Avg generation throughput: (?P<rate>NUMBER) tokens/s, "
            rb"Running: (?P<running>\d+) reqs, Waiting: (?P<queued>\d+) reqs, (?:Preemptions: (?P<preempted>\d+), )?"
            rb"GPU KV cache usage: (?P<usage>NUMBER)%"
        ),
        "stop": rb"(?:.*Received signal 15|.*SIGTERM|INFO: +Application shutdown complete|Shutting down)",
        "usage": rb"usage: (?:vllm|api_server)",
    }.items()
}
"""What a message begins with -> the facts in it."""

FAILURES: Final[tuple[Sign, ...]] = tuple(
    Sign(kind, fatal, re.compile(pattern))
    for kind, fatal, pattern in (
        ("unknown_flag", True, rb".*: error: unrecognized arguments: "),
        ("ambiguous_flag", True, rb".*: error: ambiguous option: "),
        ("bad_value", True, rb".*: error: (?:argument |the following arguments|invalid )"),
        (
            "not_enough_memory",
            True,
            rb"(?:.*ValueError: )?Free memory on device \S+ \(NUMBER/NUMBER GiB\) on startup is less than".replace(
                b"NUMBER", _NUMBER
            ),
        ),
        ("not_enough_memory", True, rb"(?:.*ValueError: )?No available memory for the cache blocks"),
        ("not_enough_memory", True, rb"(?:.*ValueError: )?To serve at least one request with the model's max seq len"),
        ("not_enough_memory", True, rb"(?:.*Error: )?Failed to load model - not enough GPU memory"),
        ("oom", True, rb"(?:.*Error: )?CUDA out of memory occurred when warming up sampler"),
        ("oom", True, rb"(?:.*torch\.(?:cuda\.)?OutOfMemoryError: )?CUDA out of memory\. Tried to allocate"),
        ("oom", True, rb".*torch\.(?:cuda\.)?OutOfMemoryError: "),
        ("port_in_use", True, rb".*(?:\[Errno 98\]|[Aa]ddress already in use)"),
        ("collective_timeout", True, rb"\[rank\d+\]:.*Watchdog caught collective operation timeout"),
        (
            "nccl",
            True,
            rb".*(?:c10::DistBackendError|ncclSystemError|ncclInternalError|ncclUnhandledCudaError|ncclRemoteError|NCCL error)",
        ),
        ("bad_value", True, rb"(?:.*ValueError: )?customized max_cudagraph_capture_size"),
        ("scheduler_died", True, rb"EngineCore (?:failed to start|encountered a fatal error)"),
        ("scheduler_died", True, rb"(?:RuntimeError: )?Engine core initialization failed"),
        ("scheduler_died", True, rb"Worker proc \S+ died unexpectedly"),
        ("scheduler_died", True, rb".*EngineDeadError"),
        ("bad_value", True, rb"(?:ValueError|AssertionError|TypeError|KeyError|pydantic_core\S*ValidationError): "),
        (
            "exception",
            True,
            rb"(?:RuntimeError|NotImplementedError|ImportError|ModuleNotFoundError|OSError|FileNotFoundError|torch\.AcceleratorError): ",
        ),
    )
)
"""Signs of failure, the more telling first."""

IGNORABLE: Final[tuple[tuple[re.Pattern[bytes], str], ...]] = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        (rb"\s*$", "empty"),
        (rb"\s+\S", "goes on with a traceback, a warning or a usage text whose first line is read"),
        (
            rb" *\d+%\|.*\| \d+/\d+ \[|Loading \w+ checkpoint shards|Processed prompts",
            "progress bar without memory figures",
        ),
        (
            rb"Traceback \(most recent call last\)|During handling of the above exception|The above exception was",
            "frame of a traceback; its last line is read",
        ),
        (
            rb"Starting to load model|Loading weights took|Resolved architecture|Using max model len|Chunked prefill is enabled|Automatically detected platform|Using .* backend|Asynchronous scheduling|Supported_tasks|Route: |Available routes|Using default chat sampling|Default vLLM sampling",
            "step of the start without figures",
        ),
        (
            rb"torch\.compile|Compiling a graph|Dynamo bytecode|Cache the graph|Directly load the compiled graph|Using cache directory|Encoder cache|FlashInfer|flashinfer",
            "compiler and kernels",
        ),
        (
            rb"CUDA graph memory profiling is enabled|Memory profiling takes|Desired GPU memory",
            "explanation of the figures that are read from other lines",
        ),
        (
            rb"Current vLLM config is|.*UserWarning:|world_size=|rank \d+ in world size|vLLM is using nccl|Found nccl",
            "library's remark",
        ),
    )
)
"""Lines that say nothing about memory, speed, identity or failure, each with the reason why not."""


def explain(line: bytes) -> str | None:
    """Say what a fragment of a log is: the name of its pattern, `failure: KIND`, or `ignorable: REASON`; None: unknown."""
    says = message(line)
    for name, pattern in PATTERNS.items():
        if pattern.match(says):
            return name
    for sign in FAILURES:
        if sign.pattern.match(says):
            return f"failure: {sign.kind}"
    for ignorable, reason in IGNORABLE:
        if ignorable.match(says):
            return f"ignorable: {reason}"
    return None


def message(line: bytes) -> bytes:
    """The message of a line, without process, level and time."""
    found = LOGGED.match(line) or SPOKEN.match(line)
    return found["says"] if found else line
