"""Loops that stop, or go round without getting anywhere, while everything around them looks alive."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, ClassVar

from evals.lab.faults.fault import Fault, Parameter, Sight
from evals.lab.private import Shelf

if TYPE_CHECKING:
    from evals.lab.ask import Ask
    from evals.lab.clock import Clock
    from evals.lab.scheduler import Scheduler

_HEALTH = Parameter(1.0, "1: health checks are answered 200 ever after; 0: until their timeout", 0.0, 1.0)


class AbortWedge(Fault):
    """A cascade of aborts leaves the ranks at different collectives.

    Single aborts, however many one after another, do no harm: the seed's serial tests passed.
    """

    meaning = "with the overlap scheduler on, a cascade of aborts of running requests stops every token for good"
    when = "overlap=1"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "aborts": Parameter(6.0, "aborts within the window that make a cascade", 1.0),
        "window": Parameter(2.0, "the window, in seconds of life", 0.0),
        "take": Parameter(1.0, "probability that a cascade takes", 0.0, 1.0),
    }

    def __init__(self, given: Mapping[str, float | str], chance: Random, shelf: Shelf) -> None:
        super().__init__(given, chance, shelf)
        self._recent: deque[tuple[float, int]] = deque()

    def stalls(self, sight: Sight) -> bool:
        """Whether enough requests of running batches were aborted within the window."""
        recent = self._recent
        if not sight.aborted or sight.running < 2:
            return False
        recent.append((sight.at, sight.aborted))
        while recent[0][0] < sight.at - self.number("window"):
            recent.popleft()
        if sum(count for _, count in recent) < self.number("aborts"):
            return False
        recent.clear()
        return self.chance.random() < self.number("take")


class _Wedge(Fault):
    """A loop that has stopped, with a health check that does not notice."""

    _stopped = False

    def pretends(self) -> bool:
        """Once it has stopped."""
        return self._stopped and bool(self.number("health"))

    def stop(self) -> bool:
        """Stop."""
        self._stopped = True
        return True


class CountWedge(_Wedge):
    """A few requests after a good start the ranks part company."""

    meaning = "with the overlap scheduler on, no token follows after some number of requests, and health stays 200"
    when = "overlap=1"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "least": Parameter(3.0, "fewest requests that are served before, the warm-up's included", 2.0),
        "most": Parameter(12.0, "most requests that are served before", 2.0),
        "tools": Parameter(0.0, "1: only requests that offer tools count", 0.0, 1.0),
        "seconds": Parameter(0.0, "seconds of life of serving before which it does not happen", 0.0),
        "health": _HEALTH,
    }
    _after = -1
    _counted = 0

    def ended(self, ask: Ask, sight: Sight) -> None:
        """Count it."""
        self._counted += bool(ask.conversation.tools) or not self.number("tools")

    def stalls(self, sight: Sight) -> bool:
        """Whether it has served as many as it was going to."""
        if self._after < 0:
            low = int(self.number("least"))
            self._after = self.chance.randint(low, max(int(self.number("most")), low))
        return self._counted >= self._after and sight.at >= self.number("seconds") and self.stop()


class FullBatchWedge(_Wedge):
    """The graph of the largest batch never returns when no row of it is padding."""

    meaning = "a batch that fills the largest captured graph stops every token when that graph is larger than a bound"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "above": Parameter(32.0, "largest captured batch that is still harmless", 0.0),
        "health": _HEALTH,
    }

    def stalls(self, sight: Sight) -> bool:
        """Whether the pass was the largest graph, full."""
        return sight.captured and sight.running == sight.top > self.number("above") and self.stop()


class DirtyRestart(_Wedge):
    """What a killed instance leaves behind spoils the next one on its port."""

    meaning = "a worker started soon after one that was killed instead of drained falls silent after a while"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "window": Parameter(30.0, "wall seconds after the killed one was alive within which a start is dirty", 0.0),
        "least": Parameter(80.0, "fewest requests that are served before", 0.0),
        "most": Parameter(140.0, "most requests that are served before", 0.0),
        "health": _HEALTH,
    }
    _after = -1

    def ready(self) -> None:
        """Look at what the one before left, and mark this one as alive."""
        mark = self.shelf.read("alive")
        dirty = mark is not None and self.shelf.now() - mark["at"] < self.number("window")
        low = int(self.number("least"))
        self._after = self.chance.randint(low, max(int(self.number("most")), low)) if dirty else -1
        self.shelf.mark("alive")

    def stalls(self, sight: Sight) -> bool:
        """Whether a dirty one has served as many as it was going to."""
        return 0 <= self._after <= sight.served and self.stop()

    def left(self) -> None:
        """Take the mark away."""
        self.shelf.write("alive", None)

    async def attend(self, scheduler: Scheduler, clock: Clock) -> None:
        """Keep the mark fresh; who ends well takes it away."""
        await self.shelf.beat("alive")


class Livelock(Fault):
    """Admission and retraction take turns over the same pages for ever."""

    meaning = "once the batch is full and enough wait, passes run and requests are sent back, but no token comes out"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "waiting": Parameter(4.0, "requests that must wait beside a full batch", 1.0),
        "usage": Parameter(0.0, "share of the KV pool that must be in use", 0.0, 1.0),
    }
    _spinning = False

    def spins(self, sight: Sight) -> bool:
        """From the first such pass until nobody is left."""
        full = sight.running >= sight.limit and sight.waiting >= self.number("waiting")
        self._spinning = self._spinning or (full and sight.usage >= self.number("usage"))
        if sight.running <= 1:
            self._spinning = False
        return self._spinning
