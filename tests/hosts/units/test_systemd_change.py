"""A change of a worker that systemd keeps, seen from the host's side."""

from __future__ import annotations

import time

import pytest

from agent.errors import HelperRefused

OLD_RUNS, NEW_RUNS = ("sleep", "86432"), ("sleep", "86496")

pytestmark = pytest.mark.slow


def test_a_kept_change_is_live_and_leaves_nothing_of_ours(unit_site) -> None:
    """The new process runs the new bytes, Restart= is what it was, and no unit, link or drop-in of ours is there."""
    site = unit_site
    before = site.process()
    token = site.open()
    assert site.shows("Restart") == "no"
    assert len(site.traces) >= 4
    site.writer.step(token, "r-1", "edit")
    after = site.writer.step(token, "r-1", "restart").after
    assert site.process().argv == NEW_RUNS
    assert after.identity == site.process().identity != before.identity
    assert int(site.shows("MainPID")) == after.pid
    assert site.writer.commit(token, "r-1").state == "committed"
    assert site.shows("Restart") == "always"
    assert site.shows("NeedDaemonReload") == "no"
    site.until(lambda: site.traces == [])


def test_a_change_is_taken_back_and_leaves_nothing_of_ours(unit_site) -> None:
    """The old bytes are back, a new process runs them, and the unit is as its owner made it."""
    site = unit_site
    token = site.open()
    site.writer.step(token, "r-1", "edit")
    site.writer.step(token, "r-1", "restart")
    execution = site.writer.undo(token, "r-1")
    assert execution.state == "undone"
    assert site.process().argv == OLD_RUNS
    assert site.process().identity == execution.after.identity
    assert site.shows("Restart") == "always"
    site.until(lambda: site.traces == [])


def test_what_the_manager_knows_is_observed(unit_site) -> None:
    """State, restarts, limits, files and start time of the unit are told, on the clock of the host itself."""
    site = unit_site
    site.host.ask("kill", "-9", str(site.process().pid))
    site.until(lambda: site.shows("NRestarts") == "1")
    process = site.process()
    seen = site.writer.observe()
    unit = seen.unit
    assert (unit.unit, unit.scope, unit.load, unit.active, unit.sub) == (
        site.unit,
        site.scope,
        "loaded",
        "active",
        "running",
    )
    assert (unit.restarts, unit.restart_policy, unit.main_pid, unit.job) == (1, "always", process.pid, False)
    assert (unit.fragment, unit.drop_ins, unit.start_limit) == (site.fragment, (), "5 in 10s")
    assert abs(unit.main_started - (seen.now - seen.age_of(process))) < 2
    assert 0 <= seen.age_of(process) < 60


def test_no_restart_of_the_managers_own_disturbs_a_change(root_site) -> None:
    """A worker that dies during a change stays dead for the agent to see; taken back, it restarts by itself again."""
    site = root_site
    token = site.open()
    site.host.ask("kill", "-9", str(site.process().pid))
    site.until(lambda: site.shows("ActiveState") == "failed")
    time.sleep(0.6)
    assert site.shows("ActiveState") == "failed"
    assert site.shows("NRestarts") == "0"
    site.writer.undo(token, "r-1")
    site.systemctl("start", site.unit)
    site.host.ask("kill", "-9", str(site.process().pid))
    site.until(lambda: site.shows("NRestarts") == "1")


def test_a_worker_that_dies_at_once_is_told_in_the_managers_words(root_site) -> None:
    """The step fails with the unit's own result, at once and not after a wait, and the undo starts it all the same."""
    site = root_site
    token = site.open(new=b"#!/bin/bash\nexit 7\n")
    site.writer.step(token, "r-1", "edit")
    with pytest.raises(HelperRefused) as refused:
        site.writer.step(token, "r-1", "restart")
    assert refused.value.kind == "failed"
    assert "exit-code, status 7" in str(refused.value)
    assert site.writer.undo(token, "r-1").state == "undone"
    assert site.process().argv == OLD_RUNS


