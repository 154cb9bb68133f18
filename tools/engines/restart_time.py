"""How long the next restart takes: this worker's own restarts, and the part of them that the capture is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean
from typing import Final

from agent.domain import Interval
from tools.engines.facts import StartupFacts

_SHARE: Final = (0.03, 0.5)
"""Share of a start that capture takes, where the log's clock cannot say it; recorded 0.03 to 0.44."""
_IMPORTS_SECONDS: Final = (5.0, 45.0)
"""Seconds that a process lives before its first log line; recorded: about 20 with warm files."""
_PRIOR_SD: Final = 0.15
"""Relative standard deviation of restarts of one configuration, before any are known: five recorded boots took 52.5 to
73 s, which are 0.14."""
_PRIOR_WEIGHT: Final = 6
"""How many measured restarts that is worth."""


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
        low, high = _next_of(good)
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


def _next_of(measured: Sequence[float]) -> tuple[float, float]:
    """Where the next of them lies with 95 %: logarithms are normal, and the prior counts as some measurements.

    It gets narrower with each restart that is measured, down to what they really vary by.
    """
    logs = [math.log(seconds) for seconds in measured]
    middle, count = fmean(logs), len(logs)
    freedom = _PRIOR_WEIGHT + count - 1
    variance = (_PRIOR_WEIGHT * _PRIOR_SD**2 + sum((each - middle) ** 2 for each in logs)) / freedom
    reach = _student(freedom) * math.sqrt(variance * (1 + 1 / count))
    return math.exp(middle - reach), math.exp(middle + reach)


def _student(freedom: int) -> float:
    """The 97.5 % point of Student's t, by its expansion about the normal one; 1 % off at 6 degrees of freedom."""
    z = NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
