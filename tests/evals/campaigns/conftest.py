"""A campaign that all tests of this room share: what an engine was computed to say once is known to all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from agent.domain import Record
from evals.campaigns.agent import STORIES, Around, ask, forked, resume
from evals.campaigns.campaign import Campaign, campaign
from evals.campaigns.ground import Ground
from evals.campaigns.oracle import Before, Truth, contradiction, stored, truth


@pytest.fixture(scope="session")
def under() -> Iterator[Campaign]:
    """A campaign that is under way."""
    with campaign() as made:
        yield made


class Bump(NamedTuple):
    """The bump of the seeds, asked for on a ground of the campaign."""

    under: Campaign
    run: str = "r-test"

    def carried(self, ground: Ground, told: Around) -> int:
        """Ask for it; the status of the agent's process."""
        ended = forked(
            lambda: ask(ground, self.under.forge, self.run, STORIES["bump"], told), said=ground.folder / "said"
        )
        assert ended.status in {0, -9}, ended.said
        return ended.status

    def resumed(self, ground: Ground) -> None:
        """Resume the run in another process."""
        ended = forked(lambda: resume(ground, self.under.forge, self.run), said=ground.folder / "said")
        assert ended.status == 0, ended.said

    def taken_back(self, ground: Ground, was: Before) -> tuple[Record, Truth]:
        """See that its record says deferred and restored, and that nothing on the ground says otherwise."""
        record, books = stored(ground, self.run)
        real = truth(ground, was, "bump")
        assert books is None
        assert record is not None
        assert (record.verdict.decision, record.verdict.state) == ("deferred", "restored"), record.verdict
        assert contradiction(record, real) is None
        return record, real


@pytest.fixture
def bump(under: Campaign) -> Bump:
    """The bump of the seeds, to be asked for."""
    return Bump(under)
