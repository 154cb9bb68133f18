"""vLLM is an engine of equal rank: its log, its settings and its own way to account for graphs."""

# ruff: noqa: E501 - lines of logs are as long as engines write them

import pytest

from tools.engines.catalogue import knobs
from tools.engines.log_lines import fragments
from tools.engines.vllm_info import effective
from tools.engines.vllm_lines import explain
from tools.engines.vllm_log import read_log
from tools.engines.vllm_memory import forecast
from tools.engines.vllm_sizes import capture_list, default_largest

START = """\
(APIServer pid=100) INFO 12-31 23:59:20 [api_utils.py:299] vLLM API server version 0.24.0
(APIServer pid=100) INFO 12-31 23:59:20 [api_utils.py:273] non-default args: {'model': '/models/m', 'max_num_seqs': 64, 'gpu_memory_utilization': 0.9, 'enable_prefix_caching': False, 'api_key': ['sesame']}
(EngineCore pid=123) INFO 12-31 23:59:30 [core.py:115] Initializing a V1 LLM engine (v0.24.0) with config: model='/models/m', tensor_parallel_size=1, quantization=None, compilation_config={'mode': 3, 'cudagraph_capture_sizes': [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128], 'max_cudagraph_capture_size': 128}
(EngineCore pid=123) INFO 12-31 23:59:34 [parallel_state.py:1208] rank 0 in world size 1 is assigned as DP rank 0
(EngineCore pid=123) Loading safetensors checkpoint shards: 100% Completed | 4/4 [00:03<00:00,  1.20it/s]
(EngineCore pid=123) INFO 12-31 23:59:40 [gpu_model_runner.py:4800] Model loading took 14.50 GiB memory and 12.000000 seconds
(EngineCore pid=123) INFO 12-31 23:59:45 [gpu_model_runner.py:6483] Profiling CUDA graph memory: PIECEWISE=19 (largest=128), FULL=11 (largest=64)
(EngineCore pid=123) INFO 12-31 23:59:47 [gpu_model_runner.py:6589] Estimated CUDA graph memory: 0.90 GiB total
(EngineCore pid=123) INFO 12-31 23:59:47 [gpu_worker.py:500] Free memory on device (47.0/47.4 GiB) on startup. Desired GPU memory utilization is (0.9, 42.66 GiB). Actual usage is 14.50 GiB for weight, 1.20 GiB for peak activation, 0.30 GiB for non-torch memory, and 0.90 GiB for CUDAGraph memory.
(EngineCore pid=123) INFO 12-31 23:59:47 [gpu_worker.py:508] Available KV cache memory: 25.72 GiB
(EngineCore pid=123) INFO 12-31 23:59:47 [kv_cache_utils.py:2146] GPU KV cache size: 210,720 tokens
(EngineCore pid=123) INFO 12-31 23:59:47 [kv_cache_utils.py:2151] Maximum concurrency for 8,192 tokens per request: 25.72x
(EngineCore pid=123) \rCapturing CUDA graphs (mixed prefill-decode, PIECEWISE):   5%|5         | 1/19 [00:00<00:08,  2.10it/s]\rCapturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|##########| 19/19 [00:08<00:00,  2.34it/s]
(EngineCore pid=123) Capturing CUDA graphs (decode, FULL): 100%|##########| 11/11 [00:04<00:00,  2.34it/s]
(EngineCore pid=123) INFO 12-31 23:59:59 [gpu_model_runner.py:6657] Graph capturing finished in 12 secs, took 0.97 GiB
(EngineCore pid=123) INFO 12-31 23:59:59 [gpu_worker.py:667] CUDA graph pool memory: 0.97 GiB (actual), 0.90 GiB (estimated), difference: 0.07 GiB (7.2%).
(EngineCore pid=123) INFO 01-01 00:00:01 [core.py:315] init engine (profile, create kv cache, warmup model) took 21.20 s (compilation: 3.10 s)
(APIServer pid=100) INFO 01-01 00:00:02 [api_server.py:1346] Starting vLLM server on http://0.0.0.0:8000
(APIServer pid=100) INFO:     Started server process [100]
(APIServer pid=100) INFO:     Waiting for application startup.
(APIServer pid=100) INFO:     Application startup complete.
(APIServer pid=100) INFO:     127.0.0.1:40000 - "POST /v1/chat/completions HTTP/1.1" 200 OK
(APIServer pid=100) INFO 01-01 00:00:12 [loggers.py:127] Engine 000: Avg prompt throughput: 12.5 tokens/s, Avg generation throughput: 93.1 tokens/s, Running: 10 reqs, Waiting: 3 reqs, Preemptions: 2, GPU KV cache usage: 3.1%, Prefix cache hit rate: 0.0%
"""


