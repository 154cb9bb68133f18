"""How far off the practice ground's tokens are: 256 streams at once, on one core, at its nominal rate.

    python -m evals.bench.lab_timing [--streams 256] [--seconds 20] [--json]

The worker is pinned to one core and the client to the others. For each token the worker itself notes by how much the
moment at which it went to the socket missed the moment at which the step ended that made it. Where it may, the bench
puts the worker in the real-time class, so that what else runs on the machine is not measured; it says whether it could.
The exit status is 1 where the 99th percentile is 2 ms or more, or the number of steps is off by more than one.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from evals.lab import books, ground
from evals.lab.ports import answers

SPEED = 2.0
"""Seconds of life a second of the wall, as the ground serves by default."""
LIMIT_MS = 2.0
"""The issue's bound on the 99th percentile, in milliseconds."""


class Measured(NamedTuple):
    """What came of it."""

    streams: int
    """Streams at once."""
    tokens: int
    """Tokens that were looked at."""
    p50_ms: float
    """Half of them were off by no more."""
    p99_ms: float
    """All but a hundredth were off by no more; of the stretches of five seconds of life, the worst."""
    most_ms: float
    """The one that was off most."""
    core_share: float
    """Share of the core that the worker took."""
    rate: float
    """Tokens a second of the wall."""
    nominal: float
    """Tokens a second of the wall by the worker's curve."""
    steps: float
    """Decode steps that were looked at."""
    alone: bool
    """The worker was in the real-time class."""

    @property
    def good(self) -> bool:
        """Whether it is as good as it has to be."""
        return self.p99_ms < LIMIT_MS and abs(self.rate / self.nominal - 1) * self.steps <= 1


def measure(streams: int, seconds: float) -> Measured:
    """Put up a worker, load it, and read its books.

    Args:
        streams: Streams at once.
        seconds: How long the full batch is looked at, on the wall.

    Raises:
        ground.GroundError: the worker did not come up.
    """
    with (
        tempfile.TemporaryDirectory(prefix="lab-timing-") as folder,
        ground.standing(Path(folder) / "lab", faults=(), boot_noise=0.0, run_noise=0.0, serve_speed=SPEED) as made,
    ):
        pid = ground.status(made.directory).pid
        cores = sorted(os.sched_getaffinity(0))
        alone = pin(pid, cores[0])
        if len(cores) > 1:
            os.sched_setaffinity(0, cores[1:])
        try:
            _load(made.port, streams, seconds)
        finally:
            os.sched_setaffinity(0, cores)
        assert answers(made.port)
        pulses = [line for line in books.lines(made.directory) if line["kind"] == "pulse"]
    # Stretches in which the batch was whole from end to end.
    whole = [
        (before, after)
        for before, after in pairwise(pulses)
        if before["running"] == after["running"] == streams and before["off"]["tokens"]
    ]
    off = [after["off"] for _, after in whole]
    lived = sum(after["at"] - before["at"] for before, after in whole) / SPEED
    tokens = sum(after["tokens"] - before["tokens"] for before, after in whole)
    took = sum(after["passes"][1] - before["passes"][1] for before, after in whole) / SPEED
    steps = tokens / streams
    return Measured(
        streams=streams,
        tokens=sum(one["tokens"] for one in off),
        p50_ms=max(one["p50"] for one in off),
        p99_ms=max(one["p99"] for one in off),
        most_ms=max(one["most"] for one in off),
        core_share=sum(after["cpu"] - before["cpu"] for before, after in whole) / lived,
        rate=tokens / lived,
        nominal=steps * streams / took,
        steps=steps,
        alone=alone,
    )


def pin(pid: int, core: int) -> bool:
    """Give a process one core, and the real-time class where we may; return whether we might."""
    for thread in (Path("/proc") / str(pid) / "task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})
    try:
        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(50))
    except PermissionError:
        return False
    return True


def _load(port: int, streams: int, seconds: float) -> None:
    """Open streams and read them; the clock runs from the moment at which all of them have begun."""
    wish = {"messages": [{"role": "user", "content": "Tell me about the scheduler."}], "stream": True}
    body = json.dumps({**wish, "max_tokens": 4096, "ignore_eos": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: lab\r\nContent-Length: {len(body)}\r\n"
    asked = f"{head}Content-Type: application/json\r\n\r\n".encode() + body
    ready = select.epoll()
    begun: set[int] = set()
    lines: dict[int, socket.socket] = {}
    for _ in range(streams):
        line = socket.create_connection(("127.0.0.1", port))
        line.sendall(asked)
        line.setblocking(False)
        lines[line.fileno()] = line
        ready.register(line, select.EPOLLIN)
    deadline = time.monotonic() + 120.0
    while time.monotonic() < deadline:
        for number, _ in ready.poll(0.2):
            if lines[number].recv(1 << 16) and len(begun) < streams:
                begun.add(number)
                if len(begun) == streams:
                    deadline = time.monotonic() + seconds
    ready.close()
    for line in lines.values():
        line.close()


def main(argv: Sequence[str]) -> int:
    """Measure and print; 0 where it is good enough."""
    words = argparse.ArgumentParser(prog="python -m evals.bench.lab_timing")
    words.add_argument("--streams", type=int, default=256)
    words.add_argument("--seconds", type=float, default=20.0)
    words.add_argument("--json", action="store_true")
    read = words.parse_args(argv)
    found = measure(read.streams, read.seconds)
    if read.json:
        print(json.dumps({**found._asdict(), "good": found.good}))
    else:
        for name, value in found._asdict().items():
            print(f"{name:>10}  {value:,.3f}" if isinstance(value, float) else f"{name:>10}  {value}")
        print(f"{'limit':>10}  p99 below {LIMIT_MS:g} ms, steps within one: {'yes' if found.good else 'NO'}")
    return 0 if found.good else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
