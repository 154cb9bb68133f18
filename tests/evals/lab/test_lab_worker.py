"""A sound worker, from the outside: script, process, log, endpoints."""

import json
import re
from pathlib import Path

import httpx
import openai
import pytest

from evals.lab import ground

CAPTURE_END = re.compile(r"TP0\] Capture target decode CUDA graph end\. elapsed=([\d.]+) s, mem usage=([\d.]+) GB")
TEXT = [{"role": "user", "content": "Tell me about the scheduler."}]
TOOL = {
    "type": "function",
    "function": {"name": "set_rack", "parameters": {"properties": {"node": {}, "rack": {}}}},
}
ORDER = [{"role": "user", "content": "The rack of n1 is r12. Call set_rack for n1."}]


@pytest.fixture(scope="module")
def worker(put_up):
    """A worker as the operator left it: both faults possible, neither brought about."""
    return put_up()


def test_the_process_reads_like_an_engines(worker):
    """The worker's argv is the script's launch line word for word, and its environment is the script's."""
    argv = Path(f"/proc/{worker.pid()}/cmdline").read_bytes().decode().split("\0")[:-1]
    environ = Path(f"/proc/{worker.pid()}/environ").read_bytes().decode().split("\0")

    assert argv[:5] == ["python3", "-m", "sglang.launch_server", "--model-path", "/models/DeepSeek-V4-Flash-NVFP4"]
    assert argv[argv.index("--cuda-graph-max-bs") + 1] == "32"
    assert "--disable-overlap-schedule" in argv
    assert "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP=0" in environ


def test_the_log_tells_a_start_in_order(worker):
    """The start-up log has the engine's milestones in the engine's order, with life's figures."""
    said = worker.said()
    milestones = [
        "server_args=ServerArgs(model_path='/models/DeepSeek-V4-Flash-NVFP4', ",
        "TP0] Init torch distributed begin.",
        "TP3] Load weight begin. avail mem=",
        "46/46",
        "TP0] Load weight end. elapsed=",
        "TP0] DSV4 pool sizes: full=2368000",
        "TP0] Memory pool end. avail mem=15.79 GB",
        "TP0] Capture target decode CUDA graph begin. backend=full, num_tokens_per_bs=1, bs=[1, 2, 4, 8, 12,",
        "Capturing batches (bs=32 avail_mem=",
        "Capturing batches (bs=1 avail_mem=15.26 GB): 100%|██████████| 8/8 [",
        "TP0] Capture target decode CUDA graph end. elapsed=",
        "TP0] max_total_num_tokens=2368000, chunked_prefill_size=8192, max_prefill_tokens=16384,"
        " max_running_requests=256, context_len=1048576, available_gpu_mem=15.26 GB",
        "INFO:     Application startup complete.",
        f"INFO:     Uvicorn running on http://127.0.0.1:{worker.port} (Press CTRL+C to quit)",
        '"GET /model_info HTTP/1.1" 200 OK',
        "The server is fired up and ready to roll!",
    ]
    places = [said.find(milestone) for milestone in milestones]

    assert -1 not in places
    assert places == sorted(places)
    assert 9 < float(CAPTURE_END.search(said)[1]) < 10
    assert said.count("is deprecated and will be removed in a future release. Use '--cuda-graph-max-bs-decode'") == 1


def test_nothing_listens_before_the_engine_is_up(put_up, until):
    """While the worker starts, connections are refused."""
    slow = put_up(start_speed=15.0, wait=False)
    until(lambda: slow.log.exists() and "Load weight begin" in slow.said())

    assert not ground.status(slow.directory).ready
    until(lambda: ground.status(slow.directory).ready)
    assert "Uvicorn running" in slow.said()


