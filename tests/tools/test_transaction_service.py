"""What a restart brings and what it must not: the agent's secrets, an older process, and what a former life left."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.errors import HelperRefused

OLD_RUNS, NEW_RUNS = ("sleep", "86432"), ("sleep", "86496")
SECRETS = {"OPENAI_API_KEY": "sk-1234567890", "SSH_AUTH_SOCK": "/tmp/agent.1", "PRUDENT_MODEL": "m"}


def environ_of(pid: int) -> dict[str, str]:
    """The environment of a process."""
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")[:-1]
    return dict(pair.split("=", 1) for pair in pairs)


def running(argv: tuple[str, ...]) -> list[int]:
    """The processes that have this argv."""
    wanted, found = "".join(f"{word}\0" for word in argv).encode(), []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes() == wanted:
                found.append(int(path.parent.name))
    return found


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(look, seconds: float = 60.0):
    """What a look brings once it brings something."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


@pytest.mark.parametrize("by", ["agent", "watchdog"])
def test_a_restarted_worker_inherits_nothing_of_the_agents(cold_site, by) -> None:
    """Neither a step nor the watchdog hands the agent's keys on; what the service names is there, and a PATH."""
    site = cold_site
    site.host.seams = {**site.host.seams, **SECRETS}
    writer = site.writer = site.writer_for("decode", environ={"LAUNCHER": "a b=c"})
    token = writer.lease("r-1", 60).token
    site.open(token, watchdog=1.0 if by == "watchdog" else 60.0)
    if by == "agent":
        writer.step(token, "r-1", "edit")
        process = writer.step(token, "r-1", "restart").after
    else:
        writer.step(token, "r-1", "edit")
        site.serve("restart")
        execution = until(lambda: (e := writer.status("r-1")).state == "undone" and e)
        process = execution.after
    seen = environ_of(process.pid)
    assert not set(SECRETS) & set(seen)
    assert not any(name.startswith(("PRUDENT_", "SSH_", "OPENAI_")) for name in seen)
    assert seen["LAUNCHER"] == "a b=c"
    assert seen["PATH"]
    assert seen["HOME"]


def test_a_watchdog_inherits_nothing_of_the_agents(cold_site) -> None:
    """It outlives the agent, so that a key in its environment would too."""
    site = cold_site
    site.host.seams = {**site.host.seams, **SECRETS}
    site.open(site.writer.lease("r-1", 60).token)
    assert not set(SECRETS) & set(environ_of(site.watchdog_pid()))


def test_a_process_that_is_older_than_the_restart_is_no_new_one(site) -> None:
    """A service that names another process after a restart than before has restarted nothing if that one is older."""
    with subprocess.Popen(["sleep", "86499"]) as older:
        switch = site.folder / "switch"
        tell = f"if [ -e {switch} ]; then echo {older.pid}; else cat {site.folder}/pid; fi"
        writer = site.writer_for(
            "decode", restart=("touch", str(switch)), pid=("/bin/sh", "-c", tell), settle_seconds=1.0
        )
        site.writer = writer
        token = writer.lease("r-1", 60).token
        site.open(token)
        writer.step(token, "r-1", "edit")
        with pytest.raises(HelperRefused) as refused:
            writer.step(token, "r-1", "restart")
        assert refused.value.kind == "failed"
        assert "no new process" in str(refused.value)
        older.kill()


def test_a_child_of_the_old_worker_that_lives_on_is_named(site) -> None:
    """The new process is there, and so is what the old one had started: the step says who, and is not done."""
    child = ("sleep", f"7{os.getpid()}")
    site.script.write_text(f"#!/bin/bash\nexport LEVEL=32\n{' '.join(child)} &\nexec sleep 86432\n")
    site.serve("restart")
    site.before = site.process()
    new = site.script.read_bytes().replace(b"32", b"96")
    writer = site.writer = site.writer_for("decode", settle_seconds=1.0)
    token = writer.lease("r-1", 60).token
    plan = site.plan(new=new)
    writer.open(token, "r-1", plan, site.approval(plan), new, now=site.approval(plan).at)
    writer.step(token, "r-1", "edit")
    with pytest.raises(HelperRefused) as refused:
        writer.step(token, "r-1", "restart")
    assert refused.value.kind == "leftovers"
    assert "(sleep) still there beside the new one" in str(refused.value)
    execution = writer.undo(token, "r-1")
    assert execution.state == "undone"
    assert site.process().argv == OLD_RUNS
    assert len(execution.journal[-1].detail["leftovers"]) >= 1
    left = [one.says for one in site.writer.observe(leftovers=True).leftovers if one.kind == "earlier"]
    assert [
        f"pid {pid} (sleep) is left over from before an earlier restart" for pid in sorted(running(child))[:-1]
    ] == left
    writer.release(token)
    site.before, restarts = site.process(), site.restarts
    token = writer.lease("r-2", 60).token
    plan = site.plan(new=new, run="r-2")
    writer.open(token, "r-2", plan, site.approval(plan), new, now=site.approval(plan).at)
    writer.step(token, "r-2", "edit")
    with pytest.raises(HelperRefused, match="a start would fail: pid"):
        writer.step(token, "r-2", "restart")
    assert site.restarts == restarts, "it is named before the worker is stopped for it"
    assert writer.undo(token, "r-2").state == "undone"
    for pid in running(child):
        os.kill(pid, signal.SIGKILL)
    assert site.writer.observe(leftovers=True).leftovers == ()


