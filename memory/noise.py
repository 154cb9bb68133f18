"""How much a worker's throughput differs between boots and between runs, from its own history.

One model: the logarithm of a throughput is its configuration's and concurrency's level, plus a boot's shift, plus a
run's own scatter. The two scatters are estimated by their sums of squares and then raised to a one-sided upper
bound, because a gate that believes a noise which is too small keeps what it should not.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from agent.domain import Execution, Noise, Phase, Process, Reading, Record
from memory.store import Baseline

METRIC = "throughput_tokens_per_second"
PHASES: frozenset[Phase] = frozenset({"baseline", "restored"})
"""What counts as history of a configuration. Changed boots do not: only those that were fast enough were kept."""
HISTORY = 2000
"""Throughputs of a worker to look back on, about 200 records: enough for dozens of boots, and what its hardware once
was ages out."""
FEWEST_BOOTS = 3
"""Boots of one configuration below which there is no estimate: two boots have one degree of freedom."""
CONFIDENCE = 0.80
"""Level of the upper bound. At 80 % and two degrees of freedom or more the factor is at least the one by which
Student's t exceeds the normal quantile at 95 %, so that a comparison which takes the result as known keeps its 95 %."""


class Boot(NamedTuple):
    """The throughput of one boot of one configuration."""

    configuration: str
    """Hash of its arguments and of the variables that were asked for."""
    runs: dict[int, list[float]]
    """Tokens/s of the single runs by concurrency."""


def baselines_of(record: Record, readings: Sequence[Reading]) -> tuple[Baseline, ...]:
    """Tell of each measurement of a run which boot of which configuration it was taken on.

    Args:
        record: The record.
        readings: What its run kept while it went on.
    """
    done = record.execution
    again = {} if done is None else _started_again(record, done)
    of_phase: Mapping[Phase, Process | None] = (
        {}
        if done is None
        else {
            "baseline": done.before,
            "candidate": done.after if done.state == "committed" else None,
            "restored": done.after if done.state == "undone" else None,
        }
    )
    found = []
    # What a run keeps while it goes on has one place for each phase; the record has every boot.
    every = {(one.metric, one.phase, one.concurrency, one.boot): one for one in (*record.readings, *readings)}
    for reading in every.values():
        process = of_phase.get(reading.phase)
        if reading.phase == "baseline" and reading.boot > 1:
            who = again.get(reading.boot, "")
        else:
            who = "" if process is None else ":".join(map(str, process.identity))
        found.append(
            Baseline(record.run, record.seq, reading, who, "" if process is None else configuration_of(process))
        )
    return tuple(found)


def _started_again(record: Record, done: Execution) -> dict[int, str]:
    """The processes that ran the old setting again while a change was verified, by the boot of the baseline."""
    found, boot, old = {}, 1, False
    started = {entry.step: entry.detail.get("process") for entry in done.journal if entry.event == "done"}
    for step in record.plan.steps if record.plan else ():
        if step.action != "restart":
            old = step.action == "restore_script"
        elif old:
            boot += 1
            process = started.get(step.id)
            if process:
                found[boot] = ":".join(str(process[name]) for name in ("boot_id", "pid", "start_ticks"))
    return found


def configuration_of(process: Process) -> str:
    """A hash that is equal for equal arguments and variables."""
    text = json.dumps([process.argv, sorted(process.environ.items())])
    return hashlib.sha256(text.encode()).hexdigest()


def boots(history: Iterable[Baseline]) -> tuple[Boot, ...]:
    """Collect the boots that were measured before a change or after it was taken back.

    Args:
        history: Measurements of one worker; what does not name its process is left out.
    """
    found: dict[str, Boot] = {}
    for measured in history:
        reading = measured.reading
        if (
            not measured.process
            or reading.phase not in PHASES
            or reading.metric != METRIC
            or reading.no_data is not None
        ):
            continue
        values = reading.values or (() if reading.value is None else (reading.value,))
        good = [value for value in values if math.isfinite(value) and value > 0]
        boot = found.setdefault(measured.process, Boot(measured.configuration, defaultdict(list)))
        boot.runs[reading.concurrency or 0].extend(good)
    return tuple(found.values())


