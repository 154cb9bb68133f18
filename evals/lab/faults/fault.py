"""What a fault is: a named thing that is wrong, with parameters, asked at every seam of a worker where it may act.

A fault reads how the worker was started and what its loop sees, and nothing else; so a change that takes away what it
needs takes it away.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from evals.lab.faults.condition import Conditions, rule
from evals.lab.private import Shelf
from evals.lab.specimen import Cards

if TYPE_CHECKING:
    from evals.lab.ask import Ask
    from evals.lab.clock import Clock
    from evals.lab.memory import Allocation
    from evals.lab.replies import Reply
    from evals.lab.scheduler import Scheduler


class Parameter(NamedTuple):
    """Something that a fault lets a case set."""

    default: float | str
    """Its value when nobody sets it."""
    meaning: str
    """What it says, and its unit."""
    least: float = 0.0
    """Lowest value, of a number."""
    most: float = float("inf")
    """Highest value, of a number."""
    choices: tuple[str, ...] = ()
    """All that it can be, of a text that cannot be anything."""

    @property
    def bounds(self) -> str:
        """What it may be, in words."""
        if isinstance(self.default, str):
            return " or ".join(self.choices) or "text"
        return f"at least {self.least:g}" if self.most == float("inf") else f"{self.least:g} to {self.most:g}"


class Live(NamedTuple):
    """What a process is really started with."""

    words: tuple[str, ...]
    """The words after the program."""
    environ: dict[str, str]
    """Its environment."""


class Sight(NamedTuple):
    """What the loop sees at the end of a pass."""

    at: float
    """Now, in seconds of life since serving began."""
    running: int
    """Requests in the batch."""
    waiting: int
    """Requests in the queue."""
    aborted: int
    """Of those in the batch, requests that were aborted while the pass was in flight."""
    captured: bool
    """The pass was replayed from a graph."""
    top: int
    """Largest captured batch; 0: none."""
    limit: int
    """Requests that may run at once."""
    usage: float
    """Share of the KV pool that is in use."""
    served: int
    """Requests that have ended since the start, the warm-up's included; health checks are not counted."""
    adapters: frozenset[str]
    """Adapters that requests of the batch ask for; empty text: the bare model."""


class Fault:
    """One thing that is wrong with a worker; each method is a seam, and does nothing unless a kind says otherwise.

    Args:
        given: Its parameters.
        chance: Source of its draws.
        shelf: What it remembers from start to start.
    """

    meaning: ClassVar[str] = ""
    """One sentence: what goes wrong, and what it takes."""
    parameters: ClassVar[Mapping[str, Parameter]] = {}
    """What a case may set beside `when`."""
    when: ClassVar[str] = ""
    """Condition under which it is there, unless a case says otherwise."""
    early: ClassVar[bool] = False
    """It acts before the arguments are resolved; its condition is about engine, version, boot, `env`, or `asked`."""
    of_pairs: ClassVar[bool] = False
    """It lies between the two sides of a pair, so that both have it; any other is the decode side's."""

    def __init__(self, given: Mapping[str, float | str], chance: Random, shelf: Shelf) -> None:
        self._given = given
        self._holds = rule(str(given["when"])).holds
        self.chance = chance
        self.shelf = shelf
        self.on = False
        """Its condition holds for this start."""

    @classmethod
    def all_parameters(cls) -> dict[str, Parameter]:
        """Everything that a case may set."""
        return {**cls.parameters, "when": Parameter(cls.when, "condition under which it is there; empty: always")}

    def number(self, name: str) -> float:
        """A parameter that is a number."""
        return float(self._given[name])

    def text(self, name: str) -> str:
        """A parameter that is a text."""
        return str(self._given[name])

    def meet(self, conditions: Conditions) -> None:
        """Learn how the worker was started."""
        self.on = self._holds(conditions)
        self.met = conditions

    # ------------------------------------------------------------------------------------- before the engine

    def live(self, live: Live) -> Live:
        """What whatever lies between the serve script and the engine makes of words and environment."""
        return live

    def absent(self) -> frozenset[str]:
        """Flags that this build of the engine does not know."""
        return frozenset()

    def turn(self, values: dict[str, Any]) -> dict[str, Any]:
        """What the engine makes of the asked values, and echoes."""
        return values

    def heed(self, values: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the values that the engine goes by, whatever it echoes."""
        return values

    def felt(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """The environment that the engine goes by."""
        return environ

    # -------------------------------------------------------------------------------------------- the start

    def card(self, cards: Cards) -> Cards:
        """The cards as this start finds them."""
        return cards

    def check(self, cards: Cards) -> None:
        """Look at memory before the weights are loaded.

        Raises:
            StartError: the engine refuses to go on.
        """

    def allot(self, allocation: Allocation) -> tuple[Allocation, str]:
        """What the pools come to, and what the log says about it; empty: nothing."""
        return allocation, ""

    def capture(self, size: int) -> float:
        """GiB that the first and largest decode graph takes beyond the formula."""
        return 0.0

    def hangs(self) -> bool:
        """A capture that does not fit stands still instead of failing."""
        return False

    def captured(self, allocation: Allocation, free: float) -> float:
        """GiB that are taken for good once the graphs stand.

        Raises:
            StartError: the start ends here.
        """
        return 0.0

    def killed(self, at: float) -> bool:
        """Whether somebody has killed the process by that second of its life, not being ready yet."""
        return False

    def ready(self) -> None:
        """The start is over and was good."""

    def left(self) -> None:
        """The worker ends as it should, with nothing left to answer."""

    # ---------------------------------------------------------------------------------------------- serving

    def stalls(self, sight: Sight) -> bool:
        """Whether the loop stops for good after this pass."""
        return False

    def pretends(self) -> bool:
        """Whether health checks are answered 200 whatever the loop does."""
        return False

    def spins(self, sight: Sight) -> bool:
        """Whether this pass takes its time and brings nobody a token."""
        return False

    def spoil(self, ask: Ask, sight: Sight) -> Reply | None:
        """The reply that comes out instead, asked once a reply at its first decode step; None: the right one."""
        return None

    def stretch(self, sight: Sight) -> float:
        """Factor on the time that the next pass takes."""
        return 1.0

    def peak(self, fresh: int, longest: int) -> float:
        """GiB that a prefill batch needs beyond the formula, for so many new tokens and the longest prompt in it."""
        return 0.0

    def taken(self) -> float:
        """GiB of the card that are gone since the start."""
        return 0.0

    def held(self) -> int:
        """Places of the batch that nobody gets any more."""
        return 0

    def deaf(self, backlog: int) -> bool:
        """Whether health checks miss the tokens that leave, with so many prompt tokens to be computed."""
        return False

    def stale(self) -> bool:
        """Whether a side of a pair goes on with what it knew of a peer that has been started anew."""
        return False

    def ended(self, ask: Ask, sight: Sight) -> None:
        """A request has ended."""

    def doomed(self) -> bool:
        """Whether the kernel has killed the process for the memory that it took."""
        return False

    async def attend(self, scheduler: Scheduler, clock: Clock) -> None:
        """Live beside the loop while the worker serves."""
