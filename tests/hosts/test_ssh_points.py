"""A handful of the `ssh` matrix, another one each day; all of it by `python -m evals.bench.matrix ssh --all`."""

from __future__ import annotations

import concurrent.futures
from datetime import UTC, datetime

import pytest

from evals.bench.matrix_ssh import host, points_of, wrong_at

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HANDFUL = 4


def test_a_link_that_fails_at_a_byte_and_an_agent_that_dies_there_leave_a_true_record(host_cache):
    """Through sshd, the worker is what the record says, whatever broke in a call that writes, and where in it."""
    with host() as port:
        writing = [point for point in points_of(port, "bump") if point.mutating]
        first = HANDFUL * datetime.now(UTC).timetuple().tm_yday
        # Steps that have no common divisor with what a call has of troubles: a day sees several calls and troubles.
        taken = [writing[(first + 13 * number) % len(writing)] for number in range(HANDFUL)]
        with concurrent.futures.ThreadPoolExecutor(2) as several:
            found = list(several.map(lambda point: wrong_at(port, point), taken))
    wrong = {point.id: one for point, one in zip(taken, found, strict=True) if one is not None}
    assert wrong == {}
