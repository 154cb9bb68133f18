"""JSON in and out: request bodies read and checked, answers and errors in the engine's shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from evals.lab.conversation import Conversation, tokens, understand


def answer(document: object, *, status: int = 200) -> web.Response:
    """A JSON answer, written as tightly as the engine writes it."""
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return web.Response(body=body.encode(), status=status, content_type="application/json")


def error(message: str, status: int) -> web.Response:
    """A refusal, flat and with its status inside, as the engine sends it."""
    kind = "BadRequest" if status == 400 else str(status)
    document = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
    return answer(document, status=status)


def chatted(body: Mapping[str, Any]) -> Conversation:
    """The conversation of a chat request.

    Raises:
        ValueError: it has no messages.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ValueError("Messages cannot be empty.")
    said = understand(messages, [] if body.get("tool_choice") == "none" else body.get("tools") or [])
    return said._replace(adapter=_adapter(body), temperature=_temperature(body))


def prompted(body: Mapping[str, Any]) -> Conversation:
    """The prompt of a plain request, as a conversation of one turn.

    Raises:
        ValueError: it has none.
    """
    text, ids = body.get("text"), body.get("input_ids")
    if isinstance(text, str):
        prompt, length = text, tokens(text)
    elif isinstance(ids, list):
        prompt, length = f"{len(ids)} ids {ids[:8]}", len(ids)
    else:
        raise ValueError("Either text, input_ids or input_embeds should be provided.")  # noqa: TRY004 - the client's slip
    said = understand([{"role": "user", "content": prompt}])
    sampling = body.get("sampling_params")
    temperature = _temperature(sampling if isinstance(sampling, Mapping) else body)
    return said._replace(length=max(length, 1), adapter=_adapter(body), temperature=temperature)


def _adapter(body: Mapping[str, Any]) -> str:
    """The adapter that a request names: by itself, or behind the model's name and a colon."""
    return str(body.get("lora_path") or str(body.get("model") or "").partition(":")[2])


def _temperature(body: Mapping[str, Any]) -> float:
    """The temperature of a request; both engines take 1 where none is given.

    Raises:
        ValueError: it is no number, or below 0.
    """
    value = body.get("temperature")
    warm = 1.0 if value is None else float(value)
    if warm < 0:
        raise ValueError(f"temperature must be non-negative, got {warm}.")
    return warm


async def read(request: web.Request) -> dict[str, Any]:
    """The body as an object.

    Raises:
        ValueError: it is none.
    """
    body = await request.json()
    if not isinstance(body, dict):
        raise ValueError("The body should be a JSON object.")  # noqa: TRY004 - reported to the client, not a type slip
    return body


def whole(body: Mapping[str, Any], *names: str, default: int) -> int:
    """The first of the named fields that is set, as a whole number."""
    for name in names:
        if body.get(name) is not None:
            return int(body[name])
    return default
