from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from agent.domain import HostState
from agent.errors import (
    ApprovalExpired,
    EditRefused,
    ForeignApproval,
    HelperRefused,
    RunInFlight,
    SpentApproval,
    StaleState,
    UnreadableScript,
)
from tools.transaction import Writer

NOW = datetime.now(UTC)


def content(site) -> bytes:
    """The script's bytes."""
    return site.script.read_bytes()


def new_of(site) -> bytes:
    """The bytes that a plan for this script writes."""
    return content(site).replace(b"32", b"96")


def test_a_change_is_written_restarted_and_kept(site) -> None:
    """Open, edit, restart, commit: the new bytes lie there, a new process runs them, and the journal says so."""
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    site.writer.step(token, "r-1", "edit")
    site.writer.step(token, "r-1", "restart")
    execution = site.writer.commit(token, "r-1")
    assert execution.state == "committed"
    assert [entry.event for entry in execution.journal] == ["opened", "begun", "done", "begun", "done", "committed"]
    assert b"96" in content(site)
    assert site.process().argv == ("sleep", "86496")
    assert execution.before.identity == site.before.identity
    assert execution.after.identity == site.process().identity != site.before.identity
    assert site.script.stat().st_mode & 0o7777 == 0o750
    assert [path.name for path in site.folder.iterdir() if "serve" in path.name] == ["serve.sh"]


def test_undo_brings_back_the_very_file_and_a_process_that_runs_it(site) -> None:
    """After both steps an undo restores bytes, mode, time stamp and inode, and a fresh process runs the old script."""
    os.utime(site.script, (1_000_000_000, 1_000_000_000))
    before, seen = content(site), site.script.stat()
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    site.writer.step(token, "r-1", "edit")
    site.writer.step(token, "r-1", "restart")
    assert site.process().argv == ("sleep", "86496")
    execution = site.writer.undo(token, "r-1")
    assert execution.state == "undone"
    assert content(site) == before
    after = site.script.stat()
    kept = ("st_ino", "st_mode", "st_uid", "st_gid", "st_mtime_ns", "st_nlink")
    assert [getattr(after, name) for name in kept] == [getattr(seen, name) for name in kept]
    assert site.process().argv == ("sleep", "86432")
    assert site.process().identity == execution.after.identity
    assert site.process().identity != site.before.identity


def test_what_was_never_written_is_never_restarted(site) -> None:
    """Undoing a transaction without a step leaves the process that was there alone."""
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    execution = site.writer.undo(token, "r-1")
    assert execution.state == "undone"
    assert site.process().identity == site.before.identity
    assert site.restarts == 1


def test_an_edit_without_a_restart_is_undone_without_one(site) -> None:
    """Where only the script was edited, the process never saw it: bytes go back, users are not disturbed."""
    before = content(site)
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    site.writer.step(token, "r-1", "edit")
    site.writer.undo(token, "r-1")
    assert content(site) == before
    assert site.process().identity == site.before.identity


def test_a_worker_that_restarted_itself_on_the_edit_is_restarted_by_the_undo(site) -> None:
    """A process that came up by itself between edit and undo has read the new script, so it is replaced."""
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    site.writer.step(token, "r-1", "edit")
    site.serve("restart")
    assert site.process().argv == ("sleep", "86496")
    site.writer.undo(token, "r-1")
    assert site.process().argv == ("sleep", "86432")


def test_every_call_may_be_repeated(site) -> None:
    """The same open, step, commit or undo again acts once and answers the same."""
    token = site.writer.lease("r-1", 60).token
    plan = site.open(token)
    new = new_of(site)
    site.writer.step(token, "r-1", "edit")
    assert site.writer.open(token, "r-1", plan, site.approval(plan), new, now=NOW).state == "open"
    site.writer.step(token, "r-1", "edit")
    first = site.writer.step(token, "r-1", "restart")
    again = site.writer.step(token, "r-1", "restart")
    assert again == first
    assert site.restarts == 2
    assert site.writer.commit(token, "r-1") == site.writer.commit(token, "r-1")


def test_a_repeated_undo_restarts_once(site) -> None:
    """An undo that is asked for twice answers twice and acts once."""
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    site.writer.step(token, "r-1", "edit")
    site.writer.step(token, "r-1", "restart")
    assert site.writer.undo(token, "r-1") == site.writer.undo(token, "r-1")
    assert site.restarts == 3


