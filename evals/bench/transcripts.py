"""Good transcripts of the practice worker, and what the probe's own detectors say of any transcript."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, Literal, NamedTuple

from evals.lab.chat import event
from evals.lab.conversation import understand
from evals.lab.replies import pieces, prose, reply
from tools.on_host import probe


class Spoken(NamedTuple):
    """One reply, as a client is told it."""

    content: str
    """Visible text."""
    reasoning: str
    """Text of its reasoning."""
    calls: tuple[tuple[str, str], ...]
    """Name and arguments, as they are written, of each call."""
    finish: Literal["stop", "tool_calls", "length"]
    """Why it ended."""


class Scene(NamedTuple):
    """A good reply and what was asked."""

    kind: Literal["call", "text"]
    """An order that wants one call, or a request for a long text."""
    good: Spoken
    """The right reply."""
    session: probe.Session | None
    """The session, for calls."""
    turn: probe.Turn | None
    """The order, for calls."""
    facts: tuple[tuple[str, str, str], ...]
    """Attribute, subject and value of what the user stated so far, oldest first."""
    earlier: tuple[tuple[str, str], ...]
    """The calls of the turns before."""
    others: tuple[str, ...]
    """Values of other sessions."""
    taken: dict[str, int]
    """Whose every planted name is."""


def calls(seed: int, sessions: int, turns: int = 3) -> Iterator[Scene]:
    """Every turn of so many sessions as the practice worker answers it, some with words or reasoning before it."""
    taken: dict[str, int] = {}
    planted = [probe.plant(Random(f"{seed}:session:{number}"), number, turns, 0, taken) for number in range(sessions)]
    values = [(name, owner) for name, owner in taken.items() if not name.startswith("node-")]
    for session in planted:
        chance = Random(f"{seed}:scene:{session.number}")
        others = tuple(name for name, owner in chance.sample(values, min(12, len(values))) if owner != session.number)
        messages: list[dict[str, Any]] = [{"role": "system", "content": probe.SYSTEM}]
        earlier: list[tuple[str, str]] = []
        for number, turn in enumerate(session.turns):
            messages.append({"role": "user", "content": turn.text})
            conversation = understand(messages, probe.tool_list())
            tokens = reply(conversation).tokens
            name = "".join(token.text for token in tokens if token.kind == "name")
            written = "".join(token.text for token in tokens if token.kind == "arguments")
            sentences = prose(chance)
            content = next(sentences) if chance.random() < 0.3 else ""
            thought = f"The {turn.wanted.attribute} of {turn.wanted.subject} was stated last as {turn.wanted.value}."
            reasoning = f"{next(sentences)} {thought} {next(sentences)}" if chance.random() < 0.5 else ""
            good = Spoken(content, reasoning, ((name, written),), "tool_calls")
            facts = tuple((fact.attribute, fact.subject, fact.value) for fact in conversation.facts)
            yield Scene("call", good, session, turn, facts, tuple(earlier), others, taken)
            earlier.append((name, written))
            made = {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": written}}
            messages += [
                {"role": "assistant", "content": content or None, "tool_calls": [made]},
                {"role": "tool", "tool_call_id": made["id"], "content": "ok"},
            ]


def texts(seed: int, count: int) -> Iterator[Scene]:
    """Long texts as the practice worker writes them."""
    for number in range(count):
        chance = Random(f"{seed}:text:{number}")
        sentences = prose(chance)
        text = " ".join(next(sentences) for _ in range(60))
        others = tuple(f"rk-{''.join(chance.choices(probe.ALPHABET, k=7))}" for _ in range(3))
        taken = dict.fromkeys(others, -1)
        yield Scene("text", Spoken(text, "", (), "stop"), None, None, (), (), others, taken)


def verdict(spoken: Spoken, scene: Scene) -> str | None:
    """What the probe finds wrong with a reply, read from the bytes that a server would send; None: nothing.

    Runs inside an event loop, since the probe's own reader wants one.
    """
    heard = probe.Reply(b"", probe.Load(4), streaming=True, read_all=True)
    data = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + b"".join(_stream(spoken))
    for at in range(0, len(data), 65536):
        part = data[at : at + 65536]
        heard.get_buffer(len(part))[: len(part)] = part
        heard.buffer_updated(len(part))
    heard.connection_lost(None)
    if not heard.ok:
        return f"failed: {heard.reason}"
    if scene.turn is None or scene.session is None:
        found = probe.fault_in_text(heard)
    else:
        found = probe.fault_in(heard, scene.turn, scene.session, scene.taken)
    return None if found is None else found.kind


def _stream(spoken: Spoken) -> Iterator[bytes]:
    yield _chunk({"role": "assistant", "content": ""})
    for piece in pieces(spoken.reasoning):
        yield _chunk({"reasoning_content": piece})
    for piece in pieces(spoken.content):
        yield _chunk({"content": piece})
    for index, (name, written) in enumerate(spoken.calls):
        yield _call(index, {"id": f"call_{index}", "function": {"name": name, "arguments": ""}})
        for piece in pieces(written):
            yield _call(index, {"function": {"arguments": piece}})
    yield event({"choices": [{"index": 0, "delta": {}, "finish_reason": spoken.finish}]})
    tokens = sum(len(pieces(text)) for text in _said(spoken)) + 1
    yield event({"choices": [], "usage": {"completion_tokens": tokens}})
    yield b"data: [DONE]\n\n"


def _said(spoken: Spoken) -> Sequence[str]:
    return (spoken.reasoning, spoken.content, *(name + written for name, written in spoken.calls))


def _call(index: int, made: dict[str, Any]) -> bytes:
    return _chunk({"tool_calls": [{"index": index, "type": "function", **made}]})


def _chunk(delta: dict[str, Any]) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


def arguments(spoken: Spoken) -> dict[str, Any]:
    """The arguments of the first call."""
    document = json.loads(spoken.calls[0][1])
    assert isinstance(document, dict)
    return document
