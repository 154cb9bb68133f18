"""How often the throughput gate errs, and what it costs, under stated noise: `python -m evals.bench.gate`.

Every row simulates whole decisions: a baseline boot with its runs, a candidate boot with its own, more boots where the
gate asks for them, and its verdict. Our rows are `policies.judge.judge` itself with the shipped policy or with the
margin that is named; the others are what people use instead (`gates_of_others.py`). Noise is drawn as

    log(rate) = change + boot + drift + run

with one boot effect a boot, shared by its concurrencies, a drift that walks from run to run, and run noise. "typical"
is what we take a calm, warm machine to be (boots 1.5 %, runs 1.5 %, drift 0.4 % a run: an assumption). "H200" was
measured: five boots of one configuration at 96 in flight, boots 2.6 %, runs 2.5 %; its drift of 0.8 % a run is assumed.
Minutes count starts, warm-ups and runs, on both sides, as they were seen there (`trial.py`).
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from agent.domain import Criterion, Noise, Phase, Reading
from evals.bench.gates_of_others import kayenta, mann_whitney, threshold
from evals.bench.trial import WORLDS, Arm, Gate, Trial, World
from policies.judge import judge
from policies.load import load

METRIC = "throughput_tokens_per_second"
CHANGES = (0.0, -0.05, -0.08, -0.10, -0.15)
"""What the simulated change really does to throughput, as a share."""

TWO_LOOKS, FIVE_LOOKS = 0.97, 0.983
"""Confidence of each look that leaves 5 % over all of them, where readings are looked at again after every boot that is
added (Pocock, Biometrika 64, 1977, one-sided): looking twice at 95 % errs more often than one time in twenty."""


class Rates(NamedTuple):
    """What came of many decisions."""

    verdicts: Counter[str]
    """kept, rolled_back, deferred: how many."""
    restarts: float
    """Mean number of restarts beyond the one that every change needs."""
    minutes: float
    """Mean time for starts and measurements."""


def ours(
    name: str,
    criterion: Criterion,
    noise: Noise,
    *,
    runs: int = 3,
    concurrencies: int = 1,
    pairs: int = 1,
    second: bool = False,
) -> Gate:
    """Our own judge with one criterion.

    Args:
        name: What the row is called.
        criterion: The rule.
        noise: What it takes the noise to be.
        runs: Runs at each concurrency in a boot.
        concurrencies: How many are measured.
        pairs: Boots of both sides at most; more are started only while nothing is settled.
        second: Start the candidate alone a second time where the first start did not settle it, as policy does.
    """

    def decide(trial: Trial) -> str:
        readings = [
            *_readings(trial.boot("baseline"), "baseline", 1),
            *_readings(trial.boot("candidate"), "candidate", 1),
        ]
        verdict = judge([criterion], readings, noise).decision
        if verdict == "deferred" and second:
            readings += _readings(trial.boot("candidate"), "candidate", 2)
            verdict = judge([criterion], readings, noise).decision
        for number in range(2, pairs + 1):
            if verdict != "deferred":
                break
            readings += _readings(trial.boot("baseline"), "baseline", number)
            readings += _readings(trial.boot("candidate"), "candidate", number)
            verdict = judge([criterion], readings, noise).decision
        return verdict

    return Gate(name, runs, concurrencies, decide)


def gates(world: World) -> tuple[Gate, ...]:
    """The gates to compare in a world; those of ours that know their noise know this world's."""
    policy = load("decode")
    shipped = next(one for one in policy.criteria if one.metric == METRIC)
    narrow = shipped.model_copy(update={"bound": 0.95})
    known = Noise(boot_sd=world.boot_sd, run_sd=world.run_sd, basis="the noise that is drawn")
    prior = policy.noise

    def at(confidence: float) -> Criterion:
        return narrow.model_copy(update={"confidence": confidence})

    return (
        threshold(0.02),
        threshold(0.05),
        kayenta(),
        kayenta(allowed=0.95),
        mann_whitney(),
        ours("ours, 5 % margin, noise known, one boot", narrow, known),
        ours("ours, 5 %, known, second start", narrow, known, second=True),
        ours("ours, 5 %, known, second start, at 97 %", at(TWO_LOOKS), known, second=True),
        ours("ours, 5 %, known, a pair more", narrow, known, pairs=2),
        ours("ours, 5 %, known, a pair more, at 97 %", at(TWO_LOOKS), known, pairs=2),
        ours("ours, 5 %, known, up to 5 pairs, at 98.3 %", at(FIVE_LOOKS), known, pairs=5),
        ours("the same, 9 runs in a boot", at(FIVE_LOOKS), known, pairs=5, runs=9),
        ours("ours, 5 %, prior noise, second start", narrow, prior, second=True),
        ours("ours, 5 %, prior, up to 5 pairs, at 98.3 %", at(FIVE_LOOKS), prior, pairs=5),
        ours("ours, 10 % margin, noise known, one boot", shipped, known),
        ours("ours, 10 %, known, second start", shipped, known, second=True),
        ours("ours as shipped, prior, second start", shipped, prior, second=True),
        ours("ours as shipped, at 2 concurrencies", shipped, prior, second=True, concurrencies=2),
    )


