"""Fisher's exact test: are there more bad ones with the change than before it?"""

from __future__ import annotations

import math


def chance(bad_before: int, n_before: int, bad_after: int, n_after: int) -> float:
    """Probability of so many bad ones or more after the change, if it changed nothing.

    The upper tail of the hypergeometric distribution (Fisher, Statistical Methods for Research Workers, 1925): of all
    bad ones of both samples, how many fall into the second.

    Args:
        bad_before: Bad ones before, 0 to `n_before`.
        n_before: Samples before, at least 1.
        bad_after: Bad ones with the change, 0 to `n_after`.
        n_after: Samples with the change, at least 1.
    """
    bad, total = bad_before + bad_after, n_before + n_after
    whole = _choose(total, bad)
    tail = math.fsum(
        math.exp(_choose(n_after, k) + _choose(n_before, bad - k) - whole)
        for k in range(bad_after, min(bad, n_after) + 1)
        if bad - k <= n_before
    )
    return min(1.0, tail)


def _choose(n: int, k: int) -> float:
    """Logarithm of the binomial coefficient."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
