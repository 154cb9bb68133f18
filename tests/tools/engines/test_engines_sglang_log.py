"""The reader of SGLang's logs, on what a real 0.5.14 printed."""

# ruff: noqa: E501 - lines of logs are as long as engines write them

import json
from pathlib import Path

import pytest

from tools.engines.log_lines import fragments, lines_of
from tools.engines.sglang_lines import explain
from tools.engines.sglang_log import read_log

DATA = Path(__file__).parents[2] / "data"
RECORDINGS = sorted((DATA / "recordings" / "sglang-0.5.14-h200").glob("*/startup.log"))
IDS = [path.parent.name for path in RECORDINGS]


def reading(name):
    """One recording, read."""
    with (DATA / "recordings" / "sglang-0.5.14-h200" / name / "startup.log").open("rb") as stream:
        return read_log(lines_of(stream), version="0.5.14")


GOLDEN = sorted((DATA / "recordings" / "golden").glob("*.json"))


def test_the_recordings_are_there():
    """Nine starts were recorded, each with its golden file; a test over none of them would prove nothing."""
    assert len(GOLDEN) >= 9
    assert {path.stem for path in GOLDEN} <= set(IDS)


@pytest.mark.parametrize("golden", GOLDEN, ids=[path.stem for path in GOLDEN])
def test_a_recording_reads_as_its_golden_file_says(golden):
    """Every fact, failure and figure, field by field."""
    found = json.loads(reading(golden.stem).model_dump_json())

    assert json.loads(golden.read_text(encoding="utf-8")) == found


@pytest.mark.parametrize("path", RECORDINGS, ids=IDS)
def test_each_line_is_understood_or_ignorable_for_a_reason(path):
    """A line that nobody has thought of is a gap in the reader."""
    with path.open("rb") as stream:
        unknown = [fragment for line in lines_of(stream) for fragment in fragments(line) if explain(fragment) is None]

    assert not unknown


@pytest.mark.parametrize(
    ("name", "weights", "tokens", "running", "sizes", "graphs", "seconds", "free"),
    [
        ("q_bs32", 15.28, 806557, 4096, 8, 0.09, 1.62, 11.42),
        ("q_bs96", 15.28, 806557, 4096, 16, 0.18, 2.81, 11.32),
        ("q_bs96_overlap", 15.28, 809597, 4096, 16, 0.18, 2.69, 12.19),
        ("q_mrr48", 15.28, 809597, 48, 10, 0.10, 2.53, 12.40),
        ("q_oom_mf99", 15.28, 891697, 4096, 36, 0.41, 4.89, 0.71),
        ("m_bs32", 29.44, 3354142, 4096, 8, 0.39, 23.58, 11.86),
    ],
)
def test_the_figures_of_a_start_are_those_that_it_printed(name, weights, tokens, running, sizes, graphs, seconds, free):
    """Read by eye from the recordings, independently of the golden files."""
    facts = reading(name).facts
    assert facts is not None
    capture = facts.decode_capture
    assert capture is not None

    assert (weights, tokens, running) == (facts.weights_gb, facts.max_total_tokens, facts.max_running_requests)
    assert (sizes, graphs, seconds) == (len(capture.sizes), capture.gb, capture.seconds)
    assert sizes == len(capture.steps)
    assert free == facts.free_after_capture_gb
    assert facts.ready
    assert facts.wording == "0.5.14 to 0.5.18"


@pytest.mark.parametrize(
    ("name", "kind", "ready"),
    [
        ("q_oom_mf99", "oom_at_run_time", True),
        ("q_oom_mf999", "oom_while_starting", False),
        ("q_bad_flag", "unknown_flag", False),
    ],
)
def test_a_failure_is_named_and_shows_its_line(name, kind, ready):
    """The kind of the failure that says most, with the very line of the log."""
    facts = reading(name).facts
    assert facts is not None
    cause = facts.cause
    assert cause is not None
    lines = (DATA / "recordings" / "sglang-0.5.14-h200" / name / "startup.log").read_text("utf-8").split("\n")

    assert kind == cause.kind
    assert cause.line[:80] in lines[cause.number - 1]
    assert ready is facts.ready


@pytest.mark.parametrize("name", ["q_bs32", "q_bs96", "q_bs96_overlap", "q_eager", "q_mrr48", "m_bs32"])
def test_a_worker_that_was_told_to_stop_has_not_failed(name):
    """Children that die after SIGTERM are reported as crashed, and are not."""
    facts = reading(name).facts
    assert facts is not None

    assert facts.asked_to_stop
    assert not facts.failures


