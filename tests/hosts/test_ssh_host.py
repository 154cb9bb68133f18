"""What the promise of a host says, kept over a real sshd: as root, as an ordinary user, and with sudo."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.errors import HostError, NoAnswer
from tools.ssh import SshHost


def sh(script: str) -> list[str]:
    """A command of several."""
    return ["/bin/sh", "-c", script]


def lives(machine, pid: int) -> bool:
    """Whether a process of the machine lives."""
    seen = machine.run(["cat", f"/proc/{pid}/stat"], check=False).stdout.rpartition(b") ")[2]
    return seen[:1] not in {b"", b"Z", b"X"}


def gone(machine, pid: int, seconds: float = 60.0) -> bool:
    """Whether a process of the machine ends in time."""
    until = time.monotonic() + seconds
    while lives(machine, pid):
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def number(machine, path: str, seconds: float = 30.0) -> int:
    """The number that a command on the machine writes down."""
    until = time.monotonic() + seconds
    while True:
        text = machine.run(["cat", path], check=False).stdout.strip()
        if text:
            return int(text)
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_command_is_an_argv_and_never_a_shell_line(host) -> None:
    """Words reach the program as they are, whatever a shell would make of them."""
    words = ["; touch x", "$(id)", "`id`", "a b", "*", "", "ü\n", "'\"\\", "!!", "-n", "\udcff"]
    done = host.run(["/usr/bin/printf", "%s|", *words], timeout=60)
    assert done.status == 0
    assert os.fsdecode(done.stdout) == "".join(f"{word}|" for word in words)


def test_input_output_and_status_are_its_own(host) -> None:
    """A command reads what it is given and answers status, output and complaints apart; a signal is a negative one."""
    script = 'cat; echo "$GREETING" >&2; exit 7'
    done = host.run(sh(script), stdin=b"\0bytes", timeout=60, environ={"GREETING": "hello; id"})
    assert done == (7, b"\0bytes", b"hello; id\n")
    assert host.run(sh("kill -9 $$"), timeout=60).status == -signal.SIGKILL
    assert host.run(sh("exit 255"), timeout=60).status == 255


def test_it_acts_as_the_account_or_as_root_where_it_becomes_root(host) -> None:
    """`sudo` stands before each command, file and shipped file; Prudent's own directory lies in that user's home."""
    who = host.run(["id", "-un"], timeout=60).stdout.decode().strip()
    assert who == ("operator" if host.name == "operator-host" else "root")
    assert host.directory == ("/home/operator" if who == "operator" else "/root") + "/.prudent/host"
    path = host.ship("x.py", b"print(1)")
    assert host.run(["stat", "-c", "%U", path], timeout=60).stdout.decode().strip() == who
    if who == "root":
        assert host.read("/etc/shadow").startswith(b"root:")
    else:
        with pytest.raises(HostError, match="Permission denied"):
            host.read("/etc/shadow")


def test_megabytes_both_ways_do_not_block(host) -> None:
    """Input and output may be larger than any window or pipe, in one command and in a stream."""
    load = os.urandom(5_000_000)
    assert host.run(["cat"], stdin=load, timeout=60).stdout == load
    with host.stream(["base64", "-w", "76"], stdin=load, silence=60) as lines:
        assert sum(len(line) for line in lines) == 6_666_668
        assert lines.status == 0


def test_what_a_shell_prints_when_it_starts_is_not_the_command_s(machine, way) -> None:
    """Start-up files that print, complain and change the terminal touch neither output nor complaints nor status."""
    noise = b'echo "Welcome to $HOSTNAME"; echo 0123456789abcdef; printf "S0000000b{}"; echo "no tty" >&2; set -x\n'
    was = {path: machine.read(path) for path in ("/home/operator/.bashrc", "/home/operator/.profile")}
    machine.write("/home/operator/.bashrc", noise, user="operator")
    try:
        with SshHost.connect(way("operator")) as host:
            assert host.run(sh("echo out; echo err >&2; exit 3"), timeout=60) == (3, b"out\n", b"err\n")
            with host.stream(["echo", "line"], silence=60) as lines:
                assert list(lines) == [b"line"]
            assert host.read("/etc/hostname") == machine.read("/etc/hostname")
    finally:
        for path, content in was.items():
            machine.write(path, content, user="operator")


@pytest.mark.parametrize("shell", ["/bin/dash", "/bin/bash"])
def test_the_login_s_shell_is_only_a_way_in(machine, way, shell) -> None:
    """Whichever shell a login has gets one line to see, in which nothing of ours needs quoting."""
    machine.run(["usermod", "--shell", shell, "operator"])
    try:
        with SshHost.connect(way("operator")) as host:
            assert host.run(["/usr/bin/printf", "%s", "$HOME 'x'"], timeout=60).stdout == b"$HOME 'x'"
    finally:
        machine.run(["usermod", "--shell", "/bin/bash", "operator"])


def test_a_command_that_does_not_end_is_killed_with_its_children(host, machine) -> None:
    """Past the limit there is no answer, and nothing that it started runs on."""
    spot = f"/tmp/child-{host.name}"
    with pytest.raises(NoAnswer, match=r"no end within 1 s. stuck"):
        host.run(sh(f"sleep 1000 & echo $! > {spot}; echo stuck >&2; wait"), timeout=1)
    assert gone(machine, number(machine, spot), 20)


def test_a_daemon_left_behind_keeps_nobody_waiting(host, machine) -> None:
    """A command that ends is at its end, though what it started holds its output open."""
    done = host.run(sh("sleep 1000 & echo $!"), timeout=60)
    pid = int(done.stdout)
    assert lives(machine, pid)
    machine.run(["kill", "-9", str(pid)])


def test_a_program_that_is_not_there_is_an_error_of_the_host(host) -> None:
    """What could not be started is told apart from what failed, and from what nobody knows."""
    for start in (lambda: host.run(["/nowhere/program"], timeout=60), lambda: _lines(host, ["/nowhere/program"])):
        with pytest.raises(HostError, match="No such file") as error:
            start()
        assert not isinstance(error.value, NoAnswer)
    with pytest.raises(HostError, match="null"):
        host.run(["true", "a\0b"], timeout=60)


def _lines(host: SshHost, argv: list[str]) -> list[bytes]:
    with host.stream(argv, silence=60) as lines:
        return list(lines)


def test_lines_come_as_they_are_written(host, machine) -> None:
    """A line is handed out while the command still runs; the last one needs no newline; the status comes last."""
    flag = f"/tmp/go-{host.name}"
    with host.stream(
        sh(f"echo one; while [ ! -e {flag} ]; do sleep 0.01; done; printf two; exit 3"), silence=60
    ) as lines:
        stream = iter(lines)
        assert next(stream) == b"one"
        assert lines.status is None
        machine.run(["touch", flag])
        assert list(stream) == [b"two"]
        assert lines.status == 3


def test_leaving_a_stream_ends_its_command_with_all_children(host, machine) -> None:
    """A load process that refuses to end is ended, and so is what it started."""
    spot = f"/tmp/stubborn-{host.name}"
    script = f"trap '' TERM; sh -c \"trap '' TERM; sleep 1000\" & echo $! > {spot}; echo up; wait; sleep 1000"
    with host.stream(sh(script), silence=60) as lines:
        assert next(iter(lines)) == b"up"
    assert lines.status == -signal.SIGKILL
    assert gone(machine, number(machine, spot), 20)


def test_complaints_of_a_stream_are_kept_apart(host) -> None:
    """What a load complains is there once it has ended, and is none of its lines."""
    with host.stream(sh("echo bad >&2; echo good"), silence=60) as lines:
        assert list(lines) == [b"good"]
    assert lines.complaints == b"bad\n"


def test_silence_is_no_answer(host) -> None:
    """A command without a line for longer than was allowed counts as stuck."""
    with host.stream(sh("echo one; sleep 1000"), silence=0.5) as lines:
        stream = iter(lines)
        assert next(stream) == b"one"
        with pytest.raises(NoAnswer, match=r"no line for 0.5 s"):
            next(stream)


def test_a_file_is_read_whole_or_from_its_end(host, machine) -> None:
    """The tail is what is asked for or all there is; a missing file is an error with the system's own word."""
    load = os.urandom(3_000_000)
    machine.write("/srv/log", load)
    assert host.read("/srv/log") == load
    assert host.read("/srv/log", tail=1_000_003) == load[-1_000_003:]
    assert host.read("/srv/log", tail=9_000_000) == load
    with pytest.raises(HostError) as error:
        host.read("/srv/none")
    assert error.value.said == "No such file or directory"
    assert not isinstance(error.value, NoAnswer)


