"""vLLM's endpoints that generate: chat completions and plain completions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from random import Random
from typing import Any

from aiohttp import web

from evals.lab.ask import Ask
from evals.lab.bodies import answer, chatted, prompted, read, whole
from evals.lab.chat import event
from evals.lab.conversation import Conversation
from evals.lab.intake import Intake
from evals.lab.outlet import streamed
from evals.lab.scheduler import Scheduler
from evals.lab.vllm_0_24.arguments import Launch
from evals.lab.vllm_0_24.chat import ChatWriter, finished, spent

_KINDS = {400: "BadRequestError", 404: "NotFoundError", 401: "AuthenticationError", 500: "InternalServerError"}


class Refused(Exception):
    """A request is not taken; the text says why."""

    def __init__(self, message: str, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param

    def answer(self) -> web.Response:
        """The refusal as the engine sends it."""
        document = {"message": str(self), "type": _KINDS[self.status], "param": self.param, "code": self.status}
        return answer({"error": document}, status=self.status)


class Answers:
    """Takes requests to the scheduler and its tokens back to the clients.

    Args:
        launch: How the worker was started.
        scheduler: The loop that owns the batch.
        chance: Source of ids.
    """

    def __init__(self, launch: Launch, scheduler: Scheduler, chance: Random) -> None:
        self._launch = launch
        self._scheduler = scheduler
        self._intake = Intake(scheduler, launch.context, chance)
        self._adapters = [str(module).partition("=")[0] for module in launch.values["lora_modules"] or []]
        self.dead = False
        """The engine is gone: whoever waits is told so."""

    @property
    def open_requests(self) -> list[str]:
        """Ids of requests that have not been answered to the end."""
        return self._intake.open_requests

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """OpenAI's chat completions."""
        body = await _body(request)
        model = self._model(body)
        tools = self._tools(body)
        conversation = self._read(body, tools)
        ask = self._ask(body, conversation, f"chatcmpl-{self._intake.name()}", chat=True)
        start = {"id": ask.rid, "object": "chat.completion.chunk", "created": int(time.time()), "model": model}
        writer = ChatWriter(
            ask,
            start,
            parsed=bool(tools) and self._launch.values["tool_call_parser"] is not None,
            call_id=f"chatcmpl-tool-{self._intake.name(64)}",
        )
        usage = self._usage(body)
        with self._intake.taken(ask):
            self._scheduler.submit(ask)
            if not body.get("stream"):
                await self._finished(ask)
                return answer(writer.whole())
            response = await _opened(request)
            await streamed(request, response, ask, writer.opening, writer.chunks)
            await response.write(_lost() if self.dead else writer.closing(usage=usage))
            return response

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """OpenAI's plain completions."""
        body = await _body(request)
        model = self._model(body)
        try:
            prompt = body.get("prompt")
            prompt = (
                prompt[0] if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str) else prompt
            )
            conversation = prompted({**body, "text": prompt, "input_ids": prompt})
        except ValueError as slip:
            raise Refused("Either prompt or prompt_embeds must be provided and non-empty.") from slip
        conversation = conversation._replace(adapter=self._adapter(body))
        ask = self._ask(body, conversation, f"cmpl-{self._intake.name()}", chat=False)
        start = {"id": ask.rid, "object": "text_completion", "created": int(time.time()), "model": model}
        with self._intake.taken(ask):
            self._scheduler.submit(ask)
            if not body.get("stream"):
                await self._finished(ask)
                text = "".join(token.text for token in ask.produced)
                choice = {
                    **_choice(text, finished(ask)),
                    "prompt_logprobs": None,
                    "prompt_token_ids": None,
                }
                more = {"service_tier": None, "system_fingerprint": None}
                cost = {**spent(ask), "prompt_tokens_details": None}
                return answer({**start, "choices": [choice], **more, "usage": cost, "kv_transfer_params": None})
            response = await _opened(request)
            while ask.finish is None:
                for token in await ask.fresh():
                    await response.write(event({**start, "choices": [_choice(token.text, None)]}))
            if self.dead:
                await response.write(_lost())
                return response
            await response.write(event({**start, "choices": [_choice("", finished(ask))]}))
            if self._usage(body):
                await response.write(event({**start, "choices": [], "usage": spent(ask)}))
            await response.write(b"data: [DONE]\n\n")
            return response

    def release(self) -> None:
        """The engine is gone: nobody waits any longer."""
        self.dead = True
        for ask in self._scheduler.find(""):
            ask.finish = ask.finish or "abort"
            ask.news.set()

    async def _finished(self, ask: Ask) -> None:
        """Wait for the end of a request.

        Raises:
            Refused: the engine died meanwhile.
        """
        while ask.finish is None:
            await ask.fresh()
        if self.dead:
            raise Refused("EngineCore encountered an issue. See stack trace (above) for the root cause.", 500)

    def _model(self, body: Mapping[str, Any]) -> str:
        """The name that the answer carries.

        Raises:
            Refused: no such model is served.
        """
        wanted = body.get("model")
        if wanted is not None and wanted not in (*self._launch.names, *self._adapters):
            raise Refused(f"The model `{wanted}` does not exist.", 404, "model")
        return str(wanted or self._launch.names[0])

    def _tools(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The functions that may be called.

        Raises:
            Refused: the server was not started for that.
        """
        tools = body.get("tools") or []
        if not isinstance(tools, list):
            raise Refused("Input should be a valid list", param="tools")
        choice = body.get("tool_choice", "auto")
        if not tools or choice == "none":
            return []
        values = self._launch.values
        if choice == "auto" and not (values["enable_auto_tool_choice"] and values["tool_call_parser"]):
            raise Refused('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
        return tools

    def _read(self, body: Mapping[str, Any], tools: list[dict[str, Any]]) -> Conversation:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise Refused(
                "1 validation error:\n  {'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'Field required'}"
            )
        try:
            said = chatted({**body, "tools": tools})
        except (KeyError, TypeError, AttributeError, ValueError) as slip:
            raise Refused(f"Invalid request: {slip!r}") from slip
        return said._replace(adapter=self._adapter(body))

    def _adapter(self, body: Mapping[str, Any]) -> str:
        """The adapter that a request names as its model; empty: the bare model."""
        wanted = str(body.get("model") or "")
        return wanted if wanted in self._adapters else ""

    def _ask(self, body: Mapping[str, Any], conversation: Conversation, rid: str, *, chat: bool) -> Ask:
        context = self._launch.context
        open_end = context - conversation.length if chat else 16
        try:
            most = whole(body, "max_completion_tokens", "max_tokens", default=max(open_end, 1))
            least = whole(body, "min_tokens", default=0)
        except (TypeError, ValueError) as slip:
            raise Refused(f"max_tokens: {slip}", param="max_tokens") from slip
        if conversation.length >= context:
            raise Refused(
                f"This model's maximum context length is {context} tokens. However, your request has"
                f" {conversation.length} input tokens. Please reduce the length of the input messages.",
                param="input_tokens",
            )
        if most < 1:
            raise Refused(f"max_tokens must be at least 1, got {most}.", param="max_tokens")
        return self._intake.ask(conversation, most=most, least=least, forever=bool(body.get("ignore_eos")), rid=rid)

    def _usage(self, body: Mapping[str, Any]) -> bool:
        wished = (body.get("stream_options") or {}).get("include_usage")
        return bool(wished or self._launch.values["enable_force_include_usage"])


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        return await read(request)
    except ValueError as slip:
        raise Refused(
            f"1 validation error:\n  {{'type': 'json_invalid', 'msg': 'JSON decode error: {slip}'}}"
        ) from slip


def _choice(text: str, finish: str | None) -> dict[str, Any]:
    return {
        "index": 0,
        "text": text,
        "logprobs": None,
        "finish_reason": finish,
        "stop_reason": None,
        "token_ids": None,
    }


def _lost() -> bytes:
    document = {"message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
                "type": _KINDS[500], "param": None, "code": 500}  # fmt: skip
    return event({"error": document}) + b"data: [DONE]\n\n"


async def _opened(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    return response
