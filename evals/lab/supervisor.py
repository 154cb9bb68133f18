"""A small supervisor: keeps one serve script running, restarts it when it dies, and leaves nothing behind.

    python supervisor.py --directory D [--lifeline FD] run|start|stop|restart|pid|status|keep

`run` is the daemon itself, in the foreground; `start` puts it into the background first. `stop` ends the worker and the
daemon. `restart` returns when the old process is gone and the new one is spawned. Every answer but `pid`'s is one line
of JSON. One file, standard library only, so that it can be put beside any script.

A daemon that was handed a lifeline, the reading end of a pipe, ends when nobody holds the other end any more, unless
`keep` has told it that it stands by itself. However a daemon ends, its guard, a process of its own, kills what is left
of everything that it had started, whatever that has become by then.

In D: `supervisor.json` (see `Orders`), and under `run/` the worker's log, the daemon's own log, pid file and socket.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO

SOCKET = "run/supervisor.sock"
"""Where the daemon listens, in its directory."""
_LOCK = "run/supervisor.lock"
_PID = "run/worker.pid"
_OWN_LOG = "run/supervisor.log"
_PR_SET_PDEATHSIG = 1
_TURN_SECONDS = 10.0
"""How long a new daemon waits for the guard of the one before."""


class Orders(NamedTuple):
    """`supervisor.json`: what to run and how patiently."""

    script: str = "serve.sh"
    """The serve script, relative to the directory."""
    log: str = "run/worker.log"
    """Where its output goes, appended."""
    stop_seconds: float = 10.0
    """How long it may take to end before it is killed."""
    restart: str = "always"
    """After which ends it is started again by itself: `always`, `on-failure` (a status other than 0), `no`."""
    restart_seconds: float = 0.5
    """Pause before it is started again."""
    kill: str = "group"
    """What a stop ends: `group`, or only the `main` process, so that what it has spawned stays."""
    start_limit: int = 5
    """Crashes within the interval after which it is left lying."""
    start_interval: float = 60.0
    """The interval, in seconds."""


class Daemon:
    """Holds the worker's process.

    Args:
        orders: What to run.
        guard: The process that cleans up after this one; it is told of every session.
        lifeline: The reading end of a pipe; its end is the daemon's.
    """

    def __init__(self, orders: Orders, guard: subprocess.Popen[bytes], lifeline: int | None = None) -> None:
        self._orders = orders
        self._guard = guard
        self._lifeline = lifeline
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self._state = "stopped"
        self._crashes: list[float] = []
        self._restarts = 0
        self._since = time.time()
        self._turn = asyncio.Lock()
        self._ended = asyncio.Event()

    async def serve(self) -> None:
        """Answer on the socket until `stop`."""
        Path(SOCKET).unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._answer, SOCKET)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ended.set)
        if self._lifeline is not None:
            loop.add_reader(self._lifeline, self._ended.set)
        async with server:
            await self._ended.wait()
            async with self._turn:
                await self._halt()
        Path(SOCKET).unlink(missing_ok=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        word = (await reader.readline()).decode().strip()
        try:
            answer = await self._obey(word)
        except OSError as failure:
            answer = {"error": str(failure)}
        writer.write(json.dumps(answer).encode() + b"\n")
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()
        if word == "stop":
            self._ended.set()

    async def _obey(self, word: str) -> dict[str, Any]:
        if word in {"status", "pid"}:
            return self._status()
        if word == "keep":
            self._stand_alone()
            return self._status()
        async with self._turn:
            was = self._pid()
            if word in {"stop", "restart"}:
                await self._halt()
            if word in {"start", "restart"} and self._pid() == 0:
                self._crashes.clear()
                await self._spawn()
            return {**self._status(), "was": was, "daemon": os.getpid()}

    def _stand_alone(self) -> None:
        """Live on when whoever started this is gone."""
        if self._lifeline is not None:
            asyncio.get_running_loop().remove_reader(self._lifeline)
            os.close(self._lifeline)
            self._lifeline = None

    def _pid(self) -> int:
        return self._process.pid if self._process is not None and self._process.returncode is None else 0

    def _status(self) -> dict[str, Any]:
        return {"state": self._state, "pid": self._pid(), "restarts": self._restarts, "since": round(self._since, 3)}

    async def _spawn(self) -> None:
        """Start the script in a session of its own; it dies with the daemon."""
        with Path(self._orders.log).open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                "bash",
                self._orders.script,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self._tell(self._process.pid)
        Path(_PID).write_text(f"{self._process.pid}\n", encoding="utf-8")
        self._enter("running")
        self._watch = asyncio.create_task(self._mind(self._process))

    async def _mind(self, process: asyncio.subprocess.Process) -> None:
        """Wait for a process to end by itself, and start it again unless that happened too often."""
        status = await process.wait()
        self._kill_rest(process.pid)
        self._say(f"process {process.pid} ended with status {status}")
        if self._orders.restart == "no" or (self._orders.restart == "on-failure" and status == 0):
            self._enter("failed" if status else "stopped")
            return
        now = time.monotonic()
        self._crashes = [at for at in self._crashes if now - at < self._orders.start_interval] + [now]
        if len(self._crashes) >= self._orders.start_limit:
            self._say(f"ended {len(self._crashes)} times within {self._orders.start_interval:g} s; not started again")
            self._enter("failed")
            return
        self._enter("restarting")
        await asyncio.sleep(self._orders.restart_seconds)
        async with self._turn:
            # Somebody may have started or stopped it in the meantime.
            if self._process is process and self._state == "restarting":
                self._restarts += 1
                await self._spawn()

    async def _halt(self) -> None:
        """End the worker: ask, wait, kill the whole group."""
        process, watch = self._process, self._watch
        self._enter("stopped")
        if watch is not None:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), self._orders.stop_seconds)
            except TimeoutError:
                self._say(f"process {process.pid} did not end within {self._orders.stop_seconds:g} s; killed")
                process.kill()
        if process is not None:
            self._kill_rest(process.pid)
            await process.wait()
        self._process = self._watch = None
        Path(_PID).unlink(missing_ok=True)

    def _kill_rest(self, leader: int) -> None:
        """Kill what a process that has ended has left in its group, unless such things are to stay."""
        if self._orders.kill == "group":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(leader, signal.SIGKILL)
            if not any(_session(pid) == leader for pid in _processes()):
                self._tell(-leader)

    def _tell(self, session: int) -> None:
        """Tell the guard of a session; of an empty one, whose number may come to somebody else, by its negative."""
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.write(b"%d\n" % session)
            self._guard.stdin.flush()

    def _enter(self, state: str) -> None:
        self._state = state
        self._since = time.time()

    def _say(self, text: str) -> None:
        with Path(_OWN_LOG).open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")


def _die_with_parent() -> None:
    """Have the kernel kill this process when the daemon is gone; it holds over exec."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def guard(told: BinaryIO) -> None:
    """Hear the sessions that a daemon starts, one number a line, and end them all when it falls silent.

    Args:
        told: The session numbers; a negative one takes its session back.
    """
    sessions: set[int] = set()
    for line in told:
        number = int(line)
        if number > 0:
            sessions.add(number)
        else:
            sessions.discard(-number)
    while left := [pid for pid in _processes() if _session(pid) in sessions]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _session(pid: int) -> int:
    """The session that a process belongs to; 0 for one that is dead."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[3])


def ask(word: str, timeout: float = 600.0, place: str = SOCKET) -> dict[str, Any] | None:
    """Put one word to a daemon.

    Args:
        word: The word.
        timeout: Seconds to wait for its answer.
        place: Its socket; by default that of the current directory's.

    Returns:
        Its answer, or None where no daemon runs.
    """
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(timeout)
        try:
            line.connect(place)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        said = b""
        # One that is just ending hangs up.
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            line.sendall(f"{word}\n".encode())
            while part := line.recv(65536):
                said += part
    if not said:
        return None
    answer: dict[str, Any] = json.loads(said)
    return answer


def start_daemon(program: Path, lifeline: int | None) -> None:
    """Put a daemon for the current directory into the background and wait until it answers.

    Args:
        program: This file.
        lifeline: The reading end of a pipe that it is to live by; None: it stands alone.

    Raises:
        RuntimeError: it did not come up.
    """
    handed = () if lifeline is None else (lifeline,)
    with Path(_OWN_LOG).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, str(program), "--directory", ".", *(f"--lifeline={end}" for end in handed), "run"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=handed,
        )
    deadline = time.monotonic() + 30
    while ask("status") is None:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the supervisor did not come up; see {Path(_OWN_LOG).resolve()}")
        time.sleep(0.02)


def run_daemon(program: Path, lifeline: int | None) -> int:
    """Be the daemon of the current directory; 1 where there is one already.

    Args:
        program: This file.
        lifeline: The reading end of a pipe to live by; None: stand alone.
    """
    with Path(_LOCK).open("w", encoding="utf-8") as lock:
        deadline = time.monotonic() + _TURN_SECONDS
        while not _locked(lock):
            # What holds it may be the guard of a daemon that was killed, at its work.
            if ask("status") is not None or time.monotonic() > deadline:
                print("a supervisor is running here already", file=sys.stderr)
                return 1
            time.sleep(0.02)
        written = json.loads(Path("supervisor.json").read_text(encoding="utf-8"))
        # The guard inherits the lock: nobody starts anew before it is done.
        with subprocess.Popen(
            [sys.executable, "-I", str(program), "--directory", ".", "guard"],
            stdin=subprocess.PIPE,
            start_new_session=True,
            pass_fds=(lock.fileno(),),
        ) as guarding:

            async def serve() -> None:
                await Daemon(Orders(**written), guarding, lifeline).serve()

            asyncio.run(serve())
    return 0


def _locked(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def main(argv: list[str]) -> int:
    """The command line; returns the exit status."""
    words = argparse.ArgumentParser(prog="supervisor")
    words.add_argument("--directory", required=True, help="where supervisor.json lies")
    words.add_argument("--lifeline", type=int, help="descriptor of a pipe's reading end that a daemon lives by")
    words.add_argument("word", choices=["run", "guard", "start", "stop", "restart", "pid", "status", "keep"])
    read = words.parse_args(argv)
    program = Path(__file__).resolve()
    # A socket's path may have 107 bytes; from here it is short wherever the directory lies.
    os.chdir(read.directory)
    Path("run").mkdir(exist_ok=True)
    if read.word == "run":
        return run_daemon(program, read.lifeline)
    if read.word == "guard":
        guard(sys.stdin.buffer)
        return 0
    answer = ask(read.word)
    if answer is None and read.word in {"start", "restart"}:
        start_daemon(program, read.lifeline)
        answer = ask("start")
    if answer is None:
        answer = {"state": "stopped", "pid": 0, "restarts": 0, "since": 0}
    if read.word == "stop" and "daemon" in answer:
        _await_end(answer["daemon"])
    print(answer["pid"] if read.word == "pid" else json.dumps(answer))
    return 1 if "error" in answer else 0


def _await_end(daemon: int) -> None:
    """Wait until the daemon has let go of its lock and is gone; one that nobody has waited for is gone too."""
    with Path(_LOCK).open("a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while Path(f"/proc/{daemon}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.005)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
