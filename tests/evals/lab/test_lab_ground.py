"""Grounds and their supervisor: up, down, several at once, crashes, and nothing left behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from evals.lab import ground, ports, supervisor


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


@pytest.mark.slow
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


def put_up_by_another(tmp_path, *, then):
    """A process that puts up a ground and then does something; its standard output is a pipe."""
    program = (
        "import os, sys, time; from pathlib import Path; from evals.lab import ground\n"
        f"place = Path(sys.argv[1])\n{then}"
    )
    return subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "lab")], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("start_speed", [1.0, 200.0])
def test_a_ground_whose_maker_is_killed_on_the_way_is_gone(tmp_path, until, start_speed):
    """Whoever is killed while putting a ground up leaves neither worker nor supervisor."""
    with put_up_by_another(
        tmp_path, then=f"ground.up(place, start_speed={start_speed})\nos.kill(os.getpid(), 9)"
    ) as maker:
        if start_speed == 1.0:
            until(lambda: ground.status(tmp_path / "lab").pid)
            worker, daemon = ground.status(tmp_path / "lab").pid, daemon_of(tmp_path / "lab")
            maker.kill()
        maker.wait()
    if start_speed == 1.0:
        until(lambda: not alive(worker) and not alive(daemon))
        assert ground.status(tmp_path / "lab").state == "stopped"
    else:
        # Once it stands, it stands by itself.
        assert ground.status(tmp_path / "lab").ready
        assert ground.down(tmp_path / "lab")


@pytest.mark.slow
def test_a_ground_for_a_block_goes_down_with_whoever_holds_it(tmp_path, until):
    """After the block it is down; a holder that is killed takes it along."""
    with ground.standing(tmp_path / "mine", start_speed=200.0) as made:
        assert ground.status(made.directory).ready
    assert ground.status(tmp_path / "mine").state == "stopped"

    block = "with ground.standing(place, start_speed=200.0):\n    print('up', flush=True)\n    time.sleep(600)"
    with put_up_by_another(tmp_path, then=block) as holder:
        assert holder.stdout.readline() == "up\n"
        worker = ground.status(tmp_path / "lab").pid
        holder.kill()
    until(lambda: not alive(worker))
    until(lambda: ground.status(tmp_path / "lab").state == "stopped")


class Small:
    """A supervised script of one's own."""

    def __init__(self, directory, script, **orders):
        self.directory = directory
        (directory / "run").mkdir()
        (directory / "serve.sh").write_text(script, encoding="utf-8")
        (directory / "supervisor.json").write_text(json.dumps({"script": "serve.sh", **orders}), encoding="utf-8")

    def say(self, word):
        """Put a word to its supervisor."""
        command = [sys.executable, supervisor.__file__, "--directory", str(self.directory), word]
        said = subprocess.run(command, capture_output=True, check=True, text=True).stdout
        return json.loads(said)

    def noted(self, name):
        """A number that the script wrote down, once it has; 0 before."""
        path = self.directory / "run" / name
        return int(path.read_text() or 0) if path.exists() else 0


@pytest.fixture
def small(tmp_path):
    """Makes supervised scripts and stops them."""
    made = []

    def make(script, **orders):
        made.append(Small(tmp_path, script, **orders))
        return made[-1]

    yield make
    for one in made:
        one.say("stop")


def test_a_killed_supervisor_leaves_nothing_of_what_it_started(small, until):
    """Children and grandchildren of the script go too, though the kernel only ends the script itself."""
    one = small("sleep 300 & echo $! > run/child\n(sleep 301 & echo $! > run/grandchild; wait) &\nwait\n")
    script = one.say("start")["pid"]
    until(lambda: one.noted("child") and one.noted("grandchild"))
    left = [script, one.noted("child"), one.noted("grandchild")]

    os.kill(daemon_of(one.directory), signal.SIGKILL)

    until(lambda: not any(alive(pid) for pid in left))
    assert one.say("start")["state"] == "running"


def test_leftovers_may_stay_for_as_long_as_the_supervisor(small, until):
    """Told to end only the main process, a restart leaves its children, and they hold their port."""
    program = (
        "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n"
        "print(s.getsockname()[1], file=open('run/port', 'w'), flush=True); time.sleep(300)"
    )
    one = small(
        f'[ -e run/port ] || {{ {sys.executable} -c "{program}" & echo $! > run/child; }}\nsleep 300\n', kill="main"
    )
    one.say("start")
    until(lambda: one.noted("port"))

    one.say("restart")

    assert alive(one.noted("child"))
    assert ports.answers(one.noted("port"))
    one.say("stop")
    until(lambda: not alive(one.noted("child")))


@pytest.mark.parametrize(
    ("policy", "status", "again"),
    [("always", 0, True), ("on-failure", 0, False), ("on-failure", 3, True), ("no", 3, False)],
)
def test_restart_policies(small, until, policy, status, again):
    """What ends is started again as the policy has it."""
    one = small(f"echo x >> run/starts\nexit {status}\n", restart=policy, restart_seconds=0.05, start_limit=2)
    starts = one.directory / "run" / "starts"
    one.say("start")

    until(lambda: one.say("status")["state"] in {"failed", "stopped"})
    assert starts.read_text().count("x") == (2 if again else 1)
    assert one.say("status")["state"] == ("failed" if again or status else "stopped")


@pytest.mark.slow
def test_a_port_that_stays_held_ends_every_start(put_up, until):
    """A worker whose port somebody holds says so, ends with an error, and is left lying after as many as it may."""
    made = put_up()
    ground.down(made.directory)
    orders = made.directory / "supervisor.json"
    orders.write_text(json.dumps({**json.loads(orders.read_text()), "start_limit": 2}))
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", made.port))
        holder.listen()
        made.supervise("start")
        until(lambda: ground.status(made.directory).state == "failed")

    refused = f"[Errno 98] error while attempting to bind on address ('127.0.0.1', {made.port}): address already in use"
    assert made.said().count(refused) == 2


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"engine": "llama"}, "no engine is called 'llama'; there are sglang and vllm"),
        ({"version": "0.4.1"}, "sglang 0.4.1 is not known here"),
        ({"topology": "ring"}, "no topology is called 'ring'"),
        ({"supervision": "runit"}, "nothing called 'runit' keeps it"),
        ({"engine": "vllm", "topology": "pd"}, "a pair is made of sglang, not of vllm"),
        ({"journal": True}, "only systemd hands output to the journal"),
        ({"faults": ["stale-bootstrap"]}, "'stale-bootstrap' takes a pair"),
    ],
)
def test_what_does_not_go_together_is_said(tmp_path, how, why):
    """A wish that cannot be met is refused before anything is written."""
    with pytest.raises(ValueError, match=why):
        ground.up(tmp_path / "lab", **how)
    assert not (tmp_path / "lab").exists()


def test_a_machine_without_systemd_says_so(tmp_path):
    """Where no systemd runs, a ground that it should keep is not put up, and nothing is left."""
    if Path("/run/systemd/system").exists():
        pytest.skip("systemd runs here")
    with pytest.raises(ground.GroundError, match=r"systemctl|Read-only|Permission"):
        ground.up(tmp_path / "lab", supervision="systemd-user")
