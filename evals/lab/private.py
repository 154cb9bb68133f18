"""What a ground knows about its own worker and tells nobody: seed, faults, noise, speeds, and what the faults did.

The folder lies beside the worker's tree, not in it; nothing that the product is pointed at leads there.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = ".ground"
"""Name of the folder in the ground's directory."""
_SHELF = "shelf"


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
    errors: float = 0.0
    """Share of ordered calls that the model by itself gets wrong, a sound worker's included."""
    cold: bool = False
    """Nothing has been compiled on this machine yet: the first start, and the first pass of a new size, take longer."""
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


def forget(ground: Path) -> None:
    """Take away what earlier workers of a ground have left there: counts, events, books, and what faults remember."""
    folder = ground / FOLDER
    for name in ("boots", "events.jsonl", "books.jsonl"):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / _SHELF, ignore_errors=True)


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


class Shelf:
    """What faults remember from start to start.

    Args:
        ground: The ground's directory; None: nothing is kept beyond this process.
    """

    def __init__(self, ground: Path | None) -> None:
        self._folder = ground / FOLDER / _SHELF if ground is not None else None
        self._kept: dict[str, Any] = {}

    def read(self, name: str) -> Any:
        """What lies there; None: nothing."""
        if self._folder is None:
            return self._kept.get(name)
        path = self._folder / f"{name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def write(self, name: str, document: Any) -> None:
        """Put something there, whole or not at all; None takes away what was."""
        if self._folder is None:
            self._kept[name] = document
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self._folder / f"{name}.{os.getpid()}"
        fresh.write_text(json.dumps(document), encoding="utf-8")
        fresh.replace(self._folder / f"{name}.json")

    def now(self) -> float:
        """Unix time."""
        return time.time()

    def parent(self) -> str:
        """Who started this process: its parent's id and start, in the kernel's ticks."""
        stat = Path(f"/proc/{os.getppid()}/stat").read_text(encoding="utf-8")
        return f"{os.getppid()}/{stat.rpartition(')')[2].split()[19]}"

    def mark(self, name: str) -> None:
        """Put the time there."""
        self.write(name, {"at": self.now()})

    async def beat(self, name: str) -> None:
        """Keep a time there fresh, twice a wall second, until cancelled."""
        while True:
            self.mark(name)
            await asyncio.sleep(0.5)
