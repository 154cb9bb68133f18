"""The throughput gate errs as rarely as it claims, under simulated noise."""

from __future__ import annotations

import pytest

from evals.bench.gate import WORLDS, Gate, World, gates, main, rates

TYPICAL, H200 = WORLDS


def _gate(world: World, name: str) -> Gate:
    return next(gate for gate in gates(world) if gate.name.startswith(name))


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_a_gate_that_knows_its_noise_keeps_its_promise(world: World) -> None:
    """With the noise known, about one change in twenty is taken back wrongly or kept at the margin, not more."""
    for name, margin in (("ours, 5 %", -0.05), ("ours, 10 %", -0.10)):
        gate = _gate(world, name)

        assert rates(world, gate, 0.0, 500, seed=1)["rolled_back"] <= 0.08 * 500
        assert rates(world, gate, margin, 500, seed=1)["kept"] <= 0.08 * 500


def test_it_errs_less_than_what_people_use() -> None:
    """A plain threshold and a rank test on one boot take back more than three times as many harmless changes."""
    ours = rates(TYPICAL, _gate(TYPICAL, "ours, 5 %"), 0.0, 500, seed=1)["rolled_back"]
    naive = rates(TYPICAL, _gate(TYPICAL, "threshold 2%"), 0.0, 500, seed=1)["rolled_back"]
    ranks = rates(TYPICAL, _gate(TYPICAL, "Mann-Whitney"), 0.0, 500, seed=1)["rolled_back"]

    assert min(naive, ranks) > 3 * ours


def test_the_shipped_policy_does_not_keep_a_large_loss() -> None:
    """Without any history, on noise as it was measured, a loss of 15 % is kept in fewer than one of a hundred runs."""
    for name in ("ours as shipped, no history", "ours as shipped, at 2"):
        assert rates(H200, _gate(H200, name), -0.15, 500, seed=1)["kept"] < 5


def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """One command prints a row for each gate in each world, every cell adding up to all decisions."""
    assert main(["--decisions", "10"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + sum(len(gates(world)) for world in WORLDS)
    for line in lines[2:]:
        for cell in line.split()[-5:]:
            assert sum(float(share) for share in cell.split("/")) == pytest.approx(100, abs=0.2)
