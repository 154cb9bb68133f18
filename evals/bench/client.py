"""How well our client measures: `python -m evals.bench.client`.

The probe, plain aiohttp and the openai SDK load the same server one after the other, each in a process of its own. The
server writes down when it really sent what (`mock_engine.py`), so that an error is the client's and not the server's.
TTFT of a client begins when it sends and that of the server when it has read the request, so that the error holds the
network of the machine too. CPU is the client's process time in the measured burst, over its tokens. Overhead is what a
client's process takes besides its two bursts: start, imports, looking around, end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tools.on_host import probe

AIMS = "aim: p50 within 5 ms, p99 within 20 ms, rate within 1 %, at most 15 us of CPU a token, overhead below 1 s"


class Did(NamedTuple):
    """What the server did for one request, in seconds of the machine's monotonic clock."""

    arrived: float
    first: float
    last: float
    tokens: int


class Seen(NamedTuple):
    """What a client says of the burst."""

    name: str
    ttft_p50: float
    """Seconds."""
    ttft_p99: float
    rate: float
    """Tokens a second."""
    cpu: float
    """Seconds of CPU over a token."""
    wall: float
    """Seconds of its whole process."""
    note: str = ""
    """What it says of its own validity."""


class Row(NamedTuple):
    """A client beside what happened."""

    seen: Seen
    p50_error: float
    """Seconds, what the client says less what was."""
    p99_error: float
    rate_error: float
    """As a share."""
    overhead: float
    """Seconds."""


class Engine:
    """The mock server, in a process of its own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "evals.bench.mock_engine"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def close(self) -> list[Did]:
        """Stop it, and what it did, in the order in which requests were done."""
        said, _ = self._process.communicate("", timeout=60)
        return [Did(*entry) for entry in json.loads(said)]

    def kill(self) -> None:
        """End it, if it has not ended."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


@contextlib.contextmanager
def ended(engine: Engine) -> Iterator[Engine]:
    """See to it that a server is gone afterwards, whatever happens."""
    try:
        yield engine
    finally:
        engine.kill()


def measure(name: str, streams: int, tokens: int) -> Row:
    """Let one client load a server of its own.

    Args:
        name: `probe`, `aiohttp` or `openai`.
        streams: Streams at once.
        tokens: Tokens of each.
    """
    with ended(Engine()) as engine:
        seen = _probe(engine.url, streams, tokens) if name == "probe" else _plain(name, engine.url, streams, tokens)
        did = engine.close()
    return compare(seen, did, streams, tokens)


def compare(seen: Seen, did: Sequence[Did], streams: int, tokens: int) -> Row:
    """Set what a client says beside what the server did in the measured burst, which is the last."""
    measured = sorted(did, key=lambda one: one.arrived)[-streams:]
    if len(measured) != streams or {one.tokens for one in measured} != {tokens}:
        raise RuntimeError(f"{seen.name} sent {len(measured)} requests of the last burst, or not for {tokens} tokens")
    first = [one.first - one.arrived for one in measured]
    start, end = min(one.arrived for one in measured), max(one.last for one in measured)
    before = [one for one in did if one.arrived < start]
    warm = max(one.last for one in before) - min(one.arrived for one in before) if before else 0.0
    p50, p99 = (probe.percentile(first, share) for share in (0.5, 0.99))
    assert p50 is not None
    assert p99 is not None
    return Row(
        seen,
        seen.ttft_p50 - p50,
        seen.ttft_p99 - p99,
        seen.rate * (end - start) / (streams * tokens) - 1.0,
        seen.wall - warm - (end - start),
    )


def _probe(url: str, streams: int, tokens: int) -> Seen:
    wish = {"kind": "throughput", "base_url": url, "seed": 1, "concurrency": [streams], "count": 1, "tokens": tokens}
    program = Path(probe.__file__)
    said, wall = _timed([sys.executable, "-I", str(program)], json.dumps({**wish, "deadline": 120.0}))
    result = next(event for event in map(json.loads, said.splitlines()) if event["event"] in {"result", "invalid"})
    if result["event"] == "invalid":
        raise RuntimeError(f"the probe could not measure: {result['why']}")
    latency, burst = result["latency"][str(streams)], result["bursts"][0]
    notes = [note for note in (burst["why_not"], burst["latency_invalid"]) if note]
    if burst["attempts"] > 1:
        notes.append(f"{burst['attempts']} attempts")
    return Seen(
        "probe",
        latency["ttft"]["p50"],
        latency["ttft"]["p99"],
        burst["tokens"] / burst["wall"],
        burst["validity"]["cpu_per_token"],
        wall,
        "; ".join(notes),
    )


def _plain(name: str, url: str, streams: int, tokens: int) -> Seen:
    command = [sys.executable, "-m", "evals.bench.plain_clients", name, url, str(streams), str(tokens)]
    said, wall = _timed(command, "")
    return of_plain(name, json.loads(said), wall)


def of_plain(name: str, result: Mapping[str, Any], wall: float) -> Seen:
    """What a hand-written client saw."""
    p50, p99 = (probe.percentile(result["ttft"], share) for share in (0.5, 0.99))
    assert p50 is not None
    assert p99 is not None
    return Seen(name, p50, p99, result["tokens"] / result["wall"], result["cpu"] / result["tokens"], wall)


def _timed(command: Sequence[str], said: str) -> tuple[str, float]:
    start = time.perf_counter()
    done = subprocess.run(command, input=said, capture_output=True, text=True, timeout=180, check=False)
    wall = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"{command[2]}: {done.stderr[-500:] or done.stdout[-500:]}")
    return done.stdout, wall


def line(row: Row) -> str:
    """A row of the table."""
    seen = row.seen
    return (
        f"{seen.name:10} {1000 * seen.ttft_p50:9.1f} {1000 * row.p50_error:+8.1f} {1000 * seen.ttft_p99:9.1f} "
        f"{1000 * row.p99_error:+8.1f} {seen.rate:9.0f} {100 * row.rate_error:+8.2f} {1e6 * seen.cpu:8.1f} "
        f"{row.overhead:9.2f}  {seen.note}"
    ).rstrip()


def heads(streams: int, tokens: int) -> list[str]:
    """The lines above the rows."""
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    return [
        f"{streams} streams of {tokens} tokens on {os.cpu_count()} cores, load of the machine {load}; {AIMS}",
        f"{'':10} {'TTFT p50':>9} {'error':>8} {'TTFT p99':>9} {'error':>8} {'tokens/s':>9} {'error %':>8} "
        f"{'us/token':>8} {'overhead s':>10}",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table.

    Args:
        arguments: Command line without the program's name; None: the process's own.
    """
    parser = argparse.ArgumentParser(prog="python -m evals.bench.client", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, default=256, help="streams at once")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each stream")
    parser.add_argument("--repeats", type=int, default=3, help="rows for each client")
    parser.add_argument("--quick", action="store_true", help="16 streams of 16 tokens, once")
    wanted = parser.parse_args(arguments)
    streams, tokens, repeats = (16, 16, 1) if wanted.quick else (wanted.streams, wanted.tokens, wanted.repeats)
    for head in heads(streams, tokens):
        print(head, flush=True)
    for _ in range(repeats):
        for name in ("probe", "aiohttp", "openai"):
            print(line(measure(name, streams, tokens)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