def test_steps_run_in_the_order_of_the_plan(site) -> None:
    """A restart before its edit is refused, and so is a commit before the last step."""
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    with pytest.raises(HelperRefused, match="edit") as refused:
        site.writer.step(token, "r-1", "restart")
    assert refused.value.kind == "out_of_order"
    with pytest.raises(HelperRefused) as refused:
        site.writer.commit(token, "r-1")
    assert refused.value.kind == "incomplete"
    assert site.restarts == 1


def test_one_holder_at_a_time(site) -> None:
    """A living lease keeps others out; given back, it lets them in with a newer token that fences the first one off."""
    first = site.writer.lease("r-1", 60).token
    with pytest.raises(RunInFlight, match="r-1"):
        site.writer.lease("r-2", 60)
    site.writer.release(first)
    second = site.writer.lease("r-2", 60).token
    assert second > first
    with pytest.raises(HelperRefused) as refused:
        site.writer.renew(first)
    assert refused.value.kind == "fenced"


def test_who_holds_the_worker_is_told_with_process_and_machine(site) -> None:
    """A run's id means nothing on another machine: who is refused hears where the holder is, and so does who looks."""
    theirs = Writer(site.host, "decode", str(site.script), site.service, timeout=60, who="process 7 on desk-a")
    token = theirs.lease("r-1", 60).token
    with pytest.raises(RunInFlight, match=r"'r-1' \(process 7 on desk-a\) holds the lease of 'decode'"):
        site.writer.lease("r-2", 60)
    seen = site.writer.observe()
    assert (seen.holder, seen.who) == ("r-1", "process 7 on desk-a")
    site.open(token)
    assert site.writer.observe().execution.journal[0].detail["who"] == "process 7 on desk-a"


def test_a_holder_that_slept_past_its_lease_is_refused(site) -> None:
    """Once the lease has run out nothing but an undo is taken from its holder, and another run may undo it as well."""
    token = site.writer.lease("r-1", 0.3).token
    site.open(token)
    while site.writer.observe().holder is not None:
        pass
    with pytest.raises(HelperRefused) as refused:
        site.writer.step(token, "r-1", "edit")
    assert refused.value.kind == "lease_expired"
    grant = site.writer.lease("r-2", 60)
    assert grant.unfinished.transaction == "r-1"
    with pytest.raises(HelperRefused) as refused:
        site.writer.step(grant.token, "r-1", "edit")
    assert refused.value.kind == "fenced"
    with pytest.raises(HelperRefused) as refused:
        site.writer.undo(token, "r-1")
    assert refused.value.kind == "fenced"
    assert site.writer.undo(grant.token, "r-1").state == "undone"


def test_a_fresh_lease_of_the_same_holder_goes_on(site) -> None:
    """A run whose owner died takes its own lease again and finishes what it began; the dead one's calls are refused."""
    dead = site.writer.lease("r-1", 60).token
    site.open(dead)
    site.writer.step(dead, "r-1", "edit")
    token = site.writer.lease("r-1", 60).token
    with pytest.raises(HelperRefused) as refused:
        site.writer.step(dead, "r-1", "restart")
    assert refused.value.kind == "fenced"
    site.writer.step(token, "r-1", "restart")
    assert site.writer.commit(token, "r-1").state == "committed"


def test_a_second_transaction_waits_for_the_first(site) -> None:
    """While a transaction is open, an approved plan of another run is refused and its approval stays unspent."""
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    plan = site.plan(run="r-2")
    with pytest.raises(RunInFlight, match="r-1"):
        site.writer.open(token, "r-2", plan, site.approval(plan), new_of(site), now=NOW)
    site.writer.undo(token, "r-1")
    assert site.writer.open(token, "r-2", plan, site.approval(plan), new_of(site), now=NOW).state == "open"


def test_an_approval_opens_one_transaction(site) -> None:
    """A second transaction under the same approval is refused, by whatever name and for whatever worker."""
    token = site.writer.lease("r-1", 60).token
    plan = site.open(token)
    site.writer.undo(token, "r-1")
    with pytest.raises(SpentApproval):
        site.writer.open(token, "r-1b", plan, site.approval(plan), new_of(site), now=NOW)
    assert site.writer.status().transaction == "r-1"


