"""Changes that are known to be bad or good, carried by the real graph: `python -m evals.bench.verifier`.

    python -m evals.bench.verifier [--quick | --part NUMBER] [--only NAME] [--resume FILE] [--soak SECONDS]

The cases are in `verifier.yaml`: what is asked, what is wrong with the worker, seed, noise and the shipped policy. Each
is carried on a ground of campaigns, where the worker runs on virtual time, from the request to the record. The table
says what became of each, which criteria decided, and how long that took; below it stand the share of bad changes that
were not kept and of good ones that were taken back. With `--resume` each result is appended to FILE, and a case whose
result is there already is not carried again. The status is 1 where a record is not true of its ground.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from agent.domain import Record
from evals.campaigns.agent import ask, forked, record_of
from evals.campaigns.campaign import Campaign, campaign
from evals.campaigns.ground import Ground, make, unmake
from evals.campaigns.host import stand
from evals.lab import private

CASES = Path(__file__).with_suffix(".yaml")
RUN = "r-verifier"
LIMIT = 600.0
"""Seconds of the wall after which a case has hung."""
UP = 20.0
"""Seconds that the worker has for its first start; it takes two."""
HURRY = 35.0
"""How many times as fast as in life the worker starts; from then on it works at life's pace."""
PARTS = 20
"""Parts that the short cases come in, so that each takes less than a minute."""
WATCH = 300.0
"""Seconds of the wall after which the host takes a change back by itself: nothing is renewed while a load is computed,
and ten minutes of life may take a busy machine a minute."""
_POLICIES = Path(__file__).resolve().parents[2] / "policies"
_DEAF = '#!/bin/sh\n[ "$1" = restart ] || exec /bin/sh {service} "$@"\n'
_COPY = """#!/bin/sh
cp {folder}/serve_decode.sh {folder}/run/now && cp {folder}/run/first {folder}/serve_decode.sh
/bin/sh {service} "$@"
if [ "$1" = restart ]; then
    until [ -e {folder}/run/listening-"$(cat {folder}/run/pid)" ]; do sleep 0.01; done
fi
cat {folder}/run/now > {folder}/serve_decode.sh
"""


class Case(NamedTuple):
    """A change, and the worker that it is made on; what each field says is in `verifier.yaml`."""

    name: str
    good: bool
    ask: str
    """The request, in an operator's words."""
    faults: tuple[str, ...] = ()
    law: str = "practice"
    seed: int = 3
    noise: tuple[float, float] = (0.005, 0.005)
    errors: float = 0.0
    service: str = "plain"
    beyond: str = ""


class Result(NamedTuple):
    """What became of a case."""

    name: str
    good: bool
    law: str
    decision: str
    """The verdict's decision; `none`: the agent ended without a record."""
    state: str
    by: tuple[str, ...]
    """Criteria that decided; without any, the kind of the refusal."""
    life: float
    """Seconds of life from the request to the record, the way back included."""
    wall: float
    """Seconds of the wall that this took here."""
    why: str
    untrue: str
    """What the record says and the ground does not; empty: nothing."""
    beyond: str = ""
    """Why the law of the case cannot see a bad change; empty: it has to."""


def cases() -> list[Case]:
    """All of them, bad ones first."""
    document = _document()
    made = []
    for kind in ("bad", "good"):
        for row in document[kind]:
            given = {**row, "ask": document["asks"][row["ask"]], "good": kind == "good"}
            given["faults"] = tuple(row.get("faults", ()))
            given["noise"] = tuple(row.get("noise", (0.005, 0.005)))
            made.append(Case(**given))
    return made


def quick() -> list[Case]:
    """The few that show that it works."""
    wanted = _document()["quick"]
    return [case for case in cases() if case.name in wanted]


def part(number: int) -> list[Case]:
    """Two or three bad changes and a good one that take seconds each, others for each of `PARTS` numbers.

    Args:
        number: Which; counted round.
    """
    short = [case for case in cases() if case.law == "practice" and case.service != "deaf" and not case.beyond]
    return [case for kind in (False, True) for case in [c for c in short if c.good is kind][number % PARTS :: PARTS]]


def _document() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(CASES.read_text(encoding="utf-8"))
    return document


def carried(under: Campaign, case: Case, soak: float) -> Result:
    """Carry one change from the request to the record.

    Args:
        under: The campaign.
        case: The change.
        soak: Seconds of life that a soak lasts, where the policy asks for one.
    """
    folder = Path(tempfile.mkdtemp(dir=under.root, prefix="ground-"))
    folder.rmdir()
    ground = make(folder, under.root / "kept", epoch=float(int(time.time())))
    try:
        _furnish(ground, case, soak)
        stand(ground, under.forge, UP)
        script, begun, wall = ground.script.read_bytes(), ground.state()["now"], time.monotonic()
        said = folder / "said"
        ended = forked(lambda: ask(ground, under.forge, RUN, case.ask), limit=LIMIT, said=said)
        life, wall = ground.state()["now"] - begun, time.monotonic() - wall
        record = record_of(ground, RUN)
        if record is None:
            why = f"status {ended.status}: {ended.said[-1000:]}"
            return Result(
                case.name, case.good, case.law, "none", "unknown", (), life, wall, why, "no record", case.beyond
            )
        verdict = record.verdict
        untrue = _untrue(record, script, ground)
        started = [one for one in record.readings if one.metric == "start_seconds" and one.phase != "baseline"]
        life += (HURRY - 1) * sum(one.value or 0.0 for one in started)
        by = verdict.decided_by or ((verdict.refusal,) if verdict.refusal else ())
        return Result(
            case.name, case.good, case.law, verdict.decision, verdict.state, by, life, wall, verdict.why, untrue,
            case.beyond,
        )  # fmt: skip
    finally:
        unmake(ground)