def test_the_effective_values_can_be_read(worker):
    """`/server_info` shows what the flags became, and the memory that went where."""
    status, body = worker.player.get("/server_info")
    info = json.loads(body)
    state = info["internal_states"][0]

    assert status == 200
    assert info["version"] == "0.5.14"
    assert info["cuda_graph_config"]["decode"]["max_bs"] == 32
    assert info["disable_overlap_schedule"] is True
    assert info["max_total_num_tokens"] == 2_368_000
    assert state["memory_usage"] == {"weight": 41.7, "kvcache": 0.0, "token_capacity": 2_368_000, "graph": 0.36}
    assert state["effective_max_running_requests_per_dp"] == 256
    assert set(info) - {"internal_states"} <= set(state) | {
        "status", "max_total_num_tokens", "max_req_input_len", "version", "kv_events",
    }  # fmt: skip


def test_the_other_endpoints_answer(worker):
    """Model, models, loads, health and cache answer in the engine's shapes; deprecated paths warn in the log."""
    player = worker.player

    assert json.loads(player.get("/model_info")[1])["architectures"] == ["DeepseekV4ForCausalLM"]
    assert json.loads(player.get("/v1/models")[1])["data"][0]["max_model_len"] == 1_048_576
    load = json.loads(player.get("/v1/loads?include=all")[1])["loads"][0]
    assert (load["num_running_reqs"], load["memory"]["graph_gb"]) == (0, 0.36)
    assert player.get("/health") == (200, "")
    assert player.get("/health_generate") == (200, "")
    assert player.get("/flush_cache")[0] == 200
    assert player.get("/get_server_info")[0] == 200
    assert "Endpoint '/get_server_info' is deprecated and will be removed" in worker.said()
    assert player.get("/nowhere") == (404, '{"detail":"Not Found"}')


def test_a_stream_has_the_engines_chunks(worker):
    """A tool call streams as role, name, pieces of arguments, finish and usage, as a 0.5.14 sends them."""
    *events, end = worker.player.stream(
        messages=ORDER, tools=[TOOL], max_tokens=100, stream_options={"include_usage": True}, model="m"
    )
    first, *middle, finish, usage = [json.loads(event) for event in events]

    assert end == "[DONE]"
    assert first["choices"] == [
        {
            "index": 0,
            "delta": {"reasoning_content": None, "role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
            "matched_stop": None,
        }
    ]
    calls = [chunk["choices"][0]["delta"]["tool_calls"][0] for chunk in middle]
    assert re.fullmatch(r"call_[0-9a-f]{24}", calls[0]["id"])
    assert calls[0]["function"] == {"name": "set_rack", "arguments": ""}
    assert len(calls) > 4
    assert {(call["id"], call["function"]["name"]) for call in calls[1:]} == {(None, None)}
    assert json.loads("".join(call["function"]["arguments"] for call in calls)) == {"node": "n1", "rack": "r12"}
    assert finish["choices"][0]["finish_reason"] == "tool_calls"
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == usage["usage"]["prompt_tokens"] + usage["usage"]["completion_tokens"]
    assert {chunk["model"] for chunk in (first, *middle, finish, usage)} == {"m"}


def test_openais_own_client_understands_it(worker):
    """An unmodified OpenAI client reads the stream, puts the tool call together and gets its usage."""
    with (
        httpx.Client(trust_env=False) as direct,
        openai.OpenAI(base_url=f"{worker.player.base}/v1", api_key="none", http_client=direct) as client,
    ):
        assert [model.id for model in client.models.list()] == ["deepseek-v4-flash"]
        with client.chat.completions.create(
            model="deepseek-v4-flash",
            messages=ORDER,
            tools=[TOOL],
            max_tokens=100,
            stream=True,
            stream_options={"include_usage": True},
        ) as stream:
            chunks = list(stream)
    calls = [call for chunk in chunks if chunk.choices for call in chunk.choices[0].delta.tool_calls or []]

    assert calls[0].function.name == "set_rack"
    assert json.loads("".join(call.function.arguments for call in calls)) == {"node": "n1", "rack": "r12"}
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "tool_calls"
    assert chunks[-1].usage.completion_tokens > len(calls)


def test_an_answer_in_one_piece(worker):
    """Without streaming the same call comes in one document."""
    status, body = worker.player.get(
        "/v1/chat/completions", method="POST", body={"messages": ORDER, "tools": [TOOL], "max_tokens": 100}
    )
    choice = json.loads(body)["choices"][0]

    assert status == 200
    assert choice["finish_reason"] == "tool_calls"
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"node": "n1", "rack": "r12"}


