"""Each fault is real: the oracle fails while it is on, passes when it is off, and passes when a change avoids it.

Every worker here is the real one, to the last line, in a process of its own whose clock jumps; see `evals.lab.virtual`.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from evals.lab import oracle, private
from evals.lab.books import lines
from evals.lab.faults import FAULTS

DATA = Path(__file__).resolve().parents[2] / "data" / "lab"
MODEL = "deepseek-v4-flash"
VLLM = {
    "serve": "/models/DeepSeek-V4-Flash-NVFP4",
    "--served-model-name": MODEL,
    "--trust-remote-code": None,
    "--tensor-parallel-size": "4",
    "--host": "127.0.0.1",
    "--max-model-len": "262144",
    "--gpu-memory-utilization": "0.85",
    "--max-num-seqs": "256",
    "--max-cudagraph-capture-size": "32",
    "--no-async-scheduling": None,
    "--enable-auto-tool-choice": None,
    "--tool-call-parser": "deepseek_v4",
}
WORDS = {
    "--model-path": "/models/DeepSeek-V4-Flash-NVFP4",
    "--served-model-name": MODEL,
    "--trust-remote-code": None,
    "--tp": "4",
    "--host": "127.0.0.1",
    "--mem-fraction-static": "0.82",
    "--max-running-requests": "256",
    "--cuda-graph-max-bs": "32",
    "--disable-overlap-schedule": None,
    "--tool-call-parser": "deepseekv4",
    "--watchdog-timeout": "3600",
    "--enable-metrics": None,
}
HINT = re.compile(r"(?<!de)fault|corrupt|wedge|practice|\blab\b|simulat|mock|scenario|oracle|\bleak", re.IGNORECASE)
ENVIRON = {
    "sglang": {"SGLANG_OPT_USE_TILELANG_INDEXER": "1", "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP": "0"},
    "vllm": {"VLLM_DISABLE_SHARED_EXPERTS_STREAM": "1"},
}


KEPT = {name: os.environ[name] for name in ("HOME", "LANG", "PATH", "TZ") if name in os.environ}


@pytest.fixture(scope="module")
def nursery():
    """The line to a process that forks workers."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, str(DATA / "nursery.py"), str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        cwd=Path(__file__).resolve().parents[3],
        env={**KEPT, "PYTHONHASHSEED": "0", "PYTHONPATH": "."},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    theirs.close()
    yield ours
    ours.close()
    assert process.wait(timeout=60) == 0


class Start:
    """One start of a worker on virtual time."""

    def __init__(self, nursery, ground, words, environ):
        self.port = int(words["--port"])
        argv = [word for pair in words.items() for word in pair if word is not None]
        ours, theirs = socket.socketpair()
        order = {"ground": str(ground), "words": argv, "environ": {**KEPT, **environ}}
        socket.send_fds(nursery, [json.dumps(order).encode()], [theirs.fileno()])
        self._pid = int(nursery.recv(64))
        theirs.close()
        self._ground = ground
        self._ours = ours
        self._ours.settimeout(0.2)
        self._heard = b""
        self.log = ""
        self.open = self._until("open") is not None

    def _until(self, word):
        """The first thing of that kind that is told; None: the process ended or stands still before."""
        while True:
            line, cut, rest = self._heard.partition(b"\n")
            if cut:
                self._heard = rest
                told = json.loads(line)
                self.log += told.get("log", "")
                assert "broken" not in told, told
                if word in told:
                    return told
                continue
            try:
                heard = self._ours.recv(65536)
            except TimeoutError:
                if lines(self._ground)[-1:] and lines(self._ground)[-1]["kind"] == "hung":
                    return None
                continue
            except ConnectionResetError:
                return None
            if not heard:
                return None
            self._heard += heard

    def play(self, **wish):
        """Run a load beside the worker; None: it did not survive that."""
        return self._say(
            {"load": str(DATA / "load.py"), "wish": {"kind": "load", "port": self.port, "model": MODEL, **wish}}
        )

    def rest(self, seconds):
        """Let time pass."""
        return self._say({"rest": seconds})

    def _say(self, document):
        try:
            self._ours.sendall(json.dumps(document).encode() + b"\n")
        except OSError:
            return None
        told = self._until("done")
        return told and told["done"]

    def end(self, how):
        """Kill it, or let it drain."""
        if how == "drain" and self.open:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)
            self.rest(60.0)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        while self._until("nothing") is not None:
            pass
        self._ours.close()


