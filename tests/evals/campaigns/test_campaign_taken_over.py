"""A run that somebody else has taken over, while the process that had it goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from agent.assemble import open_store
from agent.errors import RunInFlight
from agent.settings import load
from evals.campaigns.agent import STORIES, Around, World, ask, forked
from evals.campaigns.ground import Ground
from evals.campaigns.mortal import Act, Fate, MortalHost, MortalStore
from evals.campaigns.oracle import Truth, before, journal, stored, truth
from memory.store import Owner
from tools.service import CommandService
from tools.transaction import Writer

RUN = "r-test"
OTHER = Owner(host="elsewhere", boot_id="another", pid=1, start_ticks=1)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


class TakenOver(Fate):
    """Just before one act of an agent, a process on another machine takes its run over, and the lease with it."""

    def __init__(self, ground: Ground, world: World, act: Act) -> None:
        super().__init__()
        self._ground, self._world, self._at = ground, world, act

    @contextlib.contextmanager
    def act(self, name: str) -> Iterator[Act]:
        """Do something."""
        with super().act(name) as act:
            if act == self._at:
                self._take()
            yield act

    def _take(self) -> None:
        settings = load(self._ground.settings, {})
        service = settings.workers["decode"].service
        assert service.kind == "command"
        with open_store(settings) as store:
            row = store.run(RUN)
            assert row is not None
            assert store.adopt_run(RUN, OTHER, row.owner)
        spec = CommandService(restart=service.restart, pid=service.pid)
        Writer(self._world, "decode", str(self._ground.script), spec).lease(RUN, 600.0)


@pytest.mark.parametrize(
    ("act", "left"),
    [
        (Act("load throughput", 2), Truth("new", "new", "open", 2, ())),
        (Act("helper commit", 1), Truth("new", "new", "open", 2, ())),
        (Act("store decide", 1), Truth("old", "first", "none", 0, ())),
    ],
    ids=["while it verifies", "before it commits", "before it executes"],
)
def test_who_was_taken_over_lets_go(under, act, left):
    """Its successor is at work: it neither takes the change back, nor carries it out, nor ends the run."""
    with under.ground() as ground:
        was, fates = before(ground), {}

        def wrap(world: World) -> MortalHost:
            fates["one"] = TakenOver(ground, world, act)
            return MortalHost(world, fates["one"])

        around = Around(host=wrap, store=lambda store: MortalStore(store, fates["one"]))

        def let_go() -> None:
            with pytest.raises(RunInFlight, match="on elsewhere now"):
                ask(ground, under.forge, RUN, STORIES["bump"], around)

        assert forked(let_go, said=ground.folder / "said").status == 0
        assert truth(ground, was, "bump") == left
        assert not [entry for entry in journal(ground) if entry["event"] == "undo_begun"]
        record, books = stored(ground, RUN)
        assert record is None
        assert books is not None
        assert "has not ended" in books