def noise_of(history: Iterable[Baseline]) -> Noise | None:
    """Estimate both noises from a worker's history.

    Configurations with fewer than `FEWEST_BOOTS` boots do not count. Concurrencies of one boot share its shift, so
    they are averaged and add no degrees of freedom.

    Args:
        history: Measurements of one worker.

    Returns:
        The noises as relative standard deviations; None: too few boots, or no boot with repeated runs.
    """
    groups: dict[object, list[Boot]] = defaultdict(list)
    for boot in boots(history):
        if any(boot.runs.values()):
            groups[boot.configuration].append(boot)
    groups = {configuration: members for configuration, members in groups.items() if len(members) >= FEWEST_BOOTS}
    within, within_df = _within(groups.values())
    between, between_df, runs_per_boot = _between(groups.values())
    if within_df < 2 or between_df < 2:
        return None
    run_variance = within / within_df
    run_sd = math.sqrt(within / chi_square_quantile(1 - CONFIDENCE, within_df))
    means = between / chi_square_quantile(1 - CONFIDENCE, between_df)
    boot_sd = math.sqrt(max(0.0, means - run_variance / runs_per_boot))
    counted = sum(len(members) for members in groups.values())
    concurrencies = sorted({level for members in groups.values() for boot in members for level in boot.runs if level})
    return Noise(
        boot_sd=boot_sd,
        run_sd=run_sd,
        basis=f"this worker's own history: {counted} boots of {len(groups)} configuration(s) at concurrency "
        f"{', '.join(map(str, concurrencies)) or 'unknown'}, at the {CONFIDENCE:.0%} upper bound",
    )


def chi_square_quantile(probability: float, df: int) -> float:
    """Quantile of the chi-square distribution.

    The lower regularized gamma function as its power series (Abramowitz and Stegun 6.5.29), inverted by bisection;
    good to about 1e-9 for the degrees of freedom met here.

    Args:
        probability: Share of the distribution below the quantile, between 0 and 1, both excluded.
        df: Degrees of freedom, at least 1.
    """
    low, high = 0.0, float(df)
    while _chi_square_below(high, df) < probability:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        if _chi_square_below(middle, df) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _chi_square_below(x: float, df: int) -> float:
    shape, at = df / 2, x / 2
    if at <= 0:
        return 0.0
    term = total = 1 / shape
    step = shape
    while term > total * 1e-15:
        step += 1
        term *= at / step
        total += term
    return min(1.0, total * math.exp(-at + shape * math.log(at) - math.lgamma(shape)))


def _within(groups: Iterable[Sequence[Boot]]) -> tuple[float, int]:
    """Sum of squares of the runs about their boot's mean, and its degrees of freedom."""
    squares, df = 0.0, 0
    for members in groups:
        for boot in members:
            for values in boot.runs.values():
                logs = [math.log(value) for value in values]
                if len(logs) > 1:
                    mean = fmean(logs)
                    squares += math.fsum((log - mean) ** 2 for log in logs)
                    df += len(logs) - 1
    return squares, df


def _between(groups: Iterable[Sequence[Boot]]) -> tuple[float, int, float]:
    """Sum of squares of boot means, averaged over concurrencies, its degrees of freedom, and runs in a mean."""
    squares, df = 0.0, 0
    counts: list[int] = []
    for members in groups:
        levels = {level for boot in members for level in boot.runs}
        of_level: list[tuple[float, int]] = []
        for level in levels:
            samples = [boot.runs[level] for boot in members if boot.runs.get(level)]
            if len(samples) < FEWEST_BOOTS:
                continue
            means = [fmean(math.log(value) for value in sample) for sample in samples]
            middle = fmean(means)
            of_level.append((math.fsum((mean - middle) ** 2 for mean in means), len(means) - 1))
            counts.extend(len(sample) for sample in samples)
        if of_level:
            least = min(level_df for _, level_df in of_level)
            squares += least * fmean(level_squares / level_df for level_squares, level_df in of_level)
            df += least
    runs_per_boot = len(counts) / math.fsum(1 / count for count in counts) if counts else 1.0
    return squares, df, runs_per_boot
