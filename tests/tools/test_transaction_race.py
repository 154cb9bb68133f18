from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.errors import DiskFull, HelperRefused, NoAnswer, StaleState

FOREIGN = b"#!/bin/bash\nexec sleep 86499\n"


def paused(site, action: str, call, meanwhile):
    """Make a call, stop it just before an action of the helper, do something meanwhile, and let it go on."""
    flag = site.folder / "pause"
    with ThreadPoolExecutor(1) as pool, site.seams(PAUSE_AT=f"{action}={flag}"):
        pending = pool.submit(call)
        end = time.monotonic() + 60
        while not flag.exists():
            assert time.monotonic() < end
            assert not pending.done(), f"{action} never came: {pending.result()}"
            time.sleep(0.005)
        meanwhile()
        flag.unlink()
        return pending.result()


def exchange_of_an_edit(site, token: int, transaction: str) -> int:
    """Carry out the edit step, and say which of its durable actions the exchange was."""
    trace = site.folder / "trace"
    with site.seams(TRACE=str(trace)):
        site.writer.step(token, transaction, "edit")
    listed = [line.split()[:2] for line in trace.read_text().splitlines()]
    trace.unlink()
    return next(int(number) for number, action in listed if action == "exchange")


def replace(path: Path, content: bytes) -> None:
    """Write as an editor does: a new file, renamed over the old one."""
    part = path.with_name("editor.tmp")
    part.write_bytes(content)
    part.rename(path)


def write_in_place(path: Path, content: bytes) -> None:
    """Write into the file that is there."""
    path.write_bytes(content)


WAYS = pytest.mark.parametrize("write", [replace, write_in_place], ids=["renamed over it", "written in place"])


@WAYS
def test_an_edit_between_the_last_check_and_the_exchange_survives(cold_site, write) -> None:
    """What somebody writes in the instant before our exchange comes back to its place, and our step says stale."""
    site = cold_site
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    with pytest.raises(StaleState, match="while it was exchanged"):
        paused(site, "exchange", lambda: site.writer.step(token, "r-1", "edit"), lambda: write(site.script, FOREIGN))
    assert site.script.read_bytes() == FOREIGN
    assert site.writer.undo(token, "r-1").state == "undone"
    assert site.script.read_bytes() == FOREIGN
    assert site.process().identity == site.before.identity
    assert not list(site.directory.rglob("swap*"))


@WAYS
def test_an_edit_between_the_last_check_and_the_restoring_exchange_survives(cold_site, write) -> None:
    """An undo that meets a foreign edit in its last instant puts it back, and says that a person has to look."""
    site = cold_site
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    site.writer.step(token, "r-1", "edit")
    with pytest.raises(HelperRefused) as refused:
        paused(site, "exchange", lambda: site.writer.undo(token, "r-1"), lambda: write(site.script, FOREIGN))
    assert refused.value.kind == "foreign_edit"
    assert site.script.read_bytes() == FOREIGN
    assert site.writer.status("r-1").state == "undo_failed"


@pytest.mark.parametrize("then", ["undo", "step"])
def test_a_crash_with_a_foreign_edit_in_our_hands_gives_it_back(cold_site, then) -> None:
    """SIGKILL after an exchange that took somebody's bytes out, before we looked: the next call puts them back."""
    site = cold_site
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    number = exchange_of_an_edit(site, token, "r-1")
    site.writer.undo(token, "r-1")
    site.open(token, "r-2", run="r-2")
    with site.crash_at(number + 1), pytest.raises(NoAnswer):
        paused(site, "exchange", lambda: site.writer.step(token, "r-2", "edit"), lambda: replace(site.script, FOREIGN))
    assert site.script.read_bytes() != FOREIGN
    if then == "step":
        with pytest.raises(StaleState):
            site.writer.step(token, "r-2", "edit")
        assert site.script.read_bytes() == FOREIGN
    assert site.writer.undo(token, "r-2").state == "undone"
    assert site.script.read_bytes() == FOREIGN
    assert site.process().identity == site.before.identity


