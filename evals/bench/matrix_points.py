"""Points of the matrices, and how many are taken."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple


class Point(NamedTuple):
    """One place where the world goes wrong, or a batch of them that share a ground."""

    matrix: str
    """The matrix that it belongs to."""
    id: str
    """What it is, the same in every run."""
    mutating: bool
    """Whether something is being written there."""
    cases: int = 1
    """How many places it stands for."""


class Result(NamedTuple):
    """What came of a point."""

    point: Point
    wrong: str | None
    """What is wrong; None: nothing."""
    seconds: float
    """How long it took."""


def share(points: Sequence[Point], rotation: int) -> list[Point]:
    """Every mutating point, and a tenth of the others: another tenth for each of ten rotations."""
    return [
        point
        for point in points
        if point.mutating or int(hashlib.sha256(point.id.encode()).hexdigest(), 16) % 10 == rotation % 10
    ]
