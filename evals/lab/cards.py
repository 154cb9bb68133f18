"""The memory of a ground's cards as their driver tells it: the worker notes what it holds, `nvidia-smi` says it.

    nvidia-smi --query-gpu=FIELD,... --format=csv,noheader,nounits
    nvidia-smi --query-compute-apps=FIELD,... --format=csv,noheader,nounits

Of the fields that the real one knows: index, memory.total, memory.used, memory.free; pid, used_memory. Figures are in
MiB, as there.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evals.lab.private import FOLDER
from evals.lab.specimen import Cards

_FILE = "cards.json"
_IDLE = 4
"""MiB that the driver takes of a card on which nothing runs."""
_SCRIPT = """#!{python}
import sys
from pathlib import Path

from evals.lab.cards import main

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:], Path({ground!r})))
"""


def plant(folder: Path, python: Path, ground: Path) -> None:
    """Put an `nvidia-smi` into a folder of commands.

    Args:
        folder: Where.
        python: An interpreter that sees these sources.
        ground: Whose cards it speaks of.
    """
    command = folder / "nvidia-smi"
    command.write_text(_SCRIPT.format(python=python, ground=str(ground)), encoding="utf-8")
    command.chmod(0o755)


class Held(NamedTuple):
    """The cards that a worker's process works on."""

    cards: Cards
    """What they are; all alike."""
    number: int
    """How many."""

    def note(self, ground: Path, free: float) -> None:
        """Write down what this process holds of them, with so many GiB of each free."""
        path = ground / FOLDER / _FILE
        held = round((self.cards.total - free) * 1024)
        told = {"pid": os.getpid(), "total": self.cards.mebibytes, "held": held, "cards": self.number}
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(told), encoding="utf-8")
        fresh.replace(path)


def main(argv: Sequence[str], ground: Path) -> int:
    """The command line; returns the exit status."""
    kinds: dict[str, Callable[[Mapping[str, Any]], list[dict[str, object]]]] = {
        "--query-gpu": _of_cards,
        "--query-compute-apps": _of_processes,
    }
    asked = dict(word.partition("=")[::2] for word in argv)
    kind = next((name for name in kinds if name in asked), None)
    if kind is None or asked.get("--format") != "csv,noheader,nounits":
        print(f"Invalid combination of input arguments: {' '.join(argv)}")
        return 1
    fields = asked[kind].split(",")
    path = ground / FOLDER / _FILE
    if not path.exists():
        print("No devices were found")
        return 6
    rows = kinds[kind](json.loads(path.read_text(encoding="utf-8")))
    unknown = [field for field in fields if any(field not in row for row in rows)]
    if unknown:
        print(f'Field "{unknown[0]}" is not a valid field to query.')
        return 2
    sys.stdout.write("".join(", ".join(str(row[field]) for field in fields) + "\n" for row in rows))
    return 0


def _of_cards(told: Mapping[str, Any]) -> list[dict[str, object]]:
    used = told["held"] if _lives(told["pid"]) else _IDLE
    memory = {"memory.total": told["total"], "memory.used": used, "memory.free": told["total"] - used}
    return [{"index": index, **memory} for index in range(told["cards"])]


def _of_processes(told: Mapping[str, Any]) -> list[dict[str, object]]:
    if not _lives(told["pid"]):
        return []
    return [{"pid": told["pid"], "used_memory": told["held"] - _IDLE}] * told["cards"]


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
