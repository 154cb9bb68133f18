"""Either engine keeps the one promise: asked, read, followed and forecast without being named."""

# ruff: noqa: E501 - answers of engines are as long as engines write them

import json
from pathlib import Path

import pytest

from tools.engines.asking import ask
from tools.engines.catalogue import in_force, knob_named, knobs
from tools.engines.contract import check_contract
from tools.engines.drift import compare
from tools.engines.engine import engine_of
from tools.engines.log_lines import lines_of

RECORDINGS = Path(__file__).parents[2] / "data" / "recordings" / "sglang-0.5.14-h200"
METRICS = b"""\
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
vllm:cache_config_info{block_size="16",cache_dtype="fp8",enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.9",num_gpu_blocks="9655",num_gpu_blocks_override="None",sliding_window="None"} 1.0
vllm:num_requests_running{engine="0",model_name="m"} 0.0
"""
VLLM = {
    "/version": b'{"version": "0.24.0"}',
    "/metrics": METRICS,
    "/v1/models": b'{"object": "list", "data": [{"id": "m", "max_model_len": 8192}]}',
}
STATED = b"INFO 11-29 12:00:00 [api_utils.py:273] non-default args: {'model': '/m', 'max_num_seqs': 64, 'enable_prefix_caching': True}"


def account_of(engine, bodies):
    """What an engine says about itself, where it answers these paths."""
    return engine.account(ask(engine.questions, bodies.get).answers)


def values_of(*, bodies=VLLM, log=(STATED,), argv=()):
    """Values in force of a vLLM."""
    engine = engine_of("vllm")
    return engine.effective(account_of(engine, bodies), knobs("vllm"), facts=engine.read_log(log).facts, argv=argv)


def test_sglang_is_asked_where_its_version_answers():
    """The old path of the same question stands in for the new one."""
    body = (RECORDINGS / "q_bs32" / "server_info.json").read_bytes()
    engine = engine_of("sglang")

    for path in ("/server_info", "/get_server_info"):
        account = account_of(engine, {path: body})

        assert engine.version(account) == json.loads(body)["version"]
        assert engine.effective(account, knobs("sglang"))["cuda-graph-max-bs"] == "32"


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_a_worker_that_does_not_answer_is_named_by_the_path_that_is_silent(name):
    """Only what is required: a vLLM without metrics still is one."""
    engine = engine_of(name)

    asked = ask(engine.questions, {}.get)

    assert asked.silent == engine.questions[0].paths[0]
    assert not asked.answers
    assert [question.name for question in engine.questions if question.required] == [engine.questions[0].name]


@pytest.mark.parametrize("body", [b"", b"not json", b"[1]", b"[" * 90_000, b'{"detail": "Not Found"}', b"\xff\xfe"])
def test_who_answers_with_something_else_is_no_vllm(body):
    """An answer that is none of its own proves nothing."""
    assert engine_of("vllm").account({"version": body}) is None


def test_a_live_vllm_goes_before_its_log():
    """KV cache from /metrics, longest request from /v1/models, the rest from what it logged."""
    values = values_of()

    assert (values["kv-cache-dtype"], values["block-size"], values["max-model-len"]) == ("fp8", "16", "8192")
    assert values["gpu-memory-utilization"] == "0.9"
    assert values["max-num-seqs"] == "64"
    assert (values["enable-prefix-caching"], values["no-enable-prefix-caching"]) == ("on", "off")
    assert "num-gpu-blocks-override" not in values


def test_what_the_log_does_not_name_is_at_the_parsers_default():
    """It lists all that differs; a default that is a rule stays unknown. Without that line nothing is assumed."""
    with_line, without = values_of(), values_of(log=())

    assert (with_line["tensor-parallel-size"], with_line["enforce-eager"]) == ("1", "off")
    assert "max-num-batched-tokens" not in with_line
    assert "tensor-parallel-size" not in without
    assert "max-num-seqs" not in without


def test_a_vllm_whose_log_is_gone_is_read_from_its_argv():
    """The words of its own process, the last one counting."""
    argv = ("vllm", "serve", "/m", "--max-num-seqs", "32", "--max-num-seqs=48", "--enforce-eager")

    values = values_of(log=(), argv=argv)

    assert (values["max-num-seqs"], values["enforce-eager"]) == ("48", "on")


