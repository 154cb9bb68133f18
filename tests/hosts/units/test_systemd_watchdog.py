"""What survives the agent, its login, and the machine's own end; and two agents that do not agree on the time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from agent.errors import HelperRefused, RunInFlight

OLD_RUNS, NEW_RUNS = ("sleep", "86432"), ("sleep", "86496")


class Login:
    """The host through sessions that are killed, with all that they started, as soon as a call has ended."""

    def __init__(self, host) -> None:
        self._host = host
        self._how = ["systemd-run", "--quiet", "--pipe", "--wait", "--collect", "--property=KillMode=control-group"]
        self._how += ["--user"] if host.user != "root" else []

    def __getattr__(self, name):
        return getattr(self._host, name)

    def run(self, argv, **how):
        """Execute a command in a session of its own."""
        return self._host.run([*self._how, *argv], **how)


@pytest.mark.slow
def test_a_silent_agent_whose_login_was_killed_is_taken_back(unit_site) -> None:
    """Every process that the agent's sessions left is killed; the watchdog is none of them and restores the worker."""
    site = unit_site
    site.host = Login(site.host)
    writer = site.writer = site.writer_for()
    writer._host = site.host
    token = site.open(watchdog=4.0)
    writer.step(token, "r-1", "edit")
    writer.step(token, "r-1", "restart")
    execution = site.ended("undone")
    assert {entry.by for entry in execution.journal if entry.event in ("undo_begun", "undone")} == {"watchdog"}
    assert site.process().argv == OLD_RUNS
    assert site.process().identity == execution.after.identity
    assert site.shows("Restart") == "always"
    site.until(lambda: site.traces == [])


@pytest.mark.slow
@pytest.mark.parametrize("end", ["reboot", "power_cut"])
def test_a_machine_that_goes_down_in_the_middle_comes_up_with_the_old_worker(own_machine, own_sites, end) -> None:
    """Down after the edit or after the restart: at boot the old bytes are back before the unit's first start."""
    root, operator = own_sites("root"), own_sites("operator")
    for site in (root, operator):
        token = site.open(watchdog=3600)
        site.writer.step(token, "r-1", "edit")
        if site is root:
            site.writer.step(token, "r-1", "restart")
            assert site.process().argv == NEW_RUNS
    getattr(own_machine, end)()
    for site in (root, operator):
        execution = site.ended("undone")
        assert [entry.event for entry in execution.journal][-3:] == ["undo_begun", "restored", "undone"]
        assert {entry.by for entry in execution.journal[-3:]} == {"watchdog"}
        assert site.host.read(site.script) == b"#!/bin/bash\n# decode worker\nexport LEVEL=32\nexec sleep 86432\n"
        assert site.process().argv == OLD_RUNS
        assert execution.journal[-1].detail["restarted"] is False
        assert site.process().identity == execution.after.identity
        assert site.shows("Restart") == "always"
        site.until(lambda site=site: site.traces == [])
        with pytest.raises(HelperRefused) as refused:
            site.writer.commit(1, "r-1")
        assert refused.value.kind in {"not_open", "lease_expired"}


@pytest.mark.slow
def test_a_manager_that_may_not_be_told_is_accounted_for(own_machine, own_sites) -> None:
    """Where no drop-in can be written the journal says so, and a worker that restarted itself is never kept."""
    site = own_sites("root")
    own_machine.run(["mount", "--bind", "/run/systemd/system", "/run/systemd/system"])
    own_machine.run(["mount", "-o", "remount,bind,ro", "/run/systemd/system"])
    token = site.open()
    site.writer.step(token, "r-1", "edit")
    execution = site.writer.step(token, "r-1", "restart")
    guarded = next(entry for entry in execution.journal if entry.event == "guarded")
    assert any("Restart=always" in says and "stays armed" in says for says in guarded.detail["without"])
    site.host.ask("kill", "-9", str(site.process().pid))
    site.until(lambda: site.shows("NRestarts") == "1" and site.writer.main())
    with pytest.raises(HelperRefused) as refused:
        site.writer.commit(token, "r-1")
    assert refused.value.kind == "moved"
    assert site.writer.undo(token, "r-1").state == "undone"
    assert site.process().argv == OLD_RUNS


@pytest.mark.slow
def test_agents_on_two_machines_agree_on_the_hosts_clock_alone(root_site) -> None:
    """One clock is a day ahead, the other a day behind, the first one's link is lost: each still has its turn."""
    site = root_site
    ahead, behind = datetime.now(UTC) + timedelta(days=1), datetime.now(UTC) - timedelta(days=1)
    first, second = site.writer_for(), site.writer_for()
    token = first.lease("r-1", 120).token
    plan = site.plan(run="r-1", watchdog=4.0)
    new = b"#!/bin/bash\n# decode worker\nexport LEVEL=96\nexec sleep 86496\n"
    first.open(token, "r-1", plan, site.approval(plan, at=ahead), new, now=ahead)
    first.step(token, "r-1", "edit")
    with pytest.raises(RunInFlight, match="'r-1' holds the lease"):
        second.lease("r-2", 60)
    # Not a word from the first any more: the host takes its change back, and its lease runs out a while after.
    site.ended("undone")
    first.release(token)
    grant = second.lease("r-2", 60)
    assert grant.token > token
    assert grant.unfinished is None
    plan = site.plan(run="r-2")
    second.open(grant.token, "r-2", plan, site.approval(plan, at=behind), new, now=behind)
    with pytest.raises(HelperRefused) as refused:
        first.step(token, "r-1", "restart")
    assert refused.value.kind == "fenced"
    second.step(grant.token, "r-2", "edit")
    second.step(grant.token, "r-2", "restart")
    assert second.commit(grant.token, "r-2").state == "committed"
    assert site.process().argv == NEW_RUNS
