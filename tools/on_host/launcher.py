"""Does one thing on the worker's machine for an agent at the other end of a connection, and answers in frames.

It is never written to a disk there: the login's shell starts `python -I -S -c BOOT SIZE MARK`, and what that reads
first are the SIZE bytes of this file, then one line of JSON (the wish), then `input` bytes. So nothing of a wish ever
meets a shell. It answers MARK, which ends whatever the shell's start-up files have printed, and then frames: a letter,
eight hex digits of length, so many bytes. `B` says that a stream has begun, `O` is output, `E` what was complained, `S`
the end, one JSON object.

    run      a command to its end, or to `timeout` seconds; whoever asked may be gone by then
    stream   a command for as long as the agent says something every `dead` seconds and does not hang up
    read     a file, or its last `tail` bytes
    ship     one of Prudent's own files into its directory
    http     one request, for what cannot be asked through the connection itself
    greet    who and where we are

Standard library only; nothing newer than Python 3.8, so that an older one than is needed can still say so.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import select
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

GRACE = 2.0  # seconds between asking a stream's command to end and killing it with its children
QUIET = 0.5  # seconds of silence after which a command that has ended is not waited for, whoever holds its output
PART = 1 << 18  # bytes in a frame


def send(kind: str, content: bytes) -> None:
    """Write one frame, all of it."""
    say(kind.encode() + b"%08x" % len(content) + content)


def say(content: bytes) -> None:
    """Write bytes to the agent."""
    view = memoryview(content)
    while view:
        view = view[os.write(1, view) :]


def unnamed(content: bytes = b"") -> IO[bytes]:
    """A file without a name that a command can read or write; in memory, because disks are full at the worst moment."""
    try:
        file = os.fdopen(os.memfd_create("prudent"), "r+b")
    except (AttributeError, OSError):
        file = tempfile.TemporaryFile()  # noqa: SIM115 - whoever asked for it closes it
    file.write(content)
    file.seek(0)
    return file


def send_all(kind: str, file: IO[bytes]) -> None:
    """Send a file from its beginning."""
    file.seek(0)
    for part in iter(lambda: file.read(PART), b""):
        send(kind, part)


def start(
    wish: dict[str, Any], given: IO[bytes], said: IO[bytes] | int, complained: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own."""
    return subprocess.Popen(
        wish["argv"],
        stdin=given,
        stdout=said,
        stderr=complained,
        env=dict(os.environ, **wish["environ"]),
        start_new_session=True,
    )


def ended(child: subprocess.Popen[bytes], timeout: float) -> bool:
    """Whether a command ends in time; the kernel says so at once where it can."""
    try:
        handle = os.pidfd_open(child.pid)
    except (AttributeError, OSError):
        try:
            child.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True
    try:
        return bool(select.select([handle], [], [], timeout)[0])
    finally:
        os.close(handle)