@pytest.fixture
def other_mount(site):
    """Prudent's directory on a file system of its own."""
    mount = site.folder / "mount"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", mount], check=False, capture_output=True)
    if made.returncode:
        pytest.skip(f"this user may not mount: {made.stderr.decode().strip()}")
    yield mount
    site.close()
    subprocess.run(["umount", "--lazy", mount], check=True)


@pytest.fixture
def elsewhere(site, request):
    """A folder on another mount than the script: the shared memory that every Linux has, or a mount of our own."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == site.folder.stat().st_dev:
        yield request.getfixturevalue("other_mount")
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


def fill(folder: Path) -> Path:
    """Leave not a byte free on a file system; answers the file that took it."""
    ballast = folder / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    return ballast


def test_across_mounts_nothing_stays_beside_the_script(site, elsewhere) -> None:
    """With our directory on another file system, edit and undo are exact and leave no file next to the script."""
    other = type(site)(site.folder, directory=elsewhere / "prudent", forge=site.host.forge)
    old, names = other.script.read_bytes(), sorted(path.name for path in site.folder.iterdir())
    token = other.writer.lease("r-1", 60).token
    other.open(token)
    other.writer.step(token, "r-1", "edit")
    assert other.script.read_bytes() == old.replace(b"32", b"96")
    assert sorted(path.name for path in site.folder.iterdir()) == names
    assert other.writer.undo(token, "r-1").state == "undone"
    assert other.script.read_bytes() == old
    assert other.script.stat().st_mode & 0o7777 == 0o750
    assert sorted(path.name for path in site.folder.iterdir()) == names
    other.close()


def test_across_mounts_a_crash_beside_the_script_is_cleared_up(site, elsewhere) -> None:
    """SIGKILL while our file lies beside the script: the undo takes it away with everything else."""
    other = type(site)(site.folder, directory=elsewhere / "prudent", forge=site.host.forge)
    token = other.writer.lease("r-1", 60).token
    other.open(token)
    number = exchange_of_an_edit(other, token, "r-1")
    other.writer.undo(token, "r-1")
    other.open(token, "r-2", run="r-2")
    with other.crash_at(number), pytest.raises(NoAnswer):
        other.writer.step(token, "r-2", "edit")
    assert list(site.folder.glob(".serve.sh.prudent-*"))
    assert other.writer.undo(token, "r-2").state == "undone"
    assert not list(site.folder.glob(".serve.sh.prudent-*"))
    assert other.script.read_bytes() == other.old
    other.close()


def test_a_full_disk_at_the_backup_touches_nothing(site, other_mount) -> None:
    """Without room for the backup nothing is opened, and the approval is still good once there is room."""
    other = type(site)(site.folder, directory=other_mount / "prudent", forge=site.host.forge)
    token = other.writer.lease("r-1", 60).token
    ballast = fill(other_mount)
    with pytest.raises(DiskFull, match="nothing was touched"):
        other.open(token)
    assert other.script.read_bytes() == other.old
    assert other.process().identity == other.before.identity
    ballast.unlink()
    assert other.writer.status() is None
    other.open(token)
    assert other.writer.undo(token, "r-1").state == "undone"
    other.close()


def test_a_disk_that_fills_up_later_does_not_stop_the_undo(site, other_mount) -> None:
    """Full after both steps: the undo still restores the very bytes, restarts, and writes down that it did."""
    other = type(site)(site.folder, directory=other_mount / "prudent", forge=site.host.forge)
    token = other.writer.lease("r-1", 60).token
    other.open(token)
    other.writer.step(token, "r-1", "edit")
    other.writer.step(token, "r-1", "restart")
    fill(other_mount)
    assert other.writer.undo(token, "r-1").state == "undone"
    assert other.script.read_bytes() == other.old
    assert other.process().argv == ("sleep", "86432")
    assert other.process().identity != other.before.identity
    other.close()
