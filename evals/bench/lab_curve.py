"""The practice ground's throughput and its noise beside what was recorded of a real engine, and beside the seeds.

    python -m evals.bench.lab_curve [--boots 5] [--speed 1] [--json]

Each recorded start with bursts (`runs.json`) is put up again with its own arguments and its bursts are played against
it: so many requests at once, 128 tokens in, 192 out, over HTTP. The seeds' figures are played against the seeds' worker
with capture to 32 and to 96. Noise is that of `repeated-boots.json`: boots of one configuration with bursts in each,
against as many boots of the ground with the measured noise; the spread of so few boots is itself uncertain, so the
recorded one is given with the range in which 90 % of such samples would lie. All rates are tokens a second of life.
Where it may, the bench puts the worker into the real-time class, on a core of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from evals.bench.lab_timing import pin
from evals.lab import ground, private
from evals.lab.pace import NOISES
from evals.lab.ports import free_ports

RECORDINGS = Path(__file__).parents[2] / "tests" / "data" / "recordings" / "sglang-0.5.14-h200"
COMMON = (
    *("--load-format", "dummy", "--skip-tokenizer-init", "--attention-backend", "triton"),
    *("--sampling-backend", "pytorch", "--grammar-backend", "none", "--enable-metrics", "--decode-log-interval", "10"),
    *("--context-length", "8192", "--disable-radix-cache", "--host", "127.0.0.1"),
)
"""Arguments of every recorded start, as the recordings' README has them."""
SHAPES = {"q": "qwen3-8b", "m": "deepseek-v2-lite"}
SEEDS = {32: {1: 53.0, 8: 280.0, 32: 561.0, 64: 657.0}, 96: {64: 711.0}}
"""Tokens a second by concurrency, for capture to 32 and to 96 (seed: the change to 96)."""
IN, OUT = 128, 192
"""Tokens in and out of each request of a burst."""
COLD = {("m_bs32", 8)}
"""Bursts in which kernels were compiled for the first time: no rate of the shape's."""


class Row(NamedTuple):
    """One burst beside what was recorded of it."""

    run: str
    """The recorded start, or the seed."""
    concurrency: int
    """Requests at once."""
    recorded: float
    """Tokens a second."""
    practised: float
    """Tokens a second of life."""

    @property
    def off(self) -> float:
        """By which share the ground is off."""
        return self.practised / self.recorded - 1


class Spread(NamedTuple):
    """How much one configuration's throughput varies, as relative standard deviations."""

    concurrency: int
    """Requests at once."""
    boots: float
    """Between the means of boots."""
    runs: float
    """Between bursts within a boot, pooled."""


def burst(port: int, count: int, speed: float, chance: random.Random) -> float:
    """Play one closed-loop burst; return its tokens a second of life.

    Args:
        port: The worker's port.
        count: Requests at once.
        speed: Seconds of life a second of the wall.
        chance: Draws the prompts, so that no two are alike.
    """
    lines = [http.client.HTTPConnection("127.0.0.1", port, timeout=600) for _ in range(count)]
    bodies = [
        json.dumps(
            {
                "input_ids": [chance.randrange(1000, 100_000) for _ in range(IN)],
                "sampling_params": {"max_new_tokens": OUT, "temperature": 0, "ignore_eos": True},
            }
        )
        for _ in lines
    ]
    for line in lines:
        line.connect()
    ended = [0.0] * count

    def read(number: int) -> None:
        answer = json.loads(lines[number].getresponse().read())
        assert answer["meta_info"]["completion_tokens"] == OUT
        ended[number] = time.monotonic()

    readers = [threading.Thread(target=read, args=(number,)) for number in range(count)]
    began = time.monotonic()
    for line, body in zip(lines, bodies, strict=True):
        line.request("POST", "/generate", body, {"Content-Type": "application/json"})
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    for line in lines:
        line.close()
    return count * OUT / (max(ended) - began) / speed


@contextlib.contextmanager
def recorded_start(folder: Path, shape: str, argv: Sequence[str], nature: private.Nature) -> Iterator[int]:
    """A worker of a recorded shape with a recorded start's arguments; gives its port.

    Raises:
        ground.GroundError: it did not come up.
    """
    folder.mkdir(parents=True, exist_ok=True)
    private.write(folder, nature._replace(specimen=shape))
    port = free_ports(folder, 1)[0]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    words = [sys.executable, "-m", "evals.lab.worker", "--model-path", "/models/shape", *COMMON, *argv]
    log = folder / "worker.log"
    with log.open("wb") as output:
        process = subprocess.Popen([*words, "--port", str(port)], cwd=folder, stdout=output, stderr=output, env=environ)
    try:
        deadline = time.monotonic() + 120
        while b"fired up" not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise ground.GroundError(log.read_text(errors="replace")[-2000:])
            time.sleep(0.05)
        pin(process.pid, min(os.sched_getaffinity(0)))
        yield port
    finally:
        process.kill()
        process.wait()


