from __future__ import annotations

import hashlib
import os
import signal
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from agent.errors import HostError, NoAnswer
from tools.local import LocalHost


@pytest.fixture
def host(tmp_path) -> LocalHost:
    """This machine, with a directory of its own."""
    return LocalHost(tmp_path / "own")


def gone(pid: int) -> bool:
    """Whether a process has ended, within a minute."""
    for _ in range(1200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def test_a_command_is_an_argv_and_never_a_shell_line(host) -> None:
    """Words reach the program as they are, whatever a shell would make of them."""
    words = ["; touch x", "$(id)", "`id`", "a b", "*", "", "ü\n"]
    done = host.run(["/usr/bin/printf", "%s|", *words], timeout=30)
    assert done.status == 0
    assert done.stdout.decode() == "".join(f"{word}|" for word in words)


def test_input_output_and_status_are_its_own(host) -> None:
    """A command reads what it is given and answers status, output and complaints apart."""
    script = 'cat; echo "$GREETING" >&2; exit 7'
    done = host.run(["/bin/sh", "-c", script], stdin=b"\0bytes", timeout=30, environ={"GREETING": "hello"})
    assert done == (7, b"\0bytes", b"hello\n")
    assert host.run(["/bin/sh", "-c", "kill -9 $$"], timeout=30).status == -signal.SIGKILL


def test_megabytes_both_ways_do_not_block(host) -> None:
    """Input and output may be larger than any pipe."""
    load = os.urandom(3_000_000)
    assert host.run(["cat"], stdin=load, timeout=60).stdout == load


def test_a_command_that_does_not_end_is_killed_with_its_children(host, tmp_path) -> None:
    """Past the limit there is no answer, and nothing that it started runs on."""
    script = f"sleep 1000 & echo $! > {tmp_path}/child; echo stuck >&2; wait"
    with pytest.raises(NoAnswer, match=r"no end within 1 s. stuck"):
        host.run(["/bin/sh", "-c", script], timeout=1)
    assert gone(int((tmp_path / "child").read_text()))


def test_a_daemon_left_behind_keeps_nobody_waiting(host, tmp_path) -> None:
    """A command that ends is at its end, though what it started holds its output open."""
    done = host.run(["/bin/sh", "-c", f"sleep 1000 & echo $! > {tmp_path}/child; echo up"], timeout=60)
    assert done.stdout == b"up\n"
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def test_a_command_is_out_of_reach_of_the_terminal(host) -> None:
    """It runs in a session of its own, so that Ctrl-C of the operator is not its Ctrl-C."""
    session = host.run(["/bin/sh", "-c", "cut -d' ' -f6 /proc/$$/stat"], timeout=30)
    assert int(session.stdout) != os.getsid(0)


def test_a_program_that_is_not_there_is_an_error_of_the_host(host) -> None:
    """What could not be started is told apart from what failed."""
    with pytest.raises(HostError, match="No such file") as error:
        host.run(["/nowhere/program"], timeout=30)
    assert not isinstance(error.value, NoAnswer)


def test_lines_come_as_they_are_written(host, tmp_path) -> None:
    """A line is handed out while the command still runs; the last one needs no newline; the status comes last."""
    flag = tmp_path / "go"
    script = f"echo one; while [ ! -e {flag} ]; do sleep 0.01; done; printf two; exit 3"
    with host.stream(["/bin/sh", "-c", script], silence=30) as lines:
        stream = iter(lines)
        assert next(stream) == b"one"
        assert lines.status is None
        flag.touch()
        assert list(stream) == [b"two"]
        assert lines.status == 3


def test_leaving_a_stream_ends_its_command_with_all_children(host, tmp_path) -> None:
    """A load process that refuses to end is ended, and so is what it started."""
    script = f"trap '' TERM; sh -c \"trap '' TERM; sleep 1000\" & echo $! > {tmp_path}/child; echo up; wait; sleep 1000"
    with host.stream(["/bin/sh", "-c", script], silence=30) as lines:
        assert next(iter(lines)) == b"up"
    assert lines.status is not None
    assert gone(int((tmp_path / "child").read_text()))


def test_silence_is_no_answer(host) -> None:
    """A command without a line for longer than was allowed counts as stuck."""
    with host.stream(["/bin/sh", "-c", "echo one; sleep 1000"], silence=0.5) as lines:
        stream = iter(lines)
        assert next(stream) == b"one"
        with pytest.raises(NoAnswer, match=r"no line for 0.5 s"):
            next(stream)


def test_a_file_is_read_whole_or_from_its_end(host, tmp_path) -> None:
    """The tail is what is asked for or all there is; a missing file is an error with the system's own word."""
    (tmp_path / "log").write_bytes(b"0123456789")
    path = str(tmp_path / "log")
    assert host.read(path) == b"0123456789"
    assert host.read(path, tail=3) == b"789"
    assert host.read(path, tail=30) == b"0123456789"
    with pytest.raises(HostError) as error:
        host.read(str(tmp_path / "none"))
    assert error.value.said == "No such file or directory"


def test_our_files_are_shipped_by_their_hash(host) -> None:
    """Two versions never meet, the same one is not written twice, and a damaged copy is replaced."""
    one, two = (Path(host.ship("probe.py", content)) for content in (b"print(1)", b"print(2)"))
    assert one != two
    assert hashlib.sha256(b"print(1)").hexdigest()[:16] in one.parts
    inode = one.stat().st_ino
    assert Path(host.ship("probe.py", b"print(1)")) == one
    assert one.stat().st_ino == inode
    one.write_bytes(b"garbage")
    assert Path(host.ship("probe.py", b"print(1)")).read_bytes() == b"print(1)"
    assert Path(host.directory).stat().st_mode & 0o777 == 0o700
    assert Path(host.ship("../../x.py", b"x")).parent.parent == Path(host.directory) / "shipped"


class Answers(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(418)
        self.end_headers()
        self.wfile.write(body[::-1])

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "1000000")
        self.end_headers()
        try:
            while True:
                self.wfile.write(b"x")
                time.sleep(0.05)
        except OSError:
            pass

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def server():
    """A server that turns bodies round, and never ends an answer to GET."""
    made = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    made.daemon_threads = True
    thread = threading.Thread(target=made.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()
    thread.join()
    made.server_close()


def test_any_status_is_an_answer(host, server) -> None:
    """What an endpoint says is handed on with its status, good or bad."""
    assert host.http("POST", f"{server}/", timeout=30, body=b"abc") == (418, b"cba")


def test_an_answer_that_trickles_past_the_limit_is_none(host, server) -> None:
    """The limit holds for the whole answer."""
    with pytest.raises(NoAnswer, match=r"no complete answer within 0.3 s"):
        host.http("GET", f"{server}/", timeout=0.3)


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}/", "nonsense", "http://[::bad/"])
def test_an_endpoint_that_is_not_there_is_no_answer(host, url) -> None:
    """A refused connection and an address that is none are both no answer."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(NoAnswer):
            host.http("GET", url.format(port=taken.getsockname()[1]), timeout=5)
