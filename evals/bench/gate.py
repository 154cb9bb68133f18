"""How often the throughput gate errs, under stated noise: `python -m evals.bench.gate`.

Every row simulates whole decisions: a baseline boot with its runs, a candidate boot with its own, and the verdict of a
gate on them. Our rows are `policies.judge.judge` itself with the shipped policy or with the margin that is named; the
others are what people use instead. Noise is drawn as

    log(rate) = change + boot + drift + run

with one boot effect a boot, shared by its concurrencies, a drift that walks from run to run, and run noise. "typical"
is what we take a calm, warm machine to be (boots 1.5 %, runs 1.5 %, drift 0.4 % a run: an assumption). "H200" was
measured: five boots of one configuration at 96 in flight, boots 2.6 %, runs 2.5 %; its drift of 0.8 % a run is assumed.
A run takes as long as its burst, and a decision one restart, however many runs there are.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

from agent.domain import Criterion, Noise, Phase, Reading
from policies.judge import judge
from policies.load import load

METRIC = "throughput_tokens_per_second"
CHANGES = (0.0, -0.05, -0.08, -0.10, -0.15)
"""What the simulated change really does to throughput, as a share."""


class World(NamedTuple):
    """The noise that is drawn, as relative standard deviations."""

    name: str
    boot_sd: float
    run_sd: float
    drift_sd: float
    """Of the step from one run to the next."""


class Arm(NamedTuple):
    """What was measured in one boot: runs by concurrency, in tokens/s."""

    runs: tuple[tuple[float, ...], ...]


class Gate(NamedTuple):
    """A way to decide between two boots."""

    name: str
    runs: int
    """Runs at each concurrency in a boot."""
    concurrencies: int
    """How many concurrencies are measured."""
    decide: Callable[[Arm, Arm], str]
    """kept, rolled_back or deferred."""


WORLDS = (World("typical", 0.015, 0.015, 0.004), World("H200", 0.026, 0.025, 0.008))


def boot(world: World, gate: Gate, change: float, rng: random.Random) -> Arm:
    """Measure one simulated boot whose true rate is `1 + change` of 700 tokens/s."""
    centre = math.log(700.0) + math.log1p(change) + rng.gauss(0.0, world.boot_sd)
    drift = 0.0
    rows: list[list[float]] = [[] for _ in range(gate.concurrencies)]
    for _ in range(gate.runs):
        for row in rows:
            drift += rng.gauss(0.0, world.drift_sd)
            row.append(math.exp(centre + drift + rng.gauss(0.0, world.run_sd)))
    return Arm(tuple(tuple(row) for row in rows))


def ours(name: str, criterion: Criterion, noise: Noise, *, runs: int, concurrencies: int) -> Gate:
    """Our own judge with one criterion."""

    def decide(before: Arm, after: Arm) -> str:
        readings = [*_readings(before, "baseline"), *_readings(after, "candidate")]
        return judge([criterion], readings, noise).decision

    return Gate(name, runs, concurrencies, decide)


def threshold(loss: float) -> Gate:
    """Roll back when one run is lower than another by more than a fixed share."""

    def decide(before: Arm, after: Arm) -> str:
        return "rolled_back" if after.runs[0][0] < before.runs[0][0] * (1 - loss) else "kept"

    return Gate(f"threshold {loss:.0%}, one run each", 1, 1, decide)


def mann_whitney() -> Gate:
    """Roll back when five runs rank below five others; the one-sided 5 % point of U for 5 and 5 is 4."""

    def decide(before: Arm, after: Arm) -> str:
        above = sum(new > old for new in after.runs[0] for old in before.runs[0])
        return "rolled_back" if above <= 4 else "kept"

    return Gate("Mann-Whitney, 5 runs, one boot each", 5, 1, decide)


def gates(world: World) -> tuple[Gate, ...]:
    """The gates to compare in a world; those of ours that know their noise know this world's."""
    policy = load("decode")
    criterion = next(one for one in policy.criteria if one.metric == METRIC)
    narrow = criterion.model_copy(update={"bound": 0.95})
    known = Noise(boot_sd=world.boot_sd, run_sd=world.run_sd, basis="the noise that is drawn")
    return (
        threshold(0.02),
        threshold(0.05),
        mann_whitney(),
        ours("ours, 5 % margin, noise known, 3 runs", narrow, known, runs=3, concurrencies=1),
        ours("ours, 10 % margin, noise known, 3 runs", criterion, known, runs=3, concurrencies=1),
        ours("ours as shipped, no history, 3 runs", criterion, policy.noise, runs=3, concurrencies=1),
        ours("ours as shipped, at 2 concurrencies", criterion, policy.noise, runs=3, concurrencies=2),
    )


def rates(world: World, gate: Gate, change: float, decisions: int, seed: int) -> Counter[str]:
    """Count the verdicts of many simulated decisions."""
    rng = random.Random(f"{seed} {world.name} {gate.name} {change}")
    return Counter(gate.decide(boot(world, gate, 0.0, rng), boot(world, gate, change, rng)) for _ in range(decisions))


def table(decisions: int, seed: int) -> list[str]:
    """The table, line by line."""
    heads = " ".join(f"{f'{change:+.0%}' if change else '0 %':>17}" for change in CHANGES)
    lines = [
        f"kept/rolled back/deferred, in % of {decisions} simulated decisions, by what the change really does",
        f"{'noise':8} {'gate':40} {heads}",
    ]
    for world in WORLDS:
        for gate in gates(world):
            cells = []
            for change in CHANGES:
                counts = rates(world, gate, change, decisions, seed)
                shares = [100 * counts[verdict] / decisions for verdict in ("kept", "rolled_back", "deferred")]
                cells.append(f"{'/'.join(f'{share:.1f}' for share in shares):>17}")
            lines.append(f"{world.name:8} {gate.name:40} {' '.join(cells)}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table.

    Args:
        arguments: Command line without the program's name; None: the process's own.
    """
    parser = argparse.ArgumentParser(prog="python -m evals.bench.gate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--decisions", type=int, default=2000, help="simulated decisions for each cell")
    parser.add_argument("--seed", type=int, default=1, help="seed of the noise")
    wanted = parser.parse_args(arguments)
    for line in table(wanted.decisions, wanted.seed):
        print(line, flush=True)
    return 0


def _readings(arm: Arm, phase: Phase) -> list[Reading]:
    return [
        Reading(
            metric=METRIC,
            phase=phase,
            value=fmean(runs),
            unit="tokens/s",
            n=len(runs),
            values=runs,
            concurrency=32 * (place + 1),
        )
        for place, runs in enumerate(arm.runs)
    ]


if __name__ == "__main__":
    raise SystemExit(main())