@pytest.mark.parametrize(
    "changed",
    [{"expires": NOW - timedelta(seconds=1)}, {"expires": NOW}],
    ids=["a second ago", "this very moment"],
)
def test_an_approval_that_ran_out_opens_nothing(idle_site, changed) -> None:
    """At its end an approval is over, and nothing is written."""
    token = idle_site.writer.lease("r-1", 60).token
    plan = idle_site.plan()
    with pytest.raises(ApprovalExpired):
        idle_site.writer.open(token, "r-1", plan, idle_site.approval(plan, **changed), new_of(idle_site), now=NOW)
    assert idle_site.writer.status() is None


@pytest.mark.parametrize(
    "changed",
    [{"digest": "0" * 64}, {"run": "r-9"}, {"decision": "reject"}],
    ids=["another digest", "another run", "a no"],
)
def test_an_approval_for_something_else_opens_nothing(idle_site, changed) -> None:
    """Only a yes to this very plan of this very run opens a transaction."""
    token = idle_site.writer.lease("r-1", 60).token
    plan = idle_site.plan()
    with pytest.raises(ForeignApproval):
        idle_site.writer.open(token, "r-1", plan, idle_site.approval(plan, **changed), new_of(idle_site), now=NOW)
    assert idle_site.writer.status() is None


@pytest.mark.parametrize(
    "mutation",
    [
        {"new_script_sha256": "1" * 64},
        {"watchdog_seconds": 61.0},
        {"diff": "+ one more line"},
        {"backup_of": "/etc/passwd"},
        {"policy": "another"},
    ],
    ids=lambda mutation: next(iter(mutation)),
)
def test_a_plan_that_changed_after_the_approval_opens_nothing(idle_site, mutation) -> None:
    """The helper computes the digest of what it is handed by itself: no field can differ from what was approved."""
    token = idle_site.writer.lease("r-1", 60).token
    approval = idle_site.approval(idle_site.plan())
    with pytest.raises(ForeignApproval):
        idle_site.writer.open(token, "r-1", idle_site.plan(**mutation), approval, new_of(idle_site), now=NOW)
    assert idle_site.writer.status() is None


def test_content_that_was_not_approved_is_not_written(site) -> None:
    """The new bytes have to be those whose hash the approved plan names."""
    token = site.writer.lease("r-1", 60).token
    plan = site.plan()
    with pytest.raises(ForeignApproval):
        site.writer.open(token, "r-1", plan, site.approval(plan), b"#!/bin/bash\nexec false\n", now=NOW)


def test_a_script_that_moved_since_the_approval_voids_it(site) -> None:
    """One byte more in the script than the plan saw, and nothing is opened; the sentence names what moved."""
    token = site.writer.lease("r-1", 60).token
    plan, new = site.plan(), new_of(site)
    site.script.write_bytes(content(site) + b"\n")
    with pytest.raises(StaleState, match=r"serve\.sh changed"):
        site.writer.open(token, "r-1", plan, site.approval(plan), new, now=NOW)
    assert site.writer.status() is None


def test_a_process_that_moved_since_the_approval_voids_it(site) -> None:
    """A worker that was restarted since the plan was made is not the one that the approval is for."""
    token = site.writer.lease("r-1", 60).token
    plan = site.plan()
    site.serve("restart")
    with pytest.raises(StaleState, match="main process"):
        site.writer.open(token, "r-1", plan, site.approval(plan), new_of(site), now=NOW)


def test_a_script_that_moves_while_the_transaction_is_open_is_left_alone(site) -> None:
    """An edit step that meets somebody else's bytes writes nothing, and the undo leaves those bytes alone."""
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    site.script.write_bytes(b"#!/bin/bash\nexec sleep 86499\n")
    with pytest.raises(StaleState):
        site.writer.step(token, "r-1", "edit")
    assert site.writer.undo(token, "r-1").state == "undone"
    assert content(site) == b"#!/bin/bash\nexec sleep 86499\n"
    assert site.process().identity == site.before.identity


def test_a_foreign_edit_after_ours_is_never_overwritten(site) -> None:
    """An undo that finds neither the old nor the new bytes touches nothing and says that a person has to look."""
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    site.writer.step(token, "r-1", "edit")
    site.writer.step(token, "r-1", "restart")
    running = site.process().identity
    site.script.write_bytes(b"#!/bin/bash\nexec sleep 86499\n")
    with pytest.raises(HelperRefused, match="somebody edited") as refused:
        site.writer.undo(token, "r-1")
    assert refused.value.kind == "foreign_edit"
    assert content(site) == b"#!/bin/bash\nexec sleep 86499\n"
    assert site.process().identity == running
    execution = site.writer.status("r-1")
    assert execution.state == "undo_failed"
    assert "somebody edited" in execution.problem


