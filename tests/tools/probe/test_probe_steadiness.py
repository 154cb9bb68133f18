"""Storms, overloads and soaks against practice workers that come back, and against some that do not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.domain import Check, CheckName, Reading
from evals.lab import ground
from tools.local import LocalHost
from tools.probe import Stall, run_check

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def worker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ground.Ground]:
    """A practice worker with what the test names wrong with it."""
    made = ground.up(tmp_path / "lab", seed=3, faults=request.param)
    try:
        yield made
    finally:
        ground.down(made.directory)


def _ask(made: ground.Ground, name: CheckName, concurrency: int, **fields: Any) -> dict[str, Reading]:
    given = {"count": 32, "tokens": 32, "why": "a test", **fields}
    readings = run_check(
        LocalHost(made.directory / "host"),
        base_url=f"http://127.0.0.1:{made.port}",
        check=Check(name=name, concurrency=(concurrency,), **given),
        phase="candidate",
        seed=5,
        limit_seconds=200,
        tell=lambda _, __: None,
        stall=Stall(150, 6),
        pid=ground.status(made.directory).pid,
    )
    return {reading.metric: reading for reading in readings}


@pytest.mark.parametrize("worker", [()], indirect=True)
def test_a_sound_worker_comes_back_from_storms(worker):
    """Nothing is left running, the pool is as empty as before, and the speed is the same."""
    found = _ask(worker, "aborts", 32, storms=6)

    assert (found["wedged_storms"].bad, found["lingering_storms"].bad, found["lingering_storms"].n) == (0, 0, 6)
    assert found["kv_leak_per_storm"].value is not None
    assert found["kv_leak_per_storm"].value <= 0.001


@pytest.mark.parametrize("worker", [("slot-leak:share=0",)], indirect=True)
def test_places_that_are_not_given_back_show_after_an_overload(worker):
    """Places that a crowd kept which hung up are missing afterwards, though everybody is answered."""
    found = _ask(worker, "overload", 300, count=2, tokens=24)

    assert found["stuck_overloads"].bad
    signs = ("decoded at once where", "where it ran at", "run and")
    assert any(sign in found["stuck_overloads"].detail for sign in signs)


@pytest.mark.parametrize("worker", [("memory-leak:kib=1500,limit=4000,card=0.5",)], indirect=True)
def test_memory_that_grows_with_each_request_shows_in_a_soak(worker):
    """The growth of the process and of what it holds on its cards is told; so is what is sound."""
    found = _ask(worker, "soak", 16, seconds=12)

    assert found["card_growth_gb_per_hour"].value is not None, found["card_growth_gb_per_hour"].no_data
    assert found["card_growth_gb_per_hour"].value > 1
    assert "its processes" in found["card_growth_gb_per_hour"].detail

    assert found["memory_growth_gb_per_hour"].value is not None
    assert found["memory_growth_gb_per_hour"].value > 1
    assert found["stalled_seconds"].value is not None
    assert found["stalled_seconds"].value < 10
    assert found["corrupted_in_soak"].bad == 0
    assert found["failed_requests"].bad == 0


@pytest.mark.parametrize("worker", [()], indirect=True)
def test_a_soak_ends_with_the_sessions_that_it_may_send(worker):
    """It begins no more than it was given, and what it had not time to show is no data, with the reason."""
    found = _ask(worker, "soak", 8, seconds=120, most=12)

    assert (found["corrupted_in_soak"].n, found["corrupted_in_soak"].bad) == (12, 0)
    assert found["stalled_seconds"].value is None
    assert "the 12 sessions that the run may send were spent" in (found["stalled_seconds"].no_data or "")
