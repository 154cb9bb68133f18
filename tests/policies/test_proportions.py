"""The exact bounds on shares, against published figures and against the binomial itself."""

from __future__ import annotations

import math

import pytest

from policies.proportions import lower, needed, upper


@pytest.mark.parametrize(
    ("bound", "confidence", "sizes"),
    [
        (0.10, 0.90, (22, 38, 52)),
        (0.10, 0.95, (29, 46, 61)),
        (0.10, 0.99, (44, 64, 81)),
        (0.03, 0.90, (76, 129, 176)),
        (0.03, 0.95, (99, 157, 208)),
        (0.03, 0.99, (152, 219, 277)),
        (0.01, 0.90, (230, 388, 531)),
        (0.01, 0.95, (299, 473, 628)),
        (0.01, 0.99, (459, 662, 838)),
        (0.003, 0.90, (767, 1296, 1773)),
        (0.003, 0.95, (998, 1580, 2097)),
        (0.003, 0.99, (1533, 2210, 2799)),
        (0.001, 0.90, (2302, 3889, 5321)),
        (0.001, 0.95, (2995, 4742, 6294)),
        (0.001, 0.99, (4603, 6636, 8403)),
    ],
)
def test_sample_sizes_of_the_table(bound: float, confidence: float, sizes: tuple[int, int, int]) -> None:
    """The smallest samples that show a share with none, one and two bad ones are those of Clopper and Pearson."""
    assert tuple(needed(bound, confidence, bad) for bad in range(3)) == sizes


@pytest.mark.parametrize(("bad", "n"), [(0, 1), (0, 99), (1, 99), (3, 20), (15, 99), (19, 20), (250, 300)])
def test_bounds_leave_the_tail_that_they_promise(bad: int, n: int) -> None:
    """At the upper bound so few bad ones, and at the lower so many, come up in just one case of twenty."""

    def probability(counts: range, share: float) -> float:
        return sum(math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in counts)

    assert probability(range(bad + 1), upper(bad, n, 0.95)) == pytest.approx(0.05, rel=1e-9)
    if bad:
        assert probability(range(bad, n + 1), lower(bad, n, 0.95)) == pytest.approx(0.05, rel=1e-9)
    else:
        assert lower(bad, n, 0.95) == 0


@pytest.mark.parametrize("n", [1, 7, 99, 10_000_000])
def test_the_ends(n: int) -> None:
    """All bad leaves no upper bound and all good no lower one, for any sample."""
    assert upper(n, n, 0.95) == 1
    assert lower(0, n, 0.95) == 0
    assert 0 < upper(0, n, 0.95) < 1


def test_large_samples_approach_the_normal_bound() -> None:
    """Ten million samples give the bound that the normal approximation predicts, and give it at once."""
    n, bad = 10_000_000, 1_000_000
    normal = 0.1 + 1.6448536 * math.sqrt(0.1 * 0.9 / n)

    assert upper(bad, n, 0.95) == pytest.approx(normal, abs=1e-6)