def test_an_older_worker_that_would_not_die_is_named_before_the_start(site) -> None:
    """The service lost sight of it: the same program for the same port is one, and a client of that port is none."""
    port = free_port()
    words = ["-c", "import time; time.sleep(600)", "serve", "--port", str(port)]
    python = sys.executable
    old = subprocess.Popen([python, *words, "--level", "16"])
    client = subprocess.Popen([python, "-c", "import time; time.sleep(600)", "bench", "--port", str(port)])
    beside = subprocess.Popen([python, *words[:-1], str(port + 1)])
    try:
        until(lambda: all(Path(f"/proc/{one.pid}/cmdline").read_bytes() for one in (old, client, beside)))
        time.sleep(0.05)
        line = " ".join(shlex.quote(word) for word in (python, *words))
        site.script.write_text(f"#!/bin/bash\nexport LEVEL=32\nexec {line} --level 32\n")
        site.serve("restart")
        writer = type(site.writer)(site.host, "decode", str(site.script), site.service, ports=(port,), timeout=60)
        until(lambda: (main := writer.main()) and main.argv[:1] == (python,))
        told = f"pid {old.pid} (python) runs the worker's program for port {port}, and is not the service's"
        (found,) = writer.observe(leftovers=True).leftovers
        assert found.kind == "earlier"
        assert re.sub(r"\(.*?\)", "(python)", found.says) == told
        site.writer, site.before = writer, writer.main()
        new = site.script.read_bytes().replace(b"32", b"96")
        token, plan = writer.lease("r-1", 60).token, site.plan(new=new)
        writer.open(token, "r-1", plan, site.approval(plan), new, now=site.approval(plan).at)
        writer.step(token, "r-1", "edit")
        with pytest.raises(HelperRefused, match=rf"a start would fail: pid {old.pid} "):
            writer.step(token, "r-1", "restart")
        assert writer.undo(token, "r-1").state == "undone"
        assert writer.main().identity == site.before.identity
    finally:
        for process in (old, client, beside):
            process.kill()
            process.wait()


def test_a_stranger_on_the_port_stops_a_restart_before_it_stops_the_worker(site) -> None:
    """The step is refused by the stranger's name, the old worker runs on, and the undo restarts nothing."""
    port = free_port()
    writer = site.writer_for("decode")
    writer = type(writer)(site.host, "decode", str(site.script), site.service, ports=(port,), timeout=60)
    site.writer = writer
    token = writer.lease("r-1", 60).token
    site.open(token)
    writer.step(token, "r-1", "edit")
    with subprocess.Popen([sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)], stderr=-3) as other:
        until(lambda: writer.observe().listener.relation == "foreign")
        assert [one.kind for one in writer.observe(leftovers=True).leftovers] == ["port"]
        with pytest.raises(HelperRefused, match=rf"pid {other.pid} \(.+\) holds port {port}"):
            writer.step(token, "r-1", "restart")
        other.kill()
    assert writer.undo(token, "r-1").state == "undone"
    assert site.process().identity == site.before.identity


def test_memory_on_the_gpu_is_told_with_its_holder(site, tmp_path) -> None:
    """A stranger on the worker's own GPU is named with what it holds; one on another GPU is nobody's business.

    The rows are as an H200's driver 580.159 prints them.
    """
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    mine, theirs = "GPU-122f5b78-a06d-7c66-2b2c-7780640da0ed", "GPU-0000aaaa-a06d-7c66-2b2c-7780640da0ed"
    stranger = site.before.pid
    site.serve("restart")
    worker = site.process().pid
    with subprocess.Popen(["sleep", "86498"]) as near, subprocess.Popen(["sleep", "86497"]) as far:
        rows = f"{worker}, 2566, {mine}\n{near.pid}, 1542, {mine}\n{far.pid}, 99, {theirs}\n{stranger}, 7, {theirs}\n"
        tool.write_text(f"#!/bin/sh\ncat <<'EOF'\n{rows}EOF\n")
        tool.chmod(0o755)
        site.host.seams = {**site.host.seams, "PATH": f"{tool.parent}:/usr/bin:/bin"}
        seen = site.writer.observe(leftovers=True).leftovers
        near.kill()
        far.kill()
    assert [(one.kind, one.says) for one in seen] == [
        ("gpu", f"pid {near.pid} (sleep) holds 1542 MiB of GPU memory on {mine}")
    ]


def test_the_doctor_finds_what_a_plain_machine_has_and_lacks(site) -> None:
    """Without systemd a change is possible, with the two notes that nothing of ours outlives a reboot by itself."""
    seen = {one.name: one for one in site.writer.doctor(str(site.folder / "log"))}
    assert {name for name, one in seen.items() if one.ok} >= {"python", "directory", "script", "exchange", "process"}
    assert {name for name, one in seen.items() if one.ok is None} >= {"watchdog", "reboot"}
    assert not any(path.name.startswith(".") for path in site.directory.iterdir())
    assert not (site.directory / "workers").exists()


def test_the_doctor_names_what_is_in_the_way(site) -> None:
    """A script with two names, a log that is not there, a service that will not speak: each with a remedy."""
    (site.folder / "second").hardlink_to(site.script)
    writer = site.writer_for("decode", pid=("/bin/sh", "-c", "echo no such unit >&2; exit 4"))
    seen = {one.name: one for one in writer.doctor(str(site.folder / "nowhere.log"))}
    for name, says in (("script", "hard links"), ("log", "No such file"), ("service", "no such unit")):
        assert seen[name].ok is False
        assert says in seen[name].says
        assert seen[name].remedy
