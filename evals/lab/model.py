"""The model behind the loop: what it means to answer, how sampling varies that, and how often it errs by itself."""

from __future__ import annotations

import hashlib
from random import Random
from typing import NamedTuple

from evals.lab.conversation import Conversation
from evals.lab.replies import Reply, reply, spoilt


class Said(NamedTuple):
    """An answer, twice."""

    meant: Reply
    """The right one."""
    given: Reply
    """What the model says; nearly always the same."""


class Model:
    """Answers conversations.

    At temperature 0 the same prompt is answered the same way, an error included, on every start; above it each answer
    is drawn anew, in other words, and errors are more frequent by the temperature.

    Args:
        errors: Share of ordered calls that come out wrong at temperature 0.
        seed: Seed of which prompts those are.
    """

    def __init__(self, errors: float = 0.0, seed: int = 0) -> None:
        self._errors = errors
        self._seed = seed

    def answer(self, conversation: Conversation, chance: Random) -> Said:
        """Answer; `chance` is drawn from only where the request asks for sampling."""
        warm = conversation.temperature > 0
        draw = Random(chance.getrandbits(64)) if warm else self._settled(conversation)
        meant = reply(conversation, f"{draw.getrandbits(32)}" if warm else "")
        errs = meant.call is not None and draw.random() < self._errors * (1 + conversation.temperature)
        return Said(meant, spoilt(conversation, meant, draw) if errs else meant)

    def _settled(self, conversation: Conversation) -> Random:
        """A source of draws that depends on the prompt alone."""
        prompt = conversation.prefixes[-1][0] if conversation.prefixes else conversation.words
        return Random(hashlib.blake2b(f"{self._seed}/{prompt}".encode(), digest_size=8).digest())
