"""The matrices as CI takes them: every point that writes, and a tenth of the others that follows from the day."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NAMES = ("crash", "helper", "silent", "link", "late", "power", "approval", "lease", "real")
TRACED = shutil.which("strace") is not None


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Mapping[str, list[int]]:
    """The counts by matrix. One command takes them all: what an engine was computed to say once serves every one."""
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
    print(done.stdout + done.stderr)
    cells = [line.strip("| ").split(" | ") for line in table.read_text().splitlines()[2:]]
    return {name: [int(count) for count in counts] for name, *counts in cells}


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_wrong_at_any_point(name, rows):
    """However its world breaks, no run says anything of the worker that is not so, and none is left without an end."""
    if name == "power" and not TRACED:
        pytest.skip("there is no strace on this machine")
    points, taken, *_, wrong, _ = rows[name]
    assert points >= taken > 0
    assert wrong == 0
