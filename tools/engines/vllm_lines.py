"""One line of a vLLM log -> what it means, and what may be ignored and why. Read in the released wheel of 0.24.0."""

# ruff: noqa: E501 - a pattern and its reason read best on one line

from __future__ import annotations

import re
from typing import Final

from tools.engines.line_tables import (
    COLLECTIVES,
    EXCEPTIONS,
    LIBRARIES,
    NEIGHBOURS,
    PARSER,
    Signs,
    explained,
    patterns,
    reasons,
)

LOGGED: Final = re.compile(
    rb"(?:\((?P<who>[\w.-]+)(?: pid=\d+)?\) )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) "
    rb"(?P<month>\d\d)-(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d) \[(?P<where>[^\]]{1,120})\] ?(?P<says>.*)",
    re.DOTALL,
)
"""A line of vLLM's own logger: process, level, time without a year, file and line, message."""
SPOKEN: Final = re.compile(rb"\((?P<who>[\w.-]+)(?: pid=\d+)?\) (?P<says>.*)", re.DOTALL)
"""A line that a process wrote past the logger: progress bars, tracebacks, uvicorn."""

PATTERNS: Final = patterns(
    {
        "banner": rb".*vLLM API server version v?(?P<version>\d+\.\d+\.\d+\S*)",
        "arguments": rb"non-default args: (?P<text>\{.*)",
        "configuration": rb"Initializing a V1 LLM engine \(v(?P<version>[^)]{1,40})\) with config: (?P<text>.*)",
        "memory": rb"Free memory on device(?: \S+)? \((?P<free>NUMBER)/(?P<total>NUMBER) GiB\) on startup\. Desired GPU memory utilization is \(NUMBER, NUMBER GiB\)\. Actual usage",
        "weights": rb"Model loading took (?P<gb>NUMBER) Gi?B(?: memory)? and (?P<seconds>NUMBER) seconds",
        "estimate": rb"Estimated CUDA graph memory: (?P<gb>NUMBER) GiB total",
        "profiling": rb"Profiling CUDA graph memory: ",
        "share": (
            rb"CUDA graph memory profiling is enabled.*?current --gpu-memory-utilization=(?P<share>NUMBER) is equivalent to "
            rb"--gpu-memory-utilization=(?P<without>NUMBER) without"
        ),
        "kv pool": rb"Available KV cache memory: (?P<gb>NUMBER) GiB",
        "kv tokens": rb"GPU KV cache size: (?P<tokens>[\d,]+) tokens",
        "concurrency": rb"Maximum concurrency for (?P<context>[\d,]+) tokens per request: (?P<times>NUMBER)x",
        "capture step": rb"Capturing CUDA graphs(?: \((?P<what>[^)]{1,80})\))?:.*?(?P<done>\d+)/(?P<of>\d+) \[",
        "capture end": rb"Graph capturing finished in (?P<seconds>NUMBER) secs?, took (?P<gb>NUMBER) GiB",
        "graph pool": rb"CUDA graph pool memory: (?P<gb>NUMBER) GiB \(actual\), (?P<estimate>NUMBER) GiB \(estimated\)",
        "engine ready": rb"init engine \(profile, create kv cache, warmup model\) took (?P<seconds>NUMBER) s",
        "port open": rb"Starting vLLM (?:API )?server(?: \d+)? on ",
        "server process": rb"INFO: +(?:Started server process|Waiting for application startup|Waiting for application shutdown|Application shutdown complete|Finished server process|Uvicorn running on)",
        "ready": rb"(?:INFO: +)?Application startup complete\.",
        "access": rb'INFO: +[\d.:a-fA-F\[\]]+ - "[A-Z]+ [^"]*" \d{3}',
        "serving": (
            rb"Engine \d+: Avg prompt throughput: (?P<prompt>NUMBER) tokens/s, Avg generation throughput: (?P<rate>NUMBER) tokens/s, "
            rb"Running: (?P<running>\d+) reqs, Waiting: (?P<queued>\d+) reqs, (?:Preemptions: (?P<preempted>\d+), )?"
            rb"GPU KV cache usage: (?P<usage>NUMBER)%"
        ),
        "stop": rb".*[Ss]hutting down",
        "usage": rb"usage: (?:vllm|api_server)",
    }
)
"""What a message begins with -> the facts in it."""

