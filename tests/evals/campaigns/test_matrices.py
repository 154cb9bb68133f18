"""The matrices as CI takes them: every point that writes, and a tenth of the others that follows from the day."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


TRACED = pytest.mark.skipif(shutil.which("strace") is None, reason="there is no strace on this machine")


@pytest.mark.parametrize(
    "name",
    ["crash", "helper", "silent", "link", pytest.param("power", marks=TRACED), "approval", "lease", "real"],
)
def test_nothing_is_wrong_at_any_point(name, tmp_path):
    """However its world breaks, no run says anything of the worker that is not so, and none is left without an end."""
    table = tmp_path / "table.md"
    done = subprocess.run(
        [sys.executable, "-m", "evals.bench.matrix", name, "--table", str(table)],
        capture_output=True,
        text=True,
        timeout=880,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    points, taken, *_, wrong, _ = (int(cell) for cell in table.read_text().splitlines()[-1].split("|")[2:-1])
    assert points >= taken > 0
    assert wrong == 0
