"""Back to the old setting and forth again while a change is verified: what is kept, and what is said after a crash."""

from __future__ import annotations

import pytest

from evals.bench.matrix_crash import around
from evals.campaigns.agent import Around
from evals.campaigns.faulty import FaultyHost
from evals.campaigns.ground import Ground
from evals.campaigns.mortal import Act, Fate
from evals.campaigns.oracle import before, contradiction, stored, truth
from policies.again import judged_again

RUN = "r-test"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def noisy(ground: Ground) -> None:
    """A law that takes boots to differ so much that only two of the old setting and three of the change settle it."""
    path = ground.folder / "policy.yaml"
    law = path.read_text(encoding="utf-8")
    for old, new in (
        ("boot_sd: 0.026", "boot_sd: 0.3"),
        ("of: baseline, bound: 0.8", "of: baseline, bound: 0.595"),
        ("\ntimes:\n", "\npairs: 1\nlimits: {budgets: {restarts: 5}}\n\ntimes:\n"),
    ):
        assert law.count(old) == 1, old
        law = law.replace(old, new)
    path.write_text(law, encoding="utf-8")


def test_what_two_starts_leave_open_is_settled_by_a_pair(under, bump):
    """Both settings are proven and measured at each start, the change is what stays, and the record shows all of it."""
    with under.ground() as ground:
        noisy(ground)
        was = before(ground)
        assert bump.carried(ground, Around()) == 0
        record, books = stored(ground, RUN)
        real = truth(ground, was, "bump")
    assert books is None
    assert record is not None
    assert record.plan is not None
    assert (record.verdict.decision, record.verdict.state) == ("kept", "new"), record.verdict
    assert contradiction(record, real) is None
    assert "up to 4 restarts, 1 of them back to the old setting" in record.plan.traffic.loses
    for metric, candidates in (("identity_proven", 3), ("throughput_tokens_per_second", 3)):
        boots = [(r.phase, r.boot) for r in record.readings if r.metric == metric and r.value]
        assert ("baseline", 2) in boots, boots
        assert [boot for phase, boot in boots if phase == "candidate"] == list(range(1, candidates + 1))
    assert record.execution is not None
    starts = [e.step for e in record.execution.journal if e.event == "done" and "process" in e.detail]
    assert starts == [f"{RUN}-{name}" for name in ("restart", "again", "pair-1-old", "pair-1-new")]
    assert judged_again(record).differs == ()


def test_where_something_else_stays_open_no_pair_is_started(under, bump):
    """Boots of the old setting settle speed alone: where storms are too few as well, going back would be in vain."""
    with under.ground() as ground:
        noisy(ground)
        path = ground.folder / "policy.yaml"
        law = path.read_text(encoding="utf-8")
        path.write_text(law.replace("hard_count: 1, minimum_n: 3", "hard_count: 1, minimum_n: 99"), encoding="utf-8")
        was = before(ground)
        assert bump.carried(ground, Around()) == 0
        record, _ = bump.taken_back(ground, was)
    assert record.execution is not None
    done = [entry.step for entry in record.execution.journal if entry.event == "done"]
    assert done == [f"{RUN}-{name}" for name in ("edit", "restart", "again")]


@pytest.mark.parametrize(
    ("step", "moment"),
    [
        ("old", "during"),
        ("forth", "after"),
        ("new", "during"),
    ],
)
def test_an_agent_that_dies_in_a_pair_leaves_the_old_setting(under, bump, step: str, moment: str):
    """Wherever it dies between the two settings, whoever resumes takes the change back and proves it."""
    with under.ground() as ground:
        noisy(ground)
        was = before(ground)
        assert bump.carried(ground, around(Fate(Act(f"helper step {RUN}-pair-1-{step}", 1), moment))) == -9
        bump.resumed(ground)
        _, real = bump.taken_back(ground, was)
    assert (real.script, real.process) == ("old", "old")


def test_a_start_of_the_old_setting_that_nobody_saw_is_no_baseline(under, bump):
    """The answer of that step is lost: nothing is kept on the strength of what went before."""
    with under.ground() as ground:
        noisy(ground)
        was = before(ground)
        back = Act(f"helper step {RUN}-pair-1-old", 1)
        lost = Around(host=lambda host: FaultyHost(host, Fate(), back, "dropped after"))
        assert bump.carried(ground, lost) == 0
        bump.taken_back(ground, was)