def test_our_files_are_shipped_by_their_hash(host) -> None:
    """Two versions never meet, the same one is not written twice, a damaged copy is replaced, others see nothing."""

    def say(*argv: str) -> str:
        return host.run(argv, timeout=60).stdout.decode().strip()

    one, two = (host.ship("probe.py", content) for content in (b"print(1)", b"print(2)"))
    assert one != two
    assert hashlib.sha256(b"print(1)").hexdigest()[:16] in one.split("/")
    inode = say("stat", "-c", "%i", one)
    assert host.ship("probe.py", b"print(1)") == one
    assert say("stat", "-c", "%i", one) == inode
    host.run(["tee", one], stdin=b"garbage", timeout=60)
    assert host.read(host.ship("probe.py", b"print(1)")) == b"print(1)"
    assert say("stat", "-c", "%a", host.directory, str(Path(host.directory).parent)) == "700\n700"
    assert host.ship("../../x.py", b"x").startswith(f"{host.directory}/shipped/")
    assert say("ls", "-A", str(Path(two).parent)) == "probe.py"


def test_a_directory_that_others_may_write_to_is_not_prudent_s_own(machine, way) -> None:
    """Nothing is shipped to where somebody else could put another file in its place."""
    machine.run(["install", "-d", "-m", "0777", "/srv/shared"])
    machine.run(["install", "-d", "-o", "operator", "-m", "0700", "/srv/theirs"])
    for folder in ("/srv/shared", "/srv/theirs"):
        with SshHost.connect(way("root", directory=folder)) as host:
            with pytest.raises(HostError, match="belongs to somebody else, or others may write to it"):
                host.ship("x.py", b"x")
            assert machine.run(["ls", folder]).stdout == b""