def test_a_person_settles_what_no_undo_could(site) -> None:
    """A failed undo keeps the worker locked until somebody abandons it with a reason, or the undo succeeds."""
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    with pytest.raises(HelperRefused) as refused:
        site.writer.abandon(token, "r-1", by="ada", reason="no reason")
    assert refused.value.kind == "not_open"
    site.writer.step(token, "r-1", "edit")
    site.script.write_bytes(b"#!/bin/bash\nexec sleep 86499\n")
    with pytest.raises(HelperRefused):
        site.writer.undo(token, "r-1")
    plan = site.plan(run="r-2", new=new_of(site))
    with pytest.raises(RunInFlight):
        site.writer.open(token, "r-2", plan, site.approval(plan), new_of(site), now=NOW)
    settled = site.writer.abandon(token, "r-1", by="ada", reason="the edit of eve stays")
    assert settled.state == "undo_failed"
    assert "ada" in settled.problem
    assert "eve" in settled.problem
    site.script.write_bytes(b"#!/bin/bash\nexec sleep 86432\n")
    plan = site.plan(run="r-2", new=new_of(site))
    assert site.writer.open(token, "r-2", plan, site.approval(plan), new_of(site), now=NOW).state == "open"


def test_an_undo_that_failed_may_be_tried_again(site) -> None:
    """When the restart works again, the same undo ends in the old bytes and a process that runs them."""
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    site.writer.step(token, "r-1", "edit")
    site.writer.step(token, "r-1", "restart")
    (site.folder / "broken").touch()
    with pytest.raises(HelperRefused, match="the unit is masked") as refused:
        site.writer.undo(token, "r-1")
    assert refused.value.kind == "undo_failed"
    (site.folder / "broken").unlink()
    assert site.writer.undo(token, "r-1").state == "undone"
    assert site.process().argv == ("sleep", "86432")


def test_a_restart_that_fails_is_recorded_and_not_repeated(site) -> None:
    """A restart command that ends with an error is named with what it said; the step is not tried a second time."""
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    site.writer.step(token, "r-1", "edit")
    (site.folder / "broken").touch()
    for _ in range(2):
        with pytest.raises(HelperRefused, match="status 5: the unit is masked") as refused:
            site.writer.step(token, "r-1", "restart")
        assert refused.value.kind == "failed"
    assert site.restarts == 2
    (site.folder / "broken").unlink()
    assert site.writer.undo(token, "r-1").state == "undone"
    assert site.process().argv == ("sleep", "86432")
    assert site.process().identity != site.before.identity


def test_a_restart_that_takes_too_long_is_ended_and_undone(site) -> None:
    """A restart command past its limit is killed with what it started, and the undo starts the old worker."""
    site.writer = site.writer_for("decode", restart_seconds=1.0)
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    site.writer.step(token, "r-1", "edit")
    (site.folder / "slow").write_text("30")
    with pytest.raises(HelperRefused, match="took over 1 s"):
        site.writer.step(token, "r-1", "restart")
    (site.folder / "slow").unlink()
    assert site.writer.undo(token, "r-1").state == "undone"
    assert site.process().argv == ("sleep", "86432")


def test_a_link_to_the_script_is_followed_and_stays_a_link(site) -> None:
    """The file behind a symbolic link is edited; a link that points elsewhere by then voids the approval."""
    link = site.folder / "current.sh"
    link.symlink_to(site.script)
    site.script, target = link, site.script
    site.writer = site.writer_for("decode")
    site.writer = type(site.writer)(site.host, "decode", str(link), site.service)
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    site.writer.step(token, "r-1", "edit")
    assert link.is_symlink()
    assert b"96" in target.read_bytes()
    site.writer.undo(token, "r-1")
    other = site.folder / "other.sh"
    other.write_bytes(target.read_bytes())
    plan = site.plan(run="r-2")
    site.writer.open(token, "r-2", plan, site.approval(plan), new_of(site), now=NOW)
    link.unlink()
    link.symlink_to(other)
    with pytest.raises(StaleState, match="another link"):
        site.writer.step(token, "r-2", "edit")
    assert other.read_bytes() == target.read_bytes()
    assert b"96" not in other.read_bytes()


