"""A link that fails at one call: what arrives, and what the agent hears of it."""

from __future__ import annotations

import pytest

from agent.errors import NoAnswer
from evals.bench.matrix_points import Point, share
from evals.campaigns.faulty import DOWN_CALLS, FaultyHost
from evals.campaigns.mortal import Act, Fate
from tools.host import Completed
from tools.scripted import ScriptedHost

SECOND = Act("run echo", 2)


def linked(failure) -> tuple[FaultyHost, ScriptedHost]:
    """A host behind a link that fails at the second call."""
    real = ScriptedHost(lambda argv, stdin: Completed(0, b"0123456789", b""))
    return FaultyHost(real, Fate(), SECOND, failure), real


def said(host: FaultyHost) -> bytes:
    """Make a call."""
    return host.run(["echo", "x"], timeout=5).stdout


@pytest.mark.parametrize(("failure", "arrives"), [("dropped before", 1), ("dropped after", 2), ("down", 1)])
def test_a_drop_is_no_answer_and_arrives_or_not(failure, arrives):
    """Before sending nothing reaches the host, after it everything does; the agent hears nothing either way."""
    host, real = linked(failure)
    assert said(host) == b"0123456789"
    with pytest.raises(NoAnswer):
        said(host)
    assert len(real.calls) == arrives


def test_a_late_call_arrives_after_the_next_one():
    """It was given up, and is carried out all the same when nobody waits any more."""
    host, real = linked("late")
    said(host)
    with pytest.raises(NoAnswer):
        said(host)
    assert len(real.calls) == 1
    said(host)
    assert len(real.calls) == 3


@pytest.mark.parametrize(("failure", "heard"), [("cut", b"01234"), ("empty", b"")])
def test_what_comes_through_is_cut_or_nothing_with_status_0(failure, heard):
    """Status 0 says nothing about what was printed."""
    host, _ = linked(failure)
    said(host)
    assert host.run(["echo", "x"], timeout=5) == Completed(0, heard, b"")
    assert said(host) == b"0123456789"


def test_what_is_garbled_has_its_length_and_other_bytes():
    """Some bytes are others."""
    host, _ = linked("garbled")
    said(host)
    heard = said(host)
    assert len(heard) == 10
    assert heard != b"0123456789"


def test_a_link_that_is_down_comes_back():
    """It loses so many calls, and then carries them again."""
    host, _ = linked("down")
    said(host)
    for _ in range(DOWN_CALLS + 1):
        with pytest.raises(NoAnswer):
            said(host)
    assert said(host) == b"0123456789"


def test_ten_rotations_take_every_point_and_each_all_that_write():
    """No point is left out for ever, and none that writes is left out once."""
    points = [Point("m", f"p{number}", number % 7 == 0) for number in range(200)]
    taken = [share(points, rotation) for rotation in range(10)]
    assert set().union(*taken) == set(points)
    assert all({point for point in points if point.mutating} <= set(some) for some in taken)
