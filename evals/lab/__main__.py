"""`python3 -m evals.lab up|down|status|faults`: the practice ground where only a Python and the sources are at hand."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from evals.lab import ground
from evals.lab.faults import DEFAULT_FAULTS, listing
from evals.lab.pace import NOISES, noise_of
from evals.lab.posts import VERSIONS, Supervision, Topology


def main(argv: Sequence[str]) -> int:
    """Run one command; what it found is printed as one line of JSON.

    Returns:
        The exit status: 0, or 1 where the ground did not come up.
    """
    words = argparse.ArgumentParser(prog="python3 -m evals.lab", description="A worker to practise on.")
    words.add_argument("word", choices=["up", "down", "status", "faults"])
    words.add_argument("--directory", "-d", type=Path, default=Path("prudent-lab"), help="where it lives")
    words.add_argument("--engine", default="sglang", choices=sorted(VERSIONS))
    words.add_argument("--version", help="the engine's version")
    words.add_argument("--topology", default="single", choices=get_args(Topology))
    words.add_argument("--supervision", default="supervisor", choices=get_args(Supervision))
    words.add_argument("--journal", action="store_true", help="the output goes to the journal")
    words.add_argument("--fault", action="append", metavar="NAME[:KEY=VALUE,...]", help="none: the usual ones")
    words.add_argument("--no-faults", action="store_true", help="a sound worker")
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--errors", type=float, default=0.0, help="share of calls that the model itself gets wrong")
    words.add_argument("--port", type=int)
    words.add_argument("--cold", action="store_true", help="nothing has been compiled yet")
    words.add_argument("--capture", type=int, default=32, help="largest decode batch that is captured")
    words.add_argument("--noise", default="slight", help=f"{', '.join(NOISES)}, or two shares as in 0.01,0.02")
    words.add_argument("--start-speed", type=float, default=35.0, help="seconds of life a second while it starts")
    words.add_argument("--serve-speed", type=float, default=2.0, help="seconds of life a second while it serves")
    read = words.parse_args(argv)
    if read.word == "down":
        return _say({"ran": ground.down(read.directory)})
    if read.word == "faults":
        print(listing(), end="")
        return 0
    if read.word == "status":
        return _say(ground.status(read.directory)._asdict())
    other = {"word", "directory", "fault", "no_faults", "noise"}
    how = {key: value for key, value in vars(read).items() if key not in other}
    faults = () if read.no_faults else DEFAULT_FAULTS if read.fault is None else tuple(read.fault)
    try:
        noise = noise_of(read.noise)
        made = ground.up(read.directory, faults=faults, boot_noise=noise.boot, run_noise=noise.run, **how)
    except ValueError as slip:
        words.error(str(slip))
    except ground.GroundError as failure:
        print(failure, file=sys.stderr)
        return 1
    return _say({**made._asdict(), "unit": made.unit, "posts": [post._asdict() for post in made.posts]})


def _say(document: object) -> int:
    print(json.dumps(document, default=str))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
