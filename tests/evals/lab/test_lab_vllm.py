"""A sound worker of the second dialect, from the outside: script, process, log, endpoints, figures, end."""

import json
import os
import re
import signal
from pathlib import Path

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from evals.lab import books
from tools.engines.catalogue import knobs
from tools.engines.engine import engine_of
from tools.engines.log_lines import fragments

TEXT = [{"role": "user", "content": "Tell me about the scheduler."}]
TOOL = {
    "type": "function",
    "function": {"name": "set_rack", "parameters": {"properties": {"node": {}, "rack": {}}}},
}
ORDER = [{"role": "user", "content": "The rack of n1 is r12. Call set_rack for n1."}]
MODEL = "deepseek-v4-flash"


@pytest.fixture(scope="module")
def worker(put_up):
    """A vLLM worker with nothing wrong."""
    return put_up(engine="vllm", faults=())


@pytest.fixture
def client(worker):
    """OpenAI's own client."""
    with (
        httpx.Client(trust_env=False) as http,
        openai.OpenAI(base_url=f"{worker.player.base}/v1", api_key="none", max_retries=0, http_client=http) as made,
    ):
        yield made


def facts_of(worker):
    """What the product reads from its log."""
    return engine_of("vllm").read_log(worker.said().encode().split(b"\n")).facts


def started(worker):
    """What the worker itself wrote down about its last start."""
    return [line for line in books.lines(worker.directory) if line["kind"] == "ready"][-1]


