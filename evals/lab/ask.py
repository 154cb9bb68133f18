"""A request on its way through the worker: what it wants, what it got so far, and who waits for more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Literal

from evals.lab.conversation import Conversation
from evals.lab.replies import Reply, Token, endless

Finish = Literal["stop", "length", "tool_calls", "abort"]


class Ask:
    """One request, from its arrival to its last token.

    Args:
        rid: Request id.
        conversation: What it says.
        reply: What will be answered.
        most: Most tokens to generate.
        least: Fewest tokens to generate.
        forever: Go on to `most` whatever the reply says.
    """

    __slots__ = (
        "aborted", "admitted", "arrived", "cached", "conversation", "finish", "first", "forever", "least", "more",
        "most", "news", "produced", "reply", "rid", "settled", "taken",
    )  # fmt: skip

    def __init__(
        self, rid: str, conversation: Conversation, reply: Reply, *, most: int, least: int = 0, forever: bool = False
    ) -> None:
        self.rid = rid
        self.conversation = conversation
        self.reply = reply
        self.most = most
        self.least = least
        self.forever = forever
        self.more: Iterator[Token] | None = None
        self.produced: list[Token] = []
        self.taken = 0
        self.news = asyncio.Event()
        self.finish: Finish | None = None
        self.aborted = False
        self.settled = False
        self.cached = 0
        self.arrived = 0.0
        self.admitted = 0.0
        self.first = 0.0

    async def fresh(self) -> list[Token]:
        """Wait for tokens, or the end, and return what is new."""
        if self.taken == len(self.produced) and self.finish is None:
            self.news.clear()
            await self.news.wait()
        new = self.produced[self.taken :]
        self.taken = len(self.produced)
        return new

    def advance(self) -> None:
        """Generate one token, or find that the reply is over."""
        at = len(self.produced)
        wanted = at < len(self.reply.tokens)
        if not wanted and not self.forever and at >= self.least:
            self.finish = "tool_calls" if self.reply.call is not None else "stop"
        elif wanted and self.more is None:
            self.produced.append(self.reply.tokens[at])
        else:
            self.more = self.more or endless(self.rid)
            self.produced.append(next(self.more))
        if self.finish is None and len(self.produced) >= self.most:
            self.finish = "length"
        self.news.set()
