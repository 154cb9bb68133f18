"""Starts that fail, stand still, or leave the next one something to stumble over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from evals.lab.failures import combination, compiled_cache, grown, sampler, unbalanced
from evals.lab.faults.fault import Fault, Parameter
from evals.lab.memory import Allocation
from evals.lab.specimen import Cards


class StartupOom(Fault):
    """Workspaces grow with the captured range, which nobody has reserved for."""

    meaning = "decode graphs take workspace for each row of the largest batch, and capture fails where it does not fit"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "row": Parameter(0.2, "GiB a row of the largest captured batch", 0.0, 10.0),
        "sampler": Parameter(0.0, "GiB that the sampler takes after capture for 1,000 running requests", 0.0, 100.0),
    }

    total = 0.0

    def card(self, cards: Cards) -> Cards:
        """Note how large they are."""
        self.total = cards.total
        return cards

    def capture(self, size: int) -> float:
        """So much a row."""
        return self.number("row") * size

    def captured(self, allocation: Allocation, free: float) -> float:
        """The sampler's buffers, for as many requests as may run.

        Raises:
            StartError: they do not fit.
        """
        needed = self.number("sampler") * allocation.requests / 1000
        if needed > free:
            raise sampler(self.met.engine, allocation.requests, needed, free, self.total)
        return needed


class StartupHang(StartupOom):
    """The same shortage; one rank dies of it without a word and the others wait for it."""

    meaning = "as startup-oom, but the rank that runs out dies silently and the others wait for it for ever"

    def hangs(self) -> bool:
        """Capture stands still."""
        return True


class LateStart(Fault):
    """An orchestrator has a budget for starts and kills what is not ready by then, again and again."""

    meaning = "a probe kills the worker when it is not ready within a budget; capture of more sizes takes longer"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "budget": Parameter(72.0, "seconds of life that a start may take", 1.0),
    }

    def killed(self, at: float) -> bool:
        """The budget is used up."""
        return at > self.number("budget")


class SecondStart(Fault):
    """The first start with a configuration stores kernels; those of large batches cannot be read back."""

    meaning = "a configuration starts once; its next start dies of the kernels that the first one stored"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "above": Parameter(32.0, "largest captured batch up to which what is stored is sound", 0.0),
    }

    def captured(self, allocation: Allocation, free: float) -> float:
        """Read what was stored.

        Raises:
            StartError: it cannot be read.
        """
        if self.met.captured > self.number("above") and self.met.captured in (self.shelf.read("compiled") or []):
            raise compiled_cache(self.met.engine)
        return 0.0

    def ready(self) -> None:
        """Store the kernels of this configuration."""
        stored = self.shelf.read("compiled") or []
        self.shelf.write("compiled", sorted({*stored, self.met.captured}))


class CoTenant(Fault):
    """Somebody else's process restarts on the same cards at the same time."""

    meaning = (
        "on some starts a neighbour holds memory of the cards while ours is measured, so that the KV pool comes small"
    )
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "gib": Parameter(7.0, "GiB that the neighbour holds on each card", 0.0, 80.0),
        "frees": Parameter(0.0, "GiB that it gives back while ours is measured, of which a vLLM dies", 0.0, 80.0),
        "share": Parameter(0.5, "share of starts that meet it", 0.0, 1.0),
        "first": Parameter(2.0, "first start that can meet it", 1.0),
    }

    _here = False

    def card(self, cards: Cards) -> Cards:
        """What the neighbour leaves."""
        self._here = self.met.boot >= self.number("first") and self.chance.random() < self.number("share")
        return cards._replace(free=cards.free - self.number("gib")) if self._here else cards

    def check(self, cards: Cards) -> None:
        """Measure while the neighbour leaves.

        Raises:
            StartError: free memory has grown, which a vLLM takes for an error.
        """
        if self._here and self.number("frees") and self.met.engine == "vllm":
            raise grown(cards.free, cards.free + self.number("frees"))


class SupervisorLoop(Fault):
    """A strict check of memory fails the start, and each failure leaves mappings behind that the driver frees late."""

    meaning = "a start needs a reserve beyond its memory fraction, and each failed one leaves memory held for a while"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "reserve": Parameter(10.0, "GiB of a card that must be free beside the memory fraction", 0.0, 80.0),
        "leak": Parameter(2.5, "GiB that a failed start leaves held on each card", 0.0, 20.0),
        "release": Parameter(30.0, "wall seconds without a start after which all of it is free again", 0.0),
    }

    def card(self, cards: Cards) -> Cards:
        """What failed starts have left."""
        kept = self.shelf.read("loop") or {"held": 0.0, "open": False, "at": 0.0}
        now = self.shelf.now()
        held = kept["held"] if now - kept["at"] < self.number("release") else 0.0
        if kept["open"] and held == kept["held"]:
            held += self.number("leak")
        self.shelf.write("loop", {"held": held, "open": True, "at": now})
        return cards._replace(free=cards.free - held)

    def check(self, cards: Cards) -> None:
        """Ask for the memory fraction and the reserve.

        Raises:
            StartError: they are not free.
        """
        wanted = self.met.fraction * cards.total + self.number("reserve")
        if wanted > cards.free:
            raise unbalanced(self.met.engine, cards, self.met.fraction, wanted)

    def ready(self) -> None:
        """A start that came up leaves nothing behind."""
        self.shelf.write("loop", {**(self.shelf.read("loop") or {}), "open": False})


class AbortOnCombination(Fault):
    """Graph buffers are handed around by handles that an allocator with growing segments cannot make."""

    meaning = "expandable segments with several cards and custom all-reduce end the start after capture, in C++"
    when = "env.PYTORCH_CUDA_ALLOC_CONF~expandable_segments:True&tp>1&disable_custom_all_reduce!=1"

    def captured(self, allocation: Allocation, free: float) -> float:
        """Register the buffers.

        Raises:
            StartError: always.
        """
        raise combination(self.met.engine)
