"""Grounds to play on, and a client that plays known-answer sessions, load and storms of aborts."""

import asyncio
import contextlib
import http.client
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from random import Random

import aiohttp
import pytest

from evals.lab import ground, private, supervisor

SYSTEM = "You operate a cluster by calling tools. Use only facts that the user stated; the latest statement counts."


def tool(attribute):
    """A function that sets one attribute of a node."""
    properties = {"node": {"type": "string"}, attribute: {"type": "string"}}
    parameters = {"type": "object", "properties": properties, "required": ["node", attribute]}
    return {"type": "function", "function": {"name": f"set_{attribute}", "parameters": parameters}}


TOOLS = [tool("rack"), tool("owner"), tool("power_budget")]


CONNECTIONS = []
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Player:
    """A client of one worker."""

    def __init__(self, port):
        self.base = f"http://127.0.0.1:{port}"

    def get(self, path, *, method="GET", body=None, raw=None, timeout=60):
        """Status and body of a plain request."""
        data = raw.encode() if raw is not None else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.base + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        try:
            with DIRECT.open(request, timeout=timeout) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read().decode()

    def chat(self, text="Tell me about the scheduler.", **more):
        """One answer in one piece."""
        body = {"messages": [{"role": "user", "content": text}], **more}
        return self.get("/v1/chat/completions", method="POST", body=body)

    def stream(self, **body):
        """Every event of one streamed answer, the end mark included."""
        request = urllib.request.Request(
            self.base + "/v1/chat/completions",
            data=json.dumps({**body, "stream": True}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with DIRECT.open(request, timeout=60) as answer:
            return [line[6:].strip() for line in answer.read().decode().splitlines() if line.startswith("data: ")]

    def begin(self, **body):
        """Ask for a chat answer and leave it at that; the connection gives it with `getresponse`."""
        connection = http.client.HTTPConnection(self.base.removeprefix("http://"), timeout=60)
        data = json.dumps({"messages": [{"role": "user", "content": "Tell me about the scheduler."}], **body})
        CONNECTIONS.append(connection)
        connection.request("POST", "/v1/chat/completions", data, {"Content-Type": "application/json"})
        return connection

    def running(self):
        """Requests that run right now."""
        return json.loads(self.get("/v1/loads")[1])["loads"][0]["num_running_reqs"]

    async def _events(self, session, body):
        async with session.post(self.base + "/v1/chat/completions", json={**body, "stream": True}) as answer:
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])

    async def _session(self, session, number, turns):
        """Play one session; return whether every call was right."""
        chance = Random(number)
        nodes = [f"node-{number}-{letter}" for letter in "abc"]
        planted = {}
        said = []
        for node in nodes:
            for attribute in ("rack", "owner", "power budget"):
                planted[node, attribute] = f"{attribute[0]}{chance.randrange(10_000)}"
                said.append(f"The {attribute} of {node} is {planted[node, attribute]}.")
        messages = [{"role": "system", "content": SYSTEM}]
        for turn in range(turns):
            node, attribute = chance.choice(nodes), chance.choice(("rack", "owner", "power budget"))
            name, parameter = f"set_{attribute.replace(' ', '_')}", attribute.replace(" ", "_")
            opening = " ".join(said) if turn == 0 else "Nothing else to report."
            messages.append({"role": "user", "content": f"{opening} Call {name} for {node}."})
            called = written = ""
            body = {"messages": messages, "tools": TOOLS, "max_tokens": 200, "temperature": 0}
            async for event in self._events(session, body):
                for choice in event["choices"]:
                    for call in choice["delta"].get("tool_calls") or []:
                        called += call["function"].get("name") or ""
                        written += call["function"].get("arguments") or ""
            try:
                right = called == name and json.loads(written) == {"node": node, parameter: planted[node, attribute]}
            except ValueError:
                right = False
            if not right:
                return False
            call = {"id": "call_1", "type": "function", "function": {"name": called, "arguments": written}}
            messages += [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": "ok"},
            ]
        return True

    def sessions(self, count, *, concurrency=16, turns=3, first=0):
        """Play sessions; return how many went wrong."""

        async def play():
            gate = asyncio.Semaphore(concurrency)
            async with _client() as session:

                async def one(number):
                    async with gate:
                        return await self._session(session, number, turns)

                return await asyncio.gather(*(one(first + number) for number in range(count)))

        return asyncio.run(play()).count(False)

    def throughput(self, concurrency, tokens=64):
        """Tokens a wall second of one closed-loop burst."""

        async def burst():
            async with _client() as session:

                async def one(number):
                    body = {
                        "messages": [{"role": "user", "content": f"{number}: tell me about the scheduler."}],
                        "max_tokens": tokens,
                        "ignore_eos": True,
                        "stream_options": {"include_usage": True},
                    }
                    used = [e["usage"] async for e in self._events(session, body) if e.get("usage")]
                    return used[-1]["completion_tokens"]

                began = time.monotonic()
                total = sum(await asyncio.gather(*(one(number) for number in range(concurrency))))
                return total / (time.monotonic() - began)

        return asyncio.run(burst())

    def storm(self, count, *, survivors=2, apart=0.0, silence=2.0):
        """Cut off `count` of many streams in mid-answer; return whether the others still got tokens afterwards.

        Args:
            count: Streams that are cut off.
            survivors: Streams that are not.
            apart: Wall seconds between one cut and the next.
            silence: Wall seconds without a token that count as a standstill.
        """

        async def blow():
            async with _client() as session:
                last = {}

                async def one(number):
                    body = {
                        "messages": [{"role": "user", "content": f"{number}: tell me about the scheduler."}],
                        "max_tokens": 100_000,
                        "ignore_eos": True,
                    }
                    async for _ in self._events(session, body):
                        last[number] = time.monotonic()

                tasks = [asyncio.create_task(one(number)) for number in range(count + survivors)]
                while len(last) < len(tasks):
                    await asyncio.sleep(0.01)
                for task in tasks[:count]:
                    task.cancel()
                    await asyncio.sleep(apart)
                await asyncio.sleep(silence)
                edge = time.monotonic() - silence / 2
                alive = [last[number] > edge for number in range(count, count + survivors)]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                return all(alive)

        return asyncio.run(blow())