def test_a_script_that_is_no_plain_file_is_refused(site) -> None:
    """A second hard link would be parted by an edit, and a missing file cannot be backed up: both are said."""
    token = site.writer.lease("r-1", 60).token
    plan, new = site.plan(), new_of(site)
    os.link(site.script, site.folder / "twin.sh")
    with pytest.raises(EditRefused, match="2 hard links"):
        site.writer.open(token, "r-1", plan, site.approval(plan), new, now=NOW)
    (site.folder / "twin.sh").unlink()
    site.script.rename(site.folder / "gone")
    with pytest.raises(UnreadableScript, match="No such file"):
        site.writer.open(token, "r-1", plan, site.approval(plan), new, now=NOW)


def test_a_restart_alone_needs_no_edit(site) -> None:
    """A plan of one restart step restarts, commits, and leaves the script as it is."""
    before = content(site)
    token = site.writer.lease("r-1", 60).token
    restart = (
        site.plan()
        .steps[1]
        .model_copy(update={"before": HostState(process=site.before.identity), "after": HostState()})
    )
    plan = site.plan(steps=(restart,))
    site.writer.open(token, "r-1", plan, site.approval(plan), b"", now=NOW)
    site.writer.step(token, "r-1", "restart")
    assert site.writer.commit(token, "r-1").state == "committed"
    assert site.process().identity != site.before.identity
    assert content(site) == before


def test_a_call_waits_for_another_one_only_so_long(cold_site) -> None:
    """While a step is at work on the host, a lease that cannot wait is refused with the reason; the step goes on."""
    site = cold_site
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    site.writer.step(token, "r-1", "edit")
    (site.folder / "slow").write_text("2")
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(site.writer.step, token, "r-1", "restart")
        while site.restarts < 2:
            time.sleep(0.01)
        hurried = type(site.writer)(site.host, "decode", str(site.script), site.service, timeout=1)
        with pytest.raises(RunInFlight, match="another call is at work"):
            hurried.lease("r-2", 60)
        assert [entry.event for entry in pending.result().journal][-1] == "done"
    assert site.writer.commit(token, "r-1").state == "committed"


def through_an_open_handle(site, handle) -> None:
    """Write into the file that was the script before our edit."""
    handle.write(b"exec sleep 86499\n")
    handle.flush()


def over_the_script(site, handle) -> None:
    """Write the script's name anew."""
    site.script.write_bytes(b"exec sleep 86499\n")


@pytest.mark.parametrize("write", [through_an_open_handle, over_the_script], ids=lambda way: way.__name__)
def test_what_somebody_wrote_meanwhile_is_neither_kept_nor_lost(site, write) -> None:
    """A commit that meets a foreign edit, also one into the file that we took out, is refused; the undo leaves it."""
    token = site.writer.lease("r-1", 60).token
    with site.script.open("r+b") as handle:
        site.open(token)
        site.writer.step(token, "r-1", "edit")
        site.writer.step(token, "r-1", "restart")
        write(site, handle)
    with pytest.raises(HelperRefused, match="edited by somebody") as refused:
        site.writer.commit(token, "r-1")
    assert refused.value.kind == "moved"
    with pytest.raises(HelperRefused) as refused:
        site.writer.undo(token, "r-1")
    assert refused.value.kind == "foreign_edit"
    assert site.script.read_bytes().startswith(b"exec sleep 86499\n")


def test_a_worker_that_somebody_restarted_is_not_kept(site) -> None:
    """A commit is for the process that was started for the change and verified, and for no other."""
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    site.writer.step(token, "r-1", "edit")
    site.writer.step(token, "r-1", "restart")
    site.serve("restart")
    with pytest.raises(HelperRefused, match="restarted by somebody else") as refused:
        site.writer.commit(token, "r-1")
    assert refused.value.kind == "moved"
    assert site.writer.undo(token, "r-1").state == "undone"
    assert site.process().argv == ("sleep", "86432")


def test_prudents_own_directory_is_for_its_user_only(site) -> None:
    """Everything that is kept, backups with their secrets included, is closed to all others."""
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    for path in [site.directory, *site.directory.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0 or "shipped" in path.parts, path


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a\0b", "x" * 200, "wörker"])
def test_names_that_could_leave_the_directory_are_refused(idle_site, name) -> None:
    """A worker's or transaction's name is a name and never a path."""
    with pytest.raises(HelperRefused) as refused:
        idle_site.writer_for(name).lease("r-1", 60)
    assert refused.value.kind == "bad_request"
    assert not (idle_site.directory.parent / "up").exists()
