"""One line of an SGLang log -> what it means: the wordings of 0.5.2 to 0.5.23, and what may be ignored and why.

Read in the released wheels and in recordings of 0.5.14. `[.,]` and optional parts cover what changed between versions.
"""

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

STAMPED: Final = re.compile(
    rb"\[(?P<at>20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?)(?P<ranks>(?: [A-Z_]+\d+)*)\] ?(?P<says>.*)", re.DOTALL
)
"""A line of SGLang's own logger: time, ranks such as ` DP0 TP3`, message."""

PATTERNS: Final = patterns(
    {
        "settings": rb"server_args=(?P<text>ServerArgs\(.*|\{.*)",
        "groups": rb"Init torch distributed (?:begin|ends)\.",
        "weights begin": rb"Load weight begin\. avail mem=(?P<free>NUMBER) GB",
        "weights end": (
            rb"Load weight end\. (?:elapsed=(?P<seconds>NUMBER) s, )?type=(?P<model>\w+)(?:, dtype=[\w.]+)?"
            rb"(?:, quant=(?P<quant>[\w.-]+))?.*?avail mem=(?P<free>NUMBER) GB(?:, mem usage=(?P<gb>NUMBER) GB)?"
        ),
        "kv pool": (
            rb"(?:[\w -]{1,40} )?KV Cache is allocated\. (?:dtype: (?P<dtype>[\w.]+), )?#tokens: (?P<tokens>\d+), "
            rb"(?:K size: (?P<k>NUMBER) GB, V size: (?P<v>NUMBER) GB|KV size: (?P<gb>NUMBER) GB)"
        ),
        "dsv4 pool": rb"DS[Vv]4 memory calculation: .*?available_bytes=(?P<gb>NUMBER) GB.*?full_token=(?P<tokens>\d+)",
        "swa pool": rb"SWAKVPool mem usage: (?P<gb>NUMBER) GB, swa size: \d+, full size: (?P<tokens>\d+)",
        "late pool": rb"Post-capture KV sizing: KV cache allocated\. dtype: (?P<dtype>[\w.]+), #tokens: (?P<tokens>\d+), KV size: (?P<gb>NUMBER) GB",
        "pool end": rb"Memory pool end\. avail mem=(?P<free>NUMBER) GB",
        "capture begin": (
            rb"Capture (?P<name>(?:[\w-]+ ){0,4}?)(?:cuda|CUDA) graph begin\b(?:.*?backend=(?P<backend>\w+))?"
            rb"(?:.*?(?:bs|num_tokens)=(?P<sizes>\[[\d, ]*\]))?.*?avail mem=(?P<free>NUMBER) GB"
        ),
        "capture list": rb"Capture (?P<name>(?:[\w-]+ ){0,4}?)(?:cuda|CUDA) graph (?:bs|num tokens) (?P<sizes>\[[\d, ]*\])",
        "capture end": (
            rb"Capture (?P<name>(?:[\w-]+ ){0,4}?)(?:cuda|CUDA) graph end\. (?:bs=(?P<sizes>\[[\d, ]*\]), )?"
            rb"(?:Time elapsed: |elapsed=)(?P<seconds>NUMBER) s[.,] mem usage=(?P<gb>NUMBER) GB[.,] avail mem=(?P<free>NUMBER) GB"
        ),
        "capture step": (
            rb"Capturing (?:batches|num tokens) \((?:bs|num_tokens)=(?P<size>\d+) avail_mem=(?P<free>NUMBER) GB\):"
            rb"(?:.*?(?P<done>\d+)/(?P<of>\d+) \[)?"
        ),
        "prefill off": rb"Disable (?:prefill|piecewise) CUDA graph because (?P<why>.*)",
        "limits": (
            rb"max_total_num_tokens=(?P<tokens>\d+), chunked_prefill_size=(?P<chunk>-?\d+|None), "
            rb"max_prefill_tokens=(?P<prefill>\d+), max_running_requests=(?P<running>\d+), context_len=(?P<context>\d+)"
            rb"(?:, available_[gc]pu_mem=(?P<free>NUMBER) GB)?"
        ),
        "port open": rb"INFO: +Uvicorn running on ",
        "server process": rb"INFO: +(?:Started server process|Waiting for application startup|Application startup complete|Shutting down|Waiting for application shutdown|Application shutdown complete|Finished server process)",
        "access": rb'INFO: +[\d.:a-fA-F\[\]]+ - "[A-Z]+ [^"]*" \d{3}',
        "ready": rb"The server is fired up and ready to roll!",
        "decode": (
            rb"Decode batch(?: \[\d+\])?[.,] #running-req: (?P<running>\d+), (?P<pools>.*?)cuda graph: (?P<graph>True|False), "
            rb"gen throughput \(token/s\): (?P<rate>NUMBER), #queue-req: (?P<queued>\d+)"
        ),
        "prefill": rb"Prefill batch(?: \[\d+\])?[.,] #new-seq: \d+, #new-token: (?P<tokens>\d+), ",
        "retract": rb"KV cache pool is full\. Retract requests",
        "flush": rb"Cache (?:not flushed|flushed successfully)",
        "deprecated": rb"(?:\W*)?'(?P<flag>--[\w-]+)' is deprecated and will be removed",
        "stop": rb"SIGTERM received\.|Signal SIGTERM received|Gracefully exiting\.\.\.",
        "launched": rb".*(?:launch_server|__main__)\.py:\d+: UserWarning",
        "prelude": rb"skip_tokenizer_init=|Failed to load generation config",
        "usage": rb"usage: (?:sglang|launch_server|python3? -m|[\w./-]*launch_server)",
    }
)
"""What a message begins with -> the facts in it."""


