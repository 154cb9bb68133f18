"""Corruption campaigns, simulated: what the shipped rules say of sessions that are bad with a known share.

Sessions are independent and judged in the order in which they end; a real probe has some in flight when the test is
over, and counts those too. Bad ones come at geometric distances, so that a campaign costs as much as it has bad ones.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from random import Random
from statistics import fmean
from typing import NamedTuple

from agent.domain import Criterion, Reading
from policies import proportions
from policies.judge import judge
from tools.on_host import probe


class Rules(NamedTuple):
    """The corruption rule of a policy, and how many sessions it sends at least."""

    name: str
    criterion: Criterion
    least: int


class Campaigns(NamedTuple):
    """What came of many campaigns."""

    decisions: Counter[str]
    """kept, rolled_back, deferred: how many of them."""
    sessions: float
    """Mean number of sessions."""
    sessions_to_catch: float | None
    """Mean number of sessions of those that were rolled back; None: none was."""


class Coverage(NamedTuple):
    """How often a stated bound held."""

    upper: float
    """Share of campaigns whose upper bound was at least the true share."""
    lower: float
    """Share of campaigns whose lower bound was at most the true share."""


def campaigns(rules: Rules, share: float, count: int, chance: Random) -> Campaigns:
    """Run so many campaigns on a worker that corrupts a share of its sessions.

    Args:
        rules: By which they are stopped (the probe's own test) and judged (`policies.judge`).
        share: The true share of bad sessions, 0 to 1.
        count: Campaigns.
        chance: Draws the bad sessions.
    """
    test = rules.criterion.sequential
    wish = {"sequential": test.model_dump() if test else None, "stop_at": rules.criterion.hard_count}
    enough = probe.Sequential(wish, rules.least)
    ends = [_campaign(enough, share, chance) for _ in range(count)]
    decisions = [_decision(rules.criterion, n, bad) for n, bad in ends]
    caught = [n for (n, _), decision in zip(ends, decisions, strict=True) if decision == "rolled_back"]
    return Campaigns(Counter(decisions), fmean(n for n, _ in ends), fmean(caught) if caught else None)


def coverage(n: int, share: float, confidence: float, count: int, chance: Random) -> Coverage:
    """How often the exact bounds on a share hold where the sample is fixed before.

    Args:
        n: Sessions in a campaign.
        share: The true share of bad ones.
        confidence: Of each one-sided bound.
        count: Campaigns.
        chance: Draws the bad sessions.
    """
    bads = Counter(_bad_of(n, share, chance) for _ in range(count))
    upper = sum(times for bad, times in bads.items() if proportions.upper(bad, n, confidence) >= share)
    lower = sum(times for bad, times in bads.items() if proportions.lower(bad, n, confidence) <= share)
    return Coverage(upper / count, lower / count)


def _campaign(enough: probe.Sequential, share: float, chance: Random) -> tuple[int, int]:
    n = bad = 0
    while True:
        end = enough.needed(bad)
        n_bad = n + _distance(share, chance)
        if n_bad > end:
            return end, bad
        n, bad = int(n_bad), bad + 1
        if enough.over(n, bad) or n >= enough.cap:
            return n, bad


def _distance(share: float, chance: Random) -> float:
    """Sessions up to and with the next bad one."""
    return math.ceil(math.log(1.0 - chance.random()) / math.log1p(-share)) or 1 if share else math.inf


def _bad_of(n: int, share: float, chance: Random) -> int:
    at, bad = _distance(share, chance), 0
    while at <= n:
        bad += 1
        at += _distance(share, chance)
    return bad


@cache
def _decision(criterion: Criterion, n: int, bad: int) -> str:
    reading = Reading(
        metric=criterion.metric, phase="candidate", value=bad / n, unit="share", n=n, bad=bad, concurrency=96
    )
    return judge([criterion], [reading], None).decision