def rates(world: World, gate: Gate, change: float, decisions: int, seed: int) -> Rates:
    """Count the verdicts of many simulated decisions, and what they cost."""
    rng = random.Random(f"{seed} {world.name} {gate.name} {change}")
    trials = [Trial(world, gate, change, rng) for _ in range(decisions)]
    verdicts = Counter(gate.decide(trial) for trial in trials)
    return Rates(verdicts, fmean(trial.restarts for trial in trials) - 1, fmean(trial.seconds for trial in trials) / 60)


def table(decisions: int, seed: int) -> list[str]:
    """The table, line by line."""
    lines = [
        f"in % of {decisions} simulated decisions, by what the change really does; restarts beyond the change's own",
        f"{'noise':8} {'gate':42} {'back':>6} {'kept':>6} {'':>6} {'':>6} {'':>6} {'deferred':>8} {'':>6} {'':>6} "
        f"{'restarts':>8} {'minutes':>7}",
        f"{'':8} {'':42} {'0':>6} {'-5 %':>6} {'-8 %':>6} {'-10 %':>6} {'-15 %':>6} {'0':>8} {'-5 %':>6} {'-8 %':>6} "
        f"{'0':>8} {'0':>7}",
    ]
    for world in WORLDS:
        for gate in gates(world):
            none, *losses = (rates(world, gate, change, decisions, seed) for change in CHANGES)

            def share(seen: Rates, verdict: str) -> float:
                return 100 * seen.verdicts[verdict] / decisions

            kept = " ".join(f"{share(loss, 'kept'):6.1f}" for loss in losses)
            deferred = " ".join(f"{share(loss, 'deferred'):6.1f}" for loss in losses[:2])
            lines.append(
                f"{world.name:8} {gate.name:42} {share(none, 'rolled_back'):6.1f} {kept} "
                f"{share(none, 'deferred'):8.1f} {deferred} {none.restarts:8.2f} {none.minutes:7.1f}"
            )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table.

    Args:
        arguments: Command line without the program's name; None: the process's own.
    """
    parser = argparse.ArgumentParser(prog="python -m evals.bench.gate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--decisions", type=int, default=2000, help="simulated decisions for each cell")
    parser.add_argument("--seed", type=int, default=1, help="seed of the noise")
    parser.add_argument("--quick", action="store_true", help="50 decisions for each cell")
    wanted = parser.parse_args(arguments)
    for line in table(50 if wanted.quick else wanted.decisions, wanted.seed):
        print(line, flush=True)
    return 0


def _readings(arm: Arm, phase: Phase, boot: int) -> list[Reading]:
    return [
        Reading(
            metric=METRIC,
            phase=phase,
            value=fmean(runs),
            unit="tokens/s",
            n=len(runs),
            values=runs,
            concurrency=32 * (place + 1),
            boot=boot,
        )
        for place, runs in enumerate(arm.runs)
    ]


if __name__ == "__main__":
    raise SystemExit(main())
