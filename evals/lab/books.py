"""What a worker writes down about itself in the private folder, line by line, for `oracle.py` to read.

Nothing here says whether a fault is on. It says what was asked for and what came of it: words, values, memory, replies,
tokens, time.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.lab import private
from evals.lab.ask import Ask
from evals.lab.cards import Held
from evals.lab.clock import Clock

if TYPE_CHECKING:
    from evals.lab.scheduler import Scheduler

_FILE = "books.jsonl"
_TELLING = ("SGLANG_", "VLLM_", "PYTORCH_", "CUDA_", "NCCL_")
"""How variables begin that bear on the engine; others are not written down, for they may be secret."""


class Books:
    """The books of one process.

    Args:
        ground: The ground's directory.
    """

    def __init__(self, ground: Path) -> None:
        self._ground = ground
        self.boot = 0
        """Which start this is, from 1."""
        self.right = 0
        """Replies that came out as the model meant them."""
        self.wrong = 0
        """Replies that did not."""

    def write(self, kind: str, **more: Any) -> None:
        """One line."""
        folder = self._ground / private.FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        line = json.dumps({"kind": kind, "boot": self.boot, "pid": os.getpid(), **more})
        with (folder / _FILE).open("a", encoding="utf-8") as books:
            books.write(line + "\n")

    def asked(self, words: Sequence[str], environ: Mapping[str, str]) -> None:
        """What the serve script asked for, where something else is started in its place."""
        self.write("asked", words=list(words), environ=_telling(environ))

    def launched(self, words: Sequence[str], environ: Mapping[str, str]) -> None:
        """What this process was started with."""
        self.write("launched", words=list(words), environ=_telling(environ))

    def note(self, kind: str, detail: str) -> None:
        """Something that a fault did."""
        private.note(self._ground, self.boot, kind, detail)

    def ended(self, ask: Ask) -> None:
        """A request has ended; replies that were cut off count as far as they got."""
        if ask.own:
            return
        self.right += not ask.went_wrong
        self.wrong += ask.went_wrong

    async def keep(self, scheduler: Scheduler, clock: Clock, held: Held) -> None:
        """Write down how the loop is doing and what the cards hold, every five seconds of life, until cancelled."""
        while True:
            self.pulse(scheduler, clock.now())
            held.note(self._ground, scheduler.free)
            await asyncio.sleep(clock.wall(5.0))

    def pulse(self, scheduler: Scheduler, at: float) -> None:
        """Write down how the loop is doing, at that second of life."""
        open_probes = sum(ask.own for ask in (*scheduler.running, *scheduler.waiting))
        self.write(
            "pulse",
            at=round(at, 3),
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            probes=open_probes,
            tokens=scheduler.tokens,
            prefilled=scheduler.prefilled,
            heartbeat=round(at - scheduler.heartbeat, 3),
            silent=round(at - scheduler.heard, 3),
            places=[scheduler.limits.running, scheduler.places],
            free=[round(scheduler.limits.free, 3), round(scheduler.free, 3)],
            resident=_resident(),
            passes=[round(scheduler.nominal, 3), round(scheduler.took, 3)],
            replies=[self.right, self.wrong],
            off=scheduler.punctuality.taken(),
            cpu=round(time.process_time(), 3),
        )

    def read(self) -> list[dict[str, Any]]:
        """Every line so far."""
        return lines(self._ground)


def lines(ground: Path) -> list[dict[str, Any]]:
    """Every line of a ground's books, oldest first."""
    path = ground / private.FOLDER / _FILE
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _telling(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in sorted(environ.items()) if name.startswith(_TELLING)}


def _resident() -> int:
    """Most bytes of this process that were in memory; asked without opening a file that somebody might see open."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