@pytest.mark.parametrize(
    ("more", "tokens", "finish"),
    [
        ({"max_tokens": 5}, 5, "length"),
        ({"max_tokens": 300, "ignore_eos": True}, 300, "length"),
        ({"max_tokens": 400, "min_tokens": 200}, 201, "stop"),
    ],
)
def test_lengths_are_kept(worker, more, tokens, finish):
    """max_tokens cuts, ignore_eos goes on to it, min_tokens holds the end back; usage counts the end token."""
    answer = json.loads(worker.player.chat(**more)[1])

    assert answer["usage"]["completion_tokens"] == tokens
    assert answer["choices"][0]["finish_reason"] == finish


def test_generate_answers_in_its_own_shape(worker):
    """`/generate` returns text and meta information, with why it ended."""
    body = {"text": "The capital of France is", "sampling_params": {"max_new_tokens": 6, "ignore_eos": True}}
    answer = json.loads(worker.player.get("/generate", method="POST", body=body)[1])

    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 6}
    assert answer["meta_info"]["completion_tokens"] == len(answer["output_ids"]) == 6


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"messages": []}, "Messages cannot be empty."),
        ({"messages": TEXT, "max_tokens": 0}, "max_new_tokens must be at least 1, got 0."),
        ({"messages": "hello"}, "Messages cannot be empty."),
    ],
)
def test_bad_requests_get_the_engines_error(worker, body, sentence):
    """A request that cannot be served gets status 400 and a flat error object."""
    status, said = worker.player.get("/v1/chat/completions", method="POST", body=body)

    assert status == 400
    assert json.loads(said) == {
        "object": "error",
        "message": sentence,
        "type": "BadRequest",
        "param": None,
        "code": 400,
    }


def test_nonsense_is_answered(worker):
    """Bodies that are no JSON, or JSON of the wrong shape, get status 400 on every path that takes one."""
    for path in ("/v1/chat/completions", "/generate", "/abort_request"):
        for nonsense in ("{", "[1, 2]", '"x"', '{"messages": [3], "text": 7, "rid": 1, "stream": "?"}'):
            status, said = worker.player.get(path, method="POST", raw=nonsense)
            assert status == 400 or (path == "/abort_request" and nonsense.startswith('{"')), (path, nonsense, said)
    assert worker.player.get("/v1/chat/completions")[0] == 405


def test_metrics_have_the_recorded_families_and_go_stale(worker, until):
    """`/metrics` has the labels of a recording; a gauge keeps the last burst's figure after the burst is over."""
    worker.player.throughput(8, tokens=90)
    until(lambda: json.loads(worker.player.get("/v1/loads")[1])["loads"][0]["num_running_reqs"] == 0)
    _, text = worker.player.get("/metrics")
    samples = dict(re.findall(r"^(\S+) (\S+)$", text, flags=re.MULTILINE))
    rank = 'engine_type="unified",model_name="deepseek-v4-flash",moe_ep_rank="0",pp_rank="0",tp_rank="0"'

    assert float(samples["sglang:num_running_reqs{" + rank + "}"]) == 8.0
    assert float(samples["sglang:is_cuda_graph{" + rank + "}"]) == 0.0
    captured = 'engine_type="unified",mode="decode_cuda_graph",' + rank.partition(",")[2]
    assert float(samples["sglang:cuda_graph_passes_total{" + captured + "}"]) > 80
    assert "# TYPE sglang:e2e_request_latency_seconds histogram" in text
    assert re.search(r"Decode batch, #running-req: 8, .*cuda graph: True, gen throughput", worker.said())


