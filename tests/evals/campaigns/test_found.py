"""What the matrices have found stays mended, whichever tenth a day takes."""

from __future__ import annotations

import pytest

from evals.bench import matrix_crash, matrix_helper, matrix_late, matrix_link
from evals.bench.matrix_points import Point
from evals.campaigns.oracle import stored

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("bump | helper open #1 | late", id="an opening that arrives after the run was called untouched"),
        pytest.param("bump | helper status #1 | down", id="a host that does not say how the change stands"),
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


@pytest.mark.parametrize("look", ["observe #12", "status #2"])
def test_a_question_that_is_lost_once_costs_no_change(under, look):
    """What only asks is asked again, with the change in place: it is kept, and the record tells of the link."""
    with under.ground() as ground:
        end = matrix_link.carried(under, ground, Point("link", f"bump | helper {look} | dropped after", mutating=False))
        assert not isinstance(end, str), end
        assert end.decision == "kept", end
        record, _ = stored(ground, matrix_link.RUN)
    assert record is not None
    verb = look.split()[0]
    assert [note for note in record.notes if note.startswith(f"The host was asked again ({verb})")], record.notes


def test_an_opening_of_a_dead_agent_that_arrives_late_opens_nothing(under):
    """Whoever resumed with an approval that had run out has fenced it off before it said that nothing was touched."""
    point = Point("late", "bump | helper open #1 | expired | 1", mutating=True)
    assert matrix_late.check(under, point) is None


def test_an_undo_whose_helper_dies_after_the_restart_is_proven_when_it_is_asked_again(under):
    """The start that restored the worker lies before the second call then, and is proof all the same."""
    undoing = [point for point in matrix_helper.points(under) if "| helper undo #1 |" in point.id]
    last = [point for point in undoing if point.id.endswith("alone")][-4:]
    assert [matrix_helper.check(under, point) for point in last] == [None] * 4
