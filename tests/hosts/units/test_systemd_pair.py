"""A pair of boots of a worker that systemd keeps: the old setting again, and the change again."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from agent.domain import HostState, Step

OLD_RUNS, NEW_RUNS = ("sleep", "86432"), ("sleep", "86496")

pytestmark = pytest.mark.slow


def test_a_unit_runs_the_old_setting_again_and_then_keeps_the_change(unit_site) -> None:
    """Every start is the unit's own and runs what the script holds then; nothing of ours stays in the manager."""
    site = unit_site
    token = site.writer.lease("r-1", 120).token
    plan = site.plan()
    edit = plan.steps[0]
    old, new = (HostState(script_sha256=state.script_sha256) for state in (edit.before, edit.after))
    ways = (("back", "restore_script", new, old), ("old", "restart", old, old))
    ways += (("forth", "edit_script", old, new), ("new", "restart", new, new))
    pair = [
        Step.model_validate(
            {"id": id_, "action": action, "what": id_, "before": before, "after": after, "undo": "", "optional": True}
        )
        for id_, action, before, after in ways
    ]
    plan = plan.model_copy(update={"steps": (*plan.steps, *pair)})
    content = site.host.read(site.script).replace(b"32", b"96")
    site.writer.open(token, "r-1", plan, site.approval(plan), content, now=datetime.now(UTC))
    ran = []
    for step in plan.steps:
        done = site.writer.step(token, "r-1", step.id)
        if step.action == "restart":
            ran.append(site.process().argv)
            assert int(site.shows("MainPID")) == done.after.pid
    assert ran == [NEW_RUNS, OLD_RUNS, NEW_RUNS]
    assert site.writer.commit(token, "r-1").state == "committed"
    assert site.shows("Restart") == "always"
    site.until(lambda: site.traces == [])
