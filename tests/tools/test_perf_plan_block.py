"""What a decision record says to the engineer who reads it at night."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agent.domain import (
    Approval,
    Change,
    Evidence,
    FailureMode,
    Finding,
    Forecast,
    Interval,
    Precedent,
    Reading,
    Record,
    Request,
    Risk,
    Setting,
    Verdict,
)
from tools.perf_plan import render
from tools.plan_block import upper_bound

NOON = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def reading(metric: str, phase: str, value: float | None, **more: Any) -> Reading:
    """One measurement."""
    return Reading.model_validate({"metric": metric, "phase": phase, "value": value, "unit": "", **more})


def full(**more: Any) -> Record:
    """A record with something in every part."""
    free = Interval(low=13.1, high=15.2, unit="GB", basis="the last start, and a formula")
    fields: dict[str, Any] = {
        "seq": 3,
        "run": "r-7k2m9q",
        "worker": "decode",
        "at": NOON,
        "request": Request(run="r-7k2m9q", text="bump it to 96", worker="decode", door="cli", by="ana", at=NOON),
        "change": Change(
            worker="decode",
            operation="set",
            settings=(
                Setting(knob="a", kind="flag", spelling="--a", old="32", new="96"),
                Setting(knob="b", kind="flag", spelling="--b", old="", new=None),
                Setting(knob="C", kind="env", spelling="C", old=None, new="x|`y`"),
            ),
            summary="a 32 -> 96",
        ),
        "evidence": (
            Evidence(id="e1", what="the pool is healthy", source="the request", at=NOON, claimed=True, tainted=True),
            Evidence(id="e2", what="4 % of the pool in use", source="/metrics", at=NOON),
        ),
        "precedents": (Precedent(id="old-race", source="incident", what="It raced.", why="same knob", lesson="Look."),),
        "risk": Risk(
            level="medium",
            ways=(FailureMode(what="it races again", because=("old-race",), caught_by="sessions"),),
            summary="proven up to 32",
            by="rules",
        ),
        "forecast": Forecast(rows=(), free_after_capture=free, restart_seconds=None, fits="fits", why="13 is over 6"),
        "approval": Approval(
            run="r-7k2m9q",
            digest="d" * 64,
            decision="approve",
            by="ben",
            door="cli",
            at=NOON,
            expires=NOON + timedelta(minutes=5),
            reason="go on",
        ),
        "readings": (
            reading("throughput_tokens_per_second", "baseline", 657.0, values=(650.0, 664.0), n=2, concurrency=64),
            reading("throughput_tokens_per_second", "candidate", 711.0, values=(704.0, 718.0), n=2, concurrency=64),
            reading("corrupted_sessions", "candidate", 0.0, n=288, bad=0),
            reading("free_after_capture_gb", "candidate", 15.0, unit="GB"),
            reading("wedged_storms", "candidate", None, no_data="nobody listened"),
        ),
        "verdict": Verdict(
            decision="kept",
            state="new",
            why="Every criterion is met.",
            findings=(Finding(criterion="corruption", outcome="met", says="0 of 288"),),
            decided_by=("corruption",),
        ),
        "notes": ("the rules stood in for the model",),
        "previous": "0" * 64,
    }
    return Record(**(fields | more))


@pytest.mark.parametrize(
    "line",
    [
        "### 2026-11-29 · Kept: a 32 -> 96 (r-7k2m9q)",
        "**Kept** on worker `decode`: the changed configuration is live, proven.",
        "Why: Every criterion is met.",
        "> bump it to 96",
        "| `--a` | `32` | `96` |",
        "| `--b` | present | absent |",
        "| `C` | absent | `x\\|'y'` |",
        "| corrupted sessions |  | 0 of 288 (under 1.1 % at 95 %) |  |",
        "| wedged storms |  | no data: nobody listened |  |",
        "- met (decided): `corruption`: 0 of 288",
        "- risk medium, assessed by rules: proven up to 32",
        "- it races again (because of old-race; caught by sessions)",
        "- free after capture: 13.1 to 15.2 GB (the last start, and a formula)",
        "- `old-race` (same knob): It raced. Lesson: Look.",
        "- `e1` (only said, not measured): the pool is healthy (from the request)",
        "- `e2`: 4 % of the pool in use (from /metrics)",
        "- ben approved plan `dddddddddddd` through cli at 2026-11-29 12:00 UTC: go on",
        "- set `--a` back to `32`, then restart the worker",
        "- put `--b` back, then restart the worker",
        "- take `C` out, then restart the worker",
        "- the rules stood in for the model",
    ],
)
def test_a_block_says(line: str) -> None:
    """Each part of a record has its line in the block."""
    assert line in render(full()).splitlines()


def test_throughput_is_told_with_its_spread_and_against_the_baseline() -> None:
    """A throughput cell has the mean, the scatter of its runs and the difference to the run before the change."""
    row = next(line for line in render(full()).splitlines() if "throughput" in line)
    assert "657 tokens/s" not in row
    assert re.search(r"\| 657 ± 1\.5 % in 2 runs \| 711 ± 1\.4 % in 2 runs \(\+8\.2 %\) \|", row)


def test_the_block_carries_the_records_hash() -> None:
    """The hash in the block is the one of the chain, and an altered record has another."""
    assert f"<!-- prudent-record: r-7k2m9q {full().hash} -->" in render(full())
    assert full(notes=()).hash not in render(full())


def test_a_change_that_was_taken_back_needs_no_undo() -> None:
    """After a proven restore there is nothing to undo, and a deferral says when to try again."""
    verdict = Verdict(decision="deferred", state="restored", why="It wedged.", reopen_when="it is mended (incident x)")
    lines = render(full(verdict=verdict)).splitlines()
    assert "Try again when: it is mended (incident x)" in lines
    assert "- nothing to undo: the old configuration is live again" in lines
    assert not any("back to" in line for line in lines)


def test_an_unproven_state_is_loud() -> None:
    """What could not be proven says that a person has to look, and what to do."""
    verdict = Verdict(decision="needs_human", state="unknown", why="The restore failed.", remedy="look at the unit")
    text = render(full(verdict=verdict))
    assert "**Needs a human** on worker `decode`: NOT PROVEN: a person has to look at the worker." in text
    assert "What to do now: look at the unit" in text


def test_a_bare_record_gives_a_short_block() -> None:
    """A record with nothing but a request and a verdict has no empty tables or lists."""
    refused = Verdict(decision="refused", state="untouched", why="The worker is down.")
    bare = dict.fromkeys(("evidence", "precedents", "readings", "notes"), ())
    text = render(full(change=None, risk=None, forecast=None, approval=None, verdict=refused, **bare))
    assert "|" not in text
    assert "**Evidence**" not in text
    assert "Refused: bump it to 96" in text.splitlines()[0]


@pytest.mark.parametrize(
    ("bad", "n", "bound"),
    [(0, 99, 0.03), (0, 299, 0.01), (1, 157, 0.03), (2, 208, 0.03), (0, 2995, 0.001), (2, 6294, 0.001), (3, 3, 1.0)],
)
def test_upper_bounds_are_those_of_the_tables(bad: int, n: int, bound: float) -> None:
    """The bounds agree with the published counts for claims at 95 %."""
    assert upper_bound(bad, n) == pytest.approx(bound, rel=0.01)