def figures(worker):
    """Every sample of its metrics by name and labels, the model's name aside."""
    _, text = worker.player.get("/metrics")
    return {
        (sample.name, frozenset(pair for pair in sample.labels.items() if pair[0] not in ("model_name", "engine"))): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_process_reads_like_an_engines(worker):
    """The worker's argv is that of an installed `vllm serve`, word for word."""
    argv = Path(f"/proc/{worker.pid()}/cmdline").read_bytes().decode().split("\0")[:-1]

    assert [Path(word).name for word in argv[:3]] == ["python3", "vllm", "serve"]
    assert argv[3] == "/models/DeepSeek-V4-Flash-NVFP4"
    assert argv[argv.index("--max-cudagraph-capture-size") + 1] == "32"


def test_the_reader_finds_what_the_worker_knows(worker):
    """Every typed fact of a start is there and is what the worker itself wrote down."""
    facts, known = facts_of(worker), started(worker)
    memory, capture = known["memory"], facts.decode_capture

    assert (facts.version, facts.ready, facts.port_open) == ("0.24.0", True, True)
    assert facts.kv_tokens == known["tokens"][1] == 2_471_680
    assert facts.weights_gb == pytest.approx(memory["weights"], abs=0.01)
    assert facts.kv_gb == pytest.approx(memory["pool"], abs=0.01)
    assert facts.graph_estimate_gb == pytest.approx(memory["estimate"], abs=0.01)
    assert capture.gb == pytest.approx(memory["graphs"], abs=0.01)
    assert list(capture.sizes) == known["sizes"] == [1, 2, 4, 8, 16, 24, 32]
    assert capture.seconds > 5
    assert facts.max_running_requests == known["places"][1] == 256
    assert facts.context_length == 262_144
    assert not facts.failures


def test_each_line_is_understood_or_ignorable_for_a_reason(worker):
    """The product's reader has no line of the practice worker's log that it has not thought of."""
    worker.player.chat(model=MODEL)
    lines = [fragment for line in worker.said().encode().split(b"\n") for fragment in fragments(line)]

    assert not [line for line in lines if line.strip() and engine_of("vllm").explain(line) is None]


def test_values_in_force_are_the_scripts(worker):
    """What the log says about its settings is what the script asks for."""
    argv = Path(f"/proc/{worker.pid()}/cmdline").read_bytes().decode().split("\0")[:-1]
    values = engine_of("vllm").effective({"version": "0.24.0"}, knobs("vllm"), facts=facts_of(worker), argv=argv)

    assert values["max-num-seqs"] == "256"
    assert values["max-cudagraph-capture-size"] == "32"
    assert values["gpu-memory-utilization"] == "0.85"
    assert values["async-scheduling"] == "off"


def test_state_is_told_without_asking_the_engine(worker):
    """`/health`, `/ping`, `/version`, `/load` and `/v1/models` have vLLM's shapes; there is no `/server_info`."""
    player = worker.player

    assert player.get("/health") == (200, "")
    assert player.get("/ping") == (200, "")
    assert json.loads(player.get("/version")[1]) == {"version": "0.24.0"}
    assert json.loads(player.get("/load")[1]) == {"server_load": 0}
    card = json.loads(player.get("/v1/models")[1])["data"][0]
    assert (card["id"], card["owned_by"], card["max_model_len"]) == (MODEL, "vllm", 262_144)
    assert player.get("/server_info") == (404, '{"detail":"Not Found"}')


def test_a_call_is_answered_in_the_engines_shape(client):
    """In one piece: a tool call with vLLM's ids, and the token count."""
    answer = client.chat.completions.create(model=MODEL, messages=ORDER, tools=[TOOL])
    choice = answer.choices[0]

    assert choice.finish_reason == "tool_calls"
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"node": "n1", "rack": "r12"}
    assert re.fullmatch(r"chatcmpl-tool-[0-9a-f]{16}", choice.message.tool_calls[0].id)
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_call_is_streamed_in_the_engines_shape(worker):
    """As chunks: the role, the name once, arguments in pieces, why it ended, the cost, the end mark."""
    events = worker.player.stream(model=MODEL, messages=ORDER, tools=[TOOL], stream_options={"include_usage": True})
    documents = [json.loads(event) for event in events[:-1]]
    deltas = [document["choices"][0]["delta"] for document in documents if document["choices"]]
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]

    assert events[-1] == "[DONE]"
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert calls[0]["function"] == {"name": "set_rack"}
    assert ["id" in call for call in calls] == [True] + [False] * (len(calls) - 1)
    assert json.loads("".join(call["function"]["arguments"] for call in calls[1:])) == {"node": "n1", "rack": "r12"}
    assert documents[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert set(documents[-1]["usage"]) == {"prompt_tokens", "total_tokens", "completion_tokens"}


def test_plain_completions_are_answered(client):
    """`/v1/completions` answers in one piece and as a stream, to the same text."""
    how = {"model": MODEL, "prompt": "Tell me about the scheduler.", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**how)
    parts = list(client.completions.create(**how, stream=True))

    assert whole.choices[0].finish_reason == "length"
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text


@pytest.mark.parametrize(
    ("body", "status", "kind", "says"),
    [
        ({"model": "gpt", "messages": TEXT}, 404, "NotFoundError", "The model `gpt` does not exist."),
        ({"model": MODEL, "messages": []}, 400, "BadRequestError", "messages"),
        ({"model": MODEL, "messages": TEXT, "max_tokens": 0}, 400, "BadRequestError", "max_tokens must be at least 1"),
    ],
)
def test_nonsense_is_refused_in_the_engines_shape(worker, body, status, kind, says):
    """Errors are nested under `error`, with a type and a code."""
    code, text = worker.player.get("/v1/chat/completions", method="POST", body=body)
    error = json.loads(text)["error"]

    assert (code, error["code"], error["type"]) == (status, status, kind)
    assert says in error["message"]


def test_figures_follow_the_requests(worker):
    """Counters grow with what is asked; the size of the KV pool is a label; nothing is stale."""
    before = figures(worker)
    used = json.loads(worker.player.chat(model=MODEL, max_tokens=20, ignore_eos=True)[1])["usage"]
    after = figures(worker)

    def grown(name, **labels):
        key = (name, frozenset(labels.items()))
        return after[key] - before[key]

    assert used["completion_tokens"] == 20
    assert grown("vllm:generation_tokens_total") == 20
    assert grown("vllm:prompt_tokens_total") == used["prompt_tokens"]
    assert grown("vllm:request_success_total", finished_reason="length") == 1
    assert grown("vllm:e2e_request_latency_seconds_count") == 1
    info = next(dict(labels) for name, labels in after if name == "vllm:cache_config_info")
    assert int(info["num_gpu_blocks"]) * int(info["block_size"]) == started(worker)["tokens"][1]
    assert info["gpu_memory_utilization"] == "0.85"


def test_running_requests_are_seen_at_once(worker, until):
    """The gauge of running requests shows a request while it runs and not after its client has gone."""
    running = ("vllm:num_requests_running", frozenset())
    connection = worker.player.begin(model=MODEL, max_tokens=100_000, ignore_eos=True, stream=True)
    until(lambda: figures(worker)[running] == 1)
    connection.close()

    until(lambda: figures(worker)[running] == 0)


def test_the_line_of_every_ten_seconds_says_what_runs(worker, until):
    """Under load the log has the engine's line with rate, queue and pool, which the product reads."""
    connection = worker.player.begin(model=MODEL, max_tokens=100_000, ignore_eos=True, stream=True)
    until(lambda: any(batch.running == 1 for batch in facts_of(worker).serving.last))
    connection.close()

    assert max(batch.tokens_per_second for batch in facts_of(worker).serving.last) > 0


@pytest.mark.slow
def test_more_graphs_cost_tokens_and_not_free_memory(put_up):
    """Capture to 128 takes its estimate out of the KV pool, and the engine says how much."""
    small = put_up(engine="vllm", faults=())
    before = facts_of(small)
    small.edit(("--max-cudagraph-capture-size 32", "--max-cudagraph-capture-size 128"))
    after = facts_of(small)

    assert len(after.decode_capture.sizes) == 19
    assert after.kv_tokens < before.kv_tokens
    assert after.kv_gb + after.graph_estimate_gb == pytest.approx(before.kv_gb + before.graph_estimate_gb, abs=0.02)


@pytest.fixture(scope="module")
def failing(put_up):
    """A worker to break, and its sound script."""
    made = put_up(engine="vllm", faults=(), wait=False)
    return made, made.script.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        (
            ("--max-cudagraph-capture-size 32", "--cuda-graph-max-bs 96"),
            "unknown_flag",
            "vllm: error: unrecognized arguments: --cuda-graph-max-bs 96",
        ),
        (
            ("--max-num-seqs 256", "--max-num-seqs many"),
            "bad_value",
            "vllm serve: error: argument --max-num-seqs: invalid int value: 'many'",
        ),
        (
            ("--gpu-memory-utilization 0.85", "--gpu-memory-utilization 0.999"),
            "not_enough_memory",
            "on startup is less than desired GPU memory utilization (0.999, 94.88 GiB)",
        ),
        (
            ("--gpu-memory-utilization 0.85", "--gpu-memory-utilization 0.44"),
            "not_enough_memory",
            "No available memory for the cache blocks",
        ),
        (
            ("--max-model-len 262144 \\\n    --gpu-memory-utilization 0.85", "--gpu-memory-utilization 0.5"),
            "not_enough_memory",
            "To serve at least one request with the model's max seq len (1048576)",
        ),
        (
            ("--max-cudagraph-capture-size 32", "--max-cudagraph-capture-size 96 --cudagraph-capture-sizes 1 2 64"),
            "bad_value",
            "customized max_cudagraph_capture_size(=96) should be consistent with the max value",
        ),
    ],
)
def test_starts_fail_in_the_engines_words(failing, until, change, kind, says):
    """A refused flag, value or share of memory ends the start, and the product names the kind of failure."""
    failing, sound = failing
    assert change[0] in sound
    begun = len(failing.said())
    failing.script.write_text(sound.replace(*change), encoding="utf-8")
    failing.supervise("restart")
    until(lambda: says in failing.said()[begun:])

    until(lambda: (cause := facts_of(failing).cause) is not None and cause.kind == kind)