@dataclass(frozen=True)
class Case:
    """What brings a fault about, what the oracle then finds, and what avoids it."""

    fault: str
    finds: str
    avoid: dict[str, Any]
    """Fields of this that are different where it is avoided."""
    words: dict[str, str | None] = field(default_factory=dict)
    """Flags beside those of every worker here; `absent` takes one away."""
    later: dict[str, str | None] = field(default_factory=dict)
    """Flags from the second start on."""
    environ: dict[str, str] = field(default_factory=dict)
    plays: tuple[dict[str, Any], ...] = ()
    starts: int = 1
    ends: str = "drain"
    version: str = "0.5.14"
    engine: str = "sglang"


def sessions(count=40, turns=2, **more):
    """Known-answer sessions."""
    return {"play": "sessions", "count": count, "turns": turns, **more}


def texts(count, tokens, **more):
    """So many texts at once."""
    return {"play": "texts", "count": count, "concurrency": count, "tokens": tokens, **more}


def words(**flags):
    """Flags, dashes for underscores; None: without a value."""
    return {"words": {f"--{name.replace('_', '-')}": value for name, value in flags.items()}}


TO_96 = words(cuda_graph_max_bs="96")
EAGER = words(cuda_graph_max_bs="absent", disable_cuda_graph=None)
OVERLAP = words(disable_overlap_schedule="absent")
NO_CACHE = words(disable_radix_cache=None)
JSON_WORD = words(json_model_override_args='{"rope_theta": 10000}')
LITTLE = texts(100, 4)
LONG = texts(1, 4, prompt=80_000)
DEEP = sessions(3, 1, filler=4000)
STORM = texts(26, 500, patience=3.0, survivors=2)
CASES = [
    Case("startup-oom", "start", words(cuda_graph_max_bs="96", mem_fraction_static="0.70"), **TO_96),
    Case(
        "startup-oom:row=0,sampler=70",
        "start",
        words(max_running_requests="128"),
        **words(max_running_requests="512"),
    ),
    Case("startup-hang", "start", words(cuda_graph_max_bs="96", mem_fraction_static="0.70"), **TO_96),
    Case("slow-start", "start", words(cuda_graph_max_bs="24"), **TO_96),
    Case("second-start-crash", "start", words(cuda_graph_max_bs="24"), starts=2, **TO_96),
    Case("co-tenant:share=1", "memory", {"starts": 1}, starts=2),
    Case("supervisor-loop", "start", words(mem_fraction_static="0.84"), **words(mem_fraction_static="0.9")),
    Case(
        "abort-on-combination",
        "start",
        words(disable_custom_all_reduce=None),
        environ={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    ),
    Case("mangled-argv", "words", words(), **JSON_WORD),
    Case("mangled-argv:way=quote", "words", words(), **JSON_WORD),
    Case("mangled-argv:way=drop", "words", words(), **JSON_WORD),
    Case("stale-restart", "words", {"later": {}}, later=TO_96["words"], starts=2),
    Case("rejected-flag", "start", words(), **words(num_continuous_decode_steps="2")),
    Case("rejected-flag:flag=--cuda-graph-max-bs", "start", words(cuda_graph_max_bs="absent", cuda_graph_bs="8")),
    Case("ignored-value", "values", words(), **words(max_running_requests="128")),
    Case("ignored-value:setting=--cuda-graph-max-bs", "values", words(cuda_graph_max_bs="512"), **TO_96),
    Case("side-effect", "values", words(), **words(speculative_algorithm="NGRAM")),
    Case("clamped-value", "values", words(max_running_requests="264"), **words(max_running_requests="512")),
    Case("late-oom", "died", words(chunked_prefill_size="2048"), plays=(LONG,)),
    Case("abort-wedge", "standstill", words(), plays=(STORM,), **OVERLAP),
    Case("wedge-after-requests", "standstill", words(), plays=(sessions(),), **OVERLAP),
    Case(
        "wedge-after-requests:tools=1,when=", "standstill", {"plays": (texts(40, 16),)}, plays=(sessions(), sessions(4))
    ),
    Case(
        "wedge-after-requests:least=2,most=2,seconds=10,when=",
        "standstill",
        {"plays": (texts(8, 64),)},
        plays=(texts(8, 4), texts(8, 600, patience=90.0)),
    ),
    Case("wedge-at-full-batch", "standstill", words(cuda_graph_max_bs="128"), plays=(texts(96, 64),), **TO_96),
    Case("dirty-restart", "standstill", {"ends": "drain"}, plays=(sessions(160),), starts=2, ends="kill"),
    Case("livelock", "standstill", words(), plays=(texts(40, 64),), **words(max_running_requests="32")),
    Case(
        "graph-corruption",
        "replies",
        EAGER,
        environ={"SGLANG_OPT_USE_MULTI_STREAM_OVERLAP": "1"},
        plays=(sessions(),),
    ),
    Case("token-corruption", "replies", words(), plays=(texts(4, 260),), **TO_96),
    Case("turn-corruption", "replies", NO_CACHE, plays=(sessions(turns=6, filler=100),)),
    Case("depth-corruption", "replies", {"plays": (sessions(3, 1, filler=2000),)}, plays=(DEEP,)),
    Case("adapter-corruption", "replies", EAGER, plays=(sessions(adapters=3),)),
    Case("tool-call-decay", "replies", {"plays": (sessions(),)}, plays=(sessions(200),)),
    Case("tool-call-mangle", "replies", words(), plays=(sessions(),), **words(speculative_algorithm="NGRAM")),
    Case("quality-shift", "replies", words(), plays=(sessions(nodes=3),), **words(kv_cache_dtype="fp8_e4m3")),
    Case(
        "sticky-slowdown",
        "slow",
        words(),
        plays=(texts(100, 64), texts(8, 64)),
        **words(enable_hierarchical_cache=None),
    ),
    Case("throughput-cliff", "slow", TO_96, plays=(texts(40, 64),)),
    Case("throughput-cliff:above=16", "slow", words(max_running_requests="16"), plays=(texts(24, 64),)),
    Case("throughput-drop:when=version>=0.5.14", "slow", {"version": "0.5.13"}, plays=(texts(40, 64),)),
    Case("memory-leak:kib=2048", "memory", NO_CACHE, plays=(LITTLE,)),
    Case("memory-leak:kib=2048,limit=100", "died", NO_CACHE, plays=(LITTLE,)),
    Case("memory-leak:kib=0,card=200", "died", NO_CACHE, plays=(LITTLE,)),
    Case("slot-leak:aborted=0.5", "places", {"plays": ()}, plays=(texts(40, 64),)),
    Case(
        "false-negative-health:backlog=150000",
        "health",
        {"plays": (texts(2, 4, prompt=40_000),)},
        plays=(texts(32, 4, prompt=40_000, patience=120.0),),
    ),
    Case("probe-pile-up", "probes", words(), plays=(texts(200, 128),), **words(max_running_requests="32")),
]
VLLM_TO_96 = words(max_cudagraph_capture_size="96")
CASES += [
    replace(case, engine="vllm", version="0.24.0")
    for case in (
        Case("startup-oom:row=0.2", "start", words(max_cudagraph_capture_size="40"), **VLLM_TO_96),
        Case(
            "startup-oom:row=0,sampler=12",
            "start",
            words(max_num_seqs="256"),
            **words(max_num_seqs="2048"),
        ),
        Case("startup-hang", "start", words(max_cudagraph_capture_size="40"), **VLLM_TO_96),
        Case("second-start-crash", "start", words(max_cudagraph_capture_size="24"), starts=2, **VLLM_TO_96),
        Case("co-tenant:share=1,frees=4", "start", {"starts": 1}, starts=2),
        Case("supervisor-loop", "start", words(), **words(gpu_memory_utilization="0.93")),
        Case(
            "abort-on-combination",
            "start",
            words(disable_custom_all_reduce=None),
            environ={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        ),
        Case("rejected-flag:flag=--max-num-seqs", "start", words(max_num_seqs="absent")),
        Case("ignored-value:setting=--max-num-seqs", "values", words(max_num_seqs="absent")),
        Case("clamped-value:tokens=2000", "values", words(max_num_seqs="64"), **words(max_num_seqs="2048")),
        Case("late-oom", "died", words(max_num_batched_tokens="2048"), plays=(LONG,)),
        Case("abort-wedge", "standstill", words(), plays=(STORM,), **words(no_async_scheduling="absent")),
        Case("wedge-after-requests", "standstill", words(), plays=(sessions(),), **words(no_async_scheduling="absent")),
        Case("livelock", "standstill", words(), plays=(texts(40, 64),), **words(max_num_seqs="32")),
        Case(
            "graph-corruption",
            "replies",
            words(enforce_eager=None),
            environ={"VLLM_DISABLE_SHARED_EXPERTS_STREAM": "0"},
            plays=(sessions(),),
        ),
        Case("tool-call-decay", "replies", {"plays": (sessions(),)}, plays=(sessions(200),)),
        Case("throughput-cliff", "slow", VLLM_TO_96, plays=(texts(40, 64),)),
        Case("memory-leak:kib=2048", "memory", words(no_enable_prefix_caching=None), plays=(LITTLE,)),
        Case("slot-leak:aborted=0.5", "places", {"plays": ()}, plays=(texts(40, 64),)),
        Case("probe-pile-up", "probes", words(), plays=(texts(200, 128),), **words(max_num_seqs="32")),
    )
]


def judged(nursery, folder, case, *, faults):
    """What the oracle finds once a case has been played."""
    folder.mkdir()
    still = private.Nature(boot_noise=0.0, run_noise=0.0, start_speed=1.0, serve_speed=1.0, seed=7)
    private.write(folder, still._replace(faults=faults, version=case.version, engine=case.engine))
    usual = WORDS if case.engine == "sglang" else VLLM
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    for number in range(case.starts):
        given = {**usual, "--port": port, **case.words, **(case.later if number else {})}
        given = {name: value for name, value in given.items() if value != "absent"}
        start = Start(nursery, folder, given, {**ENVIRON[case.engine], **case.environ})
        try:
            if start.open:
                for play in case.plays:
                    start.play(**play)
                start.rest(10.0)
        finally:
            start.end(case.ends)
        assert not HINT.search(start.log)
    return oracle.unsound(folder)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.engine}-{case.fault}")
def test_a_fault_is_there_and_can_be_avoided(nursery, tmp_path, case):
    """The oracle fails with the fault, passes without it, and passes with it where a change or a load avoids it.

    In none of its logs stands a word about it.
    """
    found = judged(nursery, tmp_path / "on", case, faults=(case.fault,))
    assert case.finds in {finding.what for finding in found}
    assert judged(nursery, tmp_path / "off", case, faults=()) == []
    assert judged(nursery, tmp_path / "avoided", replace(case, **case.avoid), faults=(case.fault,)) == []


@pytest.mark.slow
def test_faults_come_together(nursery, tmp_path):
    """Several faults on one worker each do what they do, and the same seed strikes the same sessions."""
    case = Case("", "", {}, plays=(sessions(200, turns=1),), **OVERLAP)
    faults = ("tool-call-decay:after=0,over=100", "wedge-after-requests:least=150,most=150", "throughput-cliff")

    first, again = (judged(nursery, tmp_path / name, case, faults=faults) for name in ("first", "again"))

    assert {finding.what for finding in first} == {"replies", "standstill"}
    assert first == again


def test_every_kind_is_shown():
    """No fault is listed that no case brings about; the one that takes a pair is shown with the pair."""
    shown = {case.fault.partition(":")[0] for case in CASES}

    assert set(FAULTS) - shown == {"stale-bootstrap"}
