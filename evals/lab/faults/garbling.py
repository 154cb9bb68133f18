"""Replies that come out wrong with status 200: by graph, length, turn, depth, adapter, uptime, or number format."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, ClassVar

from evals.lab.faults.fault import Fault, Parameter, Sight
from evals.lab.private import Shelf
from evals.lab.replies import Reply, mangled, repeating, spoilt

if TYPE_CHECKING:
    from evals.lab.ask import Ask


class _Garbling(Fault):
    """A fault that garbles replies: calls get another value, broken JSON or no call, text begins to repeat itself."""

    def garble(self, ask: Ask, overheard: tuple[str, ...] = ()) -> Reply:
        """What comes out instead."""
        if ask.reply.call:
            return spoilt(ask.conversation, ask.reply, self.chance, overheard)
        return repeating(ask.reply, self.chance.randint(0, 20), self.chance.choice("!,.的"))


class GraphCorruption(_Garbling):
    """Captured decode reads another stream's intermediates.

    Seed: 15 to 18 % of sessions while the side streams are on, none in eager steps, none with the variable at 0. A
    session is struck at its first, second or third call, most often at the first.
    """

    meaning = "with the side streams on, captured decode garbles a share of tool-call sessions; eager decode does not"
    when = "env.SGLANG_OPT_USE_MULTI_STREAM_OVERLAP!=0"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "share": Parameter(0.16, "share of sessions", 0.0, 1.0),
        "above": Parameter(0.0, "batch up to which graphs are sound", 0.0),
    }

    def __init__(self, given: Mapping[str, float | str], chance: Random, shelf: Shelf) -> None:
        super().__init__(given, chance, shelf)
        self._struck: dict[str, int] = {}
        self._heard: deque[str] = deque(maxlen=64)

    def spoil(self, ask: Ask, sight: Sight) -> Reply | None:
        """Spoil the call at which the session was struck, if the step was replayed from a graph."""
        conversation = ask.conversation
        if not sight.captured or not ask.reply.call or sight.running <= self.number("above"):
            return None
        overheard = tuple(self._heard)
        self._heard.extend(fact.value for fact in conversation.facts[-4:])
        if conversation.turn == 1 or conversation.session not in self._struck:
            hit = self.chance.random() < self.number("share")
            first = self.chance.choices((1, 2, 3), weights=(85, 10, 5))[0]
            self._struck[conversation.session] = conversation.turn - 1 + first if hit else 0
        if self._struck[conversation.session] != conversation.turn:
            return None
        return self.garble(ask, overheard)


class TokenCorruption(Fault):
    """Replay goes wrong once a reply is long, and stays with the one token it fell on."""

    meaning = "in captured decode a reply collapses to one repeated token after a number of tokens"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "after": Parameter(200.0, "tokens that are still right", 1.0),
        "share": Parameter(1.0, "share of replies", 0.0, 1.0),
        "above": Parameter(32.0, "largest captured batch with which all is sound", 0.0),
        "factor": Parameter(0.9, "factor on a step's time, for what is wrong is often fast", 0.1, 10.0),
    }

    def spoil(self, ask: Ask, sight: Sight) -> Reply | None:
        """Repeat a token from there on."""
        if not sight.captured or sight.top <= self.number("above") or self.chance.random() >= self.number("share"):
            return None
        return repeating(ask.reply, int(self.number("after")), "!")

    def stretch(self, sight: Sight) -> float:
        """Faster while graphs of that range are in use."""
        return self.number("factor") if sight.captured and sight.top > self.number("above") else 1.0


class TurnCorruption(_Garbling):
    """What earlier turns left in the prefix cache is not what they wrote."""

    meaning = "from some turn of a session on, replies that build on cached turns are garbled"
    when = "disable_radix_cache!=1"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "turn": Parameter(4.0, "first turn that can be hit", 2.0),
        "share": Parameter(0.3, "share of replies from there on", 0.0, 1.0),
    }

    def spoil(self, ask: Ask, sight: Sight) -> Reply | None:
        """Garble a late turn whose beginning came from the cache."""
        late = ask.conversation.turn >= self.number("turn") and ask.cached > 0
        return self.garble(ask) if late and self.chance.random() < self.number("share") else None


class DepthCorruption(_Garbling):
    """Positions beyond a depth are read from the wrong page."""

    meaning = "prompts beyond a depth are answered as if their content were another"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "tokens": Parameter(20_000.0, "prompt tokens up to which all is right", 0.0),
        "share": Parameter(1.0, "share of replies beyond", 0.0, 1.0),
    }

    def spoil(self, ask: Ask, sight: Sight) -> Reply | None:
        """Garble what is asked at the end of a long prompt."""
        deep = ask.conversation.length > self.number("tokens")
        return self.garble(ask) if deep and self.chance.random() < self.number("share") else None


class AdapterCorruption(_Garbling):
    """Rows of a captured batch all get the weights of its first row's adapter."""

    meaning = "captured batches that mix adapters apply one of them to all rows"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "share": Parameter(0.5, "share of replies in mixed batches", 0.0, 1.0),
    }

    def spoil(self, ask: Ask, sight: Sight) -> Reply | None:
        """Garble rows of a mixed batch."""
        mixed = sight.captured and len(sight.adapters) > 1
        return self.garble(ask) if mixed and self.chance.random() < self.number("share") else None


class ToolCallDecay(Fault):
    """The grammar's state is not reset between requests, and what it carries along adds up."""

    meaning = "tool calls lose arguments more and more often the more requests were served since the start"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "after": Parameter(100.0, "requests that are served before it begins", 0.0),
        "over": Parameter(400.0, "requests over which it grows", 1.0),
        "most": Parameter(0.5, "share of calls in the end", 0.0, 1.0),
    }

    def spoil(self, ask: Ask, sight: Sight) -> Reply | None:
        """Mangle a call, ever more often."""
        grown = min(max(sight.served - self.number("after"), 0.0) / self.number("over"), 1.0)
        hit = bool(ask.reply.call) and self.chance.random() < self.number("most") * grown
        return mangled(ask.reply, self.chance) if hit else None


class ToolCallMangle(Fault):
    """The parser cannot take several tokens at a time, which is how accepted drafts arrive."""

    meaning = "with speculation on, tool calls come with empty arguments, values folded into keys or a damaged name"
    when = "speculative_algorithm!=unset"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "share": Parameter(0.36, "share of calls", 0.0, 1.0),
    }

    def spoil(self, ask: Ask, sight: Sight) -> Reply | None:
        """Mangle a call."""
        hit = bool(ask.reply.call) and self.chance.random() < self.number("share")
        return mangled(ask.reply, self.chance) if hit else None


class QualityShift(_Garbling):
    """A number format without scales: short answers look right, long chains of reasoning do not."""

    meaning = "with an eight-bit KV cache, answers that need much of what was said are wrong more often"
    when = "asked.kv_cache_dtype~fp8"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "share": Parameter(0.17, "share of hard answers that are wrong", 0.0, 1.0),
        "facts": Parameter(6.0, "statements that a hard one has to keep apart", 1.0),
    }

    def spoil(self, ask: Ask, sight: Sight) -> Reply | None:
        """Garble a hard one."""
        hard = len(ask.conversation.facts) >= self.number("facts")
        return self.garble(ask) if hard and self.chance.random() < self.number("share") else None