MARKS: Final = {
    "banner": b"API server version",
    "arguments": b"non-default args",
    "configuration": b"Initializing a V1",
    "memory": b"on startup. Desired",
    "weights": b"Model loading took",
    "estimate": b"Estimated CUDA graph",
    "share": b"graph memory profiling is enabled",
    "kv pool": b"KV cache memory: ",
    "kv tokens": b"KV cache size: ",
    "concurrency": b"Maximum concurrency",
    "capture step": b"Capturing CUDA graphs",
    "capture end": b"Graph capturing finished",
    "port open": b"Starting vLLM",
    "ready": b"Application startup complete",
    "serving": b"Avg prompt throughput",
    "stop": b"hutting down",
    "usage": b"usage: ",
}
"""Patterns that hold facts, each with a part that its lines contain; looked for first, because that is quick."""

# fmt: off
FAILURES: Final = Signs(
    (
        *PARSER,
        ("not_enough_memory", True, b"on startup is less than", rb"(?:.*ValueError: )?Free memory on device "),
        ("not_enough_memory", True, b"for the cache blocks", rb"(?:.*ValueError: )?No available memory for the cache blocks"),
        ("not_enough_memory", True, b"To serve at least one request", rb""),
        ("not_enough_memory", True, b"not enough GPU memory", rb"(?:.*Error: )?Failed to load model - not enough GPU memory"),
        ("oom", True, b"out of memory occurred", rb"(?:.*Error: )?CUDA out of memory occurred when "),
        ("oom", True, b"CUDA out of memory. Tried", rb""),
        ("oom", True, b"OutOfMemoryError: ", rb""),
        *NEIGHBOURS,
        *COLLECTIVES,
        ("bad_value", True, b"customized max_cudagraph_capture_size", rb""),
        ("scheduler_died", True, b"EngineCore", rb"EngineCore (?:failed to start|encountered a fatal error)"),
        ("scheduler_died", True, b"Engine core initialization failed", rb""),
        ("scheduler_died", True, b"died unexpectedly", rb"Worker proc \S+ died unexpectedly"),
        ("scheduler_died", True, b"EngineDeadError", rb""),
        *EXCEPTIONS,
    )
)
# fmt: on
"""Signs of failure, the more telling first."""

IGNORABLE: Final = reasons(
    (
        *LIBRARIES,
        (
            rb" *\d+%\|.*\| \d+/\d+ \[|Loading \w+ checkpoint shards|Processed prompts",
            "progress bar without memory figures",
        ),
        (
            rb"Starting to load model|Loading weights took|Initial profiling|Final IR op priority|Resolved architecture|Using max model len|Chunked prefill is enabled|Automatically detected platform|Using .* backend|Asynchronous scheduling|Supported_tasks|Route: |Available routes|Final IR op priority|Using default chat sampling|Default vLLM sampling",
            "step of the start without figures",
        ),
        (
            rb"torch\.compile|Triton kernel JIT compilation|Initial profiling/warmup run|Compiling a graph|Dynamo bytecode|Cache the graph|Directly load the compiled graph|Using cache directory|Encoder cache|FlashInfer|flashinfer",
            "compiler and kernels",
        ),
        (
            rb"CUDA graph memory profiling |Memory profiling takes|Desired GPU memory",
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
    logged = LOGGED.match(line)
    passing = logged is not None and logged["level"] != b"ERROR"
    return explained(says, known=PATTERNS, failures=FAILURES, ignorable=IGNORABLE, passing=passing)


def message(line: bytes) -> bytes:
    """The message of a line, without process, level and time."""
    found = LOGGED.match(line) or SPOKEN.match(line)
    return found["says"] if found else line