def test_a_request_can_be_aborted_by_id_and_all_at_once(worker, until):
    """`/abort_request` ends a running answer with finish reason abort; a client that hangs up frees its place."""
    player = worker.player
    client = player.begin(max_tokens=100_000, ignore_eos=True)
    until(lambda: player.running() == 1)
    player.get("/abort_request", method="POST", body={"abort_all": True})
    with client.getresponse() as answer:
        assert json.load(answer)["choices"][0]["finish_reason"] == "abort"
    client.close()

    client = player.begin(max_tokens=100_000, ignore_eos=True)
    until(lambda: player.running() == 1)
    client.close()
    until(lambda: player.running() == 0)


def test_a_full_queue_refuses(put_up, until):
    """Beyond the running and the queued requests, 503 comes with the engine's words."""
    narrow = put_up(serve_speed=2.0)
    narrow.edit(("--max-running-requests 256", "--max-running-requests 2 --max-queued-requests 1"))

    assert narrow.said().count("bs=[1, 2], avail mem=") == 4
    for count in (1, 2):
        narrow.player.begin(max_tokens=4000, ignore_eos=True)
        until(lambda count=count: narrow.player.running() == count)
    narrow.player.begin(max_tokens=4000, ignore_eos=True)
    until(lambda: json.loads(narrow.player.get("/v1/loads")[1])["loads"][0]["num_waiting_reqs"] == 1)

    status, said = narrow.player.chat()
    assert status == 503
    assert json.loads(said)["message"] == "The request queue is full."
    event, _ = narrow.player.stream(messages=TEXT)
    assert json.loads(event)["error"]["code"] == 503


def test_it_drains_before_it_ends(put_up, until):
    """SIGTERM lets an answer in flight come to its end; the log says so."""
    leaving = put_up(serve_speed=5.0)
    client = leaving.player.begin(max_tokens=400, ignore_eos=True)
    until(lambda: leaving.player.running() == 1)
    leaving.supervise("restart")
    with client.getresponse() as response:
        answer = json.load(response)
    client.close()

    assert answer["usage"]["completion_tokens"] == 400
    assert "SIGTERM received. signum=None frame=None. Draining requests and shutting down..." in leaving.said()
    assert "Gracefully exiting... Remaining number of requests 1." in leaving.said()


def test_nothing_hints_at_what_is_wrong(put_up):
    """Arguments, environment, open files, log and endpoints of a faulty worker are those of a sound one."""
    seen = []
    for faults in ((), ("graph-corruption", "abort-wedge")):
        each = put_up(faults=faults, port=None)
        each.player.sessions(4)
        process = Path(f"/proc/{each.pid()}")
        files = sorted(str(entry.resolve()) for entry in (process / "fd").iterdir() if entry.resolve().is_file())
        endpoints = [each.player.get(path)[1] for path in ("/server_info", "/model_info", "/v1/loads", "/metrics")]
        text = "\n".join(
            [
                (process / "cmdline").read_bytes().decode(),
                (process / "environ").read_bytes().decode(),
                (process / "comm").read_text(),
                *files,
                *endpoints,
                each.said(),
                each.script.read_text(),
            ]
        )
        assert not re.search(
            r"(?<!de)fault|corrupt|wedge|practice|\blab\b|simulat|fake|mock|scenario|oracle",
            _stripped(text, each),
            re.I,
        )
        seen.append(_stripped(text, each))
    shapes = [set(re.sub(r"[\d.]+", "0", text).splitlines()) for text in seen]
    assert not {line for line in shapes[0] ^ shapes[1] if "batch" not in line and "_seconds" not in line}


def _stripped(text, each):
    """The text without what names the ground's own place."""
    return text.replace(str(each.directory), "D").replace(str(each.port), "P")
