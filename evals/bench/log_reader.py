"""How fast, and in how much memory, the log reader goes through a large log.

    python -m evals.bench.log_reader --megabytes 200

The log is made of the recorded starts, one after another, with the serving lines of each repeated until it is as large
as asked, so that it has the mix of a worker that was restarted now and then. A tenth of that size each, and without a
limit of its own, is read of the same lines as Docker carries them, of nothing but errors, and of logged prompts.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tools.engines.log_lines import lines_of
from tools.engines.sglang_log import read_log

RECORDINGS = Path(__file__).parents[2] / "tests" / "data" / "recordings" / "sglang-0.5.14-h200"
TROUBLE = (
    b"[2026-11-29 12:00:00 TP0] Health check failed. Server couldn't get a response from detokenizer.",
    b"[2026-11-29 12:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):",
    b'  File "scheduler.py", line 2410, in event_loop_overlap',
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 139.81 GiB, 1.20 GiB is free.",
    b"[2026-11-29 12:00:00] ERROR:    Exception in ASGI application",
    b'[2026-11-29 12:00:00] INFO:     127.0.0.1:3333 - "POST /generate HTTP/1.1" 500 Internal Server Error',
)
"""What a worker repeats that is past helping."""
PROMPT = b'{"role": "user", "content": "What does the error mean that my program ends with?"}'
"""A line of a logged request: it speaks of an error and is none."""
LIMIT_SECONDS = 5.0
"""What 200 MB may take."""


class Measured(NamedTuple):
    """One reading of a large log."""

    megabytes: float
    """Size of the log."""
    starts: int
    """Starts that it holds, as counted by the reader."""
    lines: int
    """Lines that were read."""
    seconds: float
    """Time for all of it."""
    busy_seconds: float
    """Processor time of it, which is what counts on a machine that others use too."""
    grown_megabytes: float
    """By how much the process grew while it read."""


def write_log(path: Path, megabytes: float) -> None:
    """Write a log of at least so many MB."""
    texts = [log.read_bytes() for log in sorted(RECORDINGS.glob("q_*/startup.log"))]
    served = b"".join(
        line + b"\n"
        for text in texts
        for line in text.split(b"\n")
        if b"] Decode batch" in line or b"] Prefill batch" in line or b"] INFO:     127" in line
    )
    with path.open("wb") as stream:
        while stream.tell() < megabytes * 1e6:
            for text in texts:
                stream.write(text)
                stream.write(served * 20)


def write_repeated(path: Path, lines: Sequence[bytes], megabytes: float) -> None:
    """Write a start and then the same lines over and over."""
    start = (RECORDINGS / "q_bs32" / "startup.log").read_bytes()
    block = b"".join(line + b"\n" for line in lines)
    path.write_bytes(start + block * int(megabytes * 1e6 / len(block)))


def measure(path: Path) -> Measured:
    """Read a log once."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun, busy = time.perf_counter(), time.process_time()
    with path.open("rb") as stream:
        log = read_log(lines_of(stream))
    seconds, busy = time.perf_counter() - begun, time.process_time() - busy
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return Measured(path.stat().st_size / 1e6, log.starts, log.lines, seconds, busy, grown)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; exit status 1 where 200 MB took more processor time than they may, in proportion."""
    parser = argparse.ArgumentParser(description="time the log reader")
    parser.add_argument("--megabytes", type=float, default=200.0, help="size of the log")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        small, large = Path(directory) / "small.log", Path(directory) / "large.log"
        write_log(small, min(asked.megabytes, 10.0))
        write_log(large, asked.megabytes)
        rows = {"small": measure(small), "mixed": measure(large)}
        served = [line for line in small.read_bytes().split(b"\n") if b"] Decode batch" in line or b"] Pref" in line]
        carried = [b"2026-11-29T12:00:00.123456789Z stderr F " + line for line in served[:2000]]
        for name, lines in (("carried", carried), ("errors", TROUBLE), ("prompts", (PROMPT,))):
            write_repeated(small, lines, asked.megabytes / 10)
            rows[name] = measure(small)
    print(f"{'':8} {'MB':>8} {'starts':>7} {'lines':>10} {'seconds':>8} {'busy':>7} {'MB/s':>7} {'grown MB':>9}")
    for name, row in rows.items():
        rate = row.megabytes / row.busy_seconds
        print(
            f"{name:8} {row.megabytes:8.1f} {row.starts:7d} {row.lines:10,d} {row.seconds:8.2f} {row.busy_seconds:7.2f}"
            f" {rate:7.1f} {row.grown_megabytes:9.1f}"
        )
    mixed = rows["mixed"]
    allowed = LIMIT_SECONDS * mixed.megabytes / 200.0
    print(f"{'within' if mixed.busy_seconds <= allowed else 'OVER'} {allowed:.1f} s")
    return 0 if mixed.busy_seconds <= allowed else 1


if __name__ == "__main__":
    sys.exit(main())
