"""The endpoints that generate: OpenAI's two and SGLang's own `/generate`."""

from __future__ import annotations

import json
import time
from random import Random
from typing import Any

from aiohttp import web

from evals.lab.arguments import Launch
from evals.lab.ask import Ask
from evals.lab.bodies import answer, chatted, error, prompted, read, whole
from evals.lab.chat import ChatWriter, event, spent
from evals.lab.clock import Clock
from evals.lab.conversation import Conversation
from evals.lab.intake import Intake
from evals.lab.memory import context_length
from evals.lab.outlet import streamed
from evals.lab.scheduler import QueueFullError, Scheduler
from evals.lab.specimen import Specimen


class Answers:
    """Takes requests to the scheduler and its tokens back to the clients.

    Args:
        launch: How the worker was started.
        specimen: Model and cards.
        scheduler: The loop that owns the batch.
        clock: Serving clock.
        chance: Source of ids.
    """

    def __init__(self, launch: Launch, specimen: Specimen, scheduler: Scheduler, clock: Clock, chance: Random) -> None:
        self._launch = launch
        self._specimen = specimen
        self._scheduler = scheduler
        self._clock = clock
        self._context = context_length(launch.arguments, specimen)
        self._model = launch.arguments["served_model_name"]
        self._intake = Intake(scheduler, self._context, chance)

    @property
    def open_requests(self) -> list[str]:
        """Ids of requests that have not been answered to the end."""
        return self._intake.open_requests

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """OpenAI's chat completions."""
        try:
            body = await read(request)
            conversation = chatted(body)
            most = whole(body, "max_completion_tokens", "max_tokens", default=self._context - conversation.length - 1)
            least = whole(body, "min_tokens", default=0)
            ask = self._ask(conversation, most=most, least=least, forever=bool(body.get("ignore_eos")))
        except (KeyError, TypeError, ValueError, AttributeError) as slip:
            return error(str(slip) if isinstance(slip, ValueError) else f"Invalid request: {slip!r}", 400)
        streamed = bool(body.get("stream"))
        writer = ChatWriter(
            ask,
            str(body.get("model") or self._model),
            int(time.time()),
            parsed=self._launch.arguments["tool_call_parser"] is not None,
            call_id=f"call_{self._intake.name(96)}",
            end_token=self._specimen.end_token,
        )
        options = body.get("stream_options") or {}
        usage = bool(options.get("include_usage") or self._launch.arguments["stream_response_default_include_usage"])
        with self._intake.taken(ask):
            try:
                self._scheduler.submit(ask)
            except QueueFullError:
                return await _refused(request, streamed=streamed)
            if streamed:
                return await _stream(request, ask, writer, usage=usage)
            while ask.finish is None:
                await ask.fresh()
            return answer(writer.whole())

    def _ask(self, conversation: Conversation, *, most: int, least: int, forever: bool) -> Ask:
        """A request for the scheduler.

        Raises:
            ValueError: it is longer than the context, or asks for no token.
        """
        if conversation.length >= self._context:
            raise ValueError(
                f"The input ({conversation.length} tokens) is longer than the model's context length"
                f" ({self._context} tokens)."
            )
        if most < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {most}.")
        return self._intake.ask(conversation, most=most, least=least, forever=forever)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """OpenAI's plain completions."""
        try:
            body = await read(request)
            conversation = prompted({**body, "text": body.get("prompt"), "input_ids": body.get("prompt")})
            ask = self._ask(
                conversation,
                most=whole(body, "max_tokens", default=16),
                least=whole(body, "min_tokens", default=0),
                forever=bool(body.get("ignore_eos")),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as slip:
            return error(str(slip), 400)
        start = {
            "id": ask.rid,
            "object": "text_completion",
            "created": int(time.time()),
            "model": str(body.get("model") or self._model),
        }
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        with self._intake.taken(ask):
            try:
                self._scheduler.submit(ask)
            except QueueFullError:
                return await _refused(request, streamed=bool(body.get("stream")))
            if not body.get("stream"):
                while ask.finish is None:
                    await ask.fresh()
                choice = self._choice(ask, "".join(token.text for token in ask.produced))
                whole_answer = {**start, "choices": [choice], "usage": spent(ask)}
                return answer({**whole_answer, "metadata": {"weight_version": "default"}})
            response = await _opened(request)
            while ask.finish is None:
                new = await ask.fresh()
                for token in new:
                    choice = {"index": 0, "text": token.text, "logprobs": None, "finish_reason": None}
                    await response.write(event({**start, "choices": [{**choice, "matched_stop": None}], "usage": None}))
            await response.write(event({**start, "choices": [self._choice(ask, "")], "usage": None}))
            if usage:
                await response.write(event({**start, "choices": [], "usage": spent(ask)}))
            await response.write(b"data: [DONE]\n\n")
            return response

    def _choice(self, ask: Ask, text: str) -> dict[str, Any]:
        finish = "stop" if ask.finish == "tool_calls" else ask.finish
        matched = self._specimen.end_token if finish == "stop" else None
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "matched_stop": matched}

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """SGLang's own endpoint."""
        try:
            body = await read(request)
            conversation = prompted(body)
            sampling = body.get("sampling_params") or {}
            ask = self._ask(
                conversation,
                most=whole(sampling, "max_new_tokens", default=128),
                least=whole(sampling, "min_new_tokens", default=0),
                forever=bool(sampling.get("ignore_eos")),
            )
            ask.rid = str(body.get("rid") or ask.rid)
        except (KeyError, TypeError, ValueError, AttributeError) as slip:
            return error(str(slip), 400)
        with self._intake.taken(ask):
            try:
                self._scheduler.submit(ask)
            except QueueFullError:
                return await _refused(request, streamed=bool(body.get("stream")))
            if not body.get("stream"):
                while ask.finish is None:
                    await ask.fresh()
                return answer(self._generated(ask))
            response = await _opened(request)
            while ask.finish is None:
                await ask.fresh()
                await response.write(f"data: {json.dumps(self._generated(ask), ensure_ascii=False)}\n\n".encode())
            await response.write(b"data: [DONE]\n\n")
            return response

    def _generated(self, ask: Ask) -> dict[str, Any]:
        """What has been generated so far, in the engine's own shape."""
        finish: dict[str, Any] | None = None
        if ask.finish == "length":
            finish = {"type": "length", "length": ask.most}
        elif ask.finish == "abort":
            finish = {"type": "abort", "message": "Unknown error", "status_code": None, "err_type": None}
        elif ask.finish:
            finish = {"type": "stop", "matched": self._specimen.end_token}
        return {
            "text": "".join(token.text for token in ask.produced),
            "output_ids": [sum(token.text.encode()) % self._specimen.vocabulary for token in ask.produced],
            "meta_info": {
                "id": ask.rid,
                "finish_reason": finish,
                "prompt_tokens": ask.conversation.length,
                "weight_version": "default",
                "total_retractions": 0,
                "completion_tokens": len(ask.produced) + (ask.finish in {"stop", "tool_calls"}),
                "cached_tokens": ask.cached,
                "e2e_latency": self._clock.wall(self._clock.now() - ask.arrived),
            },
        }


async def _opened(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    return response


async def _stream(request: web.Request, ask: Ask, writer: ChatWriter, *, usage: bool) -> web.StreamResponse:
    """Send tokens as they come."""
    response = await _opened(request)
    await streamed(request, response, ask, writer.opening, writer.chunks)
    await response.write(writer.closing(usage=usage))
    return response


async def _refused(request: web.Request, *, streamed: bool) -> web.StreamResponse:
    """The queue is full: 503, or an error event in a stream."""
    document = {
        "object": "error",
        "message": "The request queue is full.",
        "type": "503",
        "param": None,
        "code": 503,
    }
    if not streamed:
        return answer(document, status=503)
    response = await _opened(request)
    await response.write(f"data: {json.dumps({'error': document})}\n\ndata: [DONE]\n\n".encode())
    return response
