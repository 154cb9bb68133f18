"""The policy as it is when something is written, and not as it was when the plan was made."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from agent.domain import Verdict
from evals.bench.matrix_crash import around
from evals.campaigns.agent import STORIES, Around, ask, forked, resume
from evals.campaigns.campaign import Campaign
from evals.campaigns.ground import Ground
from evals.campaigns.mortal import Act, Fate
from evals.campaigns.oracle import Before, before, contradiction, stored, truth

RUN = "r-test"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def rule(ground: Ground, line: str) -> None:
    """Put a line more into the ground's law."""
    path = ground.folder / "policy.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("\ntimes:\n", f"\n{line}\n\ntimes:\n", 1), encoding="utf-8")


def open_for(ground: Ground, seconds: float) -> None:
    """Let the worker be changed for so many seconds of its own time from now on."""
    now = datetime.fromtimestamp(ground.state()["now"], UTC)
    opens, closes = now - timedelta(hours=1), now + timedelta(seconds=seconds)
    rule(ground, f"limits: {{windows: [{{opens: '{opens:%H:%M:%S}', closes: '{closes:%H:%M:%S}'}}]}}")


def asked(under: Campaign, ground: Ground, told: Around | None = None, text: str = STORIES["bump"]) -> None:
    """Ask for a bump, or for something else."""
    ended = forked(lambda: ask(ground, under.forge, RUN, text, told), said=ground.folder / "said")
    assert ended.status == (0 if told is None else -9), ended.said


def verdict(ground: Ground, was: Before) -> Verdict:
    """What the record says, which is true and in order."""
    record, books = stored(ground, RUN)
    assert books is None
    assert record is not None
    assert contradiction(record, truth(ground, was, "bump")) is None
    return record.verdict


@pytest.mark.parametrize(
    "line",
    ["limits: {autonomy: watch}", "limits: {knobs: {cuda-graph-max-bs: {high: 40, because: we want to see it first}}}"],
    ids=["it only watches now", "the value lies outside of its bounds now"],
)
@pytest.mark.parametrize(
    ("act", "state"),
    [(Act("store decide", 1), "untouched"), (Act(f"helper step {RUN}-edit", 1), "restored")],
    ids=["approved", "edited"],
)
def test_a_run_that_is_resumed_obeys_the_policy_of_now(under, line, act, state):
    """An approval given under another policy carries nothing further; what was begun is taken back."""
    with under.ground() as ground:
        was = before(ground)
        asked(under, ground, around(Fate(act, "after")))
        rule(ground, line)
        ended = forked(lambda: resume(ground, under.forge, RUN), said=ground.folder / "said")
        assert ended.status == 0, ended.said
        ended_with = verdict(ground, was)
    assert ended_with.state == state, ended_with
    assert ended_with.decision == ("refused" if state == "untouched" else "deferred")
    assert "The plan was made under policy campaign" in ended_with.why


def test_a_window_that_closes_while_the_baseline_is_measured(under):
    """Nothing is written once it has closed, whenever the run began."""
    with under.ground() as ground:
        open_for(ground, 6)
        was = before(ground)
        asked(under, ground)
        ended_with = verdict(ground, was)
    assert (ended_with.decision, ended_with.refusal) == ("refused", "NotAllowed"), ended_with
    assert ended_with.state == "untouched"


def test_a_bound_holds_for_what_the_engine_would_choose_too(under):
    """Taking a setting out leaves it to the engine, whose choice nobody has bounded."""
    with under.ground() as ground:
        rule(ground, "limits: {knobs: {cuda-graph-max-bs: {high: 40, because: we want to see it first}}}")
        was = before(ground)
        asked(under, ground, text="unset cuda-graph-max-bs")
        ended_with = verdict(ground, was)
    assert (ended_with.decision, ended_with.refusal) == ("refused", "OutOfBounds"), ended_with
    assert "without the setting the engine takes" in ended_with.why


def test_a_bound_holds_whatever_setting_moves_the_value(under):
    """A list of capture sizes sets their maximum, too: what comes into force beyond the bound is not kept."""
    with under.ground() as ground:
        rule(ground, "limits: {knobs: {cuda-graph-max-bs: {high: 40, because: we want to see it first}}}")
        script = ground.script.read_bytes()
        asked(under, ground, text="set cuda graph bs list to 48")
        record, books = stored(ground, RUN)
        assert ground.script.read_bytes() == script
    assert books is None
    assert record is not None
    assert (record.verdict.decision, record.verdict.state) == ("rolled_back", "restored"), record.verdict
    found = next(reading for reading in record.readings if reading.metric == "effective_matches")
    assert found.value == 0.0
    assert "cuda-graph-max-bs is 48 in force, and the policy allows at most 40." in found.detail
