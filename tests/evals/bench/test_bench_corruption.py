"""The corruption bench: bounds that hold, detectors that are asked fairly."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from evals.bench.corruption import false_alarms, main, recall, rules
from evals.bench.coverage import campaigns, coverage
from evals.bench.mutations import MUTATIONS, halves
from evals.bench.transcripts import calls, texts


@pytest.mark.parametrize("policy", ["decode", "practice"])
def test_a_claim_that_is_false_is_made_as_rarely_as_stated(policy: str) -> None:
    """A worker whose share is just what must not be kept is kept in about one of twenty campaigns, not more."""
    rule = rules(policy)
    assert rule.criterion.sequential is not None

    seen = campaigns(rule, rule.criterion.sequential.bad, 1000, Random(1))

    assert seen.decisions["kept"] <= 75


def test_a_sound_worker_is_kept_after_the_least_sample() -> None:
    """Without a bad session every campaign ends with the sample that the policy asks for, and keeps."""
    rule = rules("decode")

    seen = campaigns(rule, 0.0, 10, Random(1))

    assert seen.decisions == {"kept": 10}
    assert seen.sessions == rule.least


def test_a_bad_worker_is_caught_long_before_the_sample_is_full() -> None:
    """A share of 15 % is caught in every campaign, within a tenth of the sample."""
    rule = rules("decode")

    seen = campaigns(rule, 0.15, 500, Random(1))

    assert seen.decisions == {"rolled_back": 500}
    assert seen.sessions < rule.least / 10


def test_the_bounds_of_a_fixed_sample_hold() -> None:
    """Both exact bounds at 95 % hold in about 95 of 100 campaigns or more, for any share."""
    for share in (0.003, 0.01, 0.15):
        held = coverage(299, share, 0.95, 2000, Random(1))

        assert min(held) >= 0.935


def test_good_transcripts_are_not_accused() -> None:
    """The detectors have nothing to say of what the practice worker says when nothing is wrong with it."""
    assert asyncio.run(false_alarms([*calls(3, 20), *texts(3, 10)])) == []


def test_every_kind_changes_what_is_said() -> None:
    """Each way to be wrong can be made from the good transcripts, held-out ones included."""
    scenes = [*calls(2, 12), *texts(2, 4)]

    rows = asyncio.run(recall(MUTATIONS, scenes, 5, seed=2))

    assert [row.mutation.name for row in rows if row.made != 5] == []


def test_the_kinds_that_may_be_looked_at_are_found() -> None:
    """Of the seen kinds none goes unseen, but for letters in any order: the detectors know no language."""
    seen = [one for one in halves()[0] if one.name != "letters in any order"]

    rows = asyncio.run(recall(seen, [*calls(4, 12), *texts(4, 4)], 10, seed=4))

    assert [row.mutation.name for row in rows if row.found < row.made] == []


def test_half_of_the_kinds_are_held_out() -> None:
    """The two halves share nothing, are all there is, and of calls and texts half each is held out."""
    seen, held = halves()

    assert {one.name for one in seen} | {one.name for one in held} == {one.name for one in MUTATIONS}
    assert not {one.name for one in seen} & {one.name for one in held}
    for kind in ("call", "text"):
        assert sum(one.kind == kind for one in held) == sum(one.kind == kind for one in MUTATIONS) // 2


def test_the_command_keeps_what_is_held_out_to_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """One command prints both tables; the held-out kinds show only when they are asked for."""
    assert main(["--quick"]) == 0
    quiet = capsys.readouterr().out
    assert main(["--quick", "--held-out"]) == 0
    open_report = capsys.readouterr().out

    names = {one.name for one in halves()[1]}
    assert not any(f"  {name} " in quiet for name in names)
    assert all(f"  {name} " in open_report for name in names)
