"""Everything that is wrong with one worker, asked as one: what adds up is added, what strikes first decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evals.lab.failures import KilledError
from evals.lab.faults.condition import Conditions
from evals.lab.faults.fault import Fault, Live, Sight
from evals.lab.specimen import Cards

if TYPE_CHECKING:
    from evals.lab.ask import Ask
    from evals.lab.memory import Allocation
    from evals.lab.replies import Reply


class Faults:
    """Everything that is wrong with one worker, asked as one.

    Args:
        faults: Each by itself.
    """

    def __init__(self, faults: Sequence[Fault] = ()) -> None:
        self._all = tuple(faults)
        self._on: tuple[Fault, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything is wrong with this start, so that a sound loop need not stop to look."""
        return bool(self._on)

    def meet(self, conditions: Conditions) -> None:
        """Tell each how the worker was started; what does not apply is left out from here on."""
        for fault in self._all:
            fault.meet(conditions)
        self._on = tuple(fault for fault in self._all if fault.on)

    def live(self, live: Live, conditions: Conditions) -> Live:
        """What the process is really started with."""
        for fault in self._early(conditions):
            live = fault.live(live)
        return live

    def absent(self, conditions: Conditions) -> frozenset[str]:
        """Flags that this build does not know."""
        return frozenset().union(*(fault.absent() for fault in self._early(conditions)))

    def turn(self, values: dict[str, Any], conditions: Conditions) -> dict[str, Any]:
        """What the engine makes of the asked values, and echoes."""
        for fault in self._early(conditions._replace(asked=values, arguments=values)):
            values = fault.turn(values)
        return values

    def heed(self, values: dict[str, Any], defaults: Mapping[str, Any], conditions: Conditions) -> dict[str, Any]:
        """Those of the values that the engine goes by, whatever it echoes."""
        for fault in self._early(conditions._replace(asked=values, arguments=values)):
            values = fault.heed(values, defaults)
        return values

    def felt(self, environ: Mapping[str, str], conditions: Conditions) -> Mapping[str, str]:
        """The environment that the engine goes by."""
        for fault in self._early(conditions):
            environ = fault.felt(environ)
        return environ

    def _early(self, conditions: Conditions) -> list[Fault]:
        found = [fault for fault in self._all if fault.early]
        for fault in found:
            fault.meet(conditions)
        return [fault for fault in found if fault.on]

    def card(self, cards: Cards) -> Cards:
        """The cards as this start finds them."""
        for fault in self._on:
            cards = fault.card(cards)
        return cards

    def check(self, cards: Cards) -> None:
        """Look at memory before the weights are loaded.

        Raises:
            StartError: the engine refuses to go on.
        """
        for fault in self._on:
            fault.check(cards)

    def allot(self, allocation: Allocation) -> tuple[Allocation, list[str]]:
        """What the pools come to, and lines of the log about it."""
        said = []
        for fault in self._on:
            allocation, line = fault.allot(allocation)
            said += [line] if line else []
        return allocation, said

    def capture(self, size: int) -> float:
        """GiB that the largest decode graph takes beyond the formula."""
        return sum(fault.capture(size) for fault in self._on)

    def hangs(self) -> bool:
        """A capture that does not fit stands still instead of failing."""
        return any(fault.hangs() for fault in self._on)

    def captured(self, allocation: Allocation, free: float) -> float:
        """GiB that are taken for good once the graphs stand.

        Raises:
            StartError: the start ends here.
        """
        return sum(fault.captured(allocation, free) for fault in self._on)

    def killed(self, at: float) -> bool:
        """Whether somebody has killed the process by that second of its life."""
        return any(fault.killed(at) for fault in self._on)

    def lived(self, at: float) -> None:
        """The start has come so far, in seconds of the process's life.

        Raises:
            KilledError: it is not let go on.
        """
        if self.killed(at):
            raise KilledError

    def left(self) -> None:
        """The worker ends as it should."""
        for fault in self._on:
            fault.left()

    def ready(self) -> None:
        """The start is over and was good."""
        for fault in self._on:
            fault.ready()

    def stalls(self, sight: Sight) -> bool:
        """Whether the loop stops for good; all are asked, for they count."""
        stopped = [fault.stalls(sight) for fault in self._on]
        return any(stopped)

    def pretends(self) -> bool:
        """Whether health checks are answered 200 whatever the loop does."""
        return any(fault.pretends() for fault in self._on)

    def spins(self, sight: Sight) -> bool:
        """Whether this pass brings nobody a token; all are asked."""
        spinning = [fault.spins(sight) for fault in self._on]
        return any(spinning)

    def spoil(self, ask: Ask, sight: Sight) -> Reply | None:
        """The reply that comes out instead; all are asked, the first that has one decides."""
        return next(filter(None, [fault.spoil(ask, sight) for fault in self._on]), None)

    def stretch(self, sight: Sight) -> float:
        """Factor on the time that the next pass takes."""
        factor = 1.0
        for fault in self._on:
            factor *= fault.stretch(sight)
        return factor

    def peak(self, fresh: int, longest: int) -> float:
        """GiB that a prefill batch needs beyond the formula."""
        return sum(fault.peak(fresh, longest) for fault in self._on)

    def taken(self) -> float:
        """GiB of the card that are gone since the start."""
        return sum(fault.taken() for fault in self._on)

    def held(self) -> int:
        """Places of the batch that nobody gets any more."""
        return sum(fault.held() for fault in self._on)

    def deaf(self, backlog: int) -> bool:
        """Whether health checks miss the tokens that leave."""
        return any(fault.deaf(backlog) for fault in self._on)

    def stale(self) -> bool:
        """Whether a side of a pair goes on with what it knew of a peer that has been started anew."""
        return any(fault.stale() for fault in self._on)

    def ended(self, ask: Ask, sight: Sight) -> None:
        """A request has ended."""
        for fault in self._on:
            fault.ended(ask, sight)

    def doomed(self) -> bool:
        """Whether the kernel has killed the process."""
        return any(fault.doomed() for fault in self._on)

    def companions(self) -> list[Fault]:
        """Faults that live beside the loop while the worker serves."""
        return [fault for fault in self._on if type(fault).attend is not Fault.attend]
