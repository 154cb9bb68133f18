"""Wald's sequential probability ratio test on a share of bad ones.

The log likelihood ratio of `bad` against `ok` rises by ln(p1/p0) with each bad sample and falls with each good one. At
or above ln((1-b)/a) the share is bad, at or below ln(b/(1-a)) it is acceptable, with a = b = `error` (Wald, Sequential
Analysis, 1947). What has been counted is all that is needed, so a decision can be computed again from a record.
"""

from __future__ import annotations

import math
from typing import Literal

from agent.domain import Sequential

Standing = Literal["acceptable", "bad", "open", "capped"]


def ratio(test: Sequential, n: int, bad: int) -> float:
    """The log likelihood ratio of "bad" against "acceptable" after n samples of which `bad` were bad."""
    return bad * math.log(test.bad / test.ok) + (n - bad) * math.log((1 - test.bad) / (1 - test.ok))


def limits(test: Sequential) -> tuple[float, float]:
    """The ratio at or below which a share is acceptable, and the one at or above which it is bad."""
    reach = math.log((1 - test.error) / test.error)
    return -reach, reach


def standing(test: Sequential, n: int, bad: int) -> Standing:
    """Where the test stands; `capped`: nothing was decided within the samples that it was given."""
    acceptable, unacceptable = limits(test)
    now = ratio(test, n, bad)
    if now >= unacceptable:
        return "bad"
    if now <= acceptable:
        return "acceptable"
    return "capped" if n >= test.cap else "open"


def enough(test: Sequential, bad: int = 0) -> int:
    """The samples after which a share is acceptable although `bad` of them are bad."""
    acceptable, _ = limits(test)
    down = math.log((1 - test.ok) / (1 - test.bad))
    return bad + math.ceil((bad * math.log(test.bad / test.ok) - acceptable) / down - 1e-9)
