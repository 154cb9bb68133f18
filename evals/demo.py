"""Both seed stories on the practice ground: `python -m evals.demo`, which is what `make demo` runs.

It drives the command line as an operator would: one process asks and carries the run, another one approves.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from evals.lab import ground

STORIES = (
    "token pool is pretty healthy now, can you bump cuda graphs to 96?",
    "turn the overlap scheduler on, skip that one if it's unsafe",
)
PRUDENT = (sys.executable, "-m", "agent.doors")
_APPROVE = re.compile(r"prudent approve (r-\w+)")
_VERDICT = re.compile(r"─ (\w+, worker \w+) ─")


def main() -> int:
    """Run both stories; status 0 where each ended as its seed did."""
    begun = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="prudent-demo-"))
    _say(f"$ prudent lab up --directory {folder}")
    made = ground.up(folder, seed=7)
    environ = {**os.environ, "PRUDENT_SETTINGS": str(made.settings), "COLUMNS": "110"}
    try:
        came = [_carry(story, environ) for story in STORIES]
        _say("\n$ prudent history")
        subprocess.run([*PRUDENT, "history"], env=environ, check=True)
    finally:
        ground.down(folder)
    _say(f"\nrecords     {folder / '.prudent' / 'prudent.sqlite'}  (prudent show RUN)")
    _say(f"decisions   {made.plan}, committed in its repository")
    _say(f"took        {time.monotonic() - begun:.0f} s")
    return 0 if came == ["kept, worker new", "deferred, worker restored"] else 1


def _carry(story: str, environ: dict[str, str]) -> str:
    """Ask in one process and approve from another once the plan is shown; say what came of it."""
    _say(f'\n$ prudent ask "{story}"')
    asking = subprocess.Popen([*PRUDENT, "ask", story], env=environ, stdout=subprocess.PIPE, text=True)
    assert asking.stdout is not None
    came = ""
    for line in asking.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        ended = _VERDICT.search(line)
        came = ended[1] if ended else came
        wanted = _APPROVE.search(line)
        if wanted:
            _say(f"\n(another terminal) $ prudent approve {wanted[1]}")
            subprocess.run([*PRUDENT, "approve", wanted[1]], env=environ, check=True)
    _say(f"exit status {asking.wait()}")
    return came


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if shutil.which("git") is None:
        sys.exit("the demo keeps its plan document in a git repository: install git")
    sys.exit(main())
