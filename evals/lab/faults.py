"""What can be wrong with a worker: composable, seeded, and known to nobody but the ground's private file.

A fault answers two questions of the scheduler: does this reply come out spoilt, and does the loop stop here. A third
fault is one more class and one more line in `FAULTS`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, NamedTuple, Protocol

from evals.lab.conversation import Conversation
from evals.lab.replies import Reply, spoilt


class Conditions(NamedTuple):
    """What a fault may depend on: how the worker was started."""

    overlap: bool
    """The overlap scheduler is on."""
    environ: Mapping[str, str]
    """The worker's environment."""


class Fault(Protocol):
    """One thing that is wrong."""

    def spoil(self, conversation: Conversation, reply: Reply, *, captured: bool) -> Reply | None:
        """The reply that comes out instead, asked once a reply at its first decode step; None: the right one."""

    def stalls(self, aborted: int, running: int, at: float) -> bool:
        """Whether the decode loop stops for good after a step.

        Args:
            aborted: Requests that were aborted while the step was in flight.
            running: Requests in that batch.
            at: Now, in seconds of life.
        """


class GraphCorruption:
    """Captured decode reads another stream's intermediates, so that a share of tool-call sessions goes wrong.

    Seed: 15 to 18 % of sessions while the side streams are on, none in eager steps, none with the variable at 0. A
    session is struck at its first, second or third call, most often at the first.

    Args:
        conditions: How the worker was started.
        chance: Draws who is struck.
        share: Share of sessions.
    """

    def __init__(self, conditions: Conditions, chance: Random, *, share: float = 0.16) -> None:
        self._on = conditions.environ.get("SGLANG_OPT_USE_MULTI_STREAM_OVERLAP", "1").strip().lower() not in _OFF
        self._chance = chance
        self._share = share
        self._struck: dict[str, int] = {}
        self._heard: deque[str] = deque(maxlen=64)

    def spoil(self, conversation: Conversation, reply: Reply, *, captured: bool) -> Reply | None:
        """Spoil the call at which the session was struck, if the step was replayed from a graph."""
        if not self._on or not captured or not reply.call:
            return None
        overheard = tuple(self._heard)
        self._heard.extend(fact.value for fact in conversation.facts[-4:])
        if conversation.turn == 1 or conversation.session not in self._struck:
            hit = self._chance.random() < self._share
            first = self._chance.choices((1, 2, 3), weights=(85, 10, 5))[0]
            self._struck[conversation.session] = conversation.turn - 1 + first if hit else 0
        if self._struck[conversation.session] != conversation.turn:
            return None
        return spoilt(conversation, reply, self._chance, overheard)

    def stalls(self, aborted: int, running: int, at: float) -> bool:
        """Never."""
        return False


class AbortWedge:
    """With the overlap scheduler on, a cascade of aborts leaves the ranks at different collectives: no token follows.

    Single aborts, however many one after another, do no harm: the seed's serial tests passed.

    Args:
        conditions: How the worker was started.
        chance: Draws whether a cascade takes.
        aborts: Aborts within the window that make a cascade.
        window: The window, in seconds of life.
        take: Probability that a cascade takes.
    """

    def __init__(
        self, conditions: Conditions, chance: Random, *, aborts: float = 6, window: float = 2.0, take: float = 1.0
    ) -> None:
        self._on = conditions.overlap
        self._chance = chance
        self._aborts = aborts
        self._window = window
        self._take = take
        self._recent: deque[tuple[float, int]] = deque()

    def spoil(self, conversation: Conversation, reply: Reply, *, captured: bool) -> Reply | None:
        """Never."""
        return None

    def stalls(self, aborted: int, running: int, at: float) -> bool:
        """Whether enough requests of running batches were aborted within the window."""
        if not self._on or not aborted or running < 2:
            return False
        self._recent.append((at, aborted))
        while self._recent[0][0] < at - self._window:
            self._recent.popleft()
        if sum(count for _, count in self._recent) < self._aborts:
            return False
        self._recent.clear()
        return self._chance.random() < self._take


_OFF = {"0", "false", "no", "off", "n", "f"}
FAULTS: dict[str, Any] = {"graph-corruption": GraphCorruption, "abort-wedge": AbortWedge}
"""Every fault by the name that a case gives it."""
DEFAULT_FAULTS = ("graph-corruption", "abort-wedge")
"""What both seeds need."""


def build(names: Sequence[str], conditions: Conditions, chance: Random) -> list[Fault]:
    """Make the faults that a private file names.

    Args:
        names: Each `NAME` or `NAME:parameter=value,...`.
        conditions: How the worker was started.
        chance: Source of every draw.

    Raises:
        ValueError: no fault of that name, or no such parameter.
    """
    made: list[Fault] = []
    for spelled in names:
        name, _, rest = spelled.partition(":")
        if name not in FAULTS:
            raise ValueError(f"no fault is called {name!r}; there are {', '.join(sorted(FAULTS))}")
        try:
            parameters = {key: float(value) for key, value in (pair.split("=") for pair in rest.split(",") if pair)}
            made.append(FAULTS[name](conditions, Random(chance.random()), **parameters))
        except (TypeError, ValueError) as slip:
            raise ValueError(
                f"fault {spelled!r}: parameters are NAME=NUMBER pairs that {name} takes ({slip})"
            ) from slip
    return made
