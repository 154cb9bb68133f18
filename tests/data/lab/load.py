"""A client of a practice worker that runs beside it on virtual time: sessions, texts, long prompts, storms of aborts.

    measure({"port": P, "play": NAME, ...}, report)

Everything is asked for without streaming over one connection a request, so that nothing but the loop itself exists.
"""

from __future__ import annotations

import asyncio
import json
import random

SYSTEM = "You operate a cluster by calling tools. Use only facts that the user stated; the latest statement counts."


def _tool(attribute):
    properties = {"node": {"type": "string"}, attribute: {"type": "string"}}
    return {"type": "function", "function": {"name": f"set_{attribute}", "parameters": {"properties": properties}}}


TOOLS = [_tool("rack"), _tool("owner")]


async def _post(port, path, body, patience):
    """Status and document of a request; None where it was given up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(data)}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + data)
        said = await asyncio.wait_for(reader.read(-1), patience)
    except TimeoutError:
        return None
    finally:
        writer.close()
    head, _, body = said.partition(b"\r\n\r\n")
    if b"chunked" in head:
        body = b"".join(body.split(b"\r\n")[1::2])
    return int(head.split()[1]) if head else 0, json.loads(body) if body else None


async def _get(port, path, patience):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        return int((await asyncio.wait_for(reader.read(-1), patience)).split()[1])
    except TimeoutError:
        return None
    finally:
        writer.close()


async def _session(wish, number):
    """Play one session of tool calls; count calls that were right."""
    chance = random.Random(number)
    nodes = [f"n{number}-{letter}" for letter in "abc"[: wish.get("nodes", 2)]]
    planted, said = {}, []
    for node in nodes:
        for attribute in ("rack", "owner"):
            planted[node, attribute] = f"{attribute[0]}{chance.randrange(10_000)}"
            said.append(f"The {attribute} of {node} is {planted[node, attribute]}.")
    filler = "Nothing else to report. " * wish.get("filler", 0)
    messages, right = [{"role": "system", "content": SYSTEM}], 0
    for turn in range(wish.get("turns", 1)):
        node, attribute = chance.choice(nodes), chance.choice(("rack", "owner"))
        opening = " ".join(said) + " " + filler if turn == 0 else "Go on."
        messages.append({"role": "user", "content": f"{opening} Call set_{attribute} for {node}."})
        body = {"messages": messages, "tools": TOOLS, "max_tokens": 200, "temperature": 0, "model": wish["model"]}
        if wish.get("adapters"):
            body["lora_path"] = f"adapter-{number % wish['adapters']}"
        got = await _post(wish["port"], "/v1/chat/completions", body, wish.get("patience", 60.0))
        if got is None or got[0] != 200:
            return right
        answer = got[1]["choices"][0]["message"]
        calls = answer["tool_calls"] or []
        try:
            made = json.loads(calls[0]["function"]["arguments"])
            right += made == {"node": node, attribute: planted[node, attribute]}
        except (IndexError, ValueError):
            pass
        messages.append(answer)
        if calls:
            messages.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": "ok"})
    return right


async def _text(wish, number):
    """Ask for a text of so many tokens; count it when it came whole."""
    size = wish.get("prompt", 0)
    prompt = [number, *range(size)] if size else f"{number}: tell me about the scheduler."
    body = {"prompt": prompt, "max_tokens": wish.get("tokens", 64), "ignore_eos": True, "model": wish["model"]}
    patience = 60.0 if number < wish.get("survivors", 0) else wish.get("patience", 60.0)
    got = await _post(wish["port"], "/v1/completions", body, patience)
    return got is not None and got[0] == 200


async def measure(wish, report):
    """Do what the wish says; `report` is not needed."""
    del report
    if wish["play"] == "health":
        return {"status": await _get(wish["port"], "/health", 60.0)}
    gate = asyncio.Semaphore(wish.get("concurrency", 16))
    play = _session if wish["play"] == "sessions" else _text

    async def one(number):
        async with gate:
            return await play(wish, number)

    return {"good": sum(await asyncio.gather(*(one(number) for number in range(wish["count"]))))}
