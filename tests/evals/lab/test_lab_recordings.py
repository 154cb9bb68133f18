"""The same arguments, the same start: what a real 0.5.14 printed, against what the ground prints."""

import json
import re
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from evals.lab import private
from tools.engines.engine import engine_of

RECORDINGS = Path(__file__).parents[2] / "data" / "recordings" / "sglang-0.5.14-h200"
COMMON = [
    *("--load-format", "dummy", "--skip-tokenizer-init", "--attention-backend", "triton"),
    *("--sampling-backend", "pytorch", "--grammar-backend", "none", "--enable-metrics", "--decode-log-interval", "10"),
    *("--context-length", "8192", "--disable-radix-cache", "--host", "127.0.0.1"),
]
WITHOUT_PREFILL = "--cuda-graph-backend-prefill=disabled"
# As in the recordings' README: arguments of each start, the common ones aside.
STARTS = {
    "q_bs32": ("qwen3-8b", ["--cuda-graph-max-bs", "32", "--disable-overlap-schedule"]),
    "q_bs96": ("qwen3-8b", ["--cuda-graph-max-bs", "96", "--disable-overlap-schedule"]),
    "q_bs96_overlap": ("qwen3-8b", ["--cuda-graph-max-bs-decode", "96", WITHOUT_PREFILL]),
    "q_eager": ("qwen3-8b", ["--disable-cuda-graph", "--disable-overlap-schedule"]),
    "q_mrr48": (
        "qwen3-8b",
        [
            "--cuda-graph-max-bs-decode",
            "96",
            "--max-running-requests",
            "48",
            WITHOUT_PREFILL,
            "--disable-overlap-schedule",
        ],
    ),
    "q_oom_mf99": (
        "qwen3-8b",
        [
            "--cuda-graph-max-bs-decode",
            "256",
            "--mem-fraction-static",
            "0.99",
            WITHOUT_PREFILL,
            "--disable-overlap-schedule",
        ],
    ),
    "q_oom_mf999": (
        "qwen3-8b",
        [
            "--cuda-graph-max-bs-decode",
            "512",
            "--mem-fraction-static",
            "0.998",
            WITHOUT_PREFILL,
            "--disable-overlap-schedule",
        ],
    ),
    "m_bs32": ("deepseek-v2-lite", ["--cuda-graph-max-bs-decode", "32", WITHOUT_PREFILL, "--disable-overlap-schedule"]),
}
FIGURES = {
    "before weights": r"Load weight begin\. avail mem=([\d.]+) GB",
    "weights": r"Load weight end\. elapsed=[\d.]+ s, type=\w+, avail mem=([\d.]+) GB, mem usage=([\d.]+) GB\.",
    "pool": r"KV Cache is allocated\. dtype: torch\.bfloat16, #tokens: (\d+), (?:K|KV) size: ([\d.]+) GB",
    "prefill graphs": r"target prefill CUDA graph end\. elapsed=[\d.]+ s, mem usage=([\d.]+) GB, avail mem=([\d.]+) GB",
    "before capture": r"Capture target decode CUDA graph begin\. .*, avail mem=([\d.]+) GB",
    "after capture": r"Capture target decode CUDA graph end\. .*, avail mem=([\d.]+) GB",
    "limits": r"max_total_num_tokens=(\d+), chunked_prefill_size=(\d+), max_prefill_tokens=(\d+),"
    r" max_running_requests=(\d+), context_len=(\d+)",
}
WORDS = {
    "kind": r"Load weight end\. elapsed=[\d.]+ s, type=(\w+),",
    "prefill list": r"Capture target prefill CUDA graph begin\. backend=(\S+), num_tokens=(\[.*?\])",
    "decode list": r"Capture target decode CUDA graph begin\. backend=(\S+), num_tokens_per_bs=1, bs=(\[.*?\])",
    "cache": r"Tree cache initialized: (.*)",
    "deprecated": r"(\033\[1;33m.*\033\[0m)",
    "failure": r"in (init_cublas)\n    c = a @ b\n(?:        ~~\^~~\n)?torch\.OutOfMemoryError: CUDA out of memory\."
    r" Tried to allocate ([\d.]+) MiB",
    "end": r"(The server is fired up and ready to roll!|Received sigquit from a child process)",
}


