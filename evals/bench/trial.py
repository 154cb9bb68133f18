"""A throughput decision on drawn noise: boots are started and measured as a gate asks for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Literal, NamedTuple

START_SECONDS = 63.0
"""Until a worker is ready: 53 to 73 s on one H200."""
RUN_SECONDS = 20.0
"""A burst of 256 tokens, the shipped policy's, on a busy large model."""
WARM_SECONDS = 5.0
"""The burst before the first run of each concurrency, which is not counted: a quarter of a run."""


class World(NamedTuple):
    """The noise that is drawn, as relative standard deviations."""

    name: str
    boot_sd: float
    run_sd: float
    drift_sd: float
    """Of the step from one run to the next."""


WORLDS = (World("typical", 0.015, 0.015, 0.004), World("H200", 0.026, 0.025, 0.008))


class Arm(NamedTuple):
    """What was measured in one boot: runs by concurrency, in tokens/s."""

    runs: tuple[tuple[float, ...], ...]


class Gate(NamedTuple):
    """A way to decide."""

    name: str
    runs: int
    """Runs at each concurrency in a boot."""
    concurrencies: int
    """How many concurrencies are measured."""
    decide: Callable[[Trial], str]
    """kept, rolled_back or deferred."""


class Trial:
    """One decision, and what was spent on it.

    Args:
        world: The noise.
        gate: Whose runs and concurrencies are measured in each boot.
        change: What the change really does to a rate of 700 tokens/s, as a share.
        rng: Draws the noise.
    """

    def __init__(self, world: World, gate: Gate, change: float, rng: Random) -> None:
        self._world = world
        self._gate = gate
        self._change = change
        self.rng = rng
        self.restarts = 0
        self.seconds = 0.0
        self._running = False

    def boot(self, side: Literal["baseline", "candidate"]) -> Arm:
        """Measure one boot of a side; the baseline that runs already need not be started."""
        if self._running:
            self.restarts += 1
            self.seconds += START_SECONDS
        self._running = True
        world, gate = self._world, self._gate
        self.seconds += gate.concurrencies * (WARM_SECONDS + gate.runs * RUN_SECONDS)
        change = self._change if side == "candidate" else 0.0
        centre = math.log(700.0) + math.log1p(change) + self.rng.gauss(0.0, world.boot_sd)
        drift = 0.0
        rows: list[list[float]] = [[] for _ in range(gate.concurrencies)]
        for _ in range(gate.runs):
            for row in rows:
                drift += self.rng.gauss(0.0, world.drift_sd)
                row.append(math.exp(centre + drift + self.rng.gauss(0.0, world.run_sd)))
        return Arm(tuple(tuple(row) for row in rows))
