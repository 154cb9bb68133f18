"""Judges a worker by the books of its private folder: what was asked for against what came of it.

It knows nothing of faults. It fails on what a fault does and passes on what a sound worker does, so that tests and
exams can say whether a fault was really there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from evals.lab import private
from evals.lab.books import lines

Line = Mapping[str, Any]
What = Literal[
    "words",  # the process was started with other words or variables than the script's
    "start",  # a start did not end in a worker that serves
    "values",  # what is in force is not what was asked for
    "memory",  # memory of card or host is less than it should be
    "replies",  # replies came out wrong more often than the model errs
    "standstill",  # for thirty seconds nobody got a token although somebody waited
    "slow",  # passes took a fifth longer than they should
    "places",  # places of the batch were lost
    "probes",  # probes piled up
    "health",  # health checks failed while the worker got on
    "died",  # it ended while serving
]
STANDSTILL = 30.0
"""Seconds of life without a token, while somebody waits, that are a standstill."""
_HEALTH_TIMEOUT = 20.0
"""Seconds of life after which a health check gives up."""
_RESIDENT = 128 * 2**20
"""Bytes by which a sound worker's memory may grow while it serves."""
_PROBES = 8
"""Probes that may be open at once."""


class Finding(NamedTuple):
    """Something that is not as it should be."""

    what: What
    boot: int
    """At which start, from 1; 0: before the first."""
    detail: str
    """The figures."""


def unsound(ground: Path) -> list[Finding]:
    """Everything that is not as it should be at any start of a ground's worker; ask while no start is under way."""
    errors = private.read(ground).errors
    found: list[Finding] = []
    asked: dict[int, Line] = {}
    starts: list[list[Line]] = []
    for line in lines(ground):
        if line["kind"] == "asked":
            asked[line["pid"]] = line
        elif line["kind"] == "launched":
            found += _words(asked.pop(line["pid"], None), line)
            starts.append([line])
        elif starts:
            starts[-1].append(line)
    for start in starts:
        found += _start(start)
        found += _serving([line for line in start if line["kind"] == "pulse"], errors)
    return found


def _words(asked: Line | None, launched: Line) -> Iterator[Finding]:
    """What the script asked for against what was started."""
    if asked is None:
        return
    for name in ("words", "environ"):
        if asked[name] != launched[name]:
            yield Finding("words", launched["boot"], f"{name}: {asked[name]} became {launched[name]}")


def _start(start: Sequence[Line]) -> Iterator[Finding]:
    """One start, by what was asked for and by the formulas."""
    boot = start[0]["boot"]
    ready = next((line for line in start if line["kind"] == "ready"), None)
    if ready is None:
        yield Finding("start", boot, next((line["kind"] for line in start[1:]), "failed"))
        return
    for name in ("places", "captured"):
        due, got = ready[name]
        if due != got:
            yield Finding("values", boot, f"{name}: {got} instead of {due}")
    if ready.get("turned"):
        yield Finding("values", boot, f"nobody asked for a change of {', '.join(ready['turned'])}")
    due, got = ready["tokens"]
    if got < 0.95 * due:
        yield Finding("memory", boot, f"{got} tokens of KV pool instead of {due}")
    for line in start:
        if line["kind"] == "lost":
            yield Finding("died", boot, line["why"])


def _serving(pulses: Sequence[Line], errors: float) -> Iterator[Finding]:
    """The pulses of one start."""
    if not pulses:
        return
    first, last = pulses[0], pulses[-1]
    boot = last["boot"]
    right, wrong = last["replies"]
    expected = (right + wrong) * errors
    if wrong > expected + 4 * expected**0.5:
        yield Finding("replies", boot, f"{wrong} of {right + wrong} wrong")
    still = _longest_standstill(pulses)
    if still >= STANDSTILL:
        yield Finding("standstill", boot, f"{still:.0f} s without a token")
    for before, after in pairwise(pulses):
        nominal, took = (after["passes"][i] - before["passes"][i] for i in (0, 1))
        if took > 1.0 and took > 1.2 * nominal:
            yield Finding("slow", boot, f"{took:.1f} s of passes instead of {nominal:.1f}")
            break
    for line in pulses:
        if line["silent"] > _HEALTH_TIMEOUT and line["running"] and line["heartbeat"] < _HEALTH_TIMEOUT:
            yield Finding("health", boot, f"nothing heard for {line['silent']:.0f} s of work")
            break
    if last["places"][1] < last["places"][0]:
        yield Finding("places", boot, f"{last['places'][1]} of {last['places'][0]} left")
    if last["free"][1] < last["free"][0] - 0.05:
        yield Finding("memory", boot, f"{last['free'][1]:.1f} GiB of the card free instead of {last['free'][0]:.1f}")
    if last["resident"] - first["resident"] > _RESIDENT:
        yield Finding("memory", boot, f"{(last['resident'] - first['resident']) >> 20} MiB of the host gone")
    most = max(line["probes"] for line in pulses)
    if most > _PROBES:
        yield Finding("probes", boot, f"{most} open at once")


def _longest_standstill(pulses: Sequence[Line]) -> float:
    """Most seconds from pulse to pulse over which somebody waited and the count of tokens stood still."""
    longest, since = 0.0, pulses[0]
    for line in pulses:
        waits = line["running"] + line["waiting"] - line["probes"] > 0
        if not waits or line["tokens"] != since["tokens"]:
            since = line
        longest = max(longest, line["at"] - since["at"])
    return longest
