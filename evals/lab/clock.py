"""Two clocks of life laid over the wall: start-up runs many times faster, serving at most twice as fast."""

from __future__ import annotations

import time


class Clock:
    """Seconds of life, counted from its making.

    Args:
        speed: Seconds of life a second of the wall.
        origin: Monotonic wall time at which life begins; None: now.
    """

    def __init__(self, speed: float, origin: float | None = None) -> None:
        self.speed = speed
        self._origin = time.monotonic() if origin is None else origin

    def now(self) -> float:
        """Seconds of life since the origin."""
        return (time.monotonic() - self._origin) * self.speed

    def wall(self, seconds: float) -> float:
        """How long so many seconds of life last on the wall."""
        return seconds / self.speed

    def sleep_until(self, moment: float) -> None:
        """Block until that second of life."""
        left = self.wall(moment - self.now())
        if left > 0:
            time.sleep(left)
