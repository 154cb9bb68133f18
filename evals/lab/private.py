"""What a ground knows about its own worker and tells nobody: seed, faults, noise, speeds, and what the faults did.

The folder lies beside the worker's tree, not in it; nothing that the product is pointed at leads there.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import NamedTuple

FOLDER = ".ground"
"""Name of the folder in the ground's directory."""


class Nature(NamedTuple):
    """What a worker is like beneath its surface."""

    specimen: str = "deepseek-v4-flash"
    """Which model and machine."""
    engine: str = "sglang"
    """Which engine it is: `sglang` or `vllm`."""
    version: str = "0.5.14"
    """Which version of the engine."""
    seed: int = 0
    """Seed of everything that is drawn."""
    faults: tuple[str, ...] = ()
    """What is wrong with it."""
    boot_noise: float = 0.005
    """Relative standard deviation from start to start."""
    run_noise: float = 0.005
    """Relative standard deviation from burst to burst."""
    start_speed: float = 35.0
    """Seconds of life a second of the wall while it starts."""
    serve_speed: float = 2.0
    """Seconds of life a second of the wall while it serves."""


class Event(NamedTuple):
    """Something that a fault did."""

    at: float
    """Unix time."""
    boot: int
    """Which start of the worker, from 1."""
    kind: str
    """`spoilt`: a reply came out wrong; `stalled`: the loop stopped."""
    detail: str
    """Which session and turn, or how many aborts."""


def write(ground: Path, nature: Nature) -> None:
    """Lay down what the worker is like."""
    folder = ground / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "nature.json").write_text(json.dumps(nature._asdict(), indent=1), encoding="utf-8")


def read(ground: Path) -> Nature:
    """What the worker is like; a sound one where nothing is laid down."""
    path = ground / FOLDER / "nature.json"
    if not path.exists():
        return Nature()
    document = json.loads(path.read_text(encoding="utf-8"))
    return Nature(**{**document, "faults": tuple(document["faults"])})


def next_boot(ground: Path) -> int:
    """Count one more start; return its number, from 1."""
    folder = ground / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / "boots"
    boot = int(path.read_text(encoding="utf-8")) + 1 if path.exists() else 1
    path.write_text(str(boot), encoding="utf-8")
    return boot


def note(ground: Path, boot: int, kind: str, detail: str) -> None:
    """Write down what a fault did."""
    line = json.dumps(Event(time.time(), boot, kind, detail)._asdict())
    with (ground / FOLDER / "events.jsonl").open("a", encoding="utf-8") as events:
        events.write(line + "\n")


def events(ground: Path) -> list[Event]:
    """Everything that the faults of a ground did, oldest first: the oracle that tests compare with."""
    path = ground / FOLDER / "events.jsonl"
    if not path.exists():
        return []
    return [Event(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
