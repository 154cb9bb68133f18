"""A reasoner behind any endpoint that speaks the OpenAI chat protocol; the only importer of `openai`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any, Generic, NamedTuple, TypeVar, cast

import openai
from openai.types.chat import ChatCompletionMessageFunctionToolCall, ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import ValidationError

from agent.domain import Change, Evidence, Knob, Precedent, Request, Risk
from agent.errors import ModelSlip
from agent.reasoning.grounding import check_risk, check_understanding
from agent.reasoning.prompt import precedents_told
from agent.reasoning.reasoner import Tool, Understanding

Answer = TypeVar("Answer", Understanding, Risk)

_ROUNDS = 8
"""Model calls for one question. A careful answer takes two to four: look, look again, report, put right."""

NO_KEY = "none"
"""What stands for a key where an endpoint wants none."""

_UNUSABLE: tuple[type[Exception], ...] = (openai.OpenAIError, json.JSONDecodeError)
"""What the library raises, and what a server that only resembles the protocol makes it raise."""


class _Report(NamedTuple, Generic[Answer]):
    """How an answer comes back: as the arguments of one last tool."""

    name: str
    shape: type[Answer]
    hidden: frozenset[str]


class OpenAIChat:
    """A tool-calling loop over one model."""

    def __init__(self, client: openai.OpenAI, model: str) -> None:
        """Take a client that is ready to use and the model's name as the endpoint knows it."""
        self._client = client
        self._model = model

    @classmethod
    def connect(cls, *, base_url: str, model: str, api_key: str, timeout: float) -> OpenAIChat:
        """Build the client; nothing is sent yet. `timeout` in seconds holds for each call."""
        return cls(openai.OpenAI(base_url=base_url, api_key=api_key, timeout=timeout, max_retries=1), model)

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model

    def understand(self, request: Request, knobs: Sequence[Knob], tools: Sequence[Tool]) -> Understanding:
        """Say what a request means; see the promise."""
        prompt = _render(
            "understand",
            worker=request.worker,
            request=request.text,
            knobs="\n".join(f"{k.name} | {k.kind} | {', '.join(k.words) or '-'} | {k.meaning}" for k in knobs),
        )
        report = _Report("report_understanding", Understanding, frozenset({"by", "instead_of"}))
        return self._loop(prompt, tools, report, lambda u, seen: check_understanding(u, request, knobs, seen))

    def assess_risk(
        self,
        change: Change,
        knobs: Sequence[Knob],
        evidence: Sequence[Evidence],
        precedents: Sequence[Precedent],
        tools: Sequence[Tool],
    ) -> Risk:
        """Weigh a change; see the promise."""
        touched = [k for k in knobs if k.name in {s.knob for s in change.settings}]
        prompt = _render(
            "assess_risk",
            change=change.summary,
            knobs="\n".join(f"{k.name} | {k.kind} | {k.risk} | {k.meaning} | {k.coupling or '-'}" for k in touched),
            evidence="\n".join(map(_quoted, evidence)) or "none",
            precedents=precedents_told(precedents),
        )
        report = _Report("report_risk", Risk, frozenset({"by", "instead_of"}))
        return self._loop(prompt, tools, report, lambda r, seen: check_risk(r, change, (*evidence, *seen), precedents))

    def _loop(
        self,
        prompt: str,
        tools: Sequence[Tool],
        report: _Report[Answer],
        check: Callable[[Answer, Sequence[Evidence]], None],
    ) -> Answer:
        """Let the model look until it reports something that stands the check, or the rounds are spent."""
        messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": prompt}]
        described = [_described(tool.name, tool.description, tool.parameters) for tool in tools]
        described.append(_described(report.name, "Report the result. Call it once, last.", _schema(report)))
        seen: list[Evidence] = []
        advice = "no answer"
        for _ in range(_ROUNDS):
            calls, message = self._ask(messages, described)
            messages.append(message)
            if not calls:
                advice = f"Answer by calling {report.name}."
                messages.append({"role": "user", "content": advice})
                continue
            for call in calls:
                outcome = self._call(call, tools, report, seen, check)
                if not isinstance(outcome, str):
                    return outcome
                advice = outcome
                messages.append({"role": "tool", "tool_call_id": call.id, "content": advice})
        raise ModelSlip(f"{self._model} gave no usable answer in {_ROUNDS} rounds; the last advice was: {advice}")

    def _ask(
        self, messages: list[ChatCompletionMessageParam], tools: list[ChatCompletionToolParam]
    ) -> tuple[list[ChatCompletionMessageFunctionToolCall], ChatCompletionMessageParam]:
        try:
            completion = self._client.chat.completions.create(
                model=self._model, messages=messages, tools=tools, temperature=0.0
            )
        except _UNUSABLE as error:
            raise ModelSlip(f"{self._model} could not be asked: {self._without_the_key(str(error))}") from None
        if not getattr(completion, "choices", None):
            raise ModelSlip(f"{self._model} answered without a choice")
        message = completion.choices[0].message
        calls = [c for c in message.tool_calls or [] if isinstance(c, ChatCompletionMessageFunctionToolCall)]
        said: dict[str, Any] = {"role": "assistant", "content": message.content or ""}
        if calls:
            said["tool_calls"] = [call.model_dump(include={"id", "type", "function"}) for call in calls]
        return calls, cast("ChatCompletionMessageParam", said)

    def _without_the_key(self, said: str) -> str:
        """What an endpoint says, which may repeat the key that it did not like; it goes into the record."""
        key = self._client.api_key
        return said.replace(key, "***") if key not in {"", NO_KEY} else said

    def _call(
        self,
        call: ChatCompletionMessageFunctionToolCall,
        tools: Sequence[Tool],
        report: _Report[Answer],
        seen: list[Evidence],
        check: Callable[[Answer, Sequence[Evidence]], None],
    ) -> Answer | str:
        """Carry one call out: the finished report, or the text that goes back to the model."""
        try:
            arguments = json.loads(call.function.arguments or "{}")
        except json.JSONDecodeError as error:
            return f"The arguments are not JSON: {error}"
        if not isinstance(arguments, dict):
            return "The arguments must be a JSON object."
        if call.function.name == report.name:
            try:
                answer = report.shape.model_validate({**arguments, "by": self._model, "instead_of": None})
                check(answer, seen)
            except ValidationError as error:
                return f"Not usable: {error.errors(include_url=False, include_input=False)}"
            except ModelSlip as advice:
                return str(advice)
            return answer
        tool = next((tool for tool in tools if tool.name == call.function.name), None)
        if tool is None:
            return f"There is no tool {call.function.name!r}; there are {', '.join(t.name for t in tools)}."
        facts = tool.ask(arguments)
        seen.extend(facts)
        return "\n".join(map(_quoted, facts)) or "Nothing."


def _render(name: str, **values: str) -> str:
    """Fill a template of `agent/prompts`; an unnamed or missing value is an error, not a gap."""
    text = resources.files("agent.prompts").joinpath(f"{name}.md").read_text(encoding="utf-8")
    return Template(text).substitute(values)


def _quoted(fact: Evidence) -> str:
    mark = " (outside)" if fact.tainted else ""
    return f"{fact.id}{mark} [{fact.source}]: {json.dumps(fact.what, ensure_ascii=False)}"


def _described(name: str, description: str, parameters: Mapping[str, Any]) -> ChatCompletionToolParam:
    function = {"name": name, "description": description, "parameters": dict(parameters)}
    return cast("ChatCompletionToolParam", {"type": "function", "function": function})


def _schema(report: _Report[Any]) -> dict[str, Any]:
    schema: dict[str, Any] = report.shape.model_json_schema()
    for field in report.hidden:
        schema["properties"].pop(field, None)
    schema["required"] = [name for name in schema.get("required", []) if name not in report.hidden]
    return schema
