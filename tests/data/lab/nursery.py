"""Forks a worker on virtual time for each order it hears, so that what workers import is imported once.

    nursery.py LINE

On the socket whose descriptor is LINE comes an order as JSON with the worker's control socket beside it; the answer is
the worker's process id. All of them end with this process, and it ends with the socket.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys

from evals.lab import virtual


def main(line: socket.socket) -> None:
    """Fork until nobody orders any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        said, descriptors, _, _ = socket.recv_fds(line, 65536, 1)
        if not said:
            return
        child = os.fork()
        if child == 0:
            line.close()
            _be(json.loads(said), descriptors[0])
        os.close(descriptors[0])
        line.sendall(f"{child}\n".encode())


def _be(order: dict[str, object], control: int) -> None:
    """Be a worker, as if one had been executed."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.set_inheritable(control, True)
    os.environ.clear()
    os.environ.update(order["environ"])
    argv = [order["ground"], "/opt/launch_server.py", str(control), "--", *order["words"]]
    sys.orig_argv = [sys.executable, "-m", "evals.lab.virtual", *argv]
    try:
        virtual.main(argv)
    finally:
        os._exit(1)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
