from __future__ import annotations

import os
import signal
import threading
import time
from datetime import UTC, datetime

import pytest

from agent.errors import HelperRefused, RunInFlight

OLD_RUNS, NEW_RUNS = ("sleep", "86432"), ("sleep", "86496")


def wait_for(state: str, site, seconds: float = 60.0):
    """The transaction once it is in a state."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        execution = site.writer.observe().execution
        if execution is not None and execution.state == state:
            return execution
        time.sleep(0.05)
    raise AssertionError(f"never {state}: {execution}")


def test_a_silent_agent_is_taken_back_by_the_watchdog(site) -> None:
    """When nobody renews, the old bytes and a process that runs them come back by themselves; the journal says who."""
    old = site.script.read_bytes()
    token = site.writer.lease("r-1", 60).token
    site.open(token, watchdog=2.5)
    site.writer.step(token, "r-1", "edit")
    site.writer.step(token, "r-1", "restart")
    execution = wait_for("undone", site)
    assert {entry.by for entry in execution.journal if entry.event in ("undo_begun", "undone")} == {"watchdog"}
    assert site.script.read_bytes() == old
    assert site.process().argv == OLD_RUNS
    assert site.process().identity == execution.after.identity
    for call in (site.writer.commit, site.writer.renew):
        with pytest.raises(HelperRefused) as refused:
            call(token, "r-1")
        assert refused.value.kind == "not_open"


def test_a_watchdog_that_finds_nothing_written_restarts_nothing(site) -> None:
    """A transaction that was opened and left alone ends as undone, with the process that was there."""
    token = site.writer.lease("r-1", 60).token
    site.open(token, watchdog=0.3)
    wait_for("undone", site)
    assert site.process().identity == site.before.identity


@pytest.mark.slow
def test_an_agent_that_renews_keeps_its_change(cold_site) -> None:
    """A heartbeat carries a transaction over many watchdog times, a restart that is slower than one included."""
    site = cold_site
    token = site.writer.lease("r-1", 3).token
    site.open(token, watchdog=2.0)
    site.writer.step(token, "r-1", "edit")
    (site.folder / "slow").write_text("2.5")
    with site.writer.heartbeat(token, "r-1", every=2.0) as pulse:
        site.writer.step(token, "r-1", "restart")
        time.sleep(3)
        assert pulse.lost is None
        assert site.writer.commit(token, "r-1").state == "committed"
        time.sleep(1)
    assert pulse.lost is None
    assert site.process().argv == NEW_RUNS


def test_a_heartbeat_tells_its_block_that_the_transaction_is_lost(cold_site) -> None:
    """Once another holder has undone the transaction, the block that still measures learns the reason."""
    site = cold_site
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    with site.writer.heartbeat(token, "r-1", every=3.0) as pulse:
        assert pulse.lost is None
        other = site.writer_for("decode")
        other.undo(other.lease("r-1", 60).token, "r-1")
        for _ in range(600):
            if pulse.lost is not None:
                break
            time.sleep(0.05)
    assert pulse.lost is not None
    assert pulse.lost.startswith("fenced")


def test_a_watchdog_that_was_killed_is_replaced_by_the_next_call(site) -> None:
    """SIGKILL of the watchdog leaves the change guarded again from the next call on."""
    token = site.writer.lease("r-1", 60).token
    site.open(token, watchdog=3.0)
    first = site.watchdog_pid()
    os.kill(first, signal.SIGKILL)
    site.writer.step(token, "r-1", "edit")
    assert site.watchdog_pid() != first
    wait_for("undone", site)
    assert site.script.read_bytes() == site.old


def test_after_the_deadline_the_agent_may_only_watch(site) -> None:
    """With its watchdog dead and its time over, the agent is refused all the same: the deadline alone decides."""
    token = site.writer.lease("r-1", 60).token
    site.open(token, watchdog=0.5)
    os.kill(site.watchdog_pid(), signal.SIGKILL)
    time.sleep(0.6)
    for call in (lambda: site.writer.step(token, "r-1", "edit"), lambda: site.writer.renew(token, "r-1")):
        with pytest.raises(HelperRefused) as refused:
            call()
        assert refused.value.kind == "overdue"
    site.writer.status()
    wait_for("undone", site)


def test_a_watchdog_killed_in_the_middle_of_its_undo_is_followed_by_another(site) -> None:
    """A half-done undo whose doer died is finished by the watchdog that the next call starts."""
    old = site.script.read_bytes()
    token = site.writer.lease("r-1", 60).token
    site.open(token, watchdog=1.0)
    site.writer.step(token, "r-1", "edit")
    site.writer.step(token, "r-1", "restart")
    (site.folder / "slow").write_text("1.5")
    end = time.monotonic() + 60
    while site.restarts < 3 and time.monotonic() < end:
        time.sleep(0.02)
    os.kill(site.watchdog_pid(), signal.SIGKILL)
    assert site.writer.observe().execution.state == "open"
    (site.folder / "slow").unlink()
    site.writer.status()
    execution = wait_for("undone", site)
    assert site.script.read_bytes() == old
    assert site.process().argv == OLD_RUNS
    assert site.process().identity == execution.after.identity


def test_a_watchdog_tries_again_when_the_restart_fails(site) -> None:
    """A restart that fails at the watchdog's first attempt and works later ends in the old state, not in silence."""
    token = site.writer.lease("r-1", 60).token
    site.open(token, watchdog=1.0)
    site.writer.step(token, "r-1", "edit")
    site.writer.step(token, "r-1", "restart")
    (site.folder / "broken").touch()
    wait_for("undo_failed", site)
    (site.folder / "broken").unlink()
    wait_for("undone", site)
    assert site.process().argv == OLD_RUNS


