"""Free ports for grounds that stand side by side."""

from __future__ import annotations

import socket
import zlib
from pathlib import Path

_FIRST, _COUNT = 20_000, 12_000


class NoPortError(OSError):
    """Every port is held."""


def free_ports(directory: Path, count: int) -> list[int]:
    """Free ports below the range that outgoing connections take, so that none of those gets in between.

    Where the search begins follows from the directory: grounds that are put up at once do not meet.

    Args:
        directory: The ground's folder.
        count: How many.

    Raises:
        NoPortError: too few are free.
    """
    begin = zlib.crc32(str(directory).encode())
    found: list[int] = []
    for step in range(_COUNT):
        port = _FIRST + (begin + step) % _COUNT
        if not _free(port):
            continue
        found.append(port)
        if len(found) == count:
            return found
    raise NoPortError(f"{count} free ports are wanted between {_FIRST} and {_FIRST + _COUNT}, {len(found)} are there")


def answers(port: int) -> bool:
    """Whether somebody listens on the loopback interface; nothing is asked, so that nothing is logged."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            return True
    except OSError:
        return False


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
