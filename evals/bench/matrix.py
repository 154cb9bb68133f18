"""What happens to a change when its world breaks, at every place where it can: `python -m evals.bench.matrix`.

    python -m evals.bench.matrix [NAME...] [--all] [--resume FILE] [--table FILE] [--rotation N] [--at-once N]

Without `--all` every mutating point is taken and a tenth of the others; which tenth follows from `--rotation`, which is
the day of the year where nothing is said. With `--resume` each result is appended to FILE, and a point whose result is
there already is not taken again, so that a run that was cut off goes on. The table of counts is printed and, with
`--table`, written too. The status is 1 where anything is wrong.

    crash      the agent dies at an act of its own, and resumes
    helper     the helper on the host dies at one of its durable actions, alone or together with the agent
    silent     the agent dies and never comes back: the watchdog restores
    link       the transport drops, cuts, delays, empties or garbles one call
    late       a message of an agent that died arrives while its successor works, or after that
    power      the machine dies and loses writes that were not synced
    approval   one approval, and a plan, a file or a process that is not the approved one
    lease      two agents at once, one of them stopped past its lease
    real       a twentieth of `crash` again on the practice ground in real time
    units      the helper dies where a real systemd keeps the worker; only where it is named, and as root
    ssh        a real sshd, a link that fails at one byte of a call, an agent that dies there; the same
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from evals.bench import (
    matrix_approval,
    matrix_crash,
    matrix_helper,
    matrix_late,
    matrix_lease,
    matrix_link,
    matrix_power,
    matrix_real,
    matrix_silent,
    matrix_ssh,
    matrix_units,
)
from evals.bench.matrix_points import Point, Result, share
from evals.campaigns.campaign import Campaign, campaign

LONGEST = 900.0
"""Seconds after which a point has hung."""


class Matrix(Protocol):
    """A module with the points of one matrix."""

    def points(self, campaign: Campaign, /) -> list[Point]:
        """All of them, in a fixed order."""

    def check(self, campaign: Campaign, point: Point, /) -> str | None:
        """Take one, and say what is wrong; None: nothing."""


PROGRESS_SECONDS = 30.0
"""How often a matrix says how far it is."""
IDLE = {"silent": 3, "real": 2}
"""Matrices whose points mostly wait for the wall's clock: how many times as many are taken at once."""
MATRICES: dict[str, Matrix] = {
    "crash": matrix_crash,
    "helper": matrix_helper,
    "silent": matrix_silent,
    "link": matrix_link,
    "late": matrix_late,
    "power": matrix_power,
    "approval": matrix_approval,
    "lease": matrix_lease,
    "real": matrix_real,
    "units": matrix_units,
    "ssh": matrix_ssh,
}


def run(under: Campaign, points: Iterable[Point], at_once: int) -> Iterator[Result]:
    """Take points, some at once, each in a process of its own; results come in the order in which they end."""
    at_work: dict[int, tuple[Point, float, Path]] = {}
    try:
        yield from _results(under, list(points), at_once, at_work)
    finally:
        for child in at_work:
            os.kill(child, signal.SIGTERM)
        for child in at_work:
            os.waitpid(child, 0)


def _results(
    under: Campaign, waiting: list[Point], at_once: int, at_work: dict[int, tuple[Point, float, Path]]
) -> Iterator[Result]:
    while waiting or at_work:
        while waiting and len(at_work) < at_once:
            point = waiting.pop(0)
            answer = under.root / f"answer-{len(waiting)}"
            child = os.fork()
            if not child:
                _take(under, point, answer)
            at_work[child] = (point, time.monotonic(), answer)
        pid, status = os.waitpid(-1, os.WNOHANG)
        for child, (_, begun, _) in at_work.items():
            if not pid and time.monotonic() - begun > LONGEST:
                os.kill(child, signal.SIGTERM if time.monotonic() - begun < LONGEST + 30 else signal.SIGKILL)
        if not pid:
            time.sleep(0.005)
            continue
        point, begun, answer = at_work.pop(pid)
        wrong = json.loads(answer.read_bytes()) if answer.exists() else f"no answer, status {status}"
        answer.unlink(missing_ok=True)
        yield Result(point, wrong, time.monotonic() - begun)


def _take(under: Campaign, point: Point, answer: Path) -> None:
    """Be the process of a point."""
    wrong: str | None = "no answer"
    try:
        wrong = MATRICES[point.matrix].check(under, point)
    except BaseException:
        wrong = traceback.format_exc()
    finally:
        answer.write_text(json.dumps(wrong), encoding="utf-8")
        os._exit(0)


def table(results: Sequence[Result], counts: dict[str, int], seconds: dict[str, float]) -> str:
    """The counts, as Markdown."""
    rows = ["| matrix | points | taken | mutating | cases | right | wrong | seconds |", "|---|" + 7 * "--:|"]
    for name, count in counts.items():
        mine = [result for result in results if result.point.matrix == name]
        wrong = sum(result.wrong is not None for result in mine)
        mutating = sum(result.point.mutating for result in mine)
        cases = sum(result.point.cases for result in mine)
        numbers = (count, len(mine), mutating, cases, len(mine) - wrong, wrong, round(seconds[name]))
        rows.append(f"| {name} | {' | '.join(map(str, numbers))} |")
    return "\n".join(rows) + "\n"


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit status."""
    words = argparse.ArgumentParser(prog="matrix")
    words.add_argument("name", nargs="*", choices=[*MATRICES, []], help="which matrices; none: all")
    words.add_argument("--all", action="store_true", help="every point")
    words.add_argument("--resume", type=Path, help="file of results to go on from")
    words.add_argument("--table", type=Path, help="file that takes the counts")
    words.add_argument("--rotation", type=int, default=datetime.now(UTC).timetuple().tm_yday, help="which tenth")
    words.add_argument("--at-once", type=int, default=os.cpu_count() or 1, help="points at once")
    said = words.parse_args(argv)
    if not said.all:
        print(f"every mutating point and tenth {said.rotation % 10} of the others")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results, counts, seconds = list(_known(said.resume)), dict[str, int](), dict[str, float]()
    with campaign() as under:
        for name in said.name or [name for name in MATRICES if name not in {"units", "ssh"}]:
            begun = time.monotonic()
            every = MATRICES[name].points(under)
            counts[name] = len(every)
            done = {result.point.id for result in results if result.point.matrix == name}
            chosen = [point for point in (every if said.all else share(every, said.rotation)) if point.id not in done]
            told = begun
            for taken, result in enumerate(run(under, chosen, said.at_once * IDLE.get(name, 1)), 1):
                results.append(result)
                _keep(said.resume, result)
                if result.wrong is not None:
                    print(f"{name}: {result.point.id}: {result.wrong}", flush=True)
                if (now := time.monotonic()) - told > PROGRESS_SECONDS:
                    told, left = now, (now - begun) / taken * (len(chosen) - taken)
                    print(f"{name}: {taken} of {len(chosen)} points, {left / 60:.0f} min to go", file=sys.stderr)
            seconds[name] = time.monotonic() - begun
    shown = table(results, counts, seconds)
    print(shown, end="")
    if said.table is not None:
        said.table.write_text(shown, encoding="utf-8")
    return int(any(result.wrong is not None for result in results))


def _known(path: Path | None) -> Iterator[Result]:
    if path is not None and path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            point, wrong, seconds = json.loads(line)
            yield Result(Point(*point), wrong, seconds)


def _keep(path: Path | None, result: Result) -> None:
    if path is not None:
        with path.open("a", encoding="utf-8") as kept:
            kept.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
