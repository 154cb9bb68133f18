"""The matrices as CI takes them: every point that writes, and a tenth of the others that follows from the day."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NAMES = ("crash", "helper", "silent", "link", "late", "power", "approval", "lease", "real")
TRACED = shutil.which("strace") is not None


class Taken(NamedTuple):
    """What came of a matrix."""

    points: int
    taken: int
    wrong: int
    said: str
    """What the command said of it."""


@pytest.fixture(scope="module")
def matrices(tmp_path_factory) -> Mapping[str, Taken]:
    """The matrices by name. One command takes them all: what an engine was computed to say once serves every one."""
    table = tmp_path_factory.mktemp("matrices") / "table.md"
    names = [name for name in NAMES if TRACED or name != "power"]
    done = subprocess.run(
        [sys.executable, "-m", "evals.bench.matrix", *names, "--table", str(table)],
        capture_output=True,
        text=True,
        timeout=1790,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert table.exists(), done.stdout + done.stderr
    found = {}
    for line in table.read_text(encoding="utf-8").splitlines()[2:]:
        name, *cells = line.strip("| ").split(" | ")
        counts = [int(cell) for cell in cells]
        found[name] = Taken(counts[0], counts[1], counts[-2], done.stdout)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_wrong_at_any_point(name, matrices):
    """However its world breaks, no run says anything of the worker that is not so, and none is left without an end."""
    if name == "power" and not TRACED:
        pytest.skip("there is no strace on this machine")
    seen = matrices[name]
    assert seen.points >= seen.taken > 0
    assert seen.wrong == 0, seen.said
