"""The crash matrix: the agent dies at every act of both seeds; after `resume` the worker is as the record says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from evals.bench.matrix_points import Point
from evals.campaigns.agent import STORIES, Around, ask, forked, resume
from evals.campaigns.campaign import Campaign
from evals.campaigns.ground import Ground
from evals.campaigns.mortal import Act, Fate, Moment, MortalHost, MortalSaver, MortalStore
from evals.campaigns.oracle import End, before, end_of
from evals.campaigns.real import RealGround

RUN = "r-crash"


def around(fate: Fate) -> Around:
    """Make every act of an agent one at which it can die."""
    return Around(
        host=lambda host: MortalHost(host, fate),
        store=lambda store: MortalStore(store, fate),
        checkpoints=lambda saver: MortalSaver(saver, fate),
    )


def acts(campaign: Campaign, story: str) -> list[Act]:
    """Everything that an agent does in a story, in order; a campaign lists it once."""
    listed = campaign.root / f"acts-{story}"
    if not listed.exists():
        with campaign.ground() as ground:
            fate = Fate(listed=ground.folder / "acts")
            ended = forked(
                lambda: ask(ground, campaign.forge, RUN, STORIES[story], around(fate)), said=ground.folder / "said"
            )
            if ended.status:
                raise RuntimeError(ended.said)
            (ground.folder / "acts").rename(listed)
    return [Act(*json.loads(line)) for line in listed.read_text(encoding="utf-8").splitlines()]


def points(campaign: Campaign) -> list[Point]:
    """Before and after every act of both stories, and during those that change the host."""
    found = []
    for story in STORIES:
        for act in acts(campaign, story):
            helper = act.mutating and act.name.startswith("helper")
            moments: Sequence[Moment] = get_args(Moment) if helper else ("before", "after")
            found += [Point("crash", f"{story} | {act} | {moment}", act.mutating) for moment in moments]
    return found


def check(campaign: Campaign, point: Point) -> str | None:
    """Die there, resume, and compare the record with the ground; what is wrong, or None."""
    with campaign.ground() as ground:
        end = die_and_resume(campaign, ground, point)
        if isinstance(end, str):
            return end
        if end.state == "unknown":
            return f"resume could prove nothing: {end.why}"
        return _holder(ground.host_directory)


def die_and_resume(campaign: Campaign, ground: Ground | RealGround, point: Point) -> End | str:
    """What came of a run whose owner died at a point and was resumed; a text says what is wrong."""
    story, name, moment = point.id.split(" | ")
    was, said = before(ground), ground.folder / "run" / "said"
    fate = Fate(Act.of(name), moment)  # type: ignore[arg-type]
    ended = forked(lambda: ask(ground, campaign.forge, RUN, STORIES[story], around(fate)), said=said)
    if ended.status != -9:
        return f"the agent did not die there: status {ended.status}. {ended.said[-2000:]}"
    ended = forked(lambda: resume(ground, campaign.forge, RUN), said=said)
    if ended.status:
        return f"resume ended with status {ended.status}: {ended.said[-2000:]}"
    return end_of(ground, was, story, RUN)


def _holder(directory: Path) -> str | None:
    """Who still has the lease after the run has ended."""
    path = directory / "workers" / "decode" / "lease"
    lease = json.loads(path.read_bytes()) if path.exists() else {"until": 0}
    return f"the lease is still held: {lease}" if lease["until"] else None