def _furnish(ground: Ground, case: Case, soak: float) -> None:
    """Make the worker, its service and its law those of a case."""
    boot, run = case.noise
    nature = private.Nature(
        seed=case.seed, faults=case.faults, errors=case.errors, boot_noise=boot, run_noise=run,
        start_speed=HURRY, serve_speed=1.0,
    )  # fmt: skip
    private.write(ground.folder, nature)
    law = (_POLICIES / f"{case.law}.yaml").read_text(encoding="utf-8")
    law = re.sub(r"(?m)^    seconds: [\d.]+$", f"    seconds: {soak:g}", law)
    law = re.sub(r"(?m)^  watchdog_floor_seconds: [\d.]+$", f"  watchdog_floor_seconds: {WATCH:g}", law)
    (ground.folder / "policy.yaml").write_text(law, encoding="utf-8")
    if case.service != "plain":
        settings = ground.settings.read_text(encoding="utf-8")
        service = json.loads(re.findall(r'"[^"]*service\.sh"', settings)[0])
        body = {"deaf": _DEAF, "copy": _COPY}[case.service]
        odd = ground.folder / "run" / "service.sh"
        odd.write_text(body.format(service=service, folder=ground.folder), encoding="utf-8")
        (ground.folder / "run" / "first").write_bytes(ground.script.read_bytes())
        ground.settings.write_text(settings.replace(json.dumps(service), json.dumps(str(odd))), encoding="utf-8")


def _untrue(record: Record, script: bytes, ground: Ground) -> str:
    """What a record says of the script and the process and is not so; empty: nothing."""
    same, state = ground.script.read_bytes() == script, record.verdict.state
    if state == "new" and same:
        return "the record says that the change is live, and the script is the old one"
    if state in {"restored", "untouched"} and not same:
        return f"the record says {state}, and the script is another one"
    if state != "unknown" and ground.main() is None:
        return f"the record says {state}, and no process runs"
    return ""


def table(results: Sequence[Result]) -> str:
    """A row for each case, and the shares."""
    lines = [f"{'change':<52} {'law':<9} {'decision':<12} {'state':<10} {'life':>7} {'wall':>6}  decided by"]
    for good in (False, True):
        lines.append("good" if good else "bad")
        for one in results:
            if one.good == good:
                by = _by(one)
                mark = "" if (one.decision == "kept") == good else "  (by design)" if one.beyond else "  <--"
                lines.append(
                    f"  {one.name:<50} {one.law:<9} {one.decision:<12} {one.state:<10} {one.life:>5.0f} s "
                    f"{one.wall:>4.0f} s  {by}{mark}"
                )
    return "\n".join([*lines, *_shares(results)]) + "\n"


def _by(one: Result) -> str:
    return "all criteria" if one.decision == "kept" else ", ".join(one.by) or "-"


def _shares(results: Sequence[Result]) -> Iterator[str]:
    bad, good = [one for one in results if not one.good], [one for one in results if one.good]
    if bad:
        caught = [one for one in bad if one.decision not in {"kept", "none"}]
        how = Counter(one.decision for one in caught)
        times = sorted(one.life for one in caught)
        yield f"bad: {len(caught)} of {len(bad)} not kept ({_counted(how)})"
        if times:
            yield f"     the verdict took {times[len(times) // 2]:.0f} s of life (median), {times[-1]:.0f} s at most"
        yield f"     first criterion: {_counted(Counter((one.by or ('-',))[0] for one in caught))}"
        kept = [one for one in bad if one.decision == "kept"]
        yield from (f"     kept: {one.name}" + f" ({one.law}: {one.beyond})" * bool(one.beyond) for one in kept)
    if good:
        how = Counter(one.decision for one in good)
        yield f"good: {how['rolled_back']} of {len(good)} taken back ({_counted(how)})"
    yield from (f"untrue: {one.name}: {one.untrue}" for one in results if one.untrue)


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda one: -one[1]))


def main(argv: Sequence[str]) -> int:
    """The command line; returns the exit status."""
    words = argparse.ArgumentParser(prog="verifier")
    words.add_argument("--quick", action="store_true", help="six bad changes and three good ones")
    words.add_argument("--part", type=int, help=f"a few of them, others for each number up to {PARTS - 1}")
    words.add_argument("--only", action="append", default=[], help="a case by its name; may be repeated")
    words.add_argument("--resume", type=Path, help="file of results to go on from")
    words.add_argument("--soak", type=float, default=180.0, help="seconds of life that a soak lasts")
    said = words.parse_args(argv)
    chosen = quick() if said.quick else cases() if said.part is None else part(said.part)
    chosen = [case for case in chosen if not said.only or case.name in said.only]
    known = {one.name: one for one in _known(said.resume)}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = []
    with campaign() as under:
        for case in chosen:
            one = known.get(case.name) or carried(under, case, said.soak)
            results.append(one)
            if said.resume is not None and case.name not in known:
                with said.resume.open("a", encoding="utf-8") as kept:
                    kept.write(json.dumps(one._asdict()) + "\n")
    print(table(results), end="")
    return int(any(one.untrue for one in results))


def _known(path: Path | None) -> Iterator[Result]:
    if path is not None and path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            yield Result(**{**row, "by": tuple(row["by"])})


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
