"""Starts the helper as in life, a process for each call, in a tenth of the time that a cold start takes.

An interpreter that has compiled the helper waits, and forks for each call. What is lost against life is the start of
the interpreter; `PRUDENT_*` seams, exit statuses and signals are those of a process.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tools.host import Completed

_BODY = """
import ctypes, json, os, signal, socket, sys, threading
server = socket.socket(fileno=int(sys.argv[1]))
path = sys.argv[2]
with open(path) as file:
    code = compile(file.read(), path, "exec")
exec(code, {"__name__": "warm", "__file__": path})
while True:
    wish, files, _, _ = socket.recv_fds(server, 1 << 16, 4)
    if not wish:
        break
    wish = json.loads(wish)
    child = os.fork()
    if not child:
        reply = files.pop()
        worker = os.fork()
        if worker:
            status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
            try:
                socket.socket(fileno=reply).send(str(status).encode())
            except BrokenPipeError:
                pass  # whoever called has died
            os._exit(0)
        server.close()
        os.close(reply)
        os.setsid()
        for number, name in enumerate(files):
            os.dup2(name, number)
            os.close(name)
        os.environ.update(wish["environ"])
        if wish["boot"]:
            new_mounts, bind, private = 0x20000, 0x1000, 0x44000  # sched.h; sys/mount.h
            here = b"/proc/sys/kernel/random/boot_id"
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.unshare(new_mounts) or libc.mount(None, b"/", None, private, None):
                os._exit(71)
            if libc.mount(os.fsencode(wish["boot"]), here, None, bind, None):
                os._exit(71)
        sys.argv = [wish["path"], wish["verb"]]
        status = 70
        try:
            exec(code, {"__name__": "__main__", "__file__": wish["path"]})
        except SystemExit as end:
            status = end.code
        finally:
            sys.stdout.flush()
            os._exit(status)
    for name in files:
        os.close(name)
    while True:
        try:
            if not os.waitpid(-1, os.WNOHANG)[0]:
                break
        except ChildProcessError:
            break
"""


class Forge:
    """One waiting interpreter; it may be used from many processes at once.

    Args:
        python: The interpreter.
        helper: The helper's file.
    """

    def __init__(self, python: str, helper: Path) -> None:
        self.content = helper.read_bytes()
        """What was compiled."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server = subprocess.Popen(
            [python, "-I", "-S", "-B", "-c", _BODY, str(theirs.fileno()), str(helper)],
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()

    def call(
        self,
        path: str,
        verb: str,
        stdin: bytes,
        environ: Mapping[str, str],
        timeout: float,
        *,
        boot: Path | None = None,
    ) -> Completed:
        """Run one verb of the helper that lies at a path to its end.

        Args:
            path: Where the helper lies.
            verb: The verb.
            stdin: The request.
            environ: Variables beside this process's own.
            timeout: Seconds.
            boot: File with the id of another boot, which it sees instead of the kernel's; only root may do that.

        Raises:
            TimeoutError: it did not end in time; it goes on, as a command does whose link broke.
        """
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as stack:
            stack.enter_context(ours)
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            files[0].write(stdin)
            files[0].flush()
            files[0].seek(0)
            wish = {"path": path, "verb": verb, "environ": dict(environ), "boot": str(boot) if boot else None}
            socket.send_fds(
                self._socket, [json.dumps(wish).encode()], [*(file.fileno() for file in files), theirs.fileno()]
            )
            theirs.close()
            ours.settimeout(timeout)
            status = int(ours.recv(100) or b"70")
            for file in files[1:]:
                file.seek(0)
            return Completed(status, files[1].read(), files[2].read())

    def close(self) -> None:
        """End the interpreter."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._server.wait(30)
