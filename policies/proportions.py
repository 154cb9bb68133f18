"""Exact one-sided confidence bounds on a share, from counts.

The bounds are Clopper and Pearson's (Biometrika 26, 1934): the upper bound is the share at which so few bad ones would
be seen with probability `1 - confidence`. Found by bisection on the binomial tail, summed outwards from its largest
term in logarithms, so that it holds for any sample that a probe can send.
"""

from __future__ import annotations

import math

LARGEST_SAMPLE = 10_000_000
"""No probe sends more; beyond it a count is not believed, and the sums would get slow."""


def upper(bad: int, n: int, confidence: float) -> float:
    """The share that is exceeded with no more than `1 - confidence`.

    Args:
        bad: How many of the sample were bad, 0 to n.
        n: Sample size, 1 to `LARGEST_SAMPLE`.
        confidence: One-sided, between 0 and 1, such as 0.95.
    """
    alpha = 1.0 - confidence
    if bad >= n:
        return 1.0
    if bad == 0:
        return -math.expm1(math.log(alpha) / n)
    low, high = bad / n, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        if _at_most(bad, n, middle) > alpha:
            low = middle
        else:
            high = middle
    return high


def lower(bad: int, n: int, confidence: float) -> float:
    """The share that is undercut with no more than `1 - confidence`; arguments as for `upper`."""
    return 1.0 - upper(n - bad, n, confidence)


def needed(bound: float, confidence: float, bad: int = 0) -> int:
    """Smallest sample that shows a share below `bound` although `bad` of it are bad.

    Args:
        bound: The share to stay below, above 0 and below 1.
        confidence: One-sided, between 0 and 1.
        bad: How many bad ones are in the sample.
    """
    fails, works = bad, max(bad, 1)
    while upper(bad, works, confidence) >= bound and works < LARGEST_SAMPLE:
        fails, works = works, min(works * 2, LARGEST_SAMPLE)
    while works - fails > 1:
        middle = (fails + works) // 2
        if upper(bad, middle, confidence) < bound:
            works = middle
        else:
            fails = middle
    return works


def _at_most(bad: int, n: int, share: float) -> float:
    """Probability of `bad` or fewer among n, for a share above bad/n, where the terms fall from `bad` downwards."""
    if share >= 1.0:
        return 0.0
    odds = share / (1.0 - share)
    first = (
        math.lgamma(n + 1)
        - math.lgamma(bad + 1)
        - math.lgamma(n - bad + 1)
        + bad * math.log(share)
        + (n - bad) * math.log1p(-share)
    )
    term = total = 1.0
    for count in range(bad, 0, -1):
        term *= count / ((n - count + 1) * odds)
        total += term
        if term < total * 1e-17:
            break
    return math.exp(first + math.log(total))
