"""What is taken and not given back: memory of host and card, places of the batch; and peaks nobody measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, ClassVar

from evals.lab.faults.fault import Fault, Parameter, Sight
from evals.lab.private import Shelf

if TYPE_CHECKING:
    from evals.lab.ask import Ask


class LateOom(Fault):
    """Activations of attention over a long context are kept for the whole chunk."""

    meaning = "a prefill chunk needs memory that grows with the prompt, so that a long prompt ends the worker"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "token": Parameter(
            0.00045, "GiB a token of the chunk, times the logarithm of the prompt in thousands", 0.0, 1.0
        ),
    }

    def peak(self, fresh: int, longest: int) -> float:
        """So much for this chunk at that length."""
        return self.number("token") * min(fresh, self.met.chunk or fresh) * math.log1p(longest / 1000)


class MemoryLeak(Fault):
    """Finished requests are kept alive by a cycle."""

    meaning = "each request leaves memory behind, until the process is killed or a pass fails"
    when = "disable_radix_cache!=1"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "kib": Parameter(350.0, "KiB of the host's memory a request", 0.0, 65_536.0),
        "limit": Parameter(512.0, "MiB after which the kernel kills the process", 1.0, 4096.0),
        "card": Parameter(0.0, "GiB of the card that 1,000 requests take", 0.0, 1000.0),
    }

    def __init__(self, given: Mapping[str, float | str], chance: Random, shelf: Shelf) -> None:
        super().__init__(given, chance, shelf)
        self._count = 0
        self._kept: list[bytearray] = []

    def ended(self, ask: Ask, sight: Sight) -> None:
        """Keep it, in memory that is really touched."""
        self._count += 1
        size = int(self.number("kib") * 1024)
        if size:
            kept = bytearray(size)
            kept[::4096] = b"x" * len(range(0, size, 4096))
            self._kept.append(kept)

    def taken(self) -> float:
        """What the card has lost."""
        return self._count * self.number("card") / 1000

    def doomed(self) -> bool:
        """Over the limit."""
        return self._count * self.number("kib") / 1024 > self.number("limit")


class SlotLeak(Fault):
    """Requests that end in one of the ways that nobody thought of keep their place."""

    meaning = "a share of requests keeps its place in the batch for good, until nearly everything waits"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "share": Parameter(0.2, "share of requests that end well", 0.0, 1.0),
        "aborted": Parameter(1.0, "share of aborted ones", 0.0, 1.0),
    }
    _held = 0

    def ended(self, ask: Ask, sight: Sight) -> None:
        """Keep its place now and then; the last one is left, so that it looks busy."""
        share = self.number("aborted" if ask.aborted else "share")
        if self.chance.random() < share and self._held < sight.limit - 1:
            self._held += 1

    def held(self) -> int:
        """Places that are gone."""
        return self._held
