"""The link matrix: one call of either seed goes wrong on its way, each way that calls go wrong.

No run may say `new`, `restored` or `untouched` where that is not so, and none may break off. What the link has spoilt
may cost the change, and where nothing could be proven a person is called: that is no mistake.
"""

from __future__ import annotations

from pathlib import Path

from evals.bench.matrix_crash import acts
from evals.bench.matrix_points import Point
from evals.campaigns.agent import STORIES, Around, World, ask, forked
from evals.campaigns.campaign import Campaign
from evals.campaigns.faulty import FAILURES, FaultyHost
from evals.campaigns.mortal import Act, Fate
from evals.campaigns.oracle import before, contradiction, stored, truth
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
    story, name, failure = point.id.split(" | ")
    act = Act(name.rpartition(" #")[0], int(name.rpartition("#")[2]))
    with campaign.ground() as ground:
        was, said, met = before(ground), ground.folder / "said", ground.folder / "met"

        def work() -> None:
            made: list[FaultyHost] = []

            def wrap(host: World) -> Host:
                made.append(FaultyHost(host, Fate(), act, failure))  # type: ignore[arg-type]
                return made[0]

            ask(ground, campaign.forge, RUN, STORIES[story], Around(host=wrap))
            made[0].arrive()
            met.write_text(str(made[0].met), encoding="utf-8")

        ended = forked(work, said=said)
        if ended.status:
            return f"the run broke off: status {ended.status}. {ended.said[-2000:]}"
        if Path(met).read_text(encoding="utf-8") != "True":
            return "the call never came"
        record, books = stored(ground, RUN)
        if record is not None and "broken off by" in record.verdict.why:
            return f"the run broke: {record.verdict.why}"
        return books or contradiction(record, truth(ground, was, story))
