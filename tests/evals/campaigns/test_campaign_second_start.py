"""What a run may say of a start that it did not see: the second, one that was taken back, one behind a dead link."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

from agent.errors import NoAnswer
from evals.bench.matrix_crash import around
from evals.campaigns.agent import Around, World
from evals.campaigns.faulty import FaultyHost
from evals.campaigns.ground import Ground
from evals.campaigns.mortal import Act, Fate, MortalHost
from evals.campaigns.oracle import before, journal

RUN = "r-test"
AGAIN = Act(f"helper step {RUN}-again", 1)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def rule(ground: Ground, line: str) -> None:
    """Put a line more into the ground's law."""
    path = ground.folder / "policy.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("\ntimes:\n", f"\n{line}\n\ntimes:\n", 1), encoding="utf-8")


def test_a_second_start_that_nobody_has_looked_at_is_not_kept(under, bump):
    """The process that would stay is not the one that was proven: what is not known of it is no proof."""
    with under.ground() as ground:
        rule(ground, "second_start: always")
        was = before(ground)
        lost = Around(host=lambda host: FaultyHost(host, Fate(), AGAIN, "dropped after"))
        assert bump.carried(ground, lost) == 0
        bump.taken_back(ground, was)


@pytest.mark.parametrize("moment", ["during", "after"])
def test_an_agent_that_dies_in_the_second_start_has_measured_no_breach(under, bump, moment):
    """Resumed, the run finds another process than it knows: that says nothing against the change."""
    with under.ground() as ground:
        rule(ground, "second_start: always")
        was = before(ground)
        assert bump.carried(ground, around(Fate(AGAIN, moment))) == -9
        bump.resumed(ground)
        bump.taken_back(ground, was)


def test_what_the_host_took_back_has_breached_nothing(under, bump):
    """The agent died before it measured, and the watchdog was quicker than whoever resumes: no start has failed."""
    with under.ground(watchdog=2.0) as ground:
        was = before(ground)
        assert bump.carried(ground, around(Fate(Act("load sessions", 2), "before"))) == -9
        until = time.monotonic() + 60
        while journal(ground)[-1]["event"] != "undone":
            assert time.monotonic() < until, "the watchdog did not take it back"
            time.sleep(0.1)
        bump.resumed(ground)
        bump.taken_back(ground, was)


class SilentAfter(Fate):
    """A link that is dead for a while of virtual time after something was done."""

    def __init__(self, world: World, name: str, seconds: float) -> None:
        super().__init__()
        self._world, self._name, self._seconds = world, name, seconds
        self._until = 0.0

    @contextlib.contextmanager
    def act(self, name: str) -> Iterator[Act]:
        """Do something, if the link lets it through."""
        if self._world.now() < self._until:
            raise NoAnswer("local", (name,), None, "the link is dead")
        with super().act(name) as act:
            yield act
        if name == self._name:
            self._until = self._world.now() + self._seconds


def test_a_start_behind_a_dead_link_has_not_failed(under, bump):
    """As long as the host is not heard nobody knows how the start goes: that is no breach, and no proof either."""
    with under.ground(watchdog=120.0) as ground:
        was = before(ground)
        dead = Around(host=lambda host: MortalHost(host, SilentAfter(host, f"helper step {RUN}-restart", 45.0)))
        assert bump.carried(ground, dead) == 0
        bump.taken_back(ground, was)
