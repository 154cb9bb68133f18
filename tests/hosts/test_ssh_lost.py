"""What breaks under a command: sshd, the session, the connection, the way back; and what is said of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.errors import HostError, NoAnswer
from evals.lab.relay import Relay
from tools.ssh import SshHost

WORK = "echo $$ > {spot}; echo before; sleep {seconds}; echo done >> {spot}; echo after"


@pytest.fixture
def relay(machine) -> Iterator[Relay]:
    """The way to the shared machine."""
    made = Relay(machine.port)
    yield made
    made.close()


def wait_for(what: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something is so."""
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


def text(machine, path: str) -> list[str]:
    """The words of a file on the machine; none where it is not there."""
    return machine.run(["cat", path], check=False).stdout.decode().split()


def lives(machine, pid: str) -> bool:
    """Whether a process of the machine lives."""
    seen = machine.run(["cat", f"/proc/{pid}/stat"], check=False).stdout.rpartition(b") ")[2]
    return seen[:1] not in {b"", b"Z", b"X"}


def session(machine) -> None:
    """Kill the processes of sshd that serve sessions, as if they had crashed; the one that listens stays."""
    machine.run(["pkill", "-KILL", "-f", "^sshd: [a-z]+@notty"])


def listener(machine) -> None:
    """Kill all of sshd; systemd starts it again."""
    machine.run(["pkill", "-KILL", "sshd"])
    machine.wait_until_up()