def test_the_last_start_of_a_long_log_counts():
    """A log that goes on over restarts: figures of the start before do not leak into the next."""
    text = b"".join(path.read_bytes() for path in RECORDINGS)
    order = [path.parent.name for path in RECORDINGS]

    log = read_log(text.split(b"\n"), version="0.5.14")

    assert len(order) == log.starts
    assert log.facts is not None
    alone = reading(order[-1]).facts
    assert alone is not None
    assert alone.model_dump(exclude={"failures"}) == log.facts.model_dump(exclude={"failures"})
    assert [failure.kind for failure in alone.failures] == [failure.kind for failure in log.facts.failures]


def test_starts_before_the_last_are_the_history():
    """As many as were asked for, oldest first, each as if it stood alone."""
    text = b"".join(path.read_bytes() for path in RECORDINGS)
    order = [path.parent.name for path in RECORDINGS]

    found = read_log(text.split(b"\n"), version="0.5.14", earlier=3).earlier

    assert [start.free_after_capture_gb for start in found] == [
        reading(name).facts.free_after_capture_gb for name in order[-4:-1]
    ]
    assert not read_log(text.split(b"\n")).earlier


def test_reading_begins_after_an_offset(tmp_path):
    """With the log's size before the restart, only the start that came after it is read."""
    log = tmp_path / "worker.log"
    first, second = (DATA / "recordings" / "sglang-0.5.14-h200" / name / "startup.log" for name in ("q_bs32", "q_bs96"))
    log.write_bytes(first.read_bytes())
    before = log.stat().st_size
    with log.open("ab") as stream:
        stream.write(second.read_bytes())

    with log.open("rb") as stream:
        found = read_log(lines_of(stream, after=before))

    assert found.starts == 1
    assert found.facts is not None
    assert found.facts.decode_capture is not None
    assert max(found.facts.decode_capture.sizes) == 96


def test_a_log_that_was_emptied_is_read_from_its_start(tmp_path):
    """An offset beyond the end means that somebody rotated the file."""
    log = tmp_path / "worker.log"
    log.write_bytes((DATA / "recordings" / "sglang-0.5.14-h200" / "q_bs32" / "startup.log").read_bytes())

    with log.open("rb") as stream:
        found = read_log(lines_of(stream, after=10**9))

    assert found.starts == 1


def test_ranks_give_the_worst_of_them():
    """Eight ranks, coloured, interleaved: least free memory, most used."""
    lines = [b"[2026-11-29 15:07:27] server_args=ServerArgs(model_path='/m', tp_size=2, api_key='sesame')"]
    for rank, (free, used) in enumerate([("90.00", "40.00"), ("89.50", "40.50")]):
        stamp = f"\x1b[1m[2026-11-29 15:07:48.123 TP{rank}]\x1b[0m ".encode()
        lines += [
            stamp + b"Load weight begin. avail mem=130.00 GB",
            stamp
            + f"Load weight end. elapsed=41.51 s, type=DeepseekV4ForCausalLM, quant=fp8, fmt=e4m3, "
            f"avail mem={free} GB, mem usage={used} GB.".encode(),
            stamp
            + f"Capture target decode CUDA graph begin. backend=full, num_tokens_per_bs=1, bs=[1, 2], avail mem=1{rank}.00 GB".encode(),
        ]
    lines.append(
        b"\rCapturing batches (bs=2 avail_mem=9.80 GB):   0%|   | 0/2 [00:00<?, ?it/s]"
        b"\rCapturing batches (bs=1 avail_mem=9.70 GB):  50%|   | 1/2 [00:00<?, ?it/s]"
        b"[2026-11-29 15:07:50 TP1] Capture target decode CUDA graph end. elapsed=10.10 s, mem usage=0.79 GB, avail mem=9.21 GB."
    )
    lines.append(
        b"[2026-11-29 15:07:50 TP0] Capture target decode CUDA graph end. elapsed=10.00 s, mem usage=0.80 GB, avail mem=9.39 GB."
    )

    facts = read_log(lines).facts

    assert facts is not None
    assert (facts.ranks, facts.weights_gb, facts.free_after_weights_gb, facts.weights_seconds) == (2, 40.5, 89.5, 41.51)
    assert (facts.model_type, facts.quantization) == ("DeepseekV4ForCausalLM", "fp8")
    capture = facts.decode_capture
    assert capture is not None
    assert (capture.gb, capture.seconds, capture.free_after_gb) == (0.8, 10.1, 9.21)
    assert [(step.size, step.free_gb) for step in capture.steps] == [(2, 9.8), (1, 9.7)]
    assert "sesame" not in facts.model_dump_json()
    assert facts.free_after_capture_gb == 9.21
    assert not facts.ready


