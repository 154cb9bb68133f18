"""How long the next restart takes: this worker's own restarts, and the part of them that the capture is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from agent.domain import Interval
from tools.engines.facts import StartupFacts

_SHARE: Final = (0.03, 0.5)
"""Share of a start that capture takes, where the log's clock cannot say it; recorded 0.03 to 0.44."""
_IMPORTS_SECONDS: Final = (5.0, 45.0)
"""Seconds that a process lives before its first log line; recorded: about 20 with warm files."""
_SPREAD: Final = {1: (0.7, 1.5), 2: (0.75, 1.35)}
"""Factors on the least and the greatest of so few measurements; five recorded boots of one configuration took 52.5 to
73 s. From three on: `_SPREAD_MANY`."""
_SPREAD_MANY: Final = (0.85, 1.3)


def restart_seconds(
    facts: StartupFacts, measured: Sequence[float], captures_then: Sequence[Interval]
) -> Interval | None:
    """Wall seconds from stop to ready.

    Args:
        facts: The last start.
        measured: Wall seconds of this worker's restarts, as measured from stop to ready.
        captures_then: The captures of prefill and decode after the change, in seconds of the engine's own clock.

    Returns:
        None where neither a restart was measured nor the log has the times of one.
    """
    good = [seconds for seconds in measured if math.isfinite(seconds) and seconds > 0]
    if good:
        narrow = _SPREAD.get(len(good), _SPREAD_MANY)
        low, high = min(good) * narrow[0], max(good) * narrow[1]
        span = f"{min(good):.1f} s" if len(good) == 1 else f"{min(good):.1f} to {max(good):.1f} s"
        basis = f"{len(good)} restart{'' if len(good) == 1 else 's'} measured here, {span}"
        typical = sum(good) / len(good)
    elif facts.log_seconds:
        low, high = facts.log_seconds * 0.7 + _IMPORTS_SECONDS[0], facts.log_seconds * 1.5 + _IMPORTS_SECONDS[1]
        basis = f"{facts.log_seconds:.0f} s by the timestamps of the last start, and 5 to 45 s before its first line"
        typical = facts.log_seconds + sum(_IMPORTS_SECONDS) / 2
    else:
        return None
    now = sum(capture.seconds or 0.0 for capture in (facts.capture("prefill"), facts.decode_capture) if capture)
    if now and captures_then:
        least = sum(capture.low for capture in captures_then) / now
        most = sum(capture.high for capture in captures_then) / now
        same_clock = facts.log_seconds is not None and now < 0.8 * facts.log_seconds
        share = (min(1.0, now / typical),) * 2 if same_clock and now < typical else _SHARE
        low *= 1 + share[1] * min(0.0, least - 1)
        high *= 1 + share[1] * max(0.0, most - 1)
        basis += (
            f", of which capture is {share[0]:.0%}"
            if share[0] == share[1]
            else f", of which capture is {share[0]:.0%} to {share[1]:.0%}"
        )
    return Interval(low=math.floor(low * 10) / 10, high=math.ceil(high * 10) / 10, unit="s", basis=basis)
