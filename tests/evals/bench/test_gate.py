"""The throughput gate errs as rarely as it claims, under simulated noise."""

from __future__ import annotations

import random

import pytest

from evals.bench.gate import gates, main, rates
from evals.bench.trial import WORLDS, Gate, Trial, World

TYPICAL, H200 = WORLDS


def _gate(world: World, name: str) -> Gate:
    return next(gate for gate in gates(world) if gate.name.startswith(name))


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
@pytest.mark.parametrize("name", ["ours, one boot", "ours as shipped, known"])
def test_a_gate_that_knows_its_noise_keeps_its_promise(world: World, name: str) -> None:
    """With the noise known, about one change in twenty is taken back wrongly or kept at the margin, not more."""
    gate = _gate(world, name)

    assert rates(world, gate, 0.0, 500, seed=1).verdicts["rolled_back"] <= 0.08 * 500
    assert rates(world, gate, -0.05, 500, seed=1).verdicts["kept"] <= 0.08 * 500
    assert rates(world, gate, -0.08, 500, seed=1).verdicts["kept"] <= 0.015 * 500


def test_pairs_settle_what_one_boot_leaves_open() -> None:
    """What ships settles more than nine of ten at the typical noise where one boot leaves four of ten open."""
    once, shipped = _gate(TYPICAL, "ours, one boot"), _gate(TYPICAL, "ours as shipped, known")

    for change in (0.0, -0.05):
        assert rates(TYPICAL, once, change, 300, seed=1).verdicts["deferred"] > 0.3 * 300
        assert rates(TYPICAL, shipped, change, 300, seed=1).verdicts["deferred"] < 0.1 * 300


def test_it_errs_less_than_what_people_use() -> None:
    """A plain threshold and rank tests on one boot take back more than three times as many harmless changes."""
    ours = rates(TYPICAL, _gate(TYPICAL, "ours, one boot"), 0.0, 500, seed=1).verdicts["rolled_back"]

    for name in ("threshold 2%", "Mann-Whitney", "Kayenta-like, 60"):
        assert rates(TYPICAL, _gate(TYPICAL, name), 0.0, 300, seed=1).verdicts["rolled_back"] / 300 > 3 * ours / 500


def test_the_shipped_policy_does_not_keep_a_large_loss() -> None:
    """Without any history, on noise as it was measured, a loss of 15 % is kept in fewer than one of a hundred runs."""
    for name in ("ours as shipped, prior", "ours as shipped, prior, 2"):
        assert rates(H200, _gate(H200, name), -0.15, 300, seed=1).verdicts["kept"] < 3


def test_only_what_is_open_costs_another_start() -> None:
    """A gate that asks for no more boots costs none; a second start costs one where the first left it open."""
    assert rates(TYPICAL, _gate(TYPICAL, "threshold 2%"), 0.0, 20, seed=1).restarts == 0

    gate = _gate(TYPICAL, "ours, second start")
    trials = [Trial(TYPICAL, gate, 0.0, random.Random(seed)) for seed in range(40)]
    for trial in trials:
        gate.decide(trial)

    assert {trial.restarts for trial in trials} == {1, 2}

    gate = _gate(TYPICAL, "ours as shipped, known")
    trials += [Trial(TYPICAL, gate, 0.0, random.Random(seed)) for seed in range(40)]
    for trial in trials[40:]:
        gate.decide(trial)
    assert {1, 2, 4} <= {trial.restarts for trial in trials} <= {*range(1, 11)}
    assert all(trial.seconds > 60 * trial.restarts for trial in trials)


def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """One command prints a row for each gate in each world; what is not taken back or deferred at 0 is kept."""
    assert main(["--decisions", "10"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 + sum(len(gates(world)) for world in WORLDS)
    for line in lines[3:]:
        back, *kept, deferred, _, _, restarts, minutes = (float(cell) for cell in line[51:].split())
        assert 0 <= back + deferred <= 100
        assert kept[0] >= kept[-1]
        assert restarts >= 0
        assert minutes > 1
