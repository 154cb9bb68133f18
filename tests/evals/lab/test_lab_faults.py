"""Faults by themselves: on where they should be, off everywhere else."""

from random import Random

import pytest

from evals.lab.conversation import understand
from evals.lab.faults import Conditions, build
from evals.lab.replies import reply

TOOLS = [{"type": "function", "function": {"name": "set_rack", "parameters": {"properties": {"node": {}, "rack": {}}}}}]


def turns(session, count=3):
    """Conversations of one session, turn by turn."""
    messages = []
    for _ in range(count):
        text = f"The rack of n{session} is r{session}. Call set_rack for n{session}."
        messages.append({"role": "user", "content": text})
        yield understand(messages, TOOLS)


def struck(fault, sessions, *, captured=True):
    """Share of sessions with at least one spoilt reply."""
    wrong = 0
    for session in range(sessions):
        spoilt = [fault.spoil(turn, reply(turn), captured=captured) for turn in turns(session)]
        wrong += any(each is not None for each in spoilt)
    return wrong / sessions


@pytest.mark.parametrize("environ", [{}, {"SGLANG_OPT_USE_MULTI_STREAM_OVERLAP": "1"}])
def test_captured_decode_spoils_a_share_of_sessions(environ):
    """With the side streams on, about 15 % of sessions are struck, whatever else happens."""
    (fault,) = build(["graph-corruption"], Conditions(overlap=False, environ=environ), Random(1))

    assert 0.13 < struck(fault, 4000) < 0.19


def test_the_variable_at_zero_spoils_nothing():
    """With the side streams off, no session is struck."""
    for value in ("0", "false", " 0 "):
        conditions = Conditions(overlap=False, environ={"SGLANG_OPT_USE_MULTI_STREAM_OVERLAP": value})
        (fault,) = build(["graph-corruption"], conditions, Random(1))

        assert struck(fault, 1000) == 0


def test_eager_steps_spoil_nothing():
    """Outside graphs nothing is struck."""
    (fault,) = build(["graph-corruption"], Conditions(overlap=False, environ={}), Random(1))

    assert struck(fault, 1000, captured=False) == 0


def test_a_cascade_wedges_only_with_the_overlap_scheduler():
    """Six aborts at once stop the loop with the overlap scheduler on, and never with it off."""
    for overlap in (True, False):
        (fault,) = build(["abort-wedge"], Conditions(overlap=overlap, environ={}), Random(1))

        assert fault.stalls(6, 32, at=5.0) is overlap


def test_serial_aborts_do_no_harm():
    """Aborts one after another, seconds apart, never stop the loop, however many they are."""
    (fault,) = build(["abort-wedge"], Conditions(overlap=True, environ={}), Random(1))

    assert not any(fault.stalls(1, 32, at=float(second)) for second in range(500))


@pytest.mark.parametrize(
    "spelled", ["gremlins", "abort-wedge:colour=3", "abort-wedge:aborts=many", "abort-wedge:aborts"]
)
def test_what_is_no_fault_is_refused(spelled):
    """An unknown fault or parameter is refused with a sentence that names it."""
    with pytest.raises(ValueError, match=spelled.partition(":")[0]):
        build([spelled], Conditions(overlap=True, environ={}), Random(0))