def test_an_end_that_was_asked_for_is_clean(put_up, until):
    """SIGTERM ends it at once, open requests or not, with the engine's words."""
    leaving = put_up(engine="vllm", faults=())
    leaving.player.begin(model=MODEL, max_tokens=100_000, ignore_eos=True, stream=True)
    until(lambda: figures(leaving)["vllm:num_requests_running", frozenset()] == 1)
    os.kill(leaving.pid(), signal.SIGTERM)
    until(lambda: "Finished server process" in leaving.said())

    said = leaving.said()
    assert said.index("Shutdown initiated (timeout=0)") < said.index("INFO:     Shutting down")
    assert facts_of(leaving).asked_to_stop


@pytest.mark.slow
def test_a_first_start_compiles_and_the_next_does_not(put_up):
    """On a machine that has compiled nothing yet the first start is slower by the compilation."""
    cold = put_up(engine="vllm", faults=(), cold=True)
    first = re.search(r"init engine .* took ([\d.]+) s \(compilation: ([\d.]+) s\)", cold.said())
    cold.edit(("--max-num-seqs 256", "--max-num-seqs 128"))
    last = re.findall(r"init engine .* took ([\d.]+) s \(compilation: ([\d.]+) s\)", cold.said())[-1]

    assert float(first[2]) > 40
    assert float(last[1]) < 10
    assert float(first[1]) - float(last[0]) > 40


@pytest.mark.slow
def test_a_wedge_is_as_possible_as_elsewhere(put_up):
    """With asynchronous scheduling on, a storm of aborts stops the loop while `/health` goes on saying 200."""
    worker = put_up(engine="vllm", faults=("abort-wedge",))
    assert worker.player.storm(24, silence=0.5)

    worker.edit(("    --no-async-scheduling \\\n", ""))
    assert not worker.player.storm(24, silence=0.5)
    assert worker.player.get("/health") == (200, "")


@pytest.mark.slow
def test_corruption_is_as_possible_as_elsewhere(put_up):
    """With the side streams on, captured decode gets tool calls wrong; with them off it does not."""
    worker = put_up(engine="vllm", faults=("graph-corruption",))
    assert worker.player.sessions(24) == 0

    worker.edit(("export VLLM_DISABLE_SHARED_EXPERTS_STREAM=1\n", ""))
    assert worker.player.sessions(40) > 0
    assert {event.kind for event in worker.events} == {"spoilt"}


def test_a_kernel_that_is_compiled_late_is_warned_about(put_up):
    """On a cold machine the first batch beyond the captured range waits for its kernels, and the log says why."""
    cold = put_up(engine="vllm", faults=(), cold=True)
    cold.player.throughput(40, tokens=8)

    said = [line for line in cold.said().splitlines() if "Triton kernel JIT compilation during inference: " in line]
    assert said
    assert engine_of("vllm").explain(said[0].encode()).startswith("ignorable")