def test_a_vllm_value_that_is_set_to_its_default_has_taken():
    """The engine does not print it then, and that is no silence."""
    knob = knob_named("vllm", "gpu-memory-utilization")
    values = values_of(bodies={"/version": VLLM["/version"]})

    drifts = compare({knob.name: in_force(knob, "0.92")}, values, {knob.name: "0.9"}, knobs=knobs("vllm"))

    assert values[knob.name] == "0.92"
    assert not drifts


def test_a_switch_that_is_on_by_default_is_not_off_for_being_absent():
    """Nothing is meant about it then; one that is off by default is off."""
    assert in_force(knob_named("vllm", "enable-prefix-caching"), None) is None
    assert in_force(knob_named("vllm", "async-scheduling"), None) is None
    assert in_force(knob_named("vllm", "enforce-eager"), None) == "off"


VLLM_START = [
    (b"INFO 11-29 12:00:00 [a.py:1] non-default args: {'model': '/m'}", "loading"),
    (b"INFO 11-29 12:00:09 [a.py:1] Model loading took 14.50 GiB memory and 8.0 seconds", "weights loaded"),
    (b"INFO 11-29 12:00:10 [a.py:1] GPU KV cache size: 210,720 tokens", "KV pool allocated"),
    (b"Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  29%|##  | 2/7 [00:02<00:07,  1.45s/it]", "capturing graphs: 2 of 7"),
    (b"Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|####| 7/7 [00:05<00:00,  1.45s/it]", "capturing graphs: 7 of 7"),
    (b"Capturing CUDA graphs (decode, FULL):  29%|##  | 2/7 [00:02<00:07,  1.45s/it]", "capturing graphs: 9 of 14"),
    (b"INFO 11-29 12:00:20 [a.py:1] Graph capturing finished in 10 secs, took 0.41 GiB", "captured, opening its port"),
    (b"INFO:     Application startup complete.", "ready"),
]  # fmt: skip


def test_a_start_of_vllm_is_followed_by_what_it_says():
    """Each line is progress, the graphs one by one, so that a capture that hangs is seen to hang."""
    lines: list[bytes] = []
    for line, says in VLLM_START:
        lines.append(line)

        assert engine_of("vllm").how_far(engine_of("vllm").read_log(lines).facts) == says


def test_a_start_of_sglang_is_followed_by_what_it_says():
    """From the recorded start, line by line, each state of affairs once and in this order."""
    engine, said = engine_of("sglang"), []
    with (RECORDINGS / "q_bs32" / "startup.log").open("rb") as stream:
        lines = [line for line in lines_of(stream) if b"Capturing num tokens" not in line]
    for count in range(1, len(lines)):
        facts = engine.read_log(lines[:count]).facts
        far = "nothing" if facts is None else engine.how_far(facts)
        if far not in said:
            said.append(far)
        if far == "ready":
            break

    decode = [f"capturing decode graphs: {count} of 8" for count in range(9)]
    assert [far for far in said if far in decode] == [far for far in decode if far in said]
    assert len([far for far in said if far in decode]) >= 5
    assert said[-1] == "ready"
    assert said.index("weights loaded") < said.index("KV pool allocated") < said.index(decode[2])


def test_a_switch_of_vllm_is_not_written_both_ways():
    """The launch turns it off by name: the one to take out is named."""
    launch = {"async-scheduling": "", "no-async-scheduling": ""}
    spelled = {name: f"--{name}" for name in launch}

    (remark,) = check_contract("vllm", "0.24.0", launch=launch, spelled=spelled, changed={"async-scheduling"})

    assert (remark.kind, remark.knob) == ("ignored", "async-scheduling")
    assert "take no-async-scheduling out instead" in remark.says


@pytest.mark.parametrize("name", ["sglang", "vllm"])
@pytest.mark.parametrize(
    "line",
    [
        b"launch_server.py: error: unrecognized arguments: --api-key %s --cuda-graph-max-bs 96",
        b"ValueError: the header was Authorization: Bearer %s",
        b"RuntimeError: could not fetch https://robot:%s@hub.example/x",
        b"OSError: HF_TOKEN=%s is not a token for this model",
        b"RuntimeError: " + b"x " * 280 + b"--api-key %s",
    ],
)
def test_what_a_start_died_of_is_told_without_its_secrets(name, line):
    """Argument parsers and tracebacks repeat what they were given; it goes into records, and models read those."""
    facts = engine_of(name).read_log([STATED, line % b"s3cr3tpa55w0rd"]).facts

    assert facts is not None
    assert facts.failures
    assert all("s3cr3t" not in failure.line for failure in facts.failures)
