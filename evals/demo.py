"""Both seed stories on the practice ground: `python -m evals.demo`, which is what `make demo` runs.

It drives the command line as an operator would: one process asks and carries the run, another one approves.
"""

from __future__ import annotations

import json
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


def main() -> int:
    """Run both stories; status 0 where each ended as its seed did."""
    begun = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="prudent-demo-"))
    _say(f"$ prudent lab up --directory {folder}")
    made = ground.up(folder, seed=7)
    environ = {**os.environ, "PRUDENT_SETTINGS": str(made.settings), "COLUMNS": "110"}
    try:
        for story in STORIES:
            _carry(story, environ)
        _say("$ prudent history")
        subprocess.run([*PRUDENT, "history"], env=environ, check=True)
        records = json.loads(
            subprocess.run([*PRUDENT, "history", "--json"], env=environ, check=True, capture_output=True).stdout
        )["records"]
    finally:
        ground.down(folder)
    _say(f"\nrecords     {folder / '.prudent' / 'prudent.sqlite'}  (prudent show RUN)")
    _say(f"decisions   {made.plan}, committed in its repository")
    _say(f"took        {time.monotonic() - begun:.0f} s")
    came = [record["verdict"]["decision"] for record in reversed(records)]
    states = [record["verdict"]["state"] for record in reversed(records)]
    return 0 if (came, states) == (["kept", "deferred"], ["new", "restored"]) else 1


def _carry(story: str, environ: dict[str, str]) -> None:
    """Ask in one process and approve from another once the plan is shown."""
    _say(f'\n$ prudent ask "{story}"')
    asking = subprocess.Popen([*PRUDENT, "ask", story], env=environ, stdout=subprocess.PIPE, text=True)
    assert asking.stdout is not None
    for line in asking.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        wanted = _APPROVE.search(line)
        if wanted:
            _say(f"\n(another terminal) $ prudent approve {wanted[1]}")
            subprocess.run([*PRUDENT, "approve", wanted[1]], env=environ, check=True)
    _say(f"exit status {asking.wait()}")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if shutil.which("git") is None:
        sys.exit("the demo keeps its plan document in a git repository: install git")
    sys.exit(main())