def free_port():
    """A port that nobody holds."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def played(port):
    """Let a worker serve one request; return what `/server_info` says."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    base, kind = f"http://127.0.0.1:{port}", {"Content-Type": "application/json"}
    body = {"input_ids": [1] * 128, "sampling_params": {"max_new_tokens": 25, "ignore_eos": True}}
    wish = urllib.request.Request(f"{base}/generate", json.dumps(body).encode(), kind)
    with direct.open(wish, timeout=30) as answer:
        answer.read()
    with direct.open(f"{base}/server_info", timeout=30) as answer:
        return json.load(answer)


@pytest.fixture(scope="module", params=STARTS)
def pair(request, tmp_path_factory, until):
    """One recorded log, and the log of a worker of the same shape that was started with the same arguments."""
    specimen, words = STARTS[request.param]
    tmp_path = tmp_path_factory.mktemp("start")
    # The recorded start of the mixture of experts was the first on its machine.
    cold = request.param == "m_bs32"
    private.write(tmp_path, private.Nature(specimen=specimen, boot_noise=0.0, start_speed=2000.0, cold=cold))
    port, log = free_port(), tmp_path / "log"
    model = f"/models/{request.param.partition('_')[0].replace('q', 'qwen').replace('m', 'mla')}"
    argv = [sys.executable, "-m", "evals.lab.worker", "--model-path", model, *COMMON, "--port", str(port), *words]
    with log.open("wb") as output:
        process = subprocess.Popen(argv, cwd=tmp_path, stdout=output, stderr=output)
    try:
        until(lambda: process.poll() is not None or b"fired up" in log.read_bytes())
        info = None if process.poll() is not None else played(port)
    finally:
        process.kill()
        process.wait()
    said = log.read_text(encoding="utf-8").replace(f"port={port}", "port=30000")
    return (
        RECORDINGS / request.param,
        (RECORDINGS / request.param / "startup.log").read_text(encoding="utf-8"),
        said,
        info,
    )


def test_a_start_gives_the_recorded_facts(pair):
    """Lists, limits, warnings, failures and the end are the recorded ones; memory is within 2 % or a rounding."""
    _, recorded, said, _ = pair

    assert {name: re.search(words, said) and re.search(words, said).groups() for name, words in WORDS.items()} == {
        name: re.search(words, recorded) and re.search(words, recorded).groups() for name, words in WORDS.items()
    }
    for name, words in FIGURES.items():
        ours, theirs = re.search(words, said), re.search(words, recorded)
        assert (ours is None) == (theirs is None), name
        if theirs is not None:
            for one, other in zip(ours.groups(), theirs.groups(), strict=True):
                assert float(one) == pytest.approx(float(other), rel=0.02, abs=0.06), name


def test_the_readers_facts_are_the_recorded_ones(pair):
    """The product's log reader gets the same typed facts of both logs; memory is within 2 % or a rounding."""
    _, recorded, said, _ = pair
    engine = engine_of("sglang")
    theirs, ours = (engine.read_log(_start(text).encode().split(b"\n")).facts for text in (recorded, said))

    for name in (
        "engine", "wording", "deprecated", "model_type", "quantization", "ranks", "kv_dtype", "prefill_capture_off",
        "chunked_prefill_size", "max_prefill_tokens", "max_running_requests", "context_length", "port_open", "ready",
    ):  # fmt: skip
        assert getattr(ours, name) == getattr(theirs, name), name
    assert {**ours.settings, "random_seed": ""} == {**theirs.settings, "random_seed": ""}
    for name in (
        "free_before_weights_gb", "weights_gb", "free_after_weights_gb", "kv_gb", "kv_tokens", "free_after_pool_gb",
        "max_total_tokens", "free_after_capture_gb", "gpu_total_gb",
    ):  # fmt: skip
        figure = getattr(theirs, name)
        expected = None if figure is None else pytest.approx(figure, rel=0.02, abs=0.06)
        assert getattr(ours, name) == expected, name
    assert [(capture.phase, capture.backend, capture.sizes) for capture in ours.captures] == [
        (capture.phase, capture.backend, capture.sizes) for capture in theirs.captures
    ]
    for one, other in zip(ours.captures, theirs.captures, strict=True):
        assert one.gb == pytest.approx(other.gb, rel=0.02, abs=0.06)
        assert one.seconds == pytest.approx(other.seconds, rel=0.5)
    assert [(failure.kind, failure.fatal) for failure in ours.failures] == [
        (failure.kind, failure.fatal) for failure in theirs.failures
    ]


