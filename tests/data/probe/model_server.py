"""A model behind an OpenAI-compatible endpoint for the tests of the probe: it reads the conversation and answers it.

Started as a process of its own; prints its port, and becomes a new model at each `POST /wish` of a JSON object. It finds facts and orders with
patterns of its own, makes the right call in streamed pieces, and keeps its own clock of what it sent and when, so that
a client's figures can be compared with it. `GET /seen` says what it saw.

    first, gap        seconds until the first chunk and between chunks
    fault, every      what goes wrong with every so-manieth session (see `Model.spoil`); at turn `fault_turn`
    only              that one request alone, instead of every so-manieth
    faults            one fault each for the first sessions
    http, every       answers every so-manieth request with this status
    cut, stall        every so-manieth stream is closed, or stands still, in the middle
    wedge_after       after so many disconnects nothing is generated any more
    gauge, loads      what /metrics says runs whatever is true; whether /v1/loads exists
    foreign           tokens and requests that others finish each second
    key               the API key that it wants
    collapse          texts turn into one sign after so many tokens
    brief             texts end after so many tokens
    think             generates so many tokens of reasoning before the call
"""

from __future__ import annotations

import asyncio
import json
import re
import time

from aiohttp import web

FACT = re.compile(r"The (\w+) of (\S+) is (\S+?)\.(?=\s|$)")
ORDER = re.compile(r"Call (\w+) for (\S+?)\.\s*$")