def test_a_start_limit_that_was_hit_keeps_no_undo_from_starting(root_site) -> None:
    """A unit that the manager would not start any more for a while is started by the undo."""
    site = root_site
    site.define("StartLimitBurst=5")
    site.machine.write(
        site.fragment, b"[Unit]\nStartLimitBurst=1\nStartLimitIntervalSec=3600\n" + site.host.read(site.fragment)
    )
    site.systemctl("daemon-reload")
    token = site.open(new=b"#!/bin/bash\nexit 7\n")
    site.writer.step(token, "r-1", "edit")
    with pytest.raises(HelperRefused, match="exit-code"):
        site.writer.step(token, "r-1", "restart")
    assert site.writer.undo(token, "r-1").state == "undone"
    assert site.process().argv == OLD_RUNS


def test_a_unit_that_is_ready_much_later_does_not_hold_a_step_up(root_site) -> None:
    """Whether it becomes ready is for the engine to say; the step is done once its new process is there."""
    site = root_site
    ready = f"[ -e {site.folder}/slow ] || systemd-notify --ready\n"
    site.write(b"#!/bin/bash\nexport LEVEL=32\n" + ready.encode() + b"exec sleep 86432\n")
    site.define("Type=notify", "NotifyAccess=all", "TimeoutStartSec=600")
    new = site.host.read(site.script).replace(b"32", b"96")
    site.host.ask("touch", f"{site.folder}/slow")
    token = site.open(new=new)
    site.writer.step(token, "r-1", "edit")
    site.writer.step(token, "r-1", "restart")
    assert site.process().argv == NEW_RUNS
    assert site.shows("ActiveState") == "activating"
    assert site.writer.undo(token, "r-1").state == "undone"
    assert site.process().argv == OLD_RUNS


def test_a_unit_file_that_is_the_launch_file_is_loaded_again_each_time(root_site) -> None:
    """Put back, it is as old as it was, which its manager does not take for a change: it is told."""
    site = root_site
    site.script = site.fragment
    site.machine.write(site.fragment, b"[Service]\nExecStart=/usr/bin/sleep 86432\nRestart=always\n")
    site.host.ask("touch", "--date=2020-01-01", site.fragment)
    site.systemctl("daemon-reload")
    site.systemctl("restart", site.unit)
    writer = site.writer = site.writer_for()
    site.until(lambda: writer.main() and writer.main().argv[-1] == "86432")
    new = site.host.read(site.fragment).replace(b"32", b"96")
    site.process = writer.main
    token = site.open(new=new)
    writer.step(token, "r-1", "edit")
    assert writer.step(token, "r-1", "restart").after.pid == writer.main().pid
    site.until(lambda: writer.main().argv == ("/usr/bin/sleep", "86496"))
    assert writer.undo(token, "r-1").state == "undone"
    site.until(lambda: writer.main().argv == ("/usr/bin/sleep", "86432"))
    assert site.shows("NeedDaemonReload") == "no"


def test_a_change_that_a_person_settles_leaves_nothing_of_ours(root_site) -> None:
    """Somebody's own edit is never overwritten; once it is settled by hand, the unit is as its owner made it."""
    site = root_site
    token = site.open()
    site.writer.step(token, "r-1", "edit")
    site.write(b"#!/bin/bash\nexec sleep 86411\n")
    with pytest.raises(HelperRefused) as refused:
        site.writer.undo(token, "r-1")
    assert refused.value.kind == "foreign_edit"
    assert site.shows("Restart") == "no"
    site.writer.abandon(token, "r-1", by="ada", reason="my edit stays")
    assert site.shows("Restart") == "always"
    assert site.host.read(site.script) == b"#!/bin/bash\nexec sleep 86411\n"
    site.until(lambda: site.traces == [])


def test_a_template_instance_is_a_unit_like_any_other(machine, unit_sites) -> None:
    """The drop-in and the boot unit of `decode@7` touch no other instance."""
    site = unit_sites("root", unit="decode@7.service")
    token = site.open()
    assert site.shows("Restart") == "no"
    site.writer.step(token, "r-1", "edit")
    site.writer.step(token, "r-1", "restart")
    assert site.writer.commit(token, "r-1").state == "committed"
    assert site.shows("Restart") == "always"
    site.until(lambda: site.traces == [])
