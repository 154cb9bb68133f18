"""The helper's matrix: the helper on the host dies at one of its durable actions, alone or with the agent.

Alone means that the agent lives on, hears no answer, and has to settle it. A crash just before an action that only
syncs leaves the same files as one just before the next, so that those are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from evals.bench.matrix_points import Point
from evals.campaigns.agent import STORIES, Around, World, ask, forked, resume
from evals.campaigns.behind import Passing
from evals.campaigns.campaign import Campaign
from evals.campaigns.mortal import MUTATING, Act, Fate, die, name_of
from evals.campaigns.oracle import before, end_of
from tools.host import Completed, Host

RUN = "r-crash"
DECISIVE = frozenset({"exchange", "link", "command", "spawn", "arm"})
"""Actions of the helper that more depends on than on a file of its own."""


class SeamedHost(Passing):
    """A host that sets the helper's seams for one act, and may die with it.

    Args:
        host: The host.
        act: The act.
        seams: What to set.
        together: Die when that call has ended.
        traced: Folder that takes a trace of each act; instead of `act`.
    """

    def __init__(
        self,
        host: Host,
        act: Act | None,
        seams: Mapping[str, str],
        *,
        together: bool = False,
        traced: Path | None = None,
    ) -> None:
        super().__init__(host)
        self._act = act
        self._seams = seams
        self._together = together
        self._traced = traced
        self._fate = Fate()

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float,
        environ: Mapping[str, str] | None = None,
    ) -> Completed:
        """Execute a command, with seams where it is the one."""
        with self._fate.act(name_of(argv, stdin)) as act:
            seams = dict(environ or {})
            if self._traced is not None and act.mutating:
                seams["PRUDENT_TRACE"] = str(self._traced / f"{act.name}.{act.number}")
            if act == self._act:
                seams |= self._seams
            try:
                return self._host.run(argv, stdin=stdin, timeout=timeout, environ=seams)
            finally:
                if act == self._act and self._together:
                    die()


def actions(campaign: Campaign, story: str) -> list[tuple[Act, int, str]]:
    """Every durable action of every call of the helper in a story: the act, its number, and what it is."""
    traced = campaign.root / f"traces-{story}"
    traced.mkdir()

    def wrap(host: World) -> Host:
        return SeamedHost(host, None, {}, traced=traced)

    with campaign.ground() as ground:
        ended = forked(
            lambda: ask(ground, campaign.forge, RUN, STORIES[story], Around(host=wrap)), said=ground.folder / "said"
        )
        if ended.status:
            raise RuntimeError(ended.said)
    found = []
    for path in sorted(traced.iterdir()):
        name, _, number = path.name.rpartition(".")
        for line in path.read_text(encoding="utf-8").splitlines():
            at, action = line.split()[:2]
            found.append((Act(name, int(number)), int(at), action))
        path.unlink()
    traced.rmdir()
    return found


def points(campaign: Campaign) -> list[Point]:
    """Every durable action but syncs, with and without the agent."""
    return [
        Point("helper", f"{story} | {act} | {at} {action} | {who}", action in DECISIVE)
        for story in STORIES
        for act, at, action in actions(campaign, story)
        if action != "sync" and act.name.split()[1] in MUTATING - {"renew"}
        for who in ("alone", "together")
    ]


def check(campaign: Campaign, point: Point) -> str | None:
    """Kill the helper there, resume where the agent died too, and compare the record with the ground."""
    story, name, action, who = point.id.split(" | ")
    act = Act.of(name)
    seams = {"PRUDENT_CRASH_AT": action.split()[0]}
    together = who == "together"
    with campaign.ground() as ground:
        was, said = before(ground), ground.folder / "said"

        def wrap(host: World) -> Host:
            return SeamedHost(host, act, seams, together=together)

        ended = forked(lambda: ask(ground, campaign.forge, RUN, STORIES[story], Around(host=wrap)), said=said)
        if ended.status != (-9 if together else 0):
            return f"status {ended.status}. {ended.said[-2000:]}"
        if together:
            ended = forked(lambda: resume(ground, campaign.forge, RUN), said=said)
            if ended.status:
                return f"resume ended with status {ended.status}: {ended.said[-2000:]}"
        end = end_of(ground, was, story, RUN)
        if isinstance(end, str):
            return end
        return f"nothing was proven: {end.why}" if end.state == "unknown" else None
