"""What the matrices have found stays mended, whichever tenth a day takes."""

from __future__ import annotations

import pytest

from evals.bench import matrix_crash, matrix_link
from evals.bench.matrix_points import Point

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("bump | helper open #1 | late", id="an opening that arrives after the run was called untouched"),
        pytest.param("bump | helper status #1 | empty", id="a host that does not say how the change stands"),
    ],
)
def test_a_link_that_fails_there_ends_in_the_truth(under, point):
    """The run ends with a record that is true, and does not break off."""
    assert matrix_link.check(under, Point("link", point, mutating=True)) is None


@pytest.mark.parametrize(
    "point", [pytest.param("bump | store append #1 | after", id="a lease that the owner who died has left")]
)
def test_an_agent_that_dies_there_leaves_nothing_behind(under, point):
    """The run ends with a record that is true, and nobody holds the lease."""
    assert matrix_crash.check(under, Point("crash", point, mutating=True)) is None
