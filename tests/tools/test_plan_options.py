"""What a plan document's options are, in documents of many styles."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.errors import UnknownRun
from tools.engines.catalogue import knobs
from tools.plan_options import PlanOption, options_in, options_of

PLANS = Path(__file__).parent.parent / "data" / "plans"
CALLED = {
    knob.name: (knob.name, *(spelling.text for spelling in knob.spellings), *knob.words) for knob in knobs("sglang")
}
GRAPHS, OVERLAP = "cuda-graph-max-bs", "disable-overlap-schedule"
STYLES = {
    "adr": [(OVERLAP, "proposed", "")],
    "bold-labels": [(GRAPHS, "proposed", ""), (OVERLAP, "proposed", ""), ("enable-two-batch-overlap", "proposed", "")],
    "by-number": [("", "proposed", "5 %"), ("", "proposed", "5-7 %")],
    "checklist": [("", "kept", ""), (GRAPHS, "proposed", ""), (OVERLAP, "proposed", ""), ("", "proposed", "")],
    "emoji-table": [(GRAPHS, "proposed", ""), ("", "proposed", ""), (OVERLAP, "proposed", ""), ("", "kept", "")],
    "flags-in-text": [(OVERLAP, "deferred", ""), (GRAPHS, "proposed", "")],
    "list-of-options": [
        (GRAPHS, "proposed", "a few percent above 32"),
        (OVERLAP, "proposed", ""),
        ("", "proposed", ""),
    ],
    "nested": [
        ("mem-fraction-static", "deferred", ""),
        (GRAPHS, "kept", ""),
        (GRAPHS, "proposed", ""),
        (GRAPHS, "proposed", ""),
        (OVERLAP, "proposed", ""),
    ],
    "newest-first": [(GRAPHS, "proposed", ""), (OVERLAP, "proposed", "")],
    "numbered-options": [
        (GRAPHS, "proposed", ""),
        (OVERLAP, "proposed", ""),
        ("speculative-algorithm", "proposed", ""),
    ],
    "prose": [],
    "setext-crlf": [(GRAPHS, "proposed", ""), (OVERLAP, "proposed", "")],
    "table-and-log": [
        (GRAPHS, "kept", "+3 %"),
        (GRAPHS, "in progress", "+5 %"),
        (OVERLAP, "proposed", "+5-7 %"),
        ("enable-hierarchical-cache", "proposed", "?"),
    ],
    "title-only": [],
}


def _told(option: PlanOption) -> tuple[str, str, str]:
    return (option.knobs[0] if option.knobs else "", option.state, option.expected)


@pytest.mark.parametrize("style", STYLES)
def test_options_are_found_in_every_style(style: str):
    """Whatever the document's style, its options are those that a person would name, with gain and state."""
    found = options_in(PLANS / f"{style}.md", CALLED)

    assert [_told(option) for option in found] == STYLES[style]
    assert len({option.id for option in found}) == len(found)


def test_every_document_is_looked_at():
    """A new style in the folder has to say here what is in it."""
    assert {path.stem for path in PLANS.glob("*.md")} == set(STYLES)


def test_what_an_option_waits_for():
    """What a state adds is kept in its own words."""
    (first, second) = options_of(
        "# Plan\n\n## Options\n\n### #1 CUDA graphs to 96\n\n- State: open\n\n"
        "### #2 Overlap scheduler\n\n- State: open, after #1\n\n## Log\n\n### 2026-01-01 cuda graphs to 32\n\ndone\n",
        CALLED,
    )

    assert (first.id, first.waits, second.id, second.waits) == ("1", "", "2", "after #1")
    assert second.line == 9


def test_a_plan_that_is_not_there_is_said(tmp_path: Path):
    """One sentence with the remedy."""
    with pytest.raises(UnknownRun, match="Correct `plan`"):
        options_in(tmp_path / "plan.md", CALLED)
