"""A file system that cannot exchange two names: strace has the kernel refuse it, as NFS does."""

from __future__ import annotations

import shutil
import sys

import pytest

from agent.errors import HelperRefused, NoAnswer, StaleState
from tools.local import LocalHost
from tools.transaction import Writer

FOREIGN = b"#!/bin/bash\nexec sleep 86499\n"


@pytest.fixture
def plain_site(cold_site):
    """A site whose helper is refused every exchange."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("there is no strace to make the kernel refuse an exchange")
    wrapper = cold_site.folder / "python"
    inject = "-e trace=renameat2 -e inject=renameat2:error=EINVAL"
    wrapper.write_text(f'#!/bin/sh\nexec {strace} -qq -o /dev/null {inject} {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    kind: type[LocalHost] = type(cold_site.host)
    cold_site.host = kind(cold_site.directory, python=str(wrapper))
    cold_site.writer = Writer(cold_site.host, "decode", str(cold_site.script), cold_site.service)
    return cold_site


def test_without_an_exchange_a_change_and_its_undo_are_exact(plain_site) -> None:
    """Where names cannot be exchanged the script is renamed over; the journal says so, and the undo is exact."""
    site = plain_site
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    execution = site.writer.step(token, "r-1", "edit")
    assert [entry.detail.get("plain") for entry in execution.journal if entry.event == "begun"] == [False, True]
    assert b"96" in site.script.read_bytes()
    assert site.script.stat().st_mode & 0o7777 == 0o750
    site.writer.step(token, "r-1", "restart")
    assert site.writer.undo(token, "r-1").state == "undone"
    assert site.script.read_bytes() == site.old
    assert site.script.stat().st_mode & 0o7777 == 0o750
    assert site.process().argv == ("sleep", "86432")


def test_without_an_exchange_a_foreign_edit_is_still_never_overwritten(plain_site) -> None:
    """A foreign edit before our step makes it stale, and one after it makes the undo fail; both stay where they are."""
    site = plain_site
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    site.script.write_bytes(FOREIGN)
    with pytest.raises(StaleState):
        site.writer.step(token, "r-1", "edit")
    site.script.write_bytes(site.old)
    site.writer.step(token, "r-1", "edit")
    site.script.write_bytes(FOREIGN)
    with pytest.raises(HelperRefused) as refused:
        site.writer.undo(token, "r-1")
    assert refused.value.kind == "foreign_edit"
    assert site.script.read_bytes() == FOREIGN


@pytest.mark.slow
def test_without_an_exchange_a_helper_killed_around_the_rename_is_undone(plain_site) -> None:
    """SIGKILL at each action from the refused exchange on: the undo ends with the old bytes and the old process."""
    site = plain_site
    trace = site.folder / "trace"
    token = site.writer.lease("r-0", 60).token
    site.open(token, "r-0", run="r-0")
    with site.seams(TRACE=str(trace)):
        site.writer.step(token, "r-0", "edit")
    site.writer.undo(token, "r-0")
    site.writer.release(token)
    lines = [line.split()[:2] for line in trace.read_text().splitlines()]
    first = next(int(number) for number, action in lines if action == "exchange")
    assert len(lines) - first > 5
    for number in range(first, len(lines) + 1):
        run = f"r-{number}"
        token = site.writer.lease(run, 60).token
        site.open(token, run, run=run)
        with site.crash_at(number), pytest.raises(NoAnswer):
            site.writer.step(token, run, "edit")
        assert site.writer.undo(token, run).state == "undone"
        assert site.script.read_bytes() == site.old
        assert site.process().identity == site.before.identity
        site.writer.release(token)
