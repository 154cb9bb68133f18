"""The link matrix: one call of either seed goes wrong on its way, each way that calls go wrong.

No run may say `new`, `restored` or `untouched` where that is not so, and none may break off. What the link has spoilt
may cost the change, and where nothing could be proven a person is called: that is no mistake.
"""

from __future__ import annotations

from evals.bench.matrix_crash import acts
from evals.bench.matrix_points import Point
from evals.campaigns.agent import STORIES, Around, World, ask, forked
from evals.campaigns.campaign import Campaign
from evals.campaigns.faulty import FAILURES, FaultyHost
from evals.campaigns.ground import Ground
from evals.campaigns.mortal import Act, Fate
from evals.campaigns.oracle import End, before, end_of
from evals.campaigns.real import RealGround
from tools.host import Host

RUN = "r-crash"


def points(campaign: Campaign) -> list[Point]:
    """Every call of both stories in every way of going wrong."""
    return [
        Point("link", f"{story} | {act} | {failure}", act.mutating)
        for story in STORIES
        for act in acts(campaign, story)
        if not act.name.startswith(("store", "checkpoint"))
        for failure in FAILURES
        if not (act.name.startswith("ship") and failure in {"cut", "empty", "garbled"})
    ]


def check(campaign: Campaign, point: Point) -> str | None:
    """Let it go wrong, and compare the record with the ground; what is wrong, or None."""
    with campaign.ground() as ground:
        end = carried(campaign, ground, point)
        return end if isinstance(end, str) else None


def carried(campaign: Campaign, ground: Ground | RealGround, point: Point) -> End | str:
    """What came of a run over a link that failed at a point; a text says what is wrong."""
    story, name, failure = point.id.split(" | ")
    was, said, met = before(ground), ground.folder / "run" / "said", ground.folder / "run" / "met"

    def work() -> None:
        made: list[FaultyHost] = []

        def wrap(host: World) -> Host:
            made.append(FaultyHost(host, Fate(), Act.of(name), failure))  # type: ignore[arg-type]
            return made[0]

        ask(ground, campaign.forge, RUN, STORIES[story], Around(host=wrap))
        made[0].arrive()
        met.write_text(str(made[0].met), encoding="utf-8")

    ended = forked(work, said=said)
    if ended.status:
        return f"the run broke off: status {ended.status}. {ended.said[-2000:]}"
    if met.read_text(encoding="utf-8") != "True":
        return "the call never came"
    end = end_of(ground, was, story, RUN)
    if not isinstance(end, str) and "broken off by" in end.why:
        return f"the run broke: {end.why}"
    return end