class Model:
    def __init__(self, wish: dict) -> None:
        self.wish = wish
        self.first = wish.get("first", 0.005)
        self.gap = wish.get("gap", 0.002)
        self.requests = self.sessions = self.disconnects = self.in_flight = self.peak = 0
        self.tokens = self.finished = 0.0
        self.born = time.monotonic()
        self.prompts: list[str] = []
        self.kept: list[dict] = []
        self.streams: list[dict] = []
        self.numbers: dict[str, int] = {}
        self.facts_of_all: dict[str, dict] = {}

    # ---------------------------------------------------------------- what it says

    def reply(self, document: dict) -> list[dict]:
        """The deltas of an answer."""
        messages = document["messages"]
        said = [message["content"] for message in messages if message["role"] == "user"]
        key = said[0]
        if key not in self.numbers:
            self.numbers[key] = len(self.numbers)
        number = self.numbers[key]
        order = ORDER.search(said[-1])
        if not document.get("tools") or not order:
            count = min(document.get("max_tokens", 16), self.wish.get("brief", 10**6))
            sound = min(count, self.wish.get("collapse", count))
            return [{"content": f"word{index} "} for index in range(sound)] + [{"content": "!"}] * (count - sound)
        facts: dict = {}
        older: dict = {}
        for text in said:
            for attribute, subject, value in FACT.findall(text):
                if (attribute, subject) in facts:
                    older[attribute, subject] = facts[attribute, subject]
                facts[attribute, subject] = value
        self.facts_of_all[key] = facts
        tool, subject = order.groups()
        parameters = next(t["function"]["parameters"] for t in document["tools"] if t["function"]["name"] == tool)
        attribute = next(name for name in parameters["properties"] if name != "node")
        arguments = {"node": subject, attribute: facts[attribute, subject]}
        deltas = [{"reasoning_content": "hmm "} for _ in range(self.wish.get("think", 0))]
        every, turn = self.wish.get("every", 1), self.wish.get("fault_turn", 2)
        faults = self.wish.get("faults", [])
        if number < len(faults) and len(said) == turn:
            return deltas + self.spoil(faults[number], tool, arguments, attribute, facts, older, key)
        if self.wish.get("fault") and number % every == 0 and len(said) == turn:
            return deltas + self.spoil(self.wish["fault"], tool, arguments, attribute, facts, older, key)
        return deltas + pieces(tool, json.dumps(arguments))

    def spoil(self, fault, tool, arguments, attribute, facts, older, key) -> list[dict]:
        """One of the ways in which a reply can be wrong."""
        others = [f for k, f in self.facts_of_all.items() if k != key]
        if fault == "other_fact":
            arguments[attribute] = next(v for p, v in facts.items() if v != arguments[attribute])
        elif fault == "invented":
            arguments[attribute] = "unheard-of"
        elif fault == "other_session":
            arguments[attribute] = next(iter(others[-1].values())) if others else "rk-0000000"
        elif fault == "other_session_in_text":
            name = next(iter(others[-1].values())) if others else ""
            return [{"content": f"As for {name}: "}, *pieces(tool, json.dumps(arguments))]
        elif fault == "old_value":
            pair = (attribute, arguments["node"])
            arguments[attribute] = older.get(pair, arguments[attribute])
        elif fault == "other_tool":
            tool = "set_rack" if tool != "set_rack" else "set_zone"
        elif fault == "no_call":
            return [{"content": "I would "}, {"content": "rather not."}]
        elif fault == "malformed":
            return pieces(tool, json.dumps(arguments)[:-4])
        elif fault == "list":
            return pieces(tool, json.dumps(list(arguments.values())))
        elif fault == "empty":
            return pieces(tool, "")
        elif fault == "empty_object":
            return pieces(tool, "{}")
        elif fault == "extra_argument":
            arguments["force"] = True
        elif fault == "number":
            arguments[attribute] = 7
        elif fault == "loop":
            return [{"content": "the rack is the rack and "} for _ in range(30)]
        elif fault == "loop_then_call":
            return [*[{"content": "go on and "} for _ in range(30)], *pieces(tool, json.dumps(arguments))]
        elif fault == "garbled":
            return [{"content": "ab\ufffd\ufffdcd"}, *pieces(tool, json.dumps(arguments))]
        elif fault == "twice":
            return pieces(tool, json.dumps(arguments)) + pieces(tool, json.dumps(arguments), index=1)
        elif fault == "two_calls":
            more = json.dumps({**arguments, attribute: "unheard-of"})
            return pieces(tool, json.dumps(arguments)) + pieces(tool, more, index=1)
        elif fault == "endless":
            return [{"reasoning_content": f"thought {index} "} for index in range(10_000)]
        elif fault != "none":
            raise ValueError(fault)
        return pieces(tool, json.dumps(arguments))

    # ---------------------------------------------------------------- how it says it

    @property
    def wedged(self) -> bool:
        after = self.wish.get("wedge_after")
        return after is not None and self.disconnects >= after

    async def chat(self, request: web.Request) -> web.StreamResponse:
        document = await request.json()
        self.requests += 1
        number, arrived = self.requests, time.monotonic()
        hit = number == self.wish["only"] if "only" in self.wish else number % self.wish.get("every", 1) == 0
        self.prompts.append(json.dumps(document.get("messages") or document.get("text")))
        if self.wish.get("key") and request.headers.get("Authorization") != f"Bearer {self.wish['key']}":
            return web.json_response({"message": "no such key"}, status=401)
        if self.wish.get("http") and hit:
            return web.json_response(
                {"object": "error", "message": "The request queue is full."}, status=self.wish["http"]
            )
        raw = request.path == "/generate"
        limit = document["sampling_params"]["max_new_tokens"] if raw else document.get("max_tokens", 10_000)
        deltas = [{"content": f"w{i} "} for i in range(limit)] if raw else self.reply(document)
        finish = "length" if len(deltas) >= limit else "tool_calls" if "tool_calls" in deltas[-1] else "stop"
        deltas = deltas[:limit]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        record = {"arrived": arrived, "tokens": 0}
        self.streams.append(record)
        try:
            await response.prepare(request)
            await self.stream(response, document, deltas, finish, record, hit, raw)
        except (ConnectionResetError, asyncio.CancelledError):
            self.disconnects += 1
            raise
        finally:
            record["done"] = time.monotonic()
            self.in_flight -= 1
            self.finished += 1
        return response

    async def stream(self, response, document, deltas, finish, record, hit, raw) -> None:
        cut, stall = self.wish.get("cut"), self.wish.get("stall")
        if not raw:
            await self.say(
                response,
                {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
            )
        due = record["arrived"] + self.first
        text = ""
        for index, delta in enumerate(deltas):
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due += self.gap
            while self.wedged:
                await asyncio.sleep(0.05)
            half = index == len(deltas) // 2
            if half and cut and hit:
                if cut == "error":
                    await self.say(
                        response, {"error": {"object": "error", "message": "The request queue is full.", "code": 503}}
                    )
                elif cut == "reset":
                    response._req.transport.abort()
                    raise ConnectionResetError
                return
            if half and stall and hit:
                await asyncio.sleep(3600)
            if raw:
                text += delta["content"]
                last = index == len(deltas) - 1
                info = {"completion_tokens": index + 1, "finish_reason": {"type": finish} if last else None}
                await self.say(response, {"text": text, "meta_info": info})
            else:
                await self.say(response, {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
            record.setdefault("first", time.monotonic())
            record["tokens"] += 1
            self.tokens += 1
        if not raw:
            await self.say(response, {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
            usage = {"completion_tokens": round(len(deltas) * self.wish.get("usage", 1.0)), "prompt_tokens": 9}
            if self.wish.get("usage") != 0:
                await self.say(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")

    async def say(self, response, event: dict) -> None:
        data = b"data: " + json.dumps(event).encode() + b"\n\n"
        if self.wish.get("dribble"):
            for at in range(0, len(data), 7):
                await response.write(data[at : at + 7])
        else:
            await response.write(data)

    # ---------------------------------------------------------------- what it counts

    async def metrics(self, _: web.Request) -> web.Response:
        if self.wish.get("metrics") is False:
            return web.Response(status=404)
        foreign = self.wish.get("foreign", 0) * (time.monotonic() - self.born)
        running = self.wish.get("gauge", self.in_flight)
        label = '{engine_type="unified",model_name="m",tp_rank="0"}'
        copy = '{engine_type="unified",model_name="m",tp_rank="1"}'
        return web.Response(
            text=f"# HELP sglang:num_running_reqs The number of running requests.\n"
            f"sglang:num_running_reqs{label} {float(running)}\nsglang:num_running_reqs{copy} {float(running)}\n"
            f"sglang:num_queue_reqs{label} 0.0\n"
            f"sglang:generation_tokens_total{label} {self.tokens + foreign}\n"
            f"sglang:num_requests_total{label} {float(self.finished + foreign // 10)}\n"
        )

    async def loads(self, _: web.Request) -> web.Response:
        if self.wish.get("loads") is False:
            return web.Response(status=404)
        loads = [{"dp_rank": 0, "num_running_reqs": self.wish.get("loads", self.in_flight), "num_waiting_reqs": 0}]
        return web.json_response({"loads": loads})

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "served-name"}]})

    async def seen(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                "requests": self.requests,
                "prompts": self.prompts,
                "sessions": len(self.numbers),
                "disconnects": self.disconnects,
                "in_flight": self.in_flight,
                "peak": self.peak,
                "streams": self.streams,
            }
        )


def pieces(tool: str, arguments: str, index: int = 0) -> list[dict]:
    """A tool call as the engines stream it: the name first, then the arguments in bits."""
    start = {"id": f"call_{index}", "index": index, "type": "function", "function": {"name": tool, "arguments": ""}}
    bits = [arguments[at : at + 9] for at in range(0, len(arguments), 9)]
    rest = [{"index": index, "id": None, "function": {"name": None, "arguments": bit}} for bit in bits]
    return [{"role": None, "content": None, "tool_calls": [each]} for each in [start, *rest]]


async def main() -> None:
    holder = {"model": Model({})}

    def of_now(name: str):
        async def handle(request: web.Request) -> web.StreamResponse:
            return await getattr(holder["model"], name)(request)

        return handle

    async def wish(request: web.Request) -> web.Response:
        holder["model"] = Model(await request.json())
        return web.json_response({})

    app = web.Application(client_max_size=2**24)
    app.router.add_post("/v1/chat/completions", of_now("chat"))
    app.router.add_post("/generate", of_now("chat"))
    app.router.add_get("/metrics", of_now("metrics"))
    app.router.add_get("/v1/loads", of_now("loads"))
    app.router.add_get("/v1/models", of_now("models"))
    app.router.add_get("/seen", of_now("seen"))
    app.router.add_post("/wish", wish)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    print(site._server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
