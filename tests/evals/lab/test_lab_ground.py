"""Grounds and their supervisor: up, down, several at once, crashes, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from evals.lab import ground, supervisor


def alive(pid):
    """Whether a process runs, a dead one that nobody has waited for aside."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def daemon_of(directory):
    """The supervisor's process id."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
                ours = b"run" in words and os.fsencode(supervisor.__file__) in words
                if ours and (process / "cwd").resolve() == directory.resolve():
                    return int(process.name)
            except OSError:
                continue
    return 0


def test_a_ground_has_all_that_prudent_needs(put_up):
    """Settings, script, plan and log lie where the settings say; the service's commands work as written."""
    made = put_up()
    settings = tomllib.loads(made.settings.read_text(encoding="utf-8"))
    worker = settings["workers"]["decode"]

    assert worker["control"] == worker["entry"] == f"http://127.0.0.1:{made.port}"
    assert [made.directory / worker[name] for name in ("script", "log", "plan")] == [made.script, made.log, made.plan]
    pid = subprocess.run(worker["service"]["pid"], capture_output=True, check=True, text=True).stdout
    assert int(pid) == made.pid()
    said = json.loads(subprocess.run(worker["service"]["restart"], capture_output=True, check=True, text=True).stdout)
    assert said["was"] == int(pid) != said["pid"]
    assert not alive(int(pid))
    assert subprocess.run(["bash", "-n", made.script], check=True).returncode == 0
    git = ["git", "-C", str(made.plan.parent)]
    assert subprocess.run([*git, "status", "--porcelain"], capture_output=True, check=True).stdout == b""
    assert subprocess.run([*git, "log", "--oneline"], capture_output=True, check=True).stdout.count(b"\n") == 1


def test_several_stand_side_by_side(put_up):
    """Two grounds have ports and processes of their own; one going down does not touch the other."""
    first, second = put_up(), put_up()

    assert first.port != second.port
    assert ground.down(first.directory)
    assert ground.status(first.directory)[:3] == (False, False, "stopped")
    assert not ground.down(first.directory)
    assert second.player.sessions(2) == 0


def test_down_leaves_nothing(put_up):
    """After down neither worker nor supervisor runs, and the port is free for the next one."""
    made = put_up()
    worker, daemon = made.pid(), daemon_of(made.directory)
    assert alive(worker)
    assert alive(daemon)

    ground.down(made.directory)

    assert not alive(worker)
    assert not alive(daemon)
    assert ground.up(made.directory, port=made.port, start_speed=200.0).port == made.port


def test_there_need_not_be_a_ground(tmp_path):
    """Asking about or taking down a ground that was never put up is answered, not failed."""
    assert ground.status(tmp_path).state == "absent"
    assert not ground.down(tmp_path)
    with pytest.raises(ValueError, match="no fault is called 'gremlins'; there are abort-on-combination, abort-wedge"):
        ground.up(tmp_path, faults=["gremlins"])


def test_a_crash_is_followed_by_a_start(put_up, until):
    """A killed worker is started again by the supervisor, in a session of its own."""
    made = put_up()
    before = made.pid()
    assert os.getsid(before) == before != os.getsid(0)

    os.kill(before, signal.SIGKILL)
    until(lambda: made.pid() not in {0, before})
    until(lambda: ground.status(made.directory).ready)
    assert ground.status(made.directory).restarts == 1


@pytest.mark.slow
def test_a_worker_that_keeps_dying_is_left_lying(put_up, until):
    """After five deaths in a minute the supervisor gives up and says failed; a restart tries again."""
    made = put_up()
    good = made.script.read_text(encoding="utf-8")
    made.script.write_text("echo no >&2\nexit 3\n", encoding="utf-8")
    made.supervise("restart")

    until(lambda: ground.status(made.directory).state == "failed")
    assert made.said().count("no\n") >= 5
    made.script.write_text(good, encoding="utf-8")
    made.supervise("restart")
    until(lambda: ground.status(made.directory).ready)


def test_the_worker_dies_with_its_supervisor(put_up, until):
    """A supervisor that is killed takes the worker with it; the next start finds a clean house."""
    made = put_up()
    worker = made.pid()

    os.kill(daemon_of(made.directory), signal.SIGKILL)
    until(lambda: not alive(worker))
    made.supervise("start")
    until(lambda: ground.status(made.directory).ready)


def test_the_supervisor_outlives_the_terminal(put_up):
    """The daemon sits in a session of its own, away from the terminal that started it."""
    made = put_up()

    daemon = daemon_of(made.directory)
    assert os.getsid(daemon) == daemon


def test_a_stubborn_worker_is_killed_with_its_children(tmp_path, until):
    """What ignores SIGTERM is killed after the limit, whatever it had spawned included."""
    (tmp_path / "run").mkdir()
    (tmp_path / "serve.sh").write_text("trap '' TERM\nsleep 300 & echo $! > run/child\nwhile :; do sleep 0.1; done\n")
    (tmp_path / "supervisor.json").write_text(json.dumps({"script": "serve.sh", "stop_seconds": 0.3}))
    command = [sys.executable, supervisor.__file__, "--directory", str(tmp_path)]
    started = json.loads(subprocess.run([*command, "start"], capture_output=True, check=True).stdout)
    until(lambda: (tmp_path / "run" / "child").exists() and (tmp_path / "run" / "child").read_text().strip())
    child = int((tmp_path / "run" / "child").read_text())

    stopped = json.loads(subprocess.run([*command, "stop"], capture_output=True, check=True).stdout)

    assert (stopped["pid"], stopped["was"]) == (0, started["pid"])
    until(lambda: not alive(child) and not alive(started["pid"]))
    assert subprocess.run([*command, "pid"], capture_output=True, check=True).stdout == b"0\n"