def test_a_full_disk_refuses_what_is_shipped_and_nothing_else(machine, way) -> None:
    """There is no room for a file of ours: the system's word, no half file; commands and their output need no disk."""
    machine.run(["install", "-d", "/srv/full"])
    machine.run(["mount", "-t", "tmpfs", "-o", "size=1M,mode=0700", "tmpfs", "/srv/full"])
    try:
        with SshHost.connect(way("root", directory="/srv/full")) as host:
            with pytest.raises(HostError, match="No space left on device"):
                host.ship("x.py", os.urandom(2_000_000))
            assert machine.run(["find", "/srv/full", "-type", "f"]).stdout == b""
            load = os.urandom(2_000_000)
            assert host.run(["cat"], stdin=load, timeout=60, environ={"TMPDIR": "/srv/full"}).stdout == load
    finally:
        machine.run(["umount", "/srv/full"])


def test_many_threads_share_a_connection(host) -> None:
    """A heartbeat, a load and questions go on at once, and every answer is for whoever asked."""

    def ask(number: int) -> list[bytes]:
        return [
            host.run(["/bin/sh", "-c", f"read x; echo {number} $x"], stdin=b"%d\n" % turn, timeout=120).stdout
            for turn in range(6)
        ]

    with (
        host.stream(["/bin/sh", "-c", "while :; do echo load; sleep 0.05; done"], silence=60) as lines,
        ThreadPoolExecutor(6) as pool,
    ):
        asked = list(pool.map(ask, range(6)))
        heard = iter(lines)
        assert {next(heard) for _ in range(20)} == {b"load"}
    assert asked == [[b"%d %d\n" % (number, turn) for turn in range(6)] for number in range(6)]