def curve(folder: Path, speed: float) -> list[Row]:
    """Every recorded burst, and the seeds' figures."""
    rows, chance = [], random.Random(1)
    quiet = private.Nature(boot_noise=0.0, run_noise=0.0, start_speed=400.0, serve_speed=speed)
    for run in json.loads((RECORDINGS / "runs.json").read_text(encoding="utf-8")):
        played = [one for one in run.get("bench", ()) if one["out_tok_s"] and (run["name"], one["c"]) not in COLD]
        if not played:
            continue
        with recorded_start(folder / run["name"], SHAPES[run["name"][0]], run["args"], quiet) as port:
            burst(port, 1, speed, chance)
            rows += [
                Row(run["name"], one["c"], one["out_tok_s"], burst(port, one["c"], speed, chance)) for one in played
            ]
    for capture, figures in SEEDS.items():
        how: dict[str, Any] = {"faults": (), "boot_noise": 0.0, "run_noise": 0.0, "start_speed": 400.0}
        fast = speed * 4
        with ground.standing(folder / f"seed{capture}", capture=capture, serve_speed=fast, **how) as made:
            pin(ground.status(made.directory).pid, min(os.sched_getaffinity(0)))
            name = f"seed, capture to {capture}"
            rows += [Row(name, count, rate, burst(made.port, count, fast, chance)) for count, rate in figures.items()]
    return rows


def noise(folder: Path, boots: int, speed: float) -> tuple[list[Spread], list[Spread]]:
    """How much it varies, as recorded and in practice."""
    document = json.loads((RECORDINGS / "repeated-boots.json").read_text(encoding="utf-8"))
    recorded = [[(one["c"], one["out_tok_s"]) for one in boot["bench"]] for boot in document["boots"]]
    chance, measured = random.Random(2), NOISES["measured"]
    practised = []
    for seed in range(boots):
        nature = private.Nature(
            seed=seed, boot_noise=measured.boot, run_noise=measured.run, start_speed=400.0, serve_speed=speed
        )
        start = recorded_start(folder / f"boot{seed}", SHAPES["q"], document["boots"][0]["args"], nature)
        with start as port:
            burst(port, 1, speed, chance)
            practised.append([(count, burst(port, count, speed, chance)) for count, _ in recorded[0]])
    return _spreads(recorded), _spreads(practised)


def _spreads(boots: Sequence[Sequence[tuple[int, float]]]) -> list[Spread]:
    found = []
    for count in sorted({count for count, _ in boots[0]}):
        rates = [[rate for other, rate in boot if other == count] for boot in boots]
        means = [fmean(one) for one in rates]
        runs = math.sqrt(fmean((stdev(one) / fmean(one)) ** 2 for one in rates))
        found.append(Spread(count, stdev(means) / fmean(means), runs))
    return found


def likely(deviation: float, freedom: int) -> tuple[float, float]:
    """Where 90 % of sample deviations lie if the true one is this, by Wilson and Hilferty's form of chi-square."""
    width = math.sqrt(2 / (9 * freedom))
    low, high = (max(1 - 2 / (9 * freedom) + z * width, 0) ** 3 for z in (-1.645, 1.645))
    return deviation * math.sqrt(low), deviation * math.sqrt(high)


def main(argv: Sequence[str]) -> int:
    """Play everything and print both tables."""
    words = argparse.ArgumentParser(prog="python -m evals.bench.lab_curve")
    words.add_argument("--boots", type=int, default=5)
    words.add_argument("--speed", type=float, default=1.0, help="seconds of life a second of the wall")
    words.add_argument("--json", action="store_true")
    read = words.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="lab-curve-") as folder:
        rows = curve(Path(folder), read.speed)
        recorded, practised = noise(Path(folder), read.boots, read.speed)
    if read.json:
        print(json.dumps({"curve": [row._asdict() for row in rows], "noise": _side_by_side(recorded, practised)}))
        return 0
    print(f"{'start':22}{'requests':>9}{'recorded':>10}{'practised':>11}{'off':>8}")
    for row in rows:
        print(f"{row.run:22}{row.concurrency:9}{row.recorded:10,.1f}{row.practised:11,.1f}{row.off:+8.1%}")
    print(f"\n{'spread':22}{'requests':>9}{'recorded':>10}{'practised':>11}   likely for so few")
    for name, freedom in (("boots", read.boots - 1), ("runs", read.boots * 4)):
        for real, ours in zip(recorded, practised, strict=True):
            low, high = likely(getattr(NOISES["measured"], name.removesuffix("s")), freedom)
            pair = f"{getattr(real, name):10.2%}{getattr(ours, name):11.2%}"
            print(f"{f'between {name}':22}{real.concurrency:9}{pair}   {low:.2%} to {high:.2%}")
    return 0


def _side_by_side(recorded: Sequence[Spread], practised: Sequence[Spread]) -> list[Mapping[str, Any]]:
    return [
        {"recorded": real._asdict(), "practised": ours._asdict()}
        for real, ours in zip(recorded, practised, strict=True)
    ]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