OLD = b"""\
[2025-08-01 10:00:00] server_args=ServerArgs(model_path='/m', cuda_graph_max_bs=8, cuda_graph_bs=[1, 2, 4, 8], mem_fraction_static=0.83)
[2025-08-01 10:00:20] Load weight begin. avail mem=14.20 GB
[2025-08-01 10:00:24] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=13.00 GB, mem usage=1.20 GB.
[2025-08-01 10:00:24] KV Cache is allocated. #tokens: 91234, K size: 4.90 GB, V size: 4.90 GB
[2025-08-01 10:00:24] Memory pool end. avail mem=2.00 GB
[2025-08-01 10:00:24] Capture cuda graph begin. This can take up to several minutes. avail mem=1.80 GB
[2025-08-01 10:00:24] Capture cuda graph bs [1, 2, 4, 8]
[2025-08-01 10:00:43] Capture cuda graph end. Time elapsed: 18.28 s. mem usage=0.11 GB. avail mem=1.70 GB.
[2025-08-01 10:00:43] max_total_num_tokens=91234, chunked_prefill_size=2048, max_prefill_tokens=16384, max_running_requests=2048, context_len=40960, available_gpu_mem=1.70 GB
[2025-08-01 10:00:44] The server is fired up and ready to roll!
[2025-08-01 10:01:00] Decode batch. #running-req: 3, #token: 411, token usage: 0.00, cuda graph: True, gen throughput (token/s): 210.55, #queue-req: 0, \n"""
NEW = b"""\
[2026-11-29 10:00:00 TP0] server_args={'model_path': '/m', 'tp_size': 8, 'cuda_graph_config': {'decode': {'backend': 'full', 'max_bs': 4, 'bs': [1, 2, 4]}}, 'mem_fraction_static': 0.88}
[2026-11-29 10:00:20 TP0] Load weight begin. avail mem=93.61 GB
[2026-11-29 10:00:24 TP0] Load weight end. elapsed=3.51 s, type=DeepseekV4ForCausalLM, quant=fp8, avail mem=55.90 GB, mem usage=37.70 GB.
[2026-11-29 10:00:24 TP0] DSV4 memory calculation: bytes_per_full_token=15897.45, available_bytes=45.78 GB, full_token=3080960
[2026-11-29 10:00:24 TP0] Memory pool end. avail mem=10.18 GB
[2026-11-29 10:00:24 TP0] Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, avail mem=10.11 GB
[2026-11-29 10:00:43 TP0] Capture target decode CUDA graph end. bs=[1, 2, 4], elapsed=18.28 s, mem usage=-0.01 GB, avail mem=10.12 GB.
[2026-11-29 10:00:43 TP0] max_total_num_tokens=3080960, chunked_prefill_size=None, max_prefill_tokens=16384, max_running_requests=256, context_len=1048576, available_gpu_mem=10.12 GB
[2026-11-29 10:00:44] The server is fired up and ready to roll!
[2026-11-29 10:01:00 TP0] Decode batch [41], #running-req: 3, #full token: 411, full token usage: 0.03, #swa token: 9, swa token usage: 0.05, accept len: 2.81, accept rate: 0.60, pre-allocated usage: 0.01, #prealloc-req: 0, #transfer-req: 0, #retracted-req: 0, cuda graph: False, gen throughput (token/s): 99.50, #queue-req: 7
"""


