"""The bench of the verifier: what its cases hold, and that a few of them end as they have to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evals.bench.verifier import Result, cases, main, quick, table
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


def test_the_table_counts_what_was_kept_in_spite_of_it() -> None:
    """A bad change that was kept is named, a deferred one is not taken back, and an error is no success."""
    rows = [
        Result("leak", False, "decode", "kept", "new", ("start",), 1.0, 1.0, "", ""),
        Result("wedge", False, "decode", "rolled_back", "restored", ("progress",), 3.0, 1.0, "", ""),
        Result("died", False, "decode", "none", "unknown", (), 3.0, 1.0, "", "no record"),
        Result("sound", True, "decode", "deferred", "restored", ("throughput",), 2.0, 1.0, "", ""),
    ]

    said = table(rows)

    assert "bad: 1 of 3 not kept (1 rolled_back)" in said
    assert "kept: leak" in said
    assert "untrue: died: no record" in said
    assert "good: 0 of 1 taken back (1 deferred)" in said


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_bad_changes_are_caught_and_good_ones_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of nine changes carried by the real graph the six bad ones are not kept, the three good ones are, all truly."""
    kept = tmp_path / "results.jsonl"

    status = main(["--quick", "--resume", str(kept)])

    rows = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
    assert status == 0
    assert [row["name"] for row in rows if (row["decision"] == "kept") != row["good"]] == []
    assert [row["name"] for row in rows if row["decision"] in {"none", "needs_human"}] == []
    first = capsys.readouterr().out
    assert main(["--quick", "--resume", str(kept)]) == 0
    assert capsys.readouterr().out == first
