"""A disk that loses what was not synced: what survives is what the model says, and nothing that was synced is lost."""

from __future__ import annotations

import json
import os
import shutil
import sys
import uuid
from pathlib import Path

import pytest

from evals.campaigns.disk import Effect, images, traced
from tools.transaction import HELPER

ROOT = {"/d": None, "/d/old": b"old"}


def states(*effects: Effect) -> list[dict[str, bytes | None]]:
    """Everything that a power cut may leave after some effects."""
    return [dict(image) for image in images(ROOT, effects, len(effects)).values()]


def test_bytes_and_name_of_a_new_file_are_lost_one_by_one_until_both_are_synced():
    """Without a sync a new file is gone, empty or whole; after both syncs it is whole."""
    made = (Effect("make", "/d/new"), Effect("write", "/d/new", data=b"new"))
    assert {state.get("/d/new") for state in states(*made)} == {None, b"", b"new"}
    synced = (*made, Effect("sync", "/d/new"))
    assert {state.get("/d/new") for state in states(*synced)} == {None, b"new"}
    assert {state.get("/d/new") for state in states(*synced, Effect("sync", "/d"))} == {b"new"}


def test_a_rename_before_the_bytes_are_synced_may_leave_an_empty_file():
    """The classic mistake is seen: the name is the new one, the bytes are nothing."""
    effects = (Effect("make", "/d/new"), Effect("write", "/d/new", data=b"new"), Effect("move", "/d/new", "/d/old"))
    assert b"" in {state["/d/old"] for state in states(*effects)}
    right = (*effects[:2], Effect("sync", "/d/new"), effects[2])
    assert {state["/d/old"] for state in states(*right)} == {b"old", b"new"}


def test_an_exchange_is_whole_or_not_at_all():
    """Both names move, or none does, also across two folders."""
    start = {"/a": None, "/b": None, "/a/one": b"1", "/b/two": b"2"}
    effects = [Effect("exchange", "/a/one", "/b/two")]
    found = {(image["/a/one"], image["/b/two"]) for image in images(start, effects, 1).values()}
    assert found == {(b"1", b"2"), (b"2", b"1")}


def test_a_name_that_was_synced_keeps_what_it_rests_on():
    """A synced folder keeps every change of its names up to then, in their order."""
    effects = (
        Effect("make", "/d/part"),
        Effect("write", "/d/part", data=b"x"),
        Effect("sync", "/d/part"),
        Effect("move", "/d/part", "/d/whole"),
        Effect("sync", "/d"),
        Effect("drop", "/d/old"),
    )
    for state in states(*effects):
        assert state["/d/whole"] == b"x"
        assert "/d/part" not in state


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may lay another boot's id over the kernel's")
def test_after_a_power_cut_the_helper_sees_another_boot(under, tmp_path):
    """It is the only one that does: for it deadline and lease of the boot before are over."""
    kernels = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    (tmp_path / "boot").write_text(f"{uuid.UUID(int=7)}\n", encoding="ascii")
    service = {"kind": "command", "restart": ["true"], "pid": ["/bin/echo", str(os.getpid())]}
    wish = {"directory": str(tmp_path / "host"), "worker": "decode", "script": "/nowhere", "service": service}
    for boot, wanted in ((None, kernels), (tmp_path / "boot", str(uuid.UUID(int=7)))):
        done = under.forge.call(str(HELPER), "observe", json.dumps(wish).encode(), {}, 60, boot=boot)
        assert json.loads(done.stdout)["process"]["boot_id"] == wanted
    assert Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() == kernels


@pytest.mark.skipif(shutil.which("strace") is None, reason="there is no strace on this machine")
def test_a_trace_shows_every_write_sync_and_name(tmp_path):
    """What a program did to the disk is read from its system calls, byte for byte."""
    folder = tmp_path / "d"
    folder.mkdir()
    program = (
        "import os,sys;d=sys.argv[1];h=os.open(d+'/a',os.O_CREAT|os.O_WRONLY);os.write(h,b'\\x00\\xff\"x');"
        "os.fsync(h);os.rename(d+'/a',d+'/b');os.link(d+'/b',d+'/c');os.unlink(d+'/b');print('said')"
    )
    said, effects = traced([sys.executable, "-c", program, str(folder)], b"", [str(folder)], tmp_path / "trace")
    assert said == b"said\n"
    assert [effect.kind for effect in effects] == ["make", "write", "sync", "move", "link", "drop"]
    assert effects[1].data == b'\x00\xff"x'
    assert (effects[3].path, effects[3].other) == (f"{folder}/a", f"{folder}/b")