@pytest.mark.parametrize(
    ("text", "wording", "sizes", "graphs", "free", "tokens", "fraction", "last"),
    [
        (OLD, "0.5.13 or older", (1, 2, 4, 8), 0.11, 1.7, 91234, "0.83", (3, 0, 0.0, True, 210.55)),
        (NEW, "0.5.19 or newer", (1, 2, 4), -0.01, 10.12, 3080960, "0.88", (3, 7, 0.05, False, 99.5)),
    ],
    ids=["0.5.2", "0.5.22"],
)
def test_older_and_newer_wordings_mean_the_same(text, wording, sizes, graphs, free, tokens, fraction, last):
    """Flat and nested settings, old and new capture lines, both punctuations of the decode line."""
    facts = read_log(text.split(b"\n")).facts

    assert facts is not None
    capture = facts.decode_capture
    assert capture is not None
    assert (wording, sizes, graphs) == (facts.wording, capture.sizes, capture.gb)
    assert (free, tokens, fraction) == (
        facts.free_after_capture_gb,
        facts.kv_tokens,
        facts.settings["mem_fraction_static"],
    )
    batch = facts.serving.last[-1]
    assert last == (batch.running, batch.queued, batch.usage, batch.captured, batch.tokens_per_second)
    assert facts.log_seconds == 44.0


SPECULATIVE = b"""\
[2025-12-01 10:00:00 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=9.80 GB
[2025-12-01 10:00:05 TP0] Capture cuda graph end. Time elapsed: 5.00 s. mem usage=0.40 GB. avail mem=9.40 GB.
[2025-12-01 10:00:05 TP0] Capture draft cuda graph begin. This can take up to several minutes. avail mem=9.40 GB
[2025-12-01 10:00:07 TP0] Capture draft cuda graph end. Time elapsed: 2.00 s. mem usage=0.30 GB. avail mem=9.10 GB.
[2025-12-01 10:00:07 TP0] Capture draft extend cuda graph begin. This can take up to several minutes. avail mem=9.10 GB
[2025-12-01 10:00:08 TP0] Capture draft extend cuda graph end. Time elapsed: 1.00 s. mem usage=0.10 GB. avail mem=9.00 GB.
[2025-12-01 10:00:08 TP0] Capture piecewise CUDA graph begin. avail mem=9.00 GB
[2025-12-01 10:00:09 TP0] Capture piecewise CUDA graph end. Time elapsed: 1.00 s. mem usage=0.20 GB. avail mem=8.80 GB."""


def test_captures_of_a_draft_are_kept_apart():
    """Target, draft, draft extend and prefill each have their own figures, whatever a version calls them."""
    facts = read_log(SPECULATIVE.split(b"\n")).facts
    newer = SPECULATIVE.replace(b"Capture draft cuda", b"Capture draft decode CUDA").replace(
        b"piecewise", b"target prefill"
    )

    assert {capture.phase: capture.gb for capture in facts.captures} == {
        "decode": 0.4,
        "draft decode": 0.3,
        "draft extend": 0.1,
        "prefill": 0.2,
    }
    assert facts.decode_capture.gb == 0.4
    assert read_log(newer.split(b"\n")).facts.captures == facts.captures


def test_pools_of_newer_versions_are_read_by_name():
    """Labels before, fields between, and a pool that is made after the capture."""
    stamp = b"[2026-12-01 10:00:00 TP0] "
    lines = [
        stamp
        + b"DSV4 memory calculation: bytes_per_full_token=15897.45, available_bytes=45.78 GB, c4_ratio=4, full_token=3080960",
        stamp + b"Draft KV Cache is allocated. dtype: torch.bfloat16, #tokens: 5, KV size: 0.10 GB",
    ]
    late = (
        stamp
        + b"Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, #tokens: 3000000, KV size: 44.00 GB, avail mem=3.00 GB"
    )

    before, after = read_log(lines).facts, read_log([*lines, late]).facts

    assert (before.kv_gb, before.kv_tokens) == (45.78, 3080960)
    assert (after.kv_gb, after.kv_tokens) == (44.0, 3000000)


BEGUN = b"[2026-11-29 10:00:00] server_args=ServerArgs(model_path='/m')\n"
SERVING = BEGUN + b"[2026-11-29 10:00:44] The server is fired up and ready to roll!\n"
CAPTURING = (
    BEGUN
    + b"[2026-11-29 10:00:24 TP6] Capture target decode CUDA graph begin. backend=full, num_tokens_per_bs=1, bs=[1, 2], avail mem=0.40 GB\n"
)


