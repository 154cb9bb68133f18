"""Series of samples -> how fast they rise, or how much they lost, at the end that could still be chance.

Samples that follow each other are alike, so a series is cut into blocks and the blocks' means are taken as the samples.
A leak is claimed only at the lower end of its slope: what noise explains is no leak.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import fmean

BLOCKS = 12
"""Blocks that a long series is cut into: few enough that neighbours hardly know each other."""
FEWEST = 4
"""Samples below which a slope has no error that means anything."""
_T95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753)
"""Student's t, one-sided 95 %, for 1 to 15 degrees of freedom (any table); 1.76 at most beyond."""

Samples = Sequence[tuple[float, float]]
"""Time or number, and value."""


def student(freedom: int) -> float:
    """The one-sided 95 % quantile of Student's t, rounded up."""
    return _T95[min(freedom, len(_T95)) - 1]


def blocks(samples: Samples, count: int = BLOCKS) -> Samples:
    """Means over so many stretches of equal numbers; a short series is left as it is."""
    if len(samples) <= count:
        return samples
    edges = [round(index * len(samples) / count) for index in range(count + 1)]
    parts = [samples[low:high] for low, high in itertools.pairwise(edges)]
    return [(fmean(at for at, _ in part), fmean(value for _, value in part)) for part in parts]


def rise(samples: Samples) -> tuple[float, float] | None:
    """The slope by least squares, and its one-sided lower end at 95 %; None: too few samples.

    Args:
        samples: In rising order of their first number.
    """
    points = blocks(samples)
    if len(points) < FEWEST:
        return None
    middle, level = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = math.fsum((x - middle) ** 2 for x, _ in points)
    if spread == 0:
        return None
    slope = math.fsum((x - middle) * (y - level) for x, y in points) / spread
    rest = math.fsum((y - level - slope * (x - middle)) ** 2 for x, y in points)
    freedom = len(points) - 2
    return slope, slope - student(freedom) * math.sqrt(rest / freedom / spread)


def loss(first: Sequence[float], last: Sequence[float]) -> tuple[float, float] | None:
    """How much smaller the second mean is, as a share of the first, and its lower end; None: too few samples."""
    if min(len(first), len(last)) < FEWEST or fmean(first) <= 0:
        return None
    was, now = fmean(first), fmean(last)
    squares = [math.fsum((value - fmean(part)) ** 2 for value in part) / (len(part) - 1) for part in (first, last)]
    error = math.sqrt(squares[0] / len(first) + squares[1] / len(last)) / was
    share = 1 - now / was
    return share, share - student(len(first) + len(last) - 2) * error
