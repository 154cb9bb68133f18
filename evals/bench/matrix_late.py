"""The late matrix: a message of an agent that died arrives while its successor works, or after that has ended.

Every call that writes is such a message once; the successor resumes with an approval that is valid, and with one that
has run out meanwhile. Whenever the message arrives, the successor's record is true, and nothing is left under way.
"""

from __future__ import annotations

from evals.bench.matrix_crash import acts
from evals.bench.matrix_points import Point
from evals.campaigns.agent import STORIES, Around, World, ask, forked, resume
from evals.campaigns.campaign import Campaign
from evals.campaigns.ground import Ground
from evals.campaigns.host import VirtualHost
from evals.campaigns.letter import Letter, PostedHost
from evals.campaigns.mortal import Act
from evals.campaigns.oracle import before, end_of

RUN = "r-crash"
CALLS = (0, 1, 2, 3, 5, 8)
"""Calls of the helper that the successor has made when the message arrives."""
ARRIVALS = (*map(str, CALLS), "record")
"""When it arrives; `record`: once the successor's record is written."""
APPROVALS = {"valid": 0.0, "expired": 86400.0}
"""Seconds that pass between the death and the resumption."""
DECISIVE = frozenset({("expired", "1"), ("expired", "record")})
"""Points that are always taken: just after the successor has asked how things stand, and when all is over."""


def points(campaign: Campaign) -> list[Point]:
    """Every call that writes, both approvals, every arrival."""
    return [
        Point("late", f"{story} | {act} | {approval} | {arrival}", act.name == "helper open" and when in DECISIVE)
        for story in STORIES
        for act in acts(campaign, story)
        if act.mutating and act.name.startswith("helper")
        for approval in APPROVALS
        for arrival in ARRIVALS
        if (when := (approval, arrival))
    ]


def check(campaign: Campaign, point: Point) -> str | None:
    """Let it come late, and compare the record with the ground; what is wrong, or None."""
    story, name, approval, arrival = point.id.split(" | ")
    with campaign.ground() as ground:
        was, said = before(ground), ground.folder / "run" / "said"
        letter = Letter(ground.folder / "run" / "letter")

        def sender(world: World) -> PostedHost:
            return PostedHost(world, letter, posted=Act.of(name))

        def successor(world: World) -> PostedHost:
            return PostedHost(world, letter, after=int(arrival) if arrival.isdecimal() else None)

        ended = forked(lambda: ask(ground, campaign.forge, RUN, STORIES[story], Around(host=sender)), said=said)
        if ended.status != -9 or not letter.is_on_its_way:
            return f"the agent did not die there: status {ended.status}. {ended.said[-2000:]}"
        _pass(ground, APPROVALS[approval])
        ended = forked(lambda: resume(ground, campaign.forge, RUN, Around(host=successor)), said=said)
        if ended.status:
            return f"resume ended with status {ended.status}: {ended.said[-2000:]}"
        if letter.is_on_its_way:
            forked(lambda: _arrive(ground, campaign, letter), said=said)
        end = end_of(ground, was, story, RUN)
        if isinstance(end, str):
            return end
        if "broken off by" in end.why:
            return f"the run broke: {end.why}"
        return f"left {end.real.journal}" if end.real.journal in {"open", "undoing"} else None


def _pass(ground: Ground, seconds: float) -> None:
    """Let time pass on a ground that nobody works on."""
    state = ground.state()
    ground.keep_state({**state, "now": state["now"] + seconds})


def _arrive(ground: Ground, campaign: Campaign, letter: Letter) -> None:
    host = VirtualHost(ground, campaign.forge)
    letter.arrive(host)
    host.close()
