"""What every practice worker's process does, whatever engine it is: when it was born, who it really is, its port."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from evals.lab.books import Books
from evals.lab.faults import Conditions, Live, build
from evals.lab.private import Nature, Shelf


def born() -> float:
    """When this process was forked, in the monotonic clock's seconds: imports are part of a start."""
    ticks = float(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - max(age, 0.0)


def asks_for_help(argv: Sequence[str]) -> bool:
    """Whether these words only ask what the engine takes, or which version it is: that is no start."""
    return any(word in {"-h", "--help", "-v", "--version"} or word.startswith("--help=") for word in argv)


def absent_of(nature: Nature, environ: Mapping[str, str], shelf: Shelf) -> frozenset[str]:
    """Flags that this build does not have."""
    early = Conditions(nature.engine, nature.version, 0, environ=environ)
    return build(nature.faults, "", shelf).absent(early)


def become(argv: Sequence[str], environ: Mapping[str, str], nature: Nature, books: Books, shelf: Shelf) -> None:
    """Become the process that is really started, where something between the script and us makes that another one."""
    asked = Live(tuple(argv), dict(environ))
    live = build(nature.faults, "", shelf).live(asked, Conditions(nature.engine, nature.version, 0, environ=environ))
    if live != asked:
        books.asked(argv, environ)
        before = sys.orig_argv[: len(sys.orig_argv) - len(argv)]
        os.execve(sys.executable, [*before, *live.words], live.environ)


def listen(host: str, port: int) -> socket.socket:
    """An address that is taken, though nobody listens there yet.

    Raises:
        OSError: somebody holds it.
    """
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    made.setblocking(False)
    return made
