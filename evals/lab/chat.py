"""Tokens -> what the OpenAI-compatible endpoint sends, in the engine's chunk shape (engine facts, section 3)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from evals.lab.ask import Ask
from evals.lab.replies import Token


class ChatWriter:
    """Writes the answer to one chat request.

    Args:
        ask: The request.
        model: Name under which the model is served.
        created: Unix time of the answer.
        parsed: The server parses tool calls; else their markup is content.
        call_id: Id of the call, should there be one.
        end_token: Token id that ends an answer.
    """

    def __init__(self, ask: Ask, model: str, created: int, *, parsed: bool, call_id: str, end_token: int) -> None:
        self._ask = ask
        self._parsed = parsed
        self._call_id = call_id
        self._end_token = end_token
        self._called = False
        start = {"id": ask.rid, "object": "chat.completion.chunk", "created": created, "model": model}
        self._start = start
        opening = json.dumps(start, separators=(",", ":"))[:-1]
        self._head = f'data: {opening},"choices":[{{"index":0,"delta":{{"reasoning_content":null,'
        self._tail = '},"logprobs":null,"finish_reason":null,"matched_stop":null}]}\n\n'
        self._pending_name = ""

    def opening(self) -> bytes:
        """The chunk that gives the role."""
        return f'{self._head}"role":"assistant","content":""{self._tail}'.encode()

    def chunks(self, tokens: Iterable[Token]) -> bytes:
        """The chunks for tokens that have just come."""
        return "".join(self._chunk(token) for token in tokens).encode()

    def _chunk(self, token: Token) -> str:
        if token.kind == "text" or not self._parsed:
            return f'{self._head}"content":{json.dumps(_marked(token), ensure_ascii=False)}{self._tail}'
        if token.kind == "markup":
            return ""
        if token.kind == "name":
            self._called = True
            function: dict[str, Any] = {"name": token.text, "arguments": ""}
            call = {"id": self._call_id, "index": 0, "type": "function", "function": function}
        else:
            function = {"name": None, "arguments": token.text}
            call = {"id": None, "index": 0, "type": "function", "function": function}
        delta = {"role": None, "content": None, "reasoning_content": None, "tool_calls": [call]}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, "matched_stop": None}
        return event({**self._start, "choices": [choice], "usage": None}).decode()

    def closing(self, *, usage: bool) -> bytes:
        """The chunks at the end: why it ended, on request what it cost, and the end mark."""
        finish = self._finish()
        choice = {
            "index": 0,
            "delta": {"reasoning_content": None},
            "logprobs": None,
            "finish_reason": finish,
            "matched_stop": self._end_token if finish == "stop" else None,
        }
        data = event({**self._start, "choices": [choice]})
        if usage:
            data += event({**self._start, "choices": [], "usage": spent(self._ask)})
        return data + b"data: [DONE]\n\n"

    def _finish(self) -> str:
        finish = self._ask.finish or "stop"
        if finish == "tool_calls" and not self._parsed:
            return "stop"
        return "tool_calls" if finish == "stop" and self._called else finish

    def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        tokens = self._ask.produced
        shown = [token for token in tokens if token.kind == "text" or not self._parsed]
        text = "".join(_marked(token) for token in shown)
        calls = None
        name = "".join(token.text for token in tokens if token.kind == "name")
        if name and self._parsed:
            self._called = True
            arguments = "".join(token.text for token in tokens if token.kind == "arguments")
            function = {"name": name, "arguments": arguments}
            calls = [{"id": self._call_id, "index": 0, "type": "function", "function": function}]
        finish = self._finish()
        message = {
            "role": "assistant",
            "content": text if text or not calls else None,
            "reasoning_content": None,
            "tool_calls": calls,
        }
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": finish,
            "matched_stop": self._end_token if finish == "stop" else None,
        }
        start = {**self._start, "object": "chat.completion"}
        return {**start, "choices": [choice], "usage": spent(self._ask), "metadata": {"weight_version": "default"}}


def _marked(token: Token) -> str:
    """A token's own text, with the markup that stands around names and arguments."""
    return f'"{token.text}">\n' if token.kind == "name" else token.text


def spent(ask: Ask) -> dict[str, Any]:
    """What a request cost, in tokens."""
    prompt, generated = ask.conversation.length, len(ask.produced)
    # The end token is generated and counted, though it is never sent.
    generated += ask.finish in {"stop", "tool_calls"}
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + generated,
        "completion_tokens": generated,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
    }


def event(document: dict[str, Any]) -> bytes:
    """One event of a stream."""
    return f"data: {json.dumps(document, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()
