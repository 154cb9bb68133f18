"""How far tokens leave the worker from when they are due: what the ground itself adds to what a client measures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_WIDTH = 50e-6
_COUNT = 1000


class Punctuality:
    """Counts how early or late tokens were sent, in steps of 50 microseconds up to 50 milliseconds of the wall."""

    def __init__(self) -> None:
        self._counts = [0] * (_COUNT + 1)
        self._most = 0.0

    def sent(self, due: float, moments: Sequence[float]) -> None:
        """Tokens were due at one second of the wall and sent at others."""
        for at in moments:
            off = abs(at - due)
            self._counts[min(int(off / _WIDTH), _COUNT)] += 1
            self._most = max(self._most, off)

    def quantile(self, share: float) -> float:
        """Seconds that so large a share of the tokens was off at most; 0 without any."""
        total, seen = sum(self._counts), 0
        for number, count in enumerate(self._counts):
            seen += count
            if total and seen >= share * total:
                return min((number + 1) * _WIDTH, self._most) if number < _COUNT else self._most
        return 0.0

    def taken(self) -> dict[str, Any]:
        """What was counted since the last time, in milliseconds: how many, median, 99th percentile, most."""
        told = {
            "tokens": sum(self._counts),
            "p50": round(self.quantile(0.5) * 1e3, 3),
            "p99": round(self.quantile(0.99) * 1e3, 3),
            "most": round(self._most * 1e3, 3),
        }
        self._counts, self._most = [0] * (_COUNT + 1), 0.0
        return told
