"""A request on its way through the worker: what it wants, what it got so far, and who waits for more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from evals.lab.conversation import Conversation
from evals.lab.replies import Reply, Token, endless

if TYPE_CHECKING:
    from evals.lab.outlet import Outlet

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
        adapter: The adapter it asks for; empty: the bare model.
        own: The worker's own doing or a health check; nobody counts it.
    """

    __slots__ = (
        "aborted", "adapter", "admitted", "ahead", "arrived", "cached", "conversation", "finish", "first", "forever",
        "least", "meant", "more", "most", "news", "outlet", "own", "produced", "reply", "rid", "settled", "stuck",
        "taken",
    )  # fmt: skip

    def __init__(
        self,
        rid: str,
        conversation: Conversation,
        reply: Reply,
        *,
        most: int,
        least: int = 0,
        forever: bool = False,
        adapter: str = "",
        own: bool = False,
    ) -> None:
        self.rid = rid
        self.conversation = conversation
        self.meant = reply
        self.reply = reply
        self.adapter = adapter
        self.own = own
        self.stuck = False
        self.most = most
        self.least = least
        self.forever = forever
        self.more: Iterator[Token] | None = None
        self.ahead: Token | None = None
        self.outlet: Outlet | None = None
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
            self.stuck = self.stuck or (bool(self.reply.stuck) and at >= self.reply.stuck_at)
        elif self.reply.stuck and at >= self.reply.stuck_at:
            self.stuck = True
            self.produced.append(Token("text", self.reply.stuck))
        else:
            self.produced.append(self._beyond())
            self.ahead = None
        if self.finish is None and len(self.produced) >= self.most:
            self.finish = "length"
        if self.outlet is not None:
            self.outlet.send()
        if self.outlet is None or self.finish is not None:
            self.news.set()

    def coming(self) -> Token | None:
        """The next token, where it is certain already; None: it may yet change, or there is none."""
        at = len(self.produced)
        if not self.settled or self.reply.stuck:
            return None
        if at < len(self.reply.tokens):
            return self.reply.tokens[at] if self.more is None else None
        return self._beyond() if self.forever or at < self.least else None

    def _beyond(self) -> Token:
        """The next token after the reply's end, for a request that wants more."""
        if self.ahead is None:
            self.more = self.more or endless(self.rid)
            self.ahead = next(self.more)
        return self.ahead

    @property
    def went_wrong(self) -> bool:
        """Whether what was generated is not what the model meant to say, as far as it got."""
        meant, made = self.meant.tokens, self.produced
        if self.stuck or any(one != other for one, other in zip(meant, made, strict=False)):
            return True
        whole = self.finish in {"stop", "tool_calls"} and not self.least
        return whole and len(made) != len(meant)
