"""The bench of the verifier: what its cases hold, and that a few of them end as they have to."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from evals.bench.verifier import PARTS, Result, cases, main, part, quick, table
from evals.lab.faults import check


def test_there_are_enough_changes_of_each_kind() -> None:
    """At least 40 bad changes and 20 good ones, each by a name of its own, and the quick ones among them."""
    every = cases()

    assert sum(not case.good for case in every) >= 40
    assert sum(case.good for case in every) >= 20
    assert len({case.name for case in every}) == len(every)
    assert [sum(case.good is good for case in quick()) for good in (False, True)] == [6, 3]


def test_what_is_wrong_with_a_worker_can_be_made() -> None:
    """Every fault of every case exists with its parameters; a bad change has something that makes it bad."""
    for case in cases():
        check(case.faults)
        assert case.law in {"practice", "decode"}
        assert case.service in {"plain", "deaf", "copy"}


def test_what_one_law_cannot_see_another_does() -> None:
    """Each case that is beyond the practice law stands under the whole law, too, with the same thing wrong."""
    beyond = [case for case in cases() if case.beyond]
    whole = {(case.ask, case.faults) for case in cases() if case.law == "decode"}

    assert beyond
    assert all(not case.good and case.law == "practice" and (case.ask, case.faults) in whole for case in beyond)


def test_the_table_counts_what_was_kept_in_spite_of_it() -> None:
    """A bad change that was kept is named, a deferred one is not taken back, and an error is no success."""
    rows = [
        Result("leak", False, "decode", "kept", "new", ("start",), 1.0, 1.0, "", ""),
        Result("places", False, "practice", "kept", "new", ("start",), 1.0, 1.0, "", "", "never all are taken"),
        Result("wedge", False, "decode", "rolled_back", "restored", ("progress",), 3.0, 1.0, "", ""),
        Result("died", False, "decode", "none", "unknown", (), 3.0, 1.0, "", "no record"),
        Result("sound", True, "decode", "deferred", "restored", ("throughput",), 2.0, 1.0, "", ""),
    ]

    said = table(rows)

    assert "bad: 1 of 4 not kept (1 rolled_back)" in said
    assert "kept: leak\n" in said
    assert "kept: places (practice: never all are taken)" in said
    assert "untrue: died: no record" in said
    assert "good: 0 of 1 taken back (1 deferred)" in said


def test_every_short_case_has_its_turn() -> None:
    """The parts hold each of them once, both kinds in every part."""
    parts = [part(number) for number in range(PARTS)]
    names = [case.name for one in parts for case in one]

    assert len(set(names)) == len(names) >= 50
    assert all({case.good for case in one} == {False, True} for one in parts)
    assert all(len(one) <= 4 for one in parts)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_bad_changes_are_caught_and_good_ones_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the day's part of the changes, carried by the real graph, no bad one is kept and no good one is taken back."""
    kept, number = tmp_path / "results.jsonl", str(datetime.now(UTC).toordinal())

    status = main(["--part", number, "--resume", str(kept)])

    rows = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
    assert status == 0
    assert len(rows) == len(part(int(number)))
    assert [row["name"] for row in rows if not row["good"] and row["decision"] == "kept"] == []
    assert [row["name"] for row in rows if row["good"] and row["decision"] == "rolled_back"] == []
    assert [row["name"] for row in rows if row["decision"] in {"none", "needs_human"}] == []
    first = capsys.readouterr().out
    assert main(["--part", number, "--resume", str(kept)]) == 0
    assert capsys.readouterr().out == first
