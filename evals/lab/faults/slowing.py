"""Workers that get slow: for good after pressure, beyond a batch size, or with a version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from evals.lab.faults.fault import Fault, Parameter, Sight


class StickySlowdown(Fault):
    """A cache tier that pressure has filled is searched on every step from then on."""

    meaning = "with the hierarchical cache on, everything is slow for good once enough requests were in flight together"
    when = "enable_hierarchical_cache=1"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "pressure": Parameter(64.0, "requests in flight, running and waiting, that bring it about", 1.0),
        "factor": Parameter(7.0, "factor on the time of a pass ever after", 1.0, 1000.0),
    }
    _slow = False

    def stretch(self, sight: Sight) -> float:
        """Slow from the first such pass on."""
        self._slow = self._slow or sight.running + sight.waiting >= self.number("pressure")
        return self.number("factor") if self._slow else 1.0


class ThroughputCliff(Fault):
    """Eager steps are far slower than captured ones, so that a batch that outgrew the graphs stays large."""

    meaning = "batches beyond the captured range, or another edge, are far slower until they are well within it"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "factor": Parameter(4.0, "factor on the time of a pass", 1.0, 1000.0),
        "above": Parameter(0.0, "largest batch that is well; 0: the largest captured one", 0.0),
        "back": Parameter(0.6, "share of that batch below which it is over", 0.0, 1.0),
    }
    _fallen = False

    def stretch(self, sight: Sight) -> float:
        """Slow from above the edge to well below it."""
        edge = self.number("above") or sight.top
        if sight.running > edge:
            self._fallen = True
        elif sight.running < self.number("back") * edge:
            self._fallen = False
        return self.number("factor") if self._fallen else 1.0


class ThroughputDrop(Fault):
    """A newer image lost its tuned kernels, and compiles what it has at first use."""

    meaning = "from a version on every pass takes longer, the first requests longer still"
    when = "version>=0.5.20"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "factor": Parameter(3.3, "factor on the time of a pass", 1.0, 1000.0),
        "compiling": Parameter(16.0, "requests during which it is five times that", 0.0),
    }

    def stretch(self, sight: Sight) -> float:
        """Always."""
        return self.number("factor") * (5.0 if sight.served < self.number("compiling") else 1.0)