def facts_of(text):
    """The last start of a text."""
    return read_log(text.encode().split(b"\n")).facts


def row(found, name):
    """What is expected of a row."""
    return next(row.then for row in found.rows if row.name == name)


def test_a_start_gives_its_figures():
    """Every figure that the log prints, through processes, progress bars and the turn of the year."""
    facts = facts_of(START)

    assert (facts.version, facts.weights_gb, facts.weights_seconds) == ("0.24.0", 14.5, 12.0)
    assert (facts.kv_gb, facts.kv_tokens, facts.context_length) == (25.72, 210720, 8192)
    assert (facts.graph_estimate_gb, facts.gpu_total_gb, facts.free_before_weights_gb) == (0.9, 47.4, 47.0)
    assert (facts.max_running_requests, facts.ready, facts.port_open) == (64, True, True)
    assert facts.log_seconds == 42.0
    capture = facts.decode_capture
    assert (capture.gb, capture.seconds, len(capture.sizes), max(capture.sizes)) == (0.97, 12.0, 19, 128)
    batch = facts.serving.last[0]
    assert (batch.running, batch.queued, batch.usage, batch.captured) == (10, 3, 0.031, None)
    assert facts.serving.retractions == 2
    assert not facts.failures
    assert "sesame" not in facts.model_dump_json()


def test_each_line_is_understood_or_ignorable_for_a_reason():
    """A line that nobody has thought of is a gap in the reader."""
    lines = [fragment for line in START.encode().split(b"\n") for fragment in fragments(line)]

    assert not [line for line in lines if explain(line) is None and line != b"(EngineCore pid=123) "]


def test_settings_in_force_are_those_that_the_log_prints():
    """Production vLLM answers no question about its settings."""
    values = effective(facts_of(START), knobs("vllm"))

    assert values["max-num-seqs"] == "64"
    assert values["max-cudagraph-capture-size"] == "128"
    assert values["gpu-memory-utilization"] == "0.9"
    assert values["enable-prefix-caching"] == "off"


BEGUN = START.split("(EngineCore", maxsplit=1)[0]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (BEGUN + "ValueError: Free memory on device cuda:0 (20.1/79.1 GiB) on startup is less than desired GPU memory utilization (0.92, 72.8 GiB). Decrease", "not_enough_memory"),
        (BEGUN + "(EngineCore pid=1) ERROR 12-31 23:59:59 [core.py:9] ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`", "not_enough_memory"),
        (BEGUN + "ValueError: To serve at least one request with the model's max seq len (131072), (16.00 GiB KV cache is needed", "not_enough_memory"),
        (BEGUN + "(EngineCore pid=1) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 47.40 GiB of which 488.19 MiB is free.", "oom_while_starting"),
        (START + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has", "oom_at_run_time"),
        (START + "(APIServer pid=1) ERROR 01-01 00:10:00 [core.py:9] EngineCore encountered a fatal error.", "scheduler_died"),
        (BEGUN + "ValueError: customized max_cudagraph_capture_size(=96) should be consistent with the max value of cudagraph_capture_sizes(=64)", "bad_value"),
        ("usage: vllm serve [-h]\nvllm serve: error: unrecognized arguments: --cuda-graph-max-bs 96", "unknown_flag"),
    ],
    ids=lambda value: value[-40:],
)  # fmt: skip
def test_each_kind_of_failure_is_told_apart(text, kind):
    """By its own words, and by whether the engine was starting or serving."""
    assert [failure.kind for failure in facts_of(text).failures] == [kind]


@pytest.mark.parametrize(
    ("running", "largest", "count"), [(16, 32, 7), (32, 64, 11), (64, 128, 19), (128, 256, 35), (256, 512, 51)]
)
def test_the_capture_list_is_the_engines(running, largest, count):
    """Twice the running limit, without 12, and by 16 from 256 on."""
    assert default_largest(running) == largest
    assert len(capture_list(largest)) == count