def end_group(child: subprocess.Popen[bytes], number: int) -> None:
    """Signal all that stayed in a command's first group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def run(wish: dict[str, Any], content: bytes) -> dict[str, Any]:
    """Execute a command to its end, or kill it with its children when its time is over."""
    with unnamed(content) as given, unnamed() as said, unnamed() as complained:
        child = start(wish, given, said, complained)
        late = not ended(child, wish["timeout"])
        if late:
            end_group(child, signal.SIGKILL)
        status = child.wait()
        send_all("O", said)
        send_all("E", complained)
        return {"status": status, "late": late}


def stream(wish: dict[str, Any], content: bytes) -> dict[str, Any]:
    """Execute a command and send what it prints as it comes, until the agent hangs up or falls silent."""
    with unnamed(content) as given, unnamed() as complained:
        child = start(wish, given, subprocess.PIPE, complained)
        send("B", b"")
        over = threading.Event()
        watch = threading.Thread(target=end_with_the_agent, args=(child, wish["dead"], over), daemon=True)
        watch.start()
        try:
            send_lines(child)
            child.wait()
        finally:
            over.set()
            end_group(child, signal.SIGKILL)
        send_all("E", complained)
        return {"status": child.wait(), "late": False}


def send_lines(child: subprocess.Popen[bytes]) -> None:
    """Send output until it ends, or until the command has ended and is quiet."""
    assert child.stdout is not None
    handle = child.stdout.fileno()
    while True:
        if select.select([handle], [], [], QUIET)[0]:
            part = os.read(handle, PART)
            if not part:
                return
            send("O", part)
        elif child.poll() is not None:
            return


def end_with_the_agent(child: subprocess.Popen[bytes], dead: float, over: threading.Event) -> None:
    """End a command with its children once the agent has hung up or said nothing for `dead` seconds."""
    while select.select([0], [], [], dead)[0] and os.read(0, 4096):
        pass
    if over.is_set():
        return
    end_group(child, signal.SIGTERM)
    over.wait(GRACE)
    end_group(child, signal.SIGKILL)
    # Nobody may be left to read what the main thread still wants to say.
    threading.Event().wait(GRACE)
    os._exit(1)


def read(wish: dict[str, Any], _: bytes) -> dict[str, Any]:
    """Send a file, or its end."""
    with Path(wish["path"]).open("rb") as file:
        if wish["tail"] is not None:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - wish["tail"]))
        for part in iter(lambda: file.read(PART), b""):
            send("O", part)
    return {}


def ship(wish: dict[str, Any], content: bytes) -> dict[str, Any]:
    """Put a file of ours where it belongs, unless the same bytes are there already."""
    os.umask(0o077)
    folder = Path(wish["directory"])
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(1, f"{folder} belongs to somebody else, or others may write to it")
    path = folder.joinpath(*wish["below"])
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not holds(path, content):
        handle, part = tempfile.mkstemp(dir=str(path.parent))
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(part).replace(path)
        except OSError:
            Path(part).unlink()
            raise
    return {"path": str(path)}


def holds(path: Path, content: bytes) -> bool:
    """Whether a file is there with just these bytes."""
    try:
        return path.read_bytes() == content
    except OSError:
        return False


def http(wish: dict[str, Any], content: bytes) -> dict[str, Any]:
    """Send one request as this machine reaches it, and send back the body of whatever answer."""
    # Rarely wanted, and as slow to import as all the rest.
    import urllib.error  # noqa: PLC0415
    import urllib.request  # noqa: PLC0415
    from http import client  # noqa: PLC0415

    class Stay(urllib.request.HTTPRedirectHandler):
        """Any answer is an answer, also one that points elsewhere."""

        def redirect_request(self, *_: Any) -> None:
            """Go nowhere."""

    signal.alarm(int(wish["timeout"]) + 1)
    request = urllib.request.Request(wish["url"], data=content or None, method=wish["method"])
    if content:
        request.add_header("content-type", "application/json")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), Stay())
    try:
        answer = opener.open(request, timeout=wish["timeout"])
    except urllib.error.HTTPError as error:
        answer = error
    except client.HTTPException as error:
        raise ValueError(repr(error)) from error
    with answer:
        try:
            body = answer.read()
        except client.HTTPException as error:
            raise ValueError(repr(error)) from error
        for begin in range(0, len(body), PART):
            send("O", body[begin : begin + PART])
        return {"code": answer.code}


def greet(_: dict[str, Any], __: bytes) -> dict[str, Any]:
    """Who and where we are."""
    login = pwd.getpwuid(os.geteuid())
    try:
        machine = Path("/etc/machine-id").read_text().strip()
    except OSError:
        machine = ""
    return {"home": login.pw_dir, "user": login.pw_name, "python": list(sys.version_info[:2]), "machine": machine}


def main(mark: str) -> None:
    """Read the wish, carry it out, and say how it ended."""
    say(mark.encode())
    given = sys.stdin.buffer
    wish = json.loads(given.readline())
    content = given.read(wish["input"])
    if len(content) < wish["input"]:
        return
    try:
        end = {"run": run, "stream": stream, "read": read, "ship": ship, "http": http, "greet": greet}[wish["do"]](
            wish, content
        )
    except BrokenPipeError:
        return
    except (OSError, ValueError) as error:
        number = error.errno if isinstance(error, OSError) else None
        end = {"errno": number, "error": getattr(error, "strerror", None) or str(error)}
    with contextlib.suppress(BrokenPipeError):
        send("S", json.dumps(end).encode())


if __name__ == "__main__":
    main(sys.argv[2])
