"""What the practice ground's `nvidia-smi` says of its cards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evals.lab import cards, private
from evals.lab.specimen import RTX_PRO_6000

CSV = "--format=csv,noheader,nounits"


@pytest.fixture
def ground(tmp_path: Path) -> Path:
    """A ground whose cards can be asked."""
    private.write(tmp_path, private.Nature())
    cards.plant(tmp_path, Path(sys.executable), tmp_path)
    return tmp_path


def asked(ground: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """What the command answers."""
    return subprocess.run([ground / "nvidia-smi", *words], capture_output=True, text=True, timeout=60, check=False)


def test_what_a_process_holds_is_told_of_it_and_of_each_card(ground: Path) -> None:
    """The tests' own process holds 84 GiB of each of four cards; the driver takes a little more of each."""
    cards.Held(RTX_PRO_6000, 4).note(ground, free=RTX_PRO_6000.total - 84)

    processes = asked(ground, "--query-compute-apps=pid,used_memory", CSV)
    whole = asked(ground, "--query-gpu=index,memory.used,memory.total", CSV)

    assert processes.stdout == f"{os.getpid()}, {84 * 1024 - 4}\n" * 4
    assert whole.stdout == "".join(f"{index}, {84 * 1024}, 97887\n" for index in range(4))


def test_a_process_that_is_gone_holds_nothing(ground: Path) -> None:
    """Its cards are free but for what the driver takes."""
    note = "from pathlib import Path; from evals.lab import cards, specimen as s; import sys;"
    note += "cards.Held(s.H200, 1).note(Path(sys.argv[1]), free=9.0)"
    subprocess.run([sys.executable, "-c", note, str(ground)], check=True, cwd=Path(cards.__file__).parents[2])

    assert asked(ground, "--query-compute-apps=pid,used_memory", CSV).stdout == ""
    assert asked(ground, "--query-gpu=memory.used", CSV).stdout == "4\n"


def test_what_the_command_does_not_know_it_refuses(ground: Path) -> None:
    """Without cards, with unknown fields and with other formats it says so by its status."""
    assert asked(ground, "--query-gpu=memory.used", CSV).returncode == 6
    cards.Held(RTX_PRO_6000, 1).note(ground, free=9.0)
    assert asked(ground, "--query-gpu=memory.wished", CSV).returncode == 2
    assert asked(ground, "-q").returncode == 1