def test_a_watchdog_never_overwrites_a_foreign_edit(site) -> None:
    """Somebody else's bytes stay, and the journal says that the undo failed and why."""
    token = site.writer.lease("r-1", 60).token
    site.open(token, watchdog=1.0)
    site.writer.step(token, "r-1", "edit")
    site.script.write_bytes(b"#!/bin/bash\nexec sleep 86499\n")
    execution = wait_for("undo_failed", site)
    assert "somebody edited" in execution.problem
    assert site.script.read_bytes() == b"#!/bin/bash\nexec sleep 86499\n"


def test_a_reboot_ends_leases_and_deadlines(site) -> None:
    """What was granted in another boot is over: the lease is free, and an open transaction is taken back."""
    token = site.writer.lease("r-1", 3600).token
    site.open(token, watchdog=3600)
    site.writer.step(token, "r-1", "edit")
    os.kill(site.watchdog_pid(), signal.SIGKILL)
    boot = site.before.boot_id
    for name in ("lease", "deadline"):
        path = site.directory / "workers" / "decode" / name
        path.write_text(path.read_text().replace(boot, "0" * len(boot)))
    grant = site.writer.lease("r-2", 60)
    assert grant.unfinished.transaction == "r-1"
    wait_for("undone", site)
    assert site.script.read_bytes() == site.old


@pytest.mark.slow
def test_two_holders_never_write_at_once(cold_site) -> None:
    """Of several runs that want the worker at the same moment one gets the lease, every time, and tokens only grow."""
    site = cold_site
    tokens: list[int] = []
    for _ in range(5):
        won: list[int] = []
        refused: list[RunInFlight] = []

        def contend(holder: str, won=won, refused=refused) -> None:
            try:
                won.append(site.writer.lease(holder, 60).token)
            except RunInFlight as error:
                refused.append(error)

        threads = [threading.Thread(target=contend, args=(f"r-{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert len(refused) == 3
        tokens += won
        site.writer.release(won[0])
    assert tokens == sorted(set(tokens))


def test_a_call_that_was_on_its_way_when_the_lease_was_renewed_is_refused(site) -> None:
    """A step that arrives after a fresh lease does nothing, however valid it was when it was sent."""
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    fresh = site.writer.lease("r-1", 60).token
    with pytest.raises(HelperRefused) as refused:
        site.writer.step(token, "r-1", "edit")
    assert refused.value.kind == "fenced"
    assert site.script.read_bytes() == site.old
    plan = site.plan(run="r-9")
    with pytest.raises(HelperRefused) as refused:
        site.writer.open(token, "r-9", plan, site.approval(plan), b"", now=datetime.now(UTC))
    assert refused.value.kind == "fenced"
    assert site.writer.undo(fresh, "r-1").state == "undone"
