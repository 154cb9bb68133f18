"""A criterion against the baseline that was measured just before the change.

Throughput is compared as the logarithm of the ratio of two means. The unit of inference is the boot: each side is the
mean over its boots of the logarithm of the boot's mean, and with b boots on a side and r runs in each of them the
standard error is the root of the sum over both sides of

    boot_sd**2 / b + run_sd**2 / b**2 * (1/r_1 + ... + 1/r_b)

because a restart alone moves throughput. Repeating runs in one boot shrinks only the second term.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean
from typing import NamedTuple

from agent.domain import Criterion, Noise, Reading
from policies import wording
from policies.metrics import Metric
from policies.part import Part, holds, measured, silence

Boots = tuple[Reading, ...]
"""One reading for each boot; none where nobody measured."""
Pair = tuple[Boots, Boots]
"""Baseline and candidate."""
Pairs = Mapping[int | None, Pair]
"""Baseline and candidate by concurrency."""


LARGEST_RATE = 1e12
"""Nothing serves more tokens a second; beyond it a number is not believed."""


class Ratio(NamedTuple):
    """What two means say about the change at one concurrency."""

    estimate: float
    """Logarithm of candidate over baseline."""
    error: float
    """Its standard error."""


def judge_amounts(criterion: Criterion, metric: Metric, pairs: Pairs) -> list[Part]:
    """Compare plain amounts with a factor on the baseline, without noise."""
    parts = []
    for where, (before, after) in pairs.items():
        for reading in after or (None,):
            again = f" (start {reading.boot})" if reading is not None and reading.boot > 1 else ""
            what = f"{metric.title}{wording.at(where)}{again}"
            trouble = _unpaired(criterion, what, before[:1], () if reading is None else (reading,), runs=False)
            if trouble is not None:
                parts.append(trouble)
                continue
            old, new = measured(before[0]), measured(reading)
            good = holds(criterion, new, criterion.bound * old)
            unit = f" {metric.unit}".rstrip()
            says = (
                f"{what}: {wording.number(new)}{unit} after {wording.number(old)}{unit}, "
                f"{wording.bound(criterion)} is asked"
            )
            parts.append(Part("met" if good else "breached", says))
    return parts


def judge_rates(criterion: Criterion, metric: Metric, pairs: Pairs, noise: Noise | None) -> list[Part]:
    """Compare rates with a factor on the baseline, allowing for the noise of boots and runs.

    Met at a concurrency where the one-sided bound lies on the good side of the factor. All of them have to be met, so
    no correction is needed for keeping: the worst gates. Where noise is so small that a loss is both proven and proven
    to be within the margin, it is within what was approved, and met. Any other loss that is proven is a breach, by
    Holm's step-down over the concurrencies, which keeps a change that loses nothing from being taken back because one
    of many comparisons strayed; such an estimate always lies beyond half of the margin. The rest is undecided.
    """
    confidence = criterion.confidence if criterion.confidence is not None else 0.95
    parts: dict[int | None, Part] = {}
    ratios: dict[int | None, Ratio] = {}
    for where, (before, after) in pairs.items():
        what = f"{metric.title}{_place(where)}"
        trouble = _unpaired(criterion, what, before, after, runs=True) or _noise_trouble(noise, what)
        if trouble is not None:
            parts[where] = trouble
            continue
        assert noise is not None
        ratios[where] = _compare(before, after, noise)
    losses = _proven_losses(criterion, ratios, len(pairs), 1.0 - confidence)
    for where, ratio in ratios.items():
        parts[where] = _weigh(criterion, metric, where, ratio, confidence, lost=where in losses)
    return [parts[where] for where in pairs]


def _compare(before: Boots, after: Boots, noise: Noise) -> Ratio:
    if any(measured(reading) == 0 for reading in after):
        return Ratio(-math.inf, 0.0)
    run_sd = max(noise.run_sd, _scatter(*before, *after))
    variance = sum(
        noise.boot_sd**2 / len(boots) + run_sd**2 / len(boots) ** 2 * sum(1 / reading.n for reading in boots)
        for boots in (before, after)
    )
    old, new = (fmean(math.log(measured(reading)) for reading in boots) for boots in (before, after))
    return Ratio(new - old, math.sqrt(variance))


def _scatter(*readings: Reading) -> float:
    """Pooled standard deviation of the logarithms of the runs at hand; 0 where there are too few.

    It can only widen the bounds: on one H200 a slow burst in each boot made short runs at 64 in flight scatter by
    5.8 % where those at 96 scattered by 2.5 %, and a worker's history may never have seen such a day.
    """
    squares, freedom = 0.0, 0
    for reading in readings:
        if len(reading.values) > 1:
            logarithms = [math.log(value) for value in reading.values]
            centre = fmean(logarithms)
            squares += sum((value - centre) ** 2 for value in logarithms)
            freedom += len(logarithms) - 1
    return math.sqrt(squares / freedom) if freedom else 0.0


def _good(criterion: Criterion, ratio: Ratio) -> float:
    """The estimate, turned so that more is better."""
    return ratio.estimate if criterion.comparison == "at_least" else -ratio.estimate


def _proven_losses(
    criterion: Criterion, ratios: Mapping[int | None, Ratio], family: int, alpha: float
) -> set[int | None]:
    """The concurrencies at which Holm's procedure, over a family that may be larger, rejects "nothing was lost"."""
    threshold = max(_asked(criterion), 0.0)
    chances = sorted(
        ((_chance(_good(criterion, ratio) - threshold, ratio.error), where) for where, ratio in ratios.items()),
        key=lambda pair: pair[0],
    )
    losses: set[int | None] = set()
    for rank, (chance, where) in enumerate(chances):
        if chance > alpha / (family - rank):
            break
        losses.add(where)
    return losses


