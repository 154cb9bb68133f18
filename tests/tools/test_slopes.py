"""Series of samples: what rises, what decays, and what is only noise."""

from __future__ import annotations

import random

import pytest

from tools.slopes import blocks, loss, rise


def _noisy(slope: float, seed: int, n: int = 300) -> list[tuple[float, float]]:
    rng = random.Random(seed)
    return [(float(x), 5 + slope * x + rng.gauss(0, 0.5)) for x in range(n)]


def test_a_slope_is_found():
    """The estimate is near the truth, and its lower end below it."""
    found = rise(_noisy(0.02, 1))

    assert found is not None
    assert found[0] == pytest.approx(0.02, rel=0.1)
    assert 0 < found[1] < found[0]


def test_noise_is_seldom_called_a_rise():
    """Of five hundred flat series about one in twenty lies above zero at its lower end."""
    risen = sum(1 for seed in range(500) if (found := rise(_noisy(0.0, seed))) is not None and found[1] > 0)

    assert risen <= 45


def test_noise_is_seldom_called_a_loss():
    """The same for a rate that does not decay, and a loss of a fifth is found."""
    rng = random.Random(2)
    lost = 0
    for _ in range(500):
        first, last = ([rng.gauss(100, 8) for _ in range(30)] for _ in range(2))
        found = loss(first, last)
        assert found is not None
        lost += found[1] > 0
    real = loss([rng.gauss(100, 8) for _ in range(30)], [rng.gauss(80, 8) for _ in range(30)])

    assert lost <= 45
    assert real is not None
    assert real[1] > 0.1


@pytest.mark.parametrize("samples", [[], [(0.0, 1.0)] * 3, [(1.0, 2.0)] * 20])
def test_too_little_says_nothing(samples: list[tuple[float, float]]):
    """A few samples, or samples of one moment, have no slope."""
    assert rise(samples) is None


def test_blocks_hold_every_sample():
    """A long series becomes means of neighbours, and none is left out."""
    cut = blocks([(float(x), float(x)) for x in range(120)])

    assert len(cut) == 12
    assert cut[0] == (4.5, 4.5)
    assert cut[-1] == (114.5, 114.5)