def sockets(machine) -> None:
    """Have the kernel drop the connections to sshd."""
    filtered = ["state", "established", f"( sport = :{machine.port} or dport = :{machine.port} )"]
    subprocess.run(["ss", "--kill", *filtered], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("account", "breaking"),
    [("operator", session), ("root", listener), ("operator", sockets), ("deploy", session), ("deploy", sockets)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_command_that_loses_its_connection_has_no_answer_and_goes_on(own_machine, own_way, account, breaking) -> None:
    """Nobody says that it was done; it goes on to its own end; the next command makes a new connection, and says so."""
    told: list[str] = []
    with SshHost.connect(own_way(account), tell=told.append) as host:
        breaker = threading.Thread(target=_break, args=(own_machine, breaking), daemon=True)
        breaker.start()
        before = time.monotonic()
        with pytest.raises(NoAnswer, match="the connection broke before it said how it ended"):
            host.run(["/bin/sh", "-c", WORK.format(spot="/var/tmp/work", seconds=4)], timeout=100)
        assert time.monotonic() - before < 60
        assert not told
        breaker.join()
        assert host.run(["echo", "again"], timeout=60).stdout == b"again\n"
        assert told == [f"{account}-host: the connection was lost and has been made again"]
    wait_for(lambda: text(own_machine, "/var/tmp/work")[1:] == ["done"])


def _break(machine, breaking: Callable[..., None]) -> None:
    wait_for(lambda: bool(text(machine, "/var/tmp/work")))
    breaking(machine)


@pytest.mark.parametrize(
    ("account", "breaking"),
    [("operator", session), ("operator", sockets), ("deploy", session)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_load_that_loses_its_connection_ends_with_its_children(own_machine, own_way, account, breaking) -> None:
    """Nobody can read what it says any more, so it must not go on sending requests."""
    script = "sleep 1000 & echo $!; echo $$; exec sleep 1000"
    with SshHost.connect(own_way(account)) as host:
        with host.stream(["/bin/sh", "-c", script], silence=60) as lines:
            heard = iter(lines)
            pids = [next(heard).decode() for _ in range(2)]
            breaking(own_machine)
            with pytest.raises(NoAnswer, match="the connection broke"):
                next(heard)
        assert lines.status is None
        wait_for(lambda: not any(lives(own_machine, pid) for pid in pids))


def test_a_command_s_limit_holds_on_the_host_though_nobody_listens_any_more(own_machine, own_way) -> None:
    """It is killed with its children when its time is over, also when the agent was killed long before."""
    with SshHost.connect(own_way("root")) as host:
        breaker = threading.Thread(target=_break, args=(own_machine, sockets), daemon=True)
        breaker.start()
        with pytest.raises(NoAnswer):
            host.run(["/bin/sh", "-c", WORK.format(spot="/var/tmp/work", seconds=1000)], timeout=5)
        breaker.join()
    pid = text(own_machine, "/var/tmp/work")[0]
    wait_for(lambda: not lives(own_machine, pid))
    assert len(text(own_machine, "/var/tmp/work")) == 1


@pytest.mark.slow
def test_a_connection_that_is_dead_without_a_word_is_found_dead(machine, way, relay) -> None:
    """No packet comes through and nobody says so: a command has no answer in time, and a load ends by itself."""
    with (
        SshHost.connect(way("root", port=relay.port, known_hosts=_known(machine, relay))) as host,
        host.stream(["/bin/sh", "-c", "echo $$; exec sleep 1000"], silence=60) as lines,
    ):
        pid = next(iter(lines)).decode()
        relay.hush()
        began = time.monotonic()
        with pytest.raises(NoAnswer, match=r"no answer in time|nothing was sent"):
            host.run(["true"], timeout=1)
        assert time.monotonic() - began < 60
        wait_for(lambda: not lives(machine, pid), 90)


def _known(machine, relay: Relay) -> str:
    """A known_hosts that calls the machine by the relay's port."""
    file = machine.directory / "known_at_relay"
    file.write_text(machine.known_hosts.read_text().replace(str(machine.port), str(relay.port)))
    return str(file)


def test_a_question_is_asked_again_and_a_change_is_not(machine, way, relay) -> None:
    """A connection that is cut while a file comes: read once more. While a command runs: no answer, one execution."""
    machine.write("/srv/large", os.urandom(20_000_000))
    machine.run(["rm", "-f", "/tmp/once"])
    told: list[str] = []
    target = way("root", port=relay.port, known_hosts=_known(machine, relay))
    with SshHost.connect(target, tell=told.append) as host:
        timer = threading.Timer(0.15, relay.cut)
        timer.start()
        assert host.read("/srv/large") == machine.read("/srv/large")
        timer.join()
        host.run(["true"], timeout=60)
        threading.Timer(1.0, relay.cut).start()
        with pytest.raises(NoAnswer):
            host.run(["/bin/sh", "-c", "echo x >> /tmp/once; sleep 3; echo y >> /tmp/once"], timeout=60)
        wait_for(lambda: text(machine, "/tmp/once") == ["x", "y"])
        host.run(["true"], timeout=60)
        assert text(machine, "/tmp/once") == ["x", "y"]
    assert told


def test_a_connection_that_was_lost_between_two_commands_is_made_again(machine, way, relay) -> None:
    """Nothing had been sent, so nothing is in doubt: the command is carried out, once, on a new connection."""
    told: list[str] = []
    target = way("root", port=relay.port, known_hosts=_known(machine, relay))
    with SshHost.connect(target, tell=told.append) as host:
        for _ in range(3):
            relay.cut()
            assert host.run(["echo", "x"], timeout=60).stdout == b"x\n"
    assert len(told) == 3
    assert relay.accepted == 4


def test_a_machine_that_does_not_come_back_is_no_answer_and_says_that_nothing_was_sent(machine, way, relay) -> None:
    """In the middle of a run an unreachable machine is no refusal of the operator's wish."""
    target = way("root", port=relay.port, known_hosts=_known(machine, relay))
    with SshHost.connect(target) as host:
        relay.close()
        for ask in (
            lambda: host.run(["true"], timeout=5),
            lambda: host.read("/etc/hostname"),
            lambda: host.ship("x.py", b"x"),
            lambda: host.http("GET", "http://127.0.0.1:1/", timeout=5),
        ):
            with pytest.raises(NoAnswer, match=r"nothing was sent: .*Check address, port and network"):
                ask()


def test_another_machine_behind_the_same_address_is_not_taken_for_the_first(own_machine, own_way) -> None:
    """Same address, same key, another machine id: nothing is done there."""
    with SshHost.connect(own_way("root")) as host:
        own_machine.write("/etc/machine-id", b"0123456789abcdef0123456789abcdef\n")
        session(own_machine)
        wait_for(lambda: not host._link.alive)
        with pytest.raises(NoAnswer, match="another machine answers than before"):
            host.run(["touch", "/tmp/touched"], timeout=60)
    assert not text(own_machine, "/tmp/touched")
    assert own_machine.run(["test", "-e", "/tmp/touched"], check=False).returncode == 1


def test_a_reboot_in_the_middle_is_no_answer_and_the_machine_is_found_again(own_machine, own_way) -> None:
    """The power goes while a command runs; afterwards the same host answers, under a new boot id."""
    with SshHost.connect(own_way("root")) as host:
        boot = host.read("/proc/sys/kernel/random/boot_id")
        cutting = threading.Thread(target=_break, args=(own_machine, lambda machine: machine.power_cut()), daemon=True)
        cutting.start()
        with pytest.raises(NoAnswer):
            host.run(["/bin/sh", "-c", WORK.format(spot="/var/tmp/work", seconds=1000)], timeout=60)
        cutting.join()
        assert host.read("/proc/sys/kernel/random/boot_id") != boot


def test_sessions_run_out_and_that_is_said(machine, way) -> None:
    """Sshd gives a connection ten sessions; the eleventh is refused with the reason, and nothing was done."""
    with SshHost.connect(way("operator")) as host, contextlib.ExitStack() as open_streams:
        for _ in range(10):
            open_streams.enter_context(host.stream(["sleep", "1000"], silence=60))
        with pytest.raises(HostError, match="MaxSessions") as refused:
            host.run(["true"], timeout=60)
        assert not isinstance(refused.value, NoAnswer)
        open_streams.close()
        assert host.run(["true"], timeout=60).status == 0


def test_an_agent_that_is_killed_leaves_no_load_behind(machine, way, tmp_path) -> None:
    """SIGKILL of the process that reads the stream ends the command on the host."""
    target = way("operator")
    code = (
        "import sys; from tools.ssh import SshHost; from tools.ssh_target import SshTarget\n"
        "host = SshHost.connect(SshTarget.model_validate_json(sys.argv[1]))\n"
        "with host.stream(['/bin/sh', '-c', 'echo $$; exec sleep 1000'], silence=60) as lines:\n"
        "    for line in lines: print(line.decode(), flush=True)\n"
    )
    agent = subprocess.Popen(
        [sys.executable, "-c", code, target.model_dump_json()], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert agent.stdout is not None
    with agent.stdout:
        pid = agent.stdout.readline().decode().strip()
    assert lives(machine, pid)
    os.kill(agent.pid, signal.SIGKILL)
    agent.wait()
    wait_for(lambda: not lives(machine, pid))
