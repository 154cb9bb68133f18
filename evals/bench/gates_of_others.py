"""Gates that people use instead of ours, none of which knows of boots."""

from __future__ import annotations

import math
from random import Random
from statistics import NormalDist, fmean, median

from evals.bench.trial import Gate, Trial

BUCKETS = 60
"""A run as a canary judge sees it: the rate of each of its seconds."""
BUCKET_SD = 0.03
"""How much the rate differs between seconds of a run: an assumption, as is that half of it lasts into the next."""
LASTING = 0.5


def threshold(loss: float) -> Gate:
    """Roll back when one run is lower than another by more than a fixed share."""

    def decide(trial: Trial) -> str:
        before, after = trial.boot("baseline").runs[0][0], trial.boot("candidate").runs[0][0]
        return "rolled_back" if after < before * (1 - loss) else "kept"

    return Gate(f"threshold {loss:.0%}, one run each", 1, 1, decide)


def mann_whitney() -> Gate:
    """Roll back when five runs rank below five others; the one-sided 5 % point of U for 5 and 5 is 4."""

    def decide(trial: Trial) -> str:
        before, after = trial.boot("baseline").runs[0], trial.boot("candidate").runs[0]
        above = sum(new > old for new in after for old in before)
        return "rolled_back" if above <= 4 else "kept"

    return Gate("Mann-Whitney, 5 runs, one boot each", 5, 1, decide)


def kayenta(*, allowed: float = 1.0) -> Gate:
    """Roll back as Kayenta's judge calls a metric low, over the 60 buckets of one run on each side.

    It compares the 98 % confidence interval of the Hodges-Lehmann shift with a quarter of the shift itself (the
    MannWhitneyClassifier of spinnaker/kayenta with the tolerance and the level of its NetflixACAJudge), and with
    `allowedDecrease` the ratio of the means has to be lower than that, too.

    Args:
        allowed: The ratio of means below which a decrease counts; 1: any.
    """
    reach = NormalDist().inv_cdf(0.99) * math.sqrt(BUCKETS * BUCKETS * (2 * BUCKETS + 1) / 12)
    # The confidence limit of the shift is the pairwise difference of this rank (Hollander and Wolfe, section 4.3).
    rank = BUCKETS * BUCKETS - math.floor(BUCKETS * BUCKETS / 2 - reach)

    def decide(trial: Trial) -> str:
        before, after = (_buckets(trial.boot(side).runs[0][0], trial.rng) for side in ("baseline", "candidate"))
        shifts = sorted(new - old for new in after for old in before)
        low = shifts[rank - 1] < -0.25 * abs(median(shifts))
        return "rolled_back" if low and fmean(after) / fmean(before) < allowed else "kept"

    label = "Kayenta-like, 60 buckets" if allowed == 1.0 else f"Kayenta-like, allowedDecrease {allowed:g}"
    return Gate(label, 1, 1, decide)


def _buckets(rate: float, rng: Random) -> list[float]:
    """The seconds of a run: they stray around its rate, and what strays lasts."""
    strays, stray = [], rng.gauss(0.0, BUCKET_SD)
    fresh = BUCKET_SD * math.sqrt(1 - LASTING**2)
    for _ in range(BUCKETS):
        strays.append(stray)
        stray = LASTING * stray + rng.gauss(0.0, fresh)
    return [rate * math.exp(one) for one in strays]
