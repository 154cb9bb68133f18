"""Messages -> what the user planted in them and what is asked for now.

The language is plain English, so that a real model could sit in the worker's place: "The {attribute} of {subject} is
{value}." states a fact, "Call {tool} for {subject}." orders a call, and the latest statement counts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_WORD = r"[A-Za-z0-9_][\w/-]*"
_FACT = re.compile(
    rf"\b[Tt]he (?P<attribute>{_WORD}(?: {_WORD}){{0,3}}?) of (?P<subject>[^\n!?;]+?) is (?P<value>[^\n]+?)\.(?=\s|$)"
)
_ORDER = re.compile(
    r"\b[Cc]all [`'\"]?(?P<tool>[A-Za-z_][\w.-]*?)[`'\"]? for (?P<subject>[^\n!?;]+?)(?:\.(?=\s|$)|$|(?=\n))"
)


class Fact(NamedTuple):
    """One thing that the user stated."""

    attribute: str
    subject: str
    value: str


class Tool(NamedTuple):
    """A function that may be called."""

    name: str
    parameters: tuple[str, ...]


class Conversation(NamedTuple):
    """A request's messages, understood."""

    session: str
    """The same for every turn of one session: a digest of its opening."""
    turn: int
    """Which user turn this is, from 1."""
    facts: tuple[Fact, ...]
    """Everything that users stated, oldest first."""
    tools: tuple[Tool, ...]
    """What may be called."""
    ordered: tuple[str, str] | None
    """The tool and the subject of the order at the end; None: no call is asked for."""
    words: str
    """What the user said last."""
    length: int
    """Prompt tokens."""
    prefixes: tuple[tuple[str, int], ...]
    """Digest of the prompt up to each message and its length in tokens, for the prefix cache."""
    adapter: str = ""
    """The adapter that it is asked of; empty: the bare model."""
    temperature: float = 0.0
    """How warmly the answer is to be sampled."""


def tokens(text: str) -> int:
    """About how many tokens a text has: four characters each, as English runs."""
    return (len(text) + 3) // 4


def normal(name: str) -> str:
    """A name as facts and parameters are compared: lower case, words parted by one blank."""
    return " ".join(name.replace("_", " ").replace("-", " ").lower().split())


def facts_in(text: str) -> list[Fact]:
    """Every statement of a fact in a text, in order."""
    return [
        Fact(found["attribute"], found["subject"].strip(), found["value"].strip()) for found in _FACT.finditer(text)
    ]


def order_in(text: str) -> tuple[str, str] | None:
    """The last order in a text: tool and subject."""
    last = None
    for found in _ORDER.finditer(text):
        last = found["tool"], found["subject"].strip().rstrip(".")
    return last


def understand(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> Conversation:
    """Read a chat request.

    Args:
        messages: OpenAI chat messages; content is a string, a list of text parts, or missing.
        tools: OpenAI tool definitions.
    """
    planted: list[Fact] = []
    digest = hashlib.blake2b(digest_size=12)
    prefixes: list[tuple[str, int]] = []
    length, turn, said, session = 3, 0, "", ""
    offered = tuple(_tool(tool["function"]) for tool in tools if tool.get("type", "function") == "function")
    length += 24 * len(offered)
    for message in messages:
        text = content(message)
        role = str(message.get("role", "user"))
        calls = repr(message.get("tool_calls") or "")
        digest.update(f"{role}\0{text}\0{calls}\0".encode())
        length += 5 + tokens(text) + (tokens(calls) // 2 if calls != "''" else 0)
        prefixes.append((digest.hexdigest(), length))
        if role == "user":
            turn += 1
            said = text
            planted += facts_in(text)
            session = session or digest.hexdigest()
    last = messages[-1] if messages else {}
    ordered = order_in(said) if last.get("role") == "user" else None
    return Conversation(session, turn, tuple(planted), offered, ordered, said, length, tuple(prefixes))


def _tool(function: Mapping[str, Any]) -> Tool:
    parameters = function.get("parameters") or {}
    return Tool(str(function.get("name", "")), tuple(parameters.get("properties") or {}))


def content(message: Mapping[str, Any]) -> str:
    """The text of a message, its parts joined."""
    found = message.get("content")
    if isinstance(found, list):
        return "".join(str(part.get("text", "")) for part in found if isinstance(part, Mapping))
    return "" if found is None else str(found)