def _client():
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True), timeout=aiohttp.ClientTimeout(total=120)
    )


class Played(ground.Ground):
    """A ground, with what tests do to it."""

    @property
    def player(self):
        return Player(self.port)

    @property
    def events(self):
        """What its faults did, by the oracle."""
        return private.events(self.directory)

    def said(self):
        """Its log."""
        return self.log.read_text(encoding="utf-8")

    def pid(self):
        return ground.status(self.directory).pid

    def supervise(self, word):
        """What the supervisor printed."""
        command = [sys.executable, supervisor.__file__, "--directory", str(self.directory), word]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def edit(self, *changes, ready=True):
        """Replace text in the serve script, restart, and wait for the port; return the new process id."""
        text = self.script.read_text(encoding="utf-8")
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        self.script.write_text(text, encoding="utf-8")
        word = "fired up" if "sglang" in text else "Application startup complete"
        before = self.said().count(word)
        pid = json.loads(self.supervise("restart"))["pid"]
        if ready:
            wait_until(lambda: self.said().count(word) > before)
        return pid


def wait_until(condition, seconds=60.0):
    """Wait for something to come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


@pytest.fixture(scope="session")
def until():
    """Waits for something to come true."""
    return wait_until


@pytest.fixture(scope="module")
def put_up(tmp_path_factory):
    """Puts up grounds, by default without noise and in a hurry, and takes them down again."""
    with contextlib.ExitStack() as standing:

        def put(**more):
            directory = tmp_path_factory.mktemp("ground")
            hurry = {"boot_noise": 0.0, "run_noise": 0.0, "start_speed": 200.0, "serve_speed": 20.0}
            return Played(*standing.enter_context(ground.standing(directory, **{**hurry, **more})))

        yield put
        for connection in CONNECTIONS:
            connection.close()
        CONNECTIONS.clear()