@pytest.mark.parametrize(
    ("text", "kind", "fatal"),
    [
        (CAPTURING + b"Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 6 has a total capacity of 139.80 GiB of which 488.19 MiB is free.", "oom_at_capture", True),
        (BEGUN + b"ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.6. Raise --mem-fraction-static above 0.713", "not_enough_memory", True),
        (BEGUN + b"RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.5", "not_enough_memory", True),
        (b"launch_server.py: error: ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill", "ambiguous_flag", True),
        (BEGUN + b"ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): address already in use", "port_in_use", True),
        (SERVING + b"[2026-11-29 10:05:44 TP0] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)", "watchdog", True),
        (SERVING + b"[2026-11-29 10:05:44] TokenizerManager watchdog timeout (self.watchdog_timeout=300, self.soft=True)", "watchdog", False),
        (SERVING + b"[rank4]:[E226 11:16:37.104512039 ProcessGroupNCCL.cpp:616] [Rank 4] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5653, OpType=ALLREDUCE)", "collective_timeout", True),
        (SERVING + b"terminate called after throwing an instance of 'c10::DistBackendError'", "nccl", True),
        (SERVING + b"[2026-11-29 10:05:44] Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. tic start time: 12:00:00.", "health", False),
        (BEGUN + b"RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer.", "scheduler_died", True),
        (SERVING + b"[2026-11-29 10:05:44] Subprocess scheduler_0 (pid=123) crashed with exit code -6. Triggering SIGQUIT for cleanup...", "scheduler_died", True),
        (SERVING + b"[2026-11-29 10:05:44] Scheduler or DataParallelController 123 terminated with -9", "scheduler_died", True),
        (SERVING + b"[2026-11-29 10:05:44 TP0] Decode out of memory. Try to lower your batch size.", "kv_pool_exhausted", True),
        (BEGUN + b"[2026-11-29 10:05:44] Initialization failed. warmup error: Traceback (most recent call last):", "warm_up_failed", True),
        (BEGUN + b"RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. pre_model_load_memory=1", "unbalanced_memory", True),
        (BEGUN + b"ValueError: The arguments enable-hierarchical-cache and disable-radix-cache are mutually exclusive and cannot be used at the same time.", "bad_value", True),
        (SERVING + b"ValueError: Request abc exceeds the maximum number of tokens: 9 > 8", "exception", False),
        (SERVING + b"Nov 29 10:06:00 box sglang[77]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 184.00 MiB. GPU 0 has", "oom_at_run_time", True),
    ],
    ids=lambda value: value.decode()[-30:] if isinstance(value, bytes) else str(value),
)  # fmt: skip
def test_each_kind_of_failure_is_told_apart(text, kind, fatal):
    """By its own words, and by whether the worker was starting, capturing or serving."""
    facts = read_log(text.split(b"\n")).facts

    assert facts is not None
    assert [(kind, fatal)] == [(failure.kind, failure.fatal) for failure in facts.failures]
    assert facts.failures[0].line in text.decode()


@pytest.mark.parametrize(
    "says",
    [
        "FlashMLA only supports a page_size of 64, change page_size to 64.",
        "Pipeline parallelism is incompatible with overlap schedule.",
        "Loaded weights from remote storage in 3.10 seconds.",
        "EXPERIMENTAL: Radix cache is enabled for decode server",
        "DeepEP MoE is enabled. The expert parallel size is adjusted to be the same as the tensor parallel size[8].",
    ],
)
def test_remarks_of_the_engine_are_ignorable_for_a_reason(says):
    """Lines that other launches print, as the engine's source has them."""
    assert explain(f"[2026-11-29 10:05:44 TP0] {says}".encode()).startswith("ignorable: ")


@pytest.mark.parametrize(
    "line",
    [
        b"[2026-11-29 10:05:44] Some figure nobody knows. avail mem=1.00 GB",
        b"[2026-11-29 10:05:44] An error occurred while weights were loading",
        b"words without a stamp",
    ],
)
def test_what_nobody_has_thought_of_is_not_waved_through(line):
    """A memory figure, an error, or somebody else's line stays unknown."""
    assert explain(line) is None


def test_a_full_pool_is_counted_and_no_failure():
    """Requests that were taken back because the pool was full are a fact about load."""
    line = b"[2026-11-29 10:05:44 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_tokens_gained: 512, #new_token_ratio: 0.6010 -> 0.9999"

    facts = read_log([*SERVING.split(b"\n"), line, line]).facts

    assert facts is not None
    assert facts.serving.retractions == 2
    assert not facts.failures


def test_nothing_started_in_an_empty_log():
    """No line, no start, no facts."""
    log = read_log([])

    assert (log.starts, log.lines, log.facts) == (0, 0, None)
