"""Clients that know nothing of the practice ground: OpenAI's, Prometheus', and the engine's own benchmark."""

import asyncio
import json
import time
from pathlib import Path

import aiohttp
import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

LOG = Path(__file__).parents[2] / "data" / "lab" / "bench_serving.jsonl"
TOOL = {
    "type": "function",
    "function": {
        "name": "set_rack",
        "parameters": {
            "type": "object",
            "properties": {"node": {"type": "string"}, "rack": {"type": "string"}},
            "required": ["node", "rack"],
        },
    },
}


@pytest.fixture(scope="module", params=["single", "pd"])
def made(put_up, request):
    """A sound worker, and a sound pair."""
    return put_up(topology=request.param, faults=[], serve_speed=4.0)


@pytest.fixture
def client(made):
    """OpenAI's client, as it comes."""
    with (
        httpx.Client(trust_env=False) as http,
        openai.OpenAI(base_url=f"{made.entry}/v1", api_key="none", max_retries=0, http_client=http) as one,
    ):
        yield one


def test_openai_lists_and_chats(client):
    """The model is listed; an answer has its text, its reason to end and its cost."""
    (model,) = client.models.list().data
    answer = client.chat.completions.create(
        model=model.id, messages=[{"role": "user", "content": "Say something."}], max_tokens=6
    )

    assert model.owned_by == "sglang"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in {"stop", "length"}
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_openai_streams(client):
    """A stream's deltas are the answer that comes whole, and the last chunk has the cost when that is asked for."""
    wish = {"model": "deepseek-v4-flash", "messages": [{"role": "user", "content": "Say a lot."}], "max_tokens": 24}
    whole = client.chat.completions.create(**wish).choices[0].message.content
    chunks = list(client.chat.completions.create(**wish, stream=True, stream_options={"include_usage": True}))

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole
    assert chunks[0].choices[0].delta.role == "assistant"
    assert not chunks[-1].choices
    assert chunks[-1].usage.completion_tokens > 0


@pytest.mark.parametrize("stream", [False, True])
def test_openai_calls_tools(client, stream):
    """A call comes with its name, its arguments as JSON and an id, whole or in pieces, turn after turn."""
    messages = [{"role": "system", "content": "You call tools."}]
    for turn, rack in enumerate(("r12", "r40", "r7")):
        messages.append({"role": "user", "content": f"The rack of node-3 is {rack}. Call set_rack for node-3."})
        wish = {"model": "deepseek-v4-flash", "messages": messages, "tools": [TOOL], "max_tokens": 100}
        if stream:
            name = written = call_id = ""
            for chunk in client.chat.completions.create(**wish, stream=True):
                for call in chunk.choices[0].delta.tool_calls or []:
                    name += call.function.name or ""
                    written += call.function.arguments or ""
                    call_id += call.id or ""
                reason = chunk.choices[0].finish_reason
        else:
            choice = client.chat.completions.create(**wish).choices[0]
            (call,) = choice.message.tool_calls
            name, written, call_id, reason = call.function.name, call.function.arguments, call.id, choice.finish_reason

        assert (name, json.loads(written), reason) == ("set_rack", {"node": "node-3", "rack": rack}, "tool_calls"), turn
        assert call_id.startswith("call_")
        function = {"name": name, "arguments": written}
        messages += [
            {"role": "assistant", "tool_calls": [{"id": call_id, "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": call_id, "content": "done"},
        ]


def test_openai_reads_refusals(client):
    """A request that cannot be served is the client's own kind of error, with the engine's words."""
    with pytest.raises(openai.BadRequestError, match="Messages cannot be empty"):
        client.chat.completions.create(model="deepseek-v4-flash", messages=[])
    with pytest.raises(openai.BadRequestError, match="longer than the model's context length"):
        client.completions.create(model="deepseek-v4-flash", prompt="word " * 900_000)


def test_prometheus_reads_the_metrics(made):
    """Everything that `/metrics` says parses; counters count, and a histogram's buckets add up to its count."""
    before = _metrics(made)
    made.player.__class__.chat(_at(made), "Count me.", max_tokens=5, ignore_eos=True)
    after = _metrics(made)

    generated = "sglang:generation_tokens"
    assert _sum(after[generated], "_total") - _sum(before.get(generated), "_total") == 5
    for name in ("sglang:e2e_request_latency_seconds", "sglang:inter_token_latency_seconds"):
        family = after[name]
        assert family.type == "histogram"
        buckets = [one.value for one in family.samples if one.name.endswith("_bucket")]
        assert buckets == sorted(buckets)
        assert buckets[-1] == _sum(family, "_count") > 0
    assert {one.labels["engine_type"] for one in after["sglang:num_running_reqs"].samples} <= {"unified", "decode"}


def _at(made):
    client = made.player
    client.base = made.entry
    return client


def _metrics(made):
    text = made.player.get("/metrics")[1]
    return {family.name: family for family in text_string_to_metric_families(text)}


def _sum(family, ending):
    return sum(one.value for one in family.samples if one.name.endswith(ending)) if family else 0


def test_the_engines_benchmark_would_have_its_figures(made):
    """A log of what `sglang.bench_serving` asks is served, every request whole, its first token and steps timed."""
    lines = [json.loads(line) for line in LOG.read_text(encoding="utf-8").splitlines()]

    found = asyncio.run(_replayed(made.entry, lines))

    timed = [one for one in found if "times" in one]
    wanted = [line["body"]["sampling_params"]["max_new_tokens"] for line in lines if "body" in line]
    assert [one["tokens"] for one in timed] == wanted
    for one in timed:
        assert one["text"]
        assert one["times"] == sorted(one["times"])
        assert len(one["times"]) == one["tokens"]
        assert one["finish"] == {"type": "length", "length": one["tokens"]}
    infos = [one["answer"] for one in found if "answer" in one]
    assert infos[0]["data"][0]["id"] == "deepseek-v4-flash"
    assert infos[1]["model_path"].endswith("DeepSeek-V4-Flash-NVFP4")
    assert infos[-1]["internal_states"][0]["last_gen_throughput"] >= 0


async def _replayed(base, lines):
    """Ask everything that a log holds, generation at its own moments and at once, and read as the benchmark reads."""
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout, read_bufsize=10 * 2**20) as session:
        plain = [await _asked(session, base, line) for line in lines[:3]]
        streams = await asyncio.gather(*(_streamed(session, base, line) for line in lines[3:-1]))
        return [*plain, *streams, await _asked(session, base, lines[-1])]


async def _asked(session, base, line):
    async with session.request(line["method"], base + line["path"]) as answer:
        answer.raise_for_status()
        if answer.content_type != "application/json":
            return {"plain": await answer.text()}
        return {"answer": await answer.json()}


async def _streamed(session, base, line):
    await asyncio.sleep(line["at"])
    read = {"times": [], "tokens": 0}
    began = time.perf_counter()
    async with session.post(base + line["path"], json=line["body"]) as answer:
        assert answer.status == 200
        async for raw in answer.content:
            text = raw.strip().decode().removeprefix("data: ")
            if not text or text == "[DONE]":
                continue
            event = json.loads(text)
            fresh = event["meta_info"]["completion_tokens"] - read["tokens"]
            read["times"] += [time.perf_counter() - began] * fresh
            read |= {"text": event["text"], "tokens": event["meta_info"]["completion_tokens"]}
            read["finish"] = event["meta_info"]["finish_reason"]
    return read