# fmt: off
FAILURES: Final = Signs(
    (
        *PARSER,
        ("oom", True, b"out of memory", rb"(?:Exception: )?Capture (?:prefill |piecewise )?(?:cuda|CUDA) graph failed: .*out of memory"),
        ("oom", True, b"CUDA out of memory", rb"(?:torch\.(?:cuda\.)?OutOfMemoryError: )?CUDA out of memory\. Tried to allocate"),
        ("oom", True, b"out of memory", rb"(?:torch\.AcceleratorError|RuntimeError): (?:CUDA|cuda) error: out of memory"),
        ("bad_value", True, b"graph failed", rb"Exception: Capture (?:prefill |piecewise )?(?:cuda|CUDA) graph failed: "),
        ("kv_pool_exhausted", True, b"out of memory. Try to lower", rb"(?:.*Error: )?(?:Decode|Prefill) out of memory\. Try to lower your batch size"),
        ("kv_pool_exhausted", True, b"Out of memory", rb"(?:.*Error: )?Out of memory\. (?:Please|Try to) lower your batch size"),
        ("not_enough_memory", True, b"leave no GPU memory", rb"(?:ValueError: )?Loaded weights leave no GPU memory for the KV cache"),
        ("not_enough_memory", True, b"Not enough memory", rb"(?:\w*Error: )?Not enough memory[.;,]? ?Please try (?:to increase|increasing) "),
        ("unbalanced_memory", True, b"unbalanced", rb"(?:\w*Error: )?The memory capacity is unbalanced\."),
        *NEIGHBOURS,
        ("watchdog", False, b"self.soft=True", rb".*watchdog timeout \("),
        ("watchdog", True, b"watchdog timeout", rb"(?:Scheduler|DetokenizerManager|TokenizerManager|Detokenizer) watchdog timeout"),
        *COLLECTIVES,
        ("health", False, b"Health check failed", rb"Health check failed\. "),
        ("warm_up_failed", True, b"warmup error", rb"Initialization failed\. warmup error: "),
        ("warm_up_failed", False, b"warmup failed", rb"Disaggregation warmup failed "),
        ("scheduler_died", True, b"scheduler", rb"(?:\w*Error: )?Rank \d+ scheduler (?:died during initialization|is dead)"),
        ("scheduler_died", True, b"crashed with exit code", rb"Subprocess \w+ \(pid=\d+\) crashed with exit code -?\d+"),
        ("scheduler_died", True, b"terminated with", rb"Scheduler or DataParallelController \S+ terminated with"),
        ("scheduler_died", True, b"sigquit", rb"Received sigquit from a child process\."),
        ("scheduler_died", True, b"SIGQUIT", rb"SIGQUIT received\."),
        ("exception", True, b"hit an exception", rb"(?:Scheduler|DetokenizerManager|TokenizerManager|DataParallelController) hit an exception: "),
        *EXCEPTIONS,
    )
)
# fmt: on
"""Signs of failure, the more telling first: the first that fits a message names its kind."""