def test_larger_graphs_cost_kv_tokens_and_not_free_memory():
    """The engine takes its estimate of the graphs out of the pool."""
    facts = facts_of(START)

    found = forecast(facts=facts, change={"max-cudagraph-capture-size": "512"}, floor_gb=3.0, start_seconds=[60.0])

    assert row(found, "captured sizes").low == 51
    assert row(found, "KV pool").low < 25.72
    assert row(found, "decode graphs").high > 0.97
    now = next(row.now for row in found.rows if row.name == "free after capture")
    assert found.free_after_capture.low <= now <= found.free_after_capture.high
    assert found.fits == "fits"


def test_a_larger_memory_share_grows_the_pool_and_eats_the_slack():
    """0.90 to 0.98 of 47.4 GiB is 3.8 GiB."""
    found = forecast(facts=facts_of(START), change={"gpu-memory-utilization": "0.98"}, floor_gb=3.0)

    assert row(found, "KV pool").low > 28.5
    assert found.fits == "does not fit"


def test_the_gpus_memory_follows_from_the_two_shares_where_nothing_else_says_it():
    """0.0035 of it are the 0.33 GiB of the estimate; what is left outside of 0.85 is then 14.1 GiB, less the miss."""
    lines = (
        "INFO 11-29 12:00:00 [a.py:1] non-default args: {'model': '/m', 'gpu_memory_utilization': 0.85}\n"
        "INFO 11-29 12:00:01 [a.py:1] Estimated CUDA graph memory: 0.33 GiB total\n"
        "INFO 11-29 12:00:02 [a.py:1] CUDA graph memory profiling is enabled (default since v0.21.0). The current "
        "--gpu-memory-utilization=0.8500 is equivalent to --gpu-memory-utilization=0.8465 without CUDA graph memory "
        "profiling. To maintain the same effective KV cache size as before, increase\n"
        "INFO 11-29 12:00:03 [a.py:1] Graph capturing finished in 10 secs, took 0.41 GiB\n"
    )

    facts = facts_of(lines)

    assert facts.gpu_total_gb == pytest.approx(95.6, rel=0.02)
    assert facts.free_after_capture_gb == pytest.approx(95.6 * 0.15 - 0.08, abs=0.3)
    assert facts_of(lines.replace("is equivalent to", "means")).free_after_capture_gb is None


def test_more_requests_at_once_may_cost_pool_for_the_sampler():
    """It is warmed up with as many requests as may run: at most three fp32 rows of the vocabulary for each."""
    facts = facts_of(START)

    more = forecast(facts=facts, change={"max-num-seqs": "1024"}, floor_gb=3.0)
    fewer = forecast(facts=facts, change={"max-num-seqs": "32"}, floor_gb=3.0)

    assert row(more, "KV pool").low < 25.72 - 2.8
    assert row(fewer, "KV pool").high > 25.72
    assert "sampler" in row(more, "KV pool").basis


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"max-model-len": "262144"}, "max-model-len 262,144 tokens does not fit into a KV pool"),
        ({"gpu-memory-utilization": "0.99", "max-num-seqs": "64"}, None),
    ],
)
def test_what_the_engine_would_refuse_at_its_start_is_foreseen(change, says):
    """One request longer than the pool; a share that is more than was free."""
    found = forecast(facts=facts_of(START), change=change, floor_gb=0.0)
    crowded = forecast(
        facts=facts_of(START.replace("(47.0/47.4 GiB)", "(40.0/47.4 GiB)")),
        change={"gpu-memory-utilization": "0.95"},
        floor_gb=0.0,
    )

    assert (says or "free after capture") in found.why
    assert found.fits == ("does not fit" if says else found.fits)
    assert "only 40.0 GB were free" in crowded.why
    assert crowded.fits == "does not fit"


@pytest.mark.parametrize(
    "carrier",
    ["Nov 29 12:00:00 gpu7 vllm[12]: ", "2026-11-29T12:00:00.123Z ", "2026-11-29T12:00:00.123456Z stderr F "],
    ids=["journald", "docker", "kubernetes"],
)
def test_what_carries_a_log_does_not_hide_it(carrier):
    """The same start, as a journal or a container's log has it."""
    carried = "".join(f"{carrier}{line}\n" for line in START.splitlines())

    assert facts_of(carried) == facts_of(START)
