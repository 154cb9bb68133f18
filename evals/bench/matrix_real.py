"""A twentieth of the crashes and failing links again on the practice ground in real time: both come to the same end.

Neither world has a word on speed in its law: a machine with much else to do gives no valid rate, a run then ends before
the call that is to fail, and a rate is not what is tried here.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from evals.bench import matrix_crash, matrix_link
from evals.bench.matrix_points import Point
from evals.campaigns.campaign import Campaign
from evals.campaigns.ground import Ground
from evals.campaigns.oracle import End
from evals.campaigns.real import RealGround, real_ground

EVERY = 20
HANDFUL = (
    "bump | helper open #1 | during",
    "overlap | helper undo #1 | during",
    "bump | helper step r-crash-restart #1 | dropped after",
    "overlap | helper undo #1 | late",
)
"""Points that are always taken: while the approval is spent, the changed worker starts, and the change goes back."""


def points(campaign: Campaign) -> list[Point]:
    """Of both matrices every twentieth among the acts that write, whose names mean the same in both worlds."""
    chosen: list[Point] = []
    for every in (matrix_crash.points(campaign), matrix_link.points(campaign)):
        writing = [point for point in every if point.mutating]
        handful = [point for point in writing if point.id in HANDFUL]
        rest = [point for point in writing if point not in handful]
        wanted = max(1, len(every) // EVERY - len(handful))
        chosen += [*handful, *rest[:: max(1, len(rest) // wanted)][:wanted]]
    return [Point("real", f"{point.matrix}: {point.id}", point.id in HANDFUL) for point in chosen]


def check(campaign: Campaign, point: Point) -> str | None:
    """Let it happen in both worlds, and compare what came of it; what is wrong, or None."""
    with campaign.ground() as ground:
        _leave_speed_out(ground.folder / "policy.yaml")
        computed = _end(campaign, ground, point)
    with real_ground() as ground_in_time:
        _leave_speed_out(ground_in_time.folder / "policy.yaml")
        real = _end(campaign, ground_in_time, point)
    for which, end in (("computed", computed), ("real", real)):
        if isinstance(end, str):
            return f"{which}: {end}"
    assert isinstance(computed, End)
    assert isinstance(real, End)
    return None if _core(computed) == _core(real) else f"computed: {computed}; real: {real}"


def _leave_speed_out(policy: Path) -> None:
    law = yaml.safe_load(policy.read_text(encoding="utf-8"))
    law["criteria"] = [criterion for criterion in law["criteria"] if criterion["id"] != "throughput"]
    law["checks"]["throughput"] |= {"always": False, "baseline": False}
    policy.write_text(yaml.safe_dump(law, sort_keys=False), encoding="utf-8")


def _core(end: End) -> End:
    """What both worlds have to agree on: not the words, and not how often a step was begun until it was done."""
    return end._replace(why="", real=end.real._replace(writes=0))


def _end(campaign: Campaign, ground: Ground | RealGround, point: Point) -> End | str:
    matrix, _, id_ = point.id.partition(": ")
    there = point._replace(matrix=matrix, id=id_)
    if matrix == "crash":
        return matrix_crash.die_and_resume(campaign, ground, there)
    return matrix_link.carried(campaign, ground, there)