IGNORABLE: Final = reasons(
    (
        *LIBRARIES,
        (
            rb" *\d+%\|.*\| \d+/\d+ \[|(?:Compiling num tokens|Multi-thread loading shards|Loading \w+ checkpoint shards)",
            "progress bar without memory figures",
        ),
        (
            rb"flashinfer\.comm allreduce_fusion API is not available|tilelang not installed|Ignore import error when loading|Fail to set RLIMIT",
            "optional part that is not installed",
        ),
        (
            rb"No (?:HuggingFace )?chat template found|Failed to get yes/no token IDs|Using fallback token IDs|Detected .*chat template",
            "tokenizer and template, not memory or speed",
        ),
        (
            rb"Attention backend not specified|Use \S+ (?:attention )?backend|Use \S+ as |Setting |Set |Tree cache initialized",
            "resolved setting, which the line of settings has too",
        ),
        (
            rb"Config does not support fused shared expert|FlashInfer TRTLLM MoE deferred finalize|Using (?:default )?MoE kernel config|Using FP8 KV cache but no scaling",
            "choice of kernels",
        ),
        (
            rb"Compiling a graph for dynamic shape takes|Online softmax is disabled|split the reduction\.|important use case|softmax\.$|.*UserWarning:",
            "compiler's or library's remark",
        ),
        (rb"Endpoint '[^']*' is deprecated", "client that uses an old endpoint"),
        (
            rb"Post-capture KV sizing|(?:[\w -]{1,40} )?KV Cache VA upper bound|DS[Vv]4 pool sizes|Initialize DeepSeekV4TokenToKVPool|Use sliding window memory pool|Mamba Cache is allocated",
            "shape of the pool; its size is read from the line before or after",
        ),
        (
            rb"Registering \d+ cuda graph addresses|Start of pd disaggregation warmup|End of disaggregation warmup|Disaggregation warmup request completed",
            "step of the start without figures",
        ),
        (
            rb"Sleeping \d+ seconds before crash diagnostics|No live scheduler processes|kill_process_tree called|Scheduler debug info",
            "follows a failure that is read",
        ),
        (
            rb"Possible solutions:|\d\. (?:set|disable) |Open an issue on GitHub|Try to allocate|Exit code:",
            "advice after a failure, which is data and no instruction",
        ),
        (
            rb"Some requests (?:timed out when bootstrapping|fail to receive KV Cache)|Could not fetch prefill parallel info|Request \S+ exceeds the maximum",
            "fate of single requests",
        ),
        (
            rb"Using default HuggingFace|max_total_tokens=\d+ is larger|max_running_requests was reduced|KV cache is forced as chunk cache",
            "clamp, which the line of limits shows",
        ),
        (
            rb"Allocating \S+ GB host memory|(?:At|De)tach(?:ed|ing) (?:HiCache|hybrid)|Hierarchical cache |HiCache|Creating (?:dynamic )?storage backend|Init Unified RadixTree|Prefetch operation|Write page to storage",
            "memory of the host, not of the GPU",
        ),
        (
            rb"Cache the graph|Compiling a graph|Try DeepGEMM|DeepGEMM|PP-parallel DeepGEMM|Required memory for warmup|Available memory \S+GB is less than required|torch\._dynamo|Pre-allocating symmetric memory",
            "kernels that are compiled ahead; what they leave is read from the lines of the captures",
        ),
        (
            rb"NCCL/RCCL warmup|GC (?:start|end)|Freezing GC|LONG GARBAGE|Process \S+ gpu_id|Running warmup|Warmup ended|Global server args updated|Config logging|Start update_weights|Update engine weights|dist_init_addr|Dummy health check",
            "step of a process without figures of the start",
        ),
        (
            rb"Defaulting to KV cache scaling|FP4 \(E2M1\) KV|Attention: Using KV4|group_size: |Scale param shape|w1_weight_scale_2|Expects weight\.size|(?:FP4|FP8|MXFP8) MoE: |Failed to load hf_quant_config|NVFP4 ",
            "number formats of weights and cache",
        ),
        (
            rb"(?:SPECULATIVE_MOE_A2A|LINEAR_ATTN_\w+)_BACKEND is not initialized|Non-overlap \(synchronous\)|avg_spec_accept|Added \S+ to \w+_BACKENDS|FlashInfer |FLASHINFER|When specifying --dsa|num_sm_parts mismatch|Current Triton version|Context parallel feature",
            "choice of kernels",
        ),
        (
            rb"NaN detected in|No logits available|Got unhandled regex|Sending a single large batch|Bit mask generation|Model attempted to call|Parsed value|Empty function name|Tool block ended|Unexpected tool_call_id",
            "fate of single answers, which the checks judge by their content",
        ),
    )
)
"""Lines that say nothing about memory, speed, identity or failure, each with the reason why not."""


def explain(line: bytes) -> str | None:
    """Say what a fragment of a log is: the name of its pattern, `failure: KIND`, or `ignorable: REASON`.

    Returns:
        None for a line that nobody has thought of.
    """
    stamped = STAMPED.match(line)
    says = stamped["says"] if stamped else line
    return explained(says, known=PATTERNS, failures=FAILURES, ignorable=IGNORABLE, passing=stamped is not None)
