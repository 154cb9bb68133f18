"""How long things take: the two clocks, the curve of the decode step, and the noise around it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

Points = tuple[tuple[int, float], ...]


class Curve(NamedTuple):
    """How long the passes of one model on one machine take; between its points it is straight."""

    captured: Points
    """Batch size and seconds of life of a decode step that is replayed from a graph."""
    eager: Points
    """The same without graphs."""
    overlap: Points
    """Batch size and share of a step that the overlap scheduler hides; level beyond its ends."""
    prefill_base: float
    """Seconds of life that any prefill batch takes."""
    prefill_rate: float
    """Prompt tokens a second of life beyond that."""


SEED = Curve(
    # The first three are the seed's 53, 280 and 561 tokens/s at 1, 8 and 32 requests, the fourth its 711 at 64 with
    # capture to 96; the fifth makes captured decode 10 % faster than eager at 96.
    captured=((1, 1 / 53), (8, 8 / 280), (32, 32 / 561), (64, 64 / 711), (96, 96 / 787)),
    # Launches bound it from below, and the seed has 657 tokens/s at 64 with capture to 32.
    eager=((1, 0.0640), (8, 0.0655), (32, 0.0725), (64, 64 / 657), (96, 96 / 715)),
    # Seed: "roughly 5-7 %".
    overlap=((1, 0.05), (32, 0.065), (64, 0.07)),
    prefill_base=0.008,
    prefill_rate=25_000.0,
)
"""The seeds' worker."""
# Recordings: medians of the `Decode batch` lines of each burst, and what the bursts of `runs.json` took beyond them.
QWEN3_8B_ON_H200 = Curve(
    captured=((1, 0.00588), (8, 0.00633), (32, 0.00672), (64, 0.00731), (96, 0.00803)),
    # Starts with and without capture differ by a tenth in the range that both have; this lies between them.
    eager=((1, 0.0200), (32, 0.0200), (64, 0.0204), (96, 0.0208), (160, 0.0214)),
    overlap=((1, 0.175), (96, 0.157)),
    prefill_base=0.010,
    prefill_rate=42_000.0,
)
"""The recorded dense shape."""
DEEPSEEK_V2_LITE_ON_H200 = Curve(
    captured=((1, 0.00461), (8, 0.00531), (32, 0.00652)),
    # As recorded, in one start: eager steps of this mixture of experts are slower at 64 than at 96.
    eager=((1, 0.0750), (64, 0.0750), (96, 0.0539), (256, 0.0600)),
    overlap=((1, 0.175), (96, 0.157)),
    prefill_base=0.040,
    prefill_rate=55_000.0,
)
"""The recorded mixture of experts; its overlap was not recorded, and is the dense shape's."""


class Step(NamedTuple):
    """One decode step of the whole running batch."""

    seconds: float
    """How long it takes, in seconds of life."""
    captured: bool
    """True: replayed from a graph; False: eager."""


class Noise(NamedTuple):
    """Relative standard deviations of everything that is timed."""

    boot: float
    """From one start of the worker to the next."""
    run: float
    """From one burst of load to the next within a start."""


NOISES = {
    "none": Noise(0.0, 0.0),
    "slight": Noise(0.005, 0.005),
    # Recording of five boots with five bursts each at 96 requests: 2.6 % from boot to boot, 2.5 % from burst to burst;
    # at 64 requests the bursts differ by 5.6 %, with a few that are far off.
    "measured": Noise(0.026, 0.030),
}
"""Noise by name."""


def noise_of(text: str) -> Noise:
    """Noise as people spell it: a name of `NOISES`, or two shares such as `0.01,0.02`, from boot to boot and burst.

    Raises:
        ValueError: it is neither.
    """
    if text in NOISES:
        return NOISES[text]
    try:
        boot, run = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"noise is one of {', '.join(NOISES)} or two shares as in 0.01,0.02, not {text!r}") from None
    if not (0 <= boot <= 1 and 0 <= run <= 1):
        raise ValueError(f"noise is a share between 0 and 1, not {text}")
    return Noise(boot, run)


class Pace:
    """The decode step of one started worker.

    Args:
        curve: How long its passes take.
        sizes: Captured batch sizes, smallest first; empty: none.
        overlap: Whether the overlap scheduler is on.
        noise: How much it varies.
        chance: Draws the variation.
    """

    def __init__(self, curve: Curve, sizes: Sequence[int], *, overlap: bool, noise: Noise, chance: Random) -> None:
        self._curve = curve
        self._sizes = tuple(sizes)
        self._overlap = overlap
        self._noise = noise
        self._chance = chance
        self.boot = math.exp(chance.gauss(0.0, noise.boot))
        self._run = 1.0

    @property
    def top(self) -> int:
        """Largest captured batch; 0: none."""
        return self._sizes[-1] if self._sizes else 0

    def next_run(self) -> None:
        """A burst of load begins: draw how this one deviates."""
        self._run = math.exp(self._chance.gauss(0.0, self._noise.run))

    def step(self, batch: int) -> Step:
        """The next decode step for that many running requests, padded to its bucket where one fits."""
        captured = bool(self._sizes) and batch <= self._sizes[-1]
        size = self._sizes[bisect_left(self._sizes, batch)] if captured else batch
        seconds = _along(self._curve.captured if captured else self._curve.eager, size)
        if self._overlap:
            seconds /= 1 + _level(self._curve.overlap, size)
        return Step(seconds * self.boot * self._run, captured)

    def prefill(self, tokens: int) -> float:
        """Seconds of life that a prefill batch of that many new tokens takes."""
        return (self._curve.prefill_base + tokens / self._curve.prefill_rate) * self.boot * self._run


def _along(curve: Sequence[tuple[int, float]], size: int) -> float:
    """The curve at a batch size: linear between its points and beyond the last."""
    at = min(max(bisect_left([point for point, _ in curve], size), 1), len(curve) - 1)
    (left, low), (right, high) = curve[at - 1], curve[at]
    return low + (high - low) * (size - left) / (right - left)


def _level(curve: Sequence[tuple[int, float]], size: int) -> float:
    """The curve at a batch size, level beyond its ends."""
    return _along(curve, min(max(size, curve[0][0]), curve[-1][0]))