def test_the_lines_come_in_the_recorded_order(pair):
    """Each line with a time is one of the recording's, figures aside, and none is missing; the order is the same."""
    _, recorded, said, _ = pair

    assert _shape(said) == _shape(recorded)


def test_serving_lines_read_as_recorded(pair):
    """Prefill and decode lines have the recorded words in the recorded order."""
    _, recorded, said, _ = pair
    if "fired up" not in recorded:
        assert "batch, #" not in said
        return

    assert _served(said)
    assert _served(said) <= _served(recorded)


def test_the_server_arguments_are_the_recorded_ones(pair):
    """The first line of the log shows every argument as the real engine resolved it, the random seed aside."""
    _, recorded, said, _ = pair

    ours, theirs = (re.search(r"server_args=ServerArgs\((.*)\)", text)[1] for text in (said, recorded))
    assert _without_seed(ours) == _without_seed(theirs)


def test_server_info_has_the_recorded_fields(pair):
    """`/server_info` has the recorded fields in the recorded order, with the recorded values, measured ones aside."""
    folder, _, _, info = pair
    if not (folder / "server_info.json").exists():
        assert info is None
        return
    recorded = json.loads((folder / "server_info.json").read_text(encoding="utf-8"))
    # The engine keeps what the operator fixed in a set: its order means nothing.
    for state in (*info["internal_states"], *recorded["internal_states"]):
        state["_cuda_graph_config_locked"].sort()
    loose = {"random_seed", "port", "max_total_num_tokens", "internal_states", "memory_usage", "last_gen_throughput"}

    assert list(info) == list(recorded)
    assert {key: info[key] for key in info if key not in loose} == {
        key: recorded[key] for key in recorded if key not in loose
    }
    ours, theirs = info["internal_states"][0], recorded["internal_states"][0]
    assert set(ours) == set(theirs)
    assert {key: ours[key] for key in ours if key not in loose} == {
        key: theirs[key] for key in theirs if key not in loose
    }
    for part, size in theirs["memory_usage"].items():
        assert ours["memory_usage"][part] == pytest.approx(size, rel=0.02, abs=0.06)


def _without_seed(arguments):
    return re.sub(r"random_seed=\d+", "random_seed=N", arguments)


def _start(text):
    """The part of a log up to the line that says ready, or all of a start that failed."""
    ready = text.find("The server is fired up and ready to roll!")
    return text if ready < 0 else text[: text.index("\n", ready) + 1]


def _shape(text):
    """Lines with a time in order, without figures; requests that somebody else sent meanwhile are left out."""
    lines = [line.partition("] ")[2] for line in _start(text).splitlines() if re.match(r"\[\d{4}-", line)]
    kept = [line for line in lines if not re.search(r"batch, #|HTTP/1\.1|Compiling a graph for dynamic shape", line)]
    return [re.sub(r"-?\d+(\.\d+)?", "N", re.sub(r"server_args=.*", "server_args", line)) for line in kept]


def _served(text):
    """The different wordings of serving lines."""
    lines = re.findall(r"\] ((?:Prefill|Decode) batch, .*)", text)
    return {re.sub(r"\d+(\.\d+)?", "N", line.replace("True", "B").replace("False", "B")) for line in lines}
