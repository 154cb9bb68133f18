"""Two clocks of life laid over the wall: start-up runs many times faster, serving at most twice as fast."""

from __future__ import annotations

import time
from collections.abc import Callable


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


class Walk:
    """Where a start is, in seconds of life.

    Args:
        clock: The start-up clock, running since exec.
        stretch: Factor on every stretch: this start's deviation.
        lived: Told each second of life that was reached; it may end the walk by raising.
    """

    def __init__(self, clock: Clock, stretch: float, lived: Callable[[float], None] = lambda _: None) -> None:
        self._clock = clock
        self._stretch = stretch
        self._lived = lived
        self.at = 0.0

    def on(self, seconds: float) -> float:
        """Let a stretch pass; return how long it took."""
        seconds *= self._stretch
        self.at += seconds
        self._clock.sleep_until(self.at)
        self._lived(self.at)
        return seconds
