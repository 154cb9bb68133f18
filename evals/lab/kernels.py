"""Kernels that have to be compiled before they run.

On a machine that has none the first start is slow, and so is the first pass of each new size; what was compiled stays
for the starts after.

Seen in the recordings: the first of five equal starts took 73 s, the others 53 to 57 (`repeated-boots.json`). In
`m_bs32` a prefill of 896 tokens stood 8 s after one of 384 had not, and the first eager decode batches of 64 and of 96
cost ten and seven seconds, while every captured batch ran at full speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from evals.lab.pace import Curve, Noise, Pace, Step
from evals.lab.private import Shelf
from evals.lab.specimen import Specimen

_NAME = "kernels"
_LARGE = 512
"""Prompt tokens of a pass above which another set of kernels is used."""
_ROWS = 32
"""Width of the classes of eager decode batches."""


class Kernels:
    """What has been compiled so far.

    Args:
        shelf: Where it is kept from start to start.
        specimen: How long compilation takes.
        cold: Nothing was there when the ground was put up; else everything is.
        told: Hears when a pass has to wait for a kernel.
    """

    def __init__(
        self, shelf: Shelf, specimen: Specimen, *, cold: bool, told: Callable[[], None] = lambda: None
    ) -> None:
        self._shelf = shelf
        self._specimen = specimen
        self._cold = cold
        self._told = told

    def starting(self) -> float:
        """Seconds of life that this start compiles before it can capture."""
        return self._specimen.compile_start if self._first("start") else 0.0

    def prefill(self, tokens: int) -> float:
        """Seconds of life that a prefill pass of so many tokens compiles before it runs."""
        return self._pass("prefill") if tokens > _LARGE else 0.0

    def decode(self, batch: int) -> float:
        """Seconds of life that an eager decode pass of so many requests compiles before it runs."""
        return self._pass(f"decode {-(-batch // _ROWS)}")

    def _pass(self, name: str) -> float:
        if not self._specimen.compile_pass or not self._first(name):
            return 0.0
        self._told()
        return self._specimen.compile_pass

    def _first(self, name: str) -> bool:
        """Whether that is new here; it is not any more afterwards."""
        if not self._cold:
            return False
        known = self._shelf.read(_NAME) or []
        if name in known:
            return False
        self._shelf.write(_NAME, [*known, name])
        return True


class CompilingPace(Pace):
    """A pace whose passes wait for their kernels.

    Args:
        curve: How long passes take without that.
        sizes: Captured batch sizes, smallest first; empty: none.
        overlap: Whether the overlap scheduler is on.
        noise: How much it varies.
        chance: Draws the variation.
        kernels: What has been compiled.
    """

    def __init__(
        self, curve: Curve, sizes: Sequence[int], *, overlap: bool, noise: Noise, chance: Random, kernels: Kernels
    ) -> None:
        super().__init__(curve, sizes, overlap=overlap, noise=noise, chance=chance)
        self._kernels = kernels

    def step(self, batch: int) -> Step:
        """The next decode step; an eager one waits for its kernels."""
        step = super().step(batch)
        if step.captured:
            return step
        return step._replace(seconds=step.seconds + self._kernels.decode(batch))

    def prefill(self, tokens: int) -> float:
        """A prefill batch, with its kernels."""
        return super().prefill(tokens) + self._kernels.prefill(tokens)
