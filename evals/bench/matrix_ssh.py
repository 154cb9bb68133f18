"""The ssh matrix: calls of both stories through a real sshd on the test host, over a link that fails byte by byte.

Agent, ground and sshd are on one test host, which is booted for it; a relay between the two ends the connection, stops
without a word, or sees the agent die, before a call, in its request, in its answer, and after it. The engine and its
load are computed, as in the other matrices.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evals.bench.matrix_points import Point
from evals.campaigns.agent import STORIES
from evals.campaigns.campaign import Campaign
from evals.campaigns.mortal import Act
from evals.campaigns.over_ssh import TROUBLES, Way
from evals.lab import machine
from evals.lab.machine_image import cache

LONGEST = 880.0
"""Limit of a point, in seconds; it takes five, and more on a busy machine."""
_PORT = "ssh-port"


def points(campaign: Campaign) -> list[Point]:
    """Every call of both stories that goes through sshd, with every trouble.

    Raises:
        MachineError: no test host can stand here.
    """
    with contextlib.ExitStack() as standing:
        port = standing.enter_context(host())
        atexit.register(standing.pop_all().close)
    (campaign.root / _PORT).write_text(str(port), encoding="ascii")
    return [point for story in STORIES for point in points_of(port, story)]


def check(campaign: Campaign, point: Point) -> str | None:
    """Have it happen on the test host; what is wrong, or None."""
    return wrong_at(int((campaign.root / _PORT).read_text(encoding="ascii")), point)


@contextlib.contextmanager
def host() -> Iterator[int]:
    """Boot a test host where points are taken, and end it; the port at which it is asked for them.

    Raises:
        MachineError: none can stand here, or nothing answers on it.
    """
    folder = Path(tempfile.mkdtemp(prefix="prudent-ssh-"))
    try:
        made = machine.up(folder / "host", folder=cache(os.environ))
        try:
            made.write("/root/way", made.key("root").read_bytes(), mode=0o600)
            # Computed engines are processes with an environment of their own, which find the practice ground by this.
            found = f"{machine.SOURCE}\n{machine.PACKAGES}\n".encode()
            made.write("/usr/lib/python3/dist-packages/practice.pth", found)
            host_key = made.known_hosts.read_text(encoding="utf-8").split(maxsplit=1)[1].strip()
            way = Way(made.port, "/root/way", host_key)
            words = ["sh", "-c", 'exec python3 -m evals.campaigns.over_ssh "$1" 2> /root/said', "sh"]
            with made.start([*words, json.dumps(way._asdict())]) as taking:
                assert taking.stdout is not None
                port = taking.stdout.readline()
                if not port:
                    raise machine.MachineError(made.read("/root/said").decode(errors="replace"))
                try:
                    yield int(port)
                finally:
                    taking.kill()
        finally:
            made.down()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def points_of(port: int, story: str) -> list[Point]:
    """The points of one story, in a fixed order."""
    acts: list[str] = _asked(port, story)
    return [Point("ssh", f"{story} | {act} | {trouble}", Act.of(act).mutating) for act in acts for trouble in TROUBLES]


def wrong_at(port: int, point: Point) -> str | None:
    """Take a point; what is wrong, or None."""
    wrong: str | None = _asked(port, point.id.split(" | "))
    return wrong


def _asked(port: int, question: Any) -> Any:
    with socket.create_connection(("127.0.0.1", port), LONGEST) as speaking, speaking.makefile("rw") as file:
        file.write(json.dumps(question) + "\n")
        file.flush()
        return json.loads(file.readline())
