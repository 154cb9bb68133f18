"""How often the throughput gate errs, and what it costs, under stated noise: `python -m evals.bench.gate`.

Every row simulates whole decisions: a baseline boot with its runs, a candidate boot with its own, more boots where the
gate asks for them, and its verdict. Our rows are `policies.judge.judge` itself with the shipped policy's criterion, its
second start and its pairs, or with what the row names instead; the others are what people use (`gates_of_others.py`).
More boots come as in a run: the candidate a second time; then, in pairs, the old setting again, after which only a
breach ends it, and the candidate after it. Noise is drawn as

    log(rate) = change + boot + drift + run

with one boot effect a boot, shared by its concurrencies, a drift that walks from run to run, and run noise. "typical"
is what we take a calm, warm machine to be (boots 1.5 %, runs 1.5 %, drift 0.4 % a run: an assumption). "H200" was
measured: five boots of one configuration at 96 in flight, boots 2.6 %, runs 2.5 %; its drift of 0.8 % a run is assumed.
"known" is what a worker's own history tells of it, where a boot's drift counts as its own; "prior" is the policy's.
Minutes count starts, warm-ups and runs, on both sides, as they were seen there (`trial.py`); each restart is one of the
minutes in which nobody is served.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Literal, NamedTuple

from agent.domain import Criterion, Noise, Phase, Reading
from evals.bench.gates_of_others import kayenta, mann_whitney, threshold
from evals.bench.trial import WORLDS, Arm, Gate, Trial, World
from policies.judge import judge
from policies.load import load

METRIC = "throughput_tokens_per_second"
CHANGES = (0.0, -0.05, -0.08, -0.10, -0.15)
"""What the simulated change really does to throughput, as a share."""

ONE_LOOK, TWO_LOOKS = 0.95, 0.97
"""Confidence of each look that leaves 5 % over all of them, where readings are looked at again after every boot that is
added (Pocock, Biometrika 64, 1977, one-sided): looking twice at 95 % errs more often than one time in twenty. The
shipped criterion asks for what leaves 5 % over all the looks that its pairs may take."""


WIDE = "margin 10 %, second start, 97 %, prior"
"""What a policy costs that asks for half as much: `bound: 0.9`, `confidence: 0.97`, no pairs."""
Side = Literal["baseline", "candidate"]


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
    pairs: int = 0,
    second: bool = False,
) -> Gate:
    """Our own judge with one criterion.

    Args:
        name: What the row is called.
        criterion: The rule.
        noise: What it takes the noise to be.
        runs: Runs at each concurrency in a boot.
        concurrencies: How many are measured.
        pairs: How often both sides are started again at most; only while nothing is settled.
        second: Start the candidate alone a second time where the first start did not settle it.
    """

    def decide(trial: Trial) -> str:
        readings: list[Reading] = []
        boots: Counter[Phase] = Counter()

        def verdict_after(side: Side) -> str:
            boots[side] += 1
            readings.extend(_readings(trial.boot(side), side, boots[side]))
            return judge([criterion], readings, noise).decision

        verdict_after("baseline")
        verdict = verdict_after("candidate")
        if verdict == "deferred" and second:
            verdict = verdict_after("candidate")
        for _ in range(pairs):
            if verdict != "deferred":
                break
            # With the old setting live there is nothing that could be kept.
            verdict = "rolled_back" if verdict_after("baseline") == "rolled_back" else verdict_after("candidate")
        return verdict

    return Gate(name, runs, concurrencies, decide)


def gates(world: World) -> tuple[Gate, ...]:
    """The gates to compare in a world; those of ours that know their noise know this world's."""
    policy = load("decode")
    shipped = next(one for one in policy.criteria if one.metric == METRIC)
    check = policy.checks.throughput
    second, most = policy.further_starts(compared=True)

    def at(confidence: float) -> Criterion:
        return shipped.model_copy(update={"confidence": confidence})

    def gate(name: str, noise: Noise, *, runs: int = check.count, pairs: int = most, concurrencies: int = 1) -> Gate:
        return ours(name, shipped, noise, runs=runs, pairs=pairs, second=second, concurrencies=concurrencies)

    known = known_noise(world, check.count)
    return (
        threshold(0.02),
        threshold(0.05),
        kayenta(),
        kayenta(allowed=0.95),
        mann_whitney(),
        ours("ours, one boot, at 95 %, known", at(ONE_LOOK), known),
        ours("ours, second start, at 97 %, known", at(TWO_LOOKS), known, second=True),
        gate("ours as shipped, known", known),
        gate("ours as shipped, prior", policy.noise),
        gate("ours as shipped, prior, 2 concurrencies", policy.noise, concurrencies=len(check.concurrency)),
        *(gate(f"ours, {pairs} pairs, known", known, pairs=pairs) for pairs in (1, 2, 6, 8) if pairs != most),
        *(
            gate(f"ours, {pairs} pairs, {runs} runs in a boot, known", known_noise(world, runs), pairs=pairs, runs=runs)
            for pairs, runs in ((most, 6), (most, 9), (6, 6))
        ),
        ours(WIDE, shipped.model_copy(update={"bound": 0.9, "confidence": TWO_LOOKS}), policy.noise, second=True),
    )


def known_noise(world: World, runs: int) -> Noise:
    """What the history of a worker in a world comes to say: its boots' means have drifted, which counts as theirs."""
    drifted = sum(((runs - step) / runs) ** 2 for step in range(runs)) * world.drift_sd**2
    return Noise(boot_sd=math.sqrt(world.boot_sd**2 + drifted), run_sd=world.run_sd, basis="the noise that is drawn")


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