def _chance(distance: float, error: float) -> float:
    """Probability of an estimate so low or lower if the truth were at the threshold."""
    if error > 0 and math.isfinite(distance):
        return NormalDist().cdf(distance / error)
    return 0.0 if distance < 0 else 1.0


def _asked(criterion: Criterion) -> float:
    """The logarithm of the bound, turned so that more is better; negative: a loss up to it is tolerated."""
    logarithm = math.log(criterion.bound)
    return logarithm if criterion.comparison == "at_least" else -logarithm


def _weigh(
    criterion: Criterion, metric: Metric, where: int | None, ratio: Ratio, confidence: float, *, lost: bool
) -> Part:
    what = f"{metric.title}{_place(where)}"
    if not math.isfinite(ratio.estimate):
        return Part("breached", f"{what}: nothing came after the change")
    reach = NormalDist().inv_cdf(confidence) * ratio.error
    low, high = ratio.estimate - reach, ratio.estimate + reach
    seen = f"{what}: {wording.gain(ratio.estimate)} ({wording.interval(low, high, confidence)})"
    asked = (
        f"{'at least' if criterion.comparison == 'at_least' else 'at most'} {wording.gain(math.log(criterion.bound))}"
    )
    worst_end = low if criterion.comparison == "at_least" else -high
    if worst_end > _asked(criterion):
        return Part("met", seen)
    if lost:
        return Part("breached", f"{seen}, a loss that noise does not explain; {asked} is asked")
    return Part("undecided", f"{seen}, which does not settle it; {asked} is asked")


def _place(where: int | None) -> str:
    return "" if where is None else f" at {where}"


def _unpaired(criterion: Criterion, what: str, before: Boots, after: Boots, *, runs: bool) -> Part | None:
    """Why two sides cannot be compared; None where they can."""
    for boots, when in ((before, "before the change"), (after, "with the change")):
        for reading in boots or (None,):
            silent = silence(reading, f"{what} {when}")
            if silent is not None:
                return silent
    units = dict.fromkeys(reading.unit for reading in (*before, *after))
    if len(units) > 1:
        return Part("undecided", f"{what}: {' and '.join(map(repr, units))} are not one unit")
    for reading in before:
        for other in after:
            old, new = measured(reading), measured(other)
            if not 0 < old <= LARGEST_RATE or not 0 <= new <= LARGEST_RATE:
                return Part("undecided", f"{what}: {wording.number(new)} after {wording.number(old)} is not a ratio")
    if not runs:
        return None
    for reading in (*before, *after):
        trouble = flawed_runs(criterion, reading, what)
        if trouble is not None:
            return trouble
    return None


def flawed_runs(criterion: Criterion, reading: Reading, what: str) -> Part | None:
    """Why a mean of runs cannot be believed or does not suffice; None where it does."""
    if reading.n < max(criterion.minimum_n, 1):
        return Part("undecided", f"{what}: {reading.n} runs, {max(criterion.minimum_n, 1)} are needed")
    if reading.value == 0 or not reading.values:
        return None
    if not all(0 < value <= LARGEST_RATE for value in reading.values):
        return Part("undecided", f"{what}: one of the runs is not a rate")
    mean = fmean(reading.values)
    if len(reading.values) != reading.n or abs(measured(reading) - mean) > 0.005 * mean:
        return Part("undecided", f"{what}: the reading contradicts itself, its value is not the mean of its runs")
    return None


def _noise_trouble(noise: Noise | None, what: str) -> Part | None:
    if noise is None:
        return Part("undecided", f"{what}: how much boots and runs differ is not known")
    if not all(math.isfinite(sd) and 0 <= sd < 10 for sd in (noise.boot_sd, noise.run_sd)):
        return Part("undecided", f"{what}: {noise.boot_sd} and {noise.run_sd} are not noise")
    return None


def by_boot(readings: Sequence[Reading], what: str) -> tuple[Boots, Part | None]:
    """One reading for each boot, in their order; a part where two of one boot contradict each other."""
    boots: list[Reading] = []
    for boot in sorted({reading.boot for reading in readings}):
        one, quarrel = one_of([reading for reading in readings if reading.boot == boot], what)
        if quarrel is not None:
            return (), quarrel
        if one is not None:
            boots.append(one)
    return tuple(boots), None


def one_of(readings: Sequence[Reading], what: str) -> tuple[Reading | None, Part | None]:
    """The one reading among repeats; a part where they contradict each other."""
    distinct: list[Reading] = []
    for reading in readings:
        if not any(_same(reading, other) for other in distinct):
            distinct.append(reading)
    if len(distinct) > 1:
        return None, Part("undecided", f"{what}: {len(distinct)} readings that contradict each other")
    return (distinct[0] if distinct else None), None


def _same(one: Reading, other: Reading) -> bool:
    """Equal in all that is measured; two NaN are equal here, so that a repeat of one stays a repeat."""
    facts = [
        (repr(reading.value), reading.n, reading.bad, repr(reading.values), reading.no_data, reading.unit)
        for reading in (one, other)
    ]
    return facts[0] == facts[1]
