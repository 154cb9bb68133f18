"""The house stands where it should: five rooms of one distribution, and nothing else at the top."""

import importlib
import re
import subprocess
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("agent", "tools", "policies", "memory", "evals")


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_ours_alone(room: str):
    """No other distribution claims a room's name, and what is imported lies in this repository."""
    assert Path(str(importlib.import_module(room).__file__)).is_relative_to(ROOT)
    assert set(packages_distributions().get(room, [])) <= {"prudent"}


def test_the_top_level_is_the_one_that_the_design_draws():
    """Tracked files and folders at the root: the rooms, and what tools expect there."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    top = {line.partition("/")[0] for line in listed.stdout.splitlines()}

    visible = {name for name in top if not name.startswith(".")}
    assert visible == {*ROOMS, "tests", "pyproject.toml", "README.md", "LICENSE", "Makefile", "requirements.lock"}


def test_the_lock_pins_with_hashes_and_names_no_registry():
    """Every requirement has a version and a hash; no address stands in the file."""
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pins = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]

    assert pins
    assert all("==" in pin for pin in pins)
    assert text.count("--hash=sha256:") >= len(pins)
    assert "://" not in text


def test_nothing_reads_the_folder_beside_the_project():
    """What the project needs lies in it."""
    sources = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]

    assert sources
    assert [path for path in sources if "../shared" in path.read_text(encoding="utf-8")] == []


def test_no_test_is_left_out_of_make_test():
    """Every file of tests belongs to exactly one of the parts that `make test` runs."""
    parts = re.findall(r"^(?:WAITING|COUNTING|ALONE) := (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    named = [path for place in " ".join(parts).split() for path in ROOT.glob(place)]

    for path in (ROOT / "tests").rglob("test_*.py"):
        assert sum(path.is_relative_to(place) for place in named) == 1, path
