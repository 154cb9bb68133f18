"""The silent matrix: the agent dies at an act that writes and never comes back; the host's watchdog restores."""

from __future__ import annotations

import time

from evals.bench.matrix_crash import acts, around
from evals.bench.matrix_points import Point
from evals.campaigns.agent import STORIES, ask, forked
from evals.campaigns.campaign import Campaign
from evals.campaigns.mortal import Act, Fate
from evals.campaigns.oracle import FITTING, Truth, before, truth

RUN = "r-crash"
WATCHDOG_SECONDS = 4.0
"""What the watchdog waits for here; short, because this is the wall's time."""
PATIENCE = 60.0
"""Seconds after which a watchdog that has not restored anything will not."""


def points(campaign: Campaign) -> list[Point]:
    """After every act that writes, from the opening of the transaction on."""
    found = []
    for story in STORIES:
        every = acts(campaign, story)
        opened = next(at for at, act in enumerate(every) if act.name == "helper open")
        found += [Point("silent", f"{story} | {act}", act.mutating) for act in every[opened:] if act.mutating]
    return found


def check(campaign: Campaign, point: Point) -> str | None:
    """Die there, wait, and look whether the worker is as before, or as it was confirmed; what is wrong, or None."""
    story, name = point.id.split(" | ")
    act = Act.of(name)
    with campaign.ground(watchdog=WATCHDOG_SECONDS) as ground:
        was, said = before(ground), ground.folder / "said"
        ended = forked(lambda: ask(ground, campaign.forge, RUN, STORIES[story], around(Fate(act, "after"))), said=said)
        if ended.status != -9:
            return f"the agent did not die there: status {ended.status}. {ended.said[-2000:]}"
        until = time.monotonic() + PATIENCE
        while (real := truth(ground, was, story)).journal in {"open", "undoing"}:
            if time.monotonic() > until:
                return f"nothing was restored within {PATIENCE:g} s: {real}"
            time.sleep(0.1)
        time.sleep(0.2)
        real = truth(ground, was, story)
        fitting = (*FITTING["restored"], *FITTING["new"])
        if real._replace(writes=0) in fitting or real in fitting or real == Truth("old", "first", "undone", 0, ()):
            return None
        return f"left alone, it came to {real}"
