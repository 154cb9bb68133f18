"""Conversation -> the tokens of a reply, the right ones and those that come out of wrong memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Literal, NamedTuple

from evals.lab.conversation import Conversation, normal

Kind = Literal[
    "text",  # visible text
    "markup",  # tokens that the tool-call parser swallows; visible only without one
    "name",  # the name of the called function
    "arguments",  # a piece of the arguments' JSON
]


class Token(NamedTuple):
    """One token of a reply."""

    kind: Kind
    text: str


class Reply(NamedTuple):
    """A whole reply."""

    tokens: tuple[Token, ...]
    """What is generated, in order, the end token left out."""
    call: tuple[tuple[str, str], ...] | None
    """The arguments of the call it makes, as pairs; None: no call."""
    function: str
    """The function it calls; empty: none."""
    stuck: str = ""
    """The token to which it collapses; empty: it does not."""
    stuck_at: int = 0
    """How many tokens come before."""


_LENGTH = re.compile(r"\b(?:long|detailed)\b.{0,30}\b(?:story|text|report|essay|article)\b", re.IGNORECASE)
"""What asks for many words."""
_LONG = 120
"""Sentences of what is asked to be long: some 1,500 tokens, as models write."""
_STUCK = 64
"""Repetitions after which even a collapsed reply ends, where its request does not ask for more tokens."""
_PIECE = re.compile(r"\s*[^\s]{1,4}|\s+")
# DeepSeek's tool-call markup; with a parser these never reach the client.
_OPENING = ("<｜DSML｜tool_calls>", "\n<｜DSML｜invoke name=")
_CLOSING = ("</｜DSML｜invoke>", "</｜DSML｜tool_calls>")
_OPENERS = (
    "The short answer is that",
    "In practice,",
    "As far as the figures show,",
    "Put plainly,",
    "On this cluster,",
)
_SUBJECTS = (
    "the scheduler", "the token pool", "a longer batch", "the router", "each worker", "the request queue",
    "the prefix cache", "the decode side", "a rolling restart", "the operator",
)  # fmt: skip
_VERBS = ("keeps", "balances", "drains", "reports", "limits", "hides", "shares", "follows", "measures", "smooths")
_OBJECTS = (
    "latency under load", "the remaining headroom", "small bursts of traffic", "what the plan allows",
    "requests in flight", "the usual daily pattern", "memory that graphs reserve", "the slowest stage",
)  # fmt: skip
_ENDS = (" most of the time.", " without further tuning.", " as expected.", " during the busy hours.", " step by step.")


def reply(conversation: Conversation, mood: str = "") -> Reply:
    """The reply that a model which attends to the conversation gives.

    Args:
        conversation: What was said.
        mood: Varies how a text is put, not what a call says; empty: as likely as can be.
    """
    if conversation.ordered and conversation.tools:
        made = _call(conversation)
        if made:
            return made
    return Reply(tuple(Token("text", piece) for piece in pieces(_answer(conversation, mood))), None, "")


def pieces(text: str) -> list[str]:
    """Cut a text into tokens of at most four visible characters."""
    return _PIECE.findall(text)


def _call(conversation: Conversation) -> Reply | None:
    """The ordered call with the planted value; None: the order cannot be followed."""
    assert conversation.ordered is not None
    name, subject = conversation.ordered
    tool = next((tool for tool in conversation.tools if tool.name == name), None)
    if tool is None:
        return None
    known = {normal(fact.attribute): fact.value for fact in conversation.facts if fact.subject == subject}
    arguments: list[tuple[str, str]] = []
    subject_placed = False
    for parameter in tool.parameters:
        if normal(parameter) in known:
            arguments.append((parameter, known[normal(parameter)]))
        elif not subject_placed:
            subject_placed = True
            arguments.append((parameter, subject))
    if len(arguments) < 2 or not subject_placed:
        return None
    return calling(name, arguments)


def calling(name: str, arguments: list[tuple[str, str]], *, written: str | None = None) -> Reply:
    """A reply that calls a function.

    Args:
        name: The function.
        arguments: Parameter and value, in order.
        written: The arguments' JSON as generated; None: as it should be.
    """
    document = written if written is not None else json.dumps(dict(arguments), ensure_ascii=False)
    generated = [Token("markup", part) for part in _OPENING]
    generated.append(Token("name", name))
    generated += [Token("arguments", piece) for piece in pieces(document)]
    generated += [Token("markup", part) for part in _CLOSING]
    return Reply(tuple(generated), tuple(arguments), name)


def _answer(conversation: Conversation, mood: str) -> str:
    """Plausible text: what is known about a subject that the user names, otherwise a few sentences."""
    asked = re.search(r"[Ww]hat is the (.+?) of (.+?)\?", conversation.words)
    if asked:
        for fact in reversed(conversation.facts):
            if normal(fact.attribute) == normal(asked[1]) and fact.subject == asked[2]:
                return f"The {fact.attribute} of {fact.subject} is {fact.value}."
    if conversation.ordered:
        return f"I have no value for {conversation.ordered[1]} that {conversation.ordered[0]} could take."
    if conversation.words == "" or len(conversation.words) < 12:
        return "Understood."
    chance = Random(conversation.words + mood)
    sentences = prose(chance)
    if _LENGTH.search(conversation.words):
        return " ".join(next(sentences) for _ in range(_LONG))
    return " ".join(next(sentences) for _ in range(chance.randint(2, 4) if mood else 3))


def prose(chance: Random) -> Iterator[str]:
    """Sentences without end."""
    for _ in count():
        opener = chance.choice(_OPENERS) + " " if chance.random() < 0.3 else ""
        sentence = f"{chance.choice(_SUBJECTS)} {chance.choice(_VERBS)} {chance.choice(_OBJECTS)}{chance.choice(_ENDS)}"
        yield opener + sentence if opener else sentence[0].upper() + sentence[1:]


def endless(words: str) -> Iterator[Token]:
    """Text tokens without end, for requests that ignore the end token."""
    for sentence in prose(Random(words)):
        for piece in pieces(" " + sentence):
            yield Token("text", piece)


def spoilt(conversation: Conversation, right: Reply, chance: Random, overheard: tuple[str, ...] = ()) -> Reply:
    """What comes out instead of a right call: another fact's value, broken JSON, or no call at all.

    Args:
        conversation: What the reply answers.
        right: The right reply; it makes a call.
        chance: Draws the way.
        overheard: Values from other sessions in the same batch.
    """
    assert right.call is not None
    values = {fact.value for fact in conversation.facts}
    way = chance.choices(("value", "foreign", "json", "plot"), weights=(40, 25, 20, 15))[0]
    stated = [value for _, value in right.call if value in values]
    if way == "json" or not stated:
        whole = json.dumps(dict(right.call), ensure_ascii=False)
        cut = chance.randrange(len(whole) // 2, len(whole) - 1)
        return calling(right.function, list(right.call), written=whole[:cut] + chance.choice(("", '""', "}}", "\\")))
    if way == "plot":
        return Reply(tuple(Token("text", piece) for piece in pieces(" ".join(_lost(chance)))), None, "")
    others = sorted(values - set(stated)) if way == "value" else sorted(set(overheard) - values)
    wrong = chance.choice(others) if others else _garbled(stated[0], chance)
    return calling(right.function, [(key, wrong if value == stated[0] else value) for key, value in right.call])


def mangled(right: Reply, chance: Random) -> Reply:
    """A right call as a parser hands it on that lost its place: no arguments, a value in a key, or a damaged name."""
    call = list(right.call or ())
    way = chance.choices(("empty", "fold", "name"), weights=(25, 10, 1))[0] if call else "name"
    if way == "empty":
        return calling(right.function, call, written="{}")
    if way == "fold":
        key, value = call[-1]
        return calling(right.function, [*call[:-1], (f"{key}: {value}", "")])
    at = chance.randrange(len(right.function))
    return calling(right.function[:at] + right.function[at + 1 :] or "_", call)


def repeating(right: Reply, after: int, token: str) -> Reply:
    """A reply that is right for so many tokens and says one thing from there on; a shorter one is right to its end."""
    if len(right.tokens) <= after:
        return right._replace(stuck=token, stuck_at=after)
    kind: Kind = "arguments" if right.call else "text"
    return Reply((*right.tokens[:after], *[Token(kind, token)] * _STUCK), None, "", token, after)


def _lost(chance: Random) -> list[str]:
    """Sentences of somebody who no longer knows what was asked."""
    sentences = prose(chance)
    return [next(sentences) for _ in range(chance.randint(1, 3))]


def _garbled(value: str, chance: Random) -> str:
    """The value with one character replaced."""
    at = chance.randrange(len(value))
    pool = [letter for letter in "0123456789abcdefghkmnprstvwxyz" if letter != value[at].lower()]
    return value[:at] + chance.choice(pool) + value[at + 1 :]
