"""Requests that a worker has taken and not yet answered; the same for every dialect."""

from __future__ import annotations

from random import Random

from evals.lab.ask import Ask
from evals.lab.conversation import Conversation
from evals.lab.scheduler import Scheduler


class Intake:
    """Makes requests for the scheduler of what clients send.

    Args:
        scheduler: The loop that owns the batch.
        context: Longest request, in tokens.
        chance: Source of ids.
    """

    def __init__(self, scheduler: Scheduler, context: int, chance: Random) -> None:
        self._scheduler = scheduler
        self._context = context
        self._chance = chance
        self._open: dict[str, Ask] = {}

    @property
    def open_requests(self) -> list[str]:
        """Ids of requests that have not been answered to the end."""
        return list(self._open)

    def name(self, bits: int = 128) -> str:
        """A new id of so many bits, as hexadecimal digits."""
        return f"{self._chance.getrandbits(bits):0{bits // 4}x}"

    def ask(
        self, conversation: Conversation, *, most: int, least: int = 0, forever: bool = False, rid: str | None = None
    ) -> Ask:
        """A request for the scheduler, cut to the context.

        Args:
            conversation: What it says.
            most: Most tokens to generate, at least 1.
            least: Fewest tokens to generate.
            forever: Go on to `most` whatever the reply says.
            rid: Its id; None: a new one.
        """
        most = min(most, self._context - conversation.length)
        meant, given = self._scheduler.model.answer(conversation, self._chance)
        ask = Ask(
            rid or self.name(),
            conversation,
            meant,
            most=most,
            least=min(least, most),
            forever=forever,
            adapter=conversation.adapter,
        )
        ask.reply = given
        return ask

    def taken(self, ask: Ask) -> Taken:
        """Keep a request among the open ones while its client waits, and abort it when the client goes away."""
        return Taken(self._open, self._scheduler, ask)


class Taken:
    """A request that somebody waits for.

    Args:
        among: The open ones.
        scheduler: The loop that owns the batch.
        ask: The request.
    """

    def __init__(self, among: dict[str, Ask], scheduler: Scheduler, ask: Ask) -> None:
        self._among = among
        self._scheduler = scheduler
        self._ask = ask

    def __enter__(self) -> None:
        self._among[self._ask.rid] = self._ask

    def __exit__(self, *failure: object) -> None:
        self._among.pop(self._ask.rid, None)
        if self._ask.finish is None:
            self._scheduler.abort(self._ask)
