"""Tokens -> what vLLM 0.24's OpenAI endpoints send; keys that the engine sets, in its order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from evals.lab.ask import Ask
from evals.lab.chat import event
from evals.lab.replies import Token


class ChatWriter:
    """Writes the answer to one chat request.

    Args:
        ask: The request.
        start: Id, creation and model, which every chunk carries.
        parsed: The server parses tool calls for this request; else their markup is content.
        call_id: Id of the call, should there be one.
    """

    def __init__(self, ask: Ask, start: dict[str, Any], *, parsed: bool, call_id: str) -> None:
        self._ask = ask
        self._start = start
        self._parsed = parsed
        self._call_id = call_id
        self._called = False

    def opening(self) -> bytes:
        """The chunk that gives the role."""
        return event({**self._chunk({"role": "assistant", "content": ""}), "prompt_token_ids": None})

    def chunks(self, tokens: Iterable[Token]) -> bytes:
        """The chunks for tokens that have just come."""
        return b"".join(self._token(token) for token in tokens)

    def _token(self, token: Token) -> bytes:
        if token.kind == "text" or not self._parsed:
            return event(self._chunk({"content": marked(token)}))
        if token.kind == "markup":
            return b""
        if token.kind == "name":
            self._called = True
            named = {"index": 0, "id": self._call_id, "type": "function", "function": {"name": token.text}}
            return event(self._chunk({"tool_calls": [named]}))
        return event(self._chunk({"tool_calls": [{"index": 0, "function": {"arguments": token.text}}]}))

    def closing(self, *, usage: bool) -> bytes:
        """The chunks at the end: why it ended, on request what it cost, and the end mark."""
        choice = {"index": 0, "delta": {"content": ""}, "logprobs": None, "finish_reason": self._finish()}
        data = event({**self._start, "choices": [{**choice, "stop_reason": None, "token_ids": None}]})
        if usage:
            data += event({**self._start, "choices": [], "usage": spent(self._ask)})
        return data + b"data: [DONE]\n\n"

    def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        tokens = self._ask.produced
        text = "".join(marked(token) for token in tokens if token.kind == "text" or not self._parsed)
        name = "".join(token.text for token in tokens if token.kind == "name")
        calls = []
        if name and self._parsed:
            self._called = True
            arguments = "".join(token.text for token in tokens if token.kind == "arguments")
            calls = [
                {"id": self._call_id, "type": "function", "function": {"name": name, "arguments": arguments}},
            ]
        message = {
            "role": "assistant",
            "content": text if text or not calls else None,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "tool_calls": calls,
            "reasoning": None,
        }
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._finish()}
        return {
            **self._start,
            "object": "chat.completion",
            "choices": [{**choice, "stop_reason": None, "token_ids": None}],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": {**spent(self._ask), "prompt_tokens_details": None},
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "kv_transfer_params": None,
        }

    def _chunk(self, delta: dict[str, Any]) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, "token_ids": None}
        return {**self._start, "choices": [choice]}

    def _finish(self) -> str:
        if self._called and self._ask.finish in {"stop", "tool_calls"}:
            return "tool_calls"
        return finished(self._ask)


def finished(ask: Ask) -> str:
    """Why a request ended, as the engine says it."""
    return "stop" if ask.finish in {"tool_calls", None} else str(ask.finish)


def spent(ask: Ask) -> dict[str, int]:
    """What a request cost, in tokens; the end token is counted though it is never sent."""
    prompt, generated = ask.conversation.length, len(ask.produced) + (ask.finish in {"stop", "tool_calls"})
    return {"prompt_tokens": prompt, "total_tokens": prompt + generated, "completion_tokens": generated}


def marked(token: Token) -> str:
    """A token's own text, with the markup that stands around names and arguments."""
    return f'"{token.text}">\n' if token.kind == "name" else token.text
