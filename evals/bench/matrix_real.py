"""A twentieth of the crash matrix again on the practice ground in real time: both have to come to the same end."""

from __future__ import annotations

from evals.bench import matrix_crash
from evals.bench.matrix_crash import RUN, around
from evals.bench.matrix_points import Point
from evals.campaigns.agent import STORIES, ask, forked, resume
from evals.campaigns.campaign import Campaign
from evals.campaigns.ground import Ground
from evals.campaigns.mortal import Act, Fate
from evals.campaigns.oracle import Truth, before, contradiction, stored, truth
from evals.campaigns.real import RealGround, real_ground

EVERY = 20
HANDFUL = ("helper open #1 | during", "helper step r-crash-restart #1 | after", "helper undo #1 | during")
"""Points that are always taken: the approval is spent, the changed worker runs, and the change is being taken back."""


def points(campaign: Campaign) -> list[Point]:
    """Every twentieth of the acts that write, whose names mean the same in both worlds, and a handful."""
    all_of_them = matrix_crash.points(campaign)
    every = [point for point in all_of_them if point.mutating]
    chosen = [point for point in every if any(point.id.endswith(name) for name in HANDFUL)]
    step = max(1, len(every) * EVERY // len(all_of_them))
    chosen += [point for point in every[::step] if point not in chosen]
    return [Point("real", point.id, any(point.id.endswith(name) for name in HANDFUL)) for point in chosen]


def check(campaign: Campaign, point: Point) -> str | None:
    """Die there in both worlds, and compare what came of it; what is wrong, or None."""
    with campaign.ground() as ground:
        computed = _end(campaign, ground, point)
    with real_ground() as ground_in_time:
        real = _end(campaign, ground_in_time, point)
    for which, end in (("computed", computed), ("real", real)):
        if isinstance(end, str):
            return f"{which}: {end}"
    return None if computed == real else f"computed: {computed}; real: {real}"


def _end(campaign: Campaign, ground: Ground | RealGround, point: Point) -> tuple[str, str, Truth] | str:
    """Decision, state and ground after a death and a resumption; or what is wrong."""
    story, name, moment = point.id.split(" | ")
    act = Act(name.rpartition(" #")[0], int(name.rpartition("#")[2]))
    was, said = before(ground), ground.folder / "run" / "said"
    fate = Fate(act, moment)  # type: ignore[arg-type]
    ended = forked(lambda: ask(ground, campaign.forge, RUN, STORIES[story], around(fate)), said=said)
    if ended.status != -9:
        return f"the agent did not die there: status {ended.status}. {ended.said[-2000:]}"
    ended = forked(lambda: resume(ground, campaign.forge, RUN), said=said)
    if ended.status:
        return f"resume ended with status {ended.status}: {ended.said[-2000:]}"
    record, books = stored(ground, RUN)
    if books is not None:
        return books
    real = truth(ground, was, story)
    wrong = contradiction(record, real)
    if wrong is not None:
        return wrong
    verdict = record.verdict if record is not None else None
    return (verdict.decision, verdict.state, real) if verdict else ("none", "untouched", real)
