"""Shares that are judged one sample after the other, against what was before, and where the change acts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from agent.domain import Check, Criterion, Reading, Sequential
from policies import fisher, sequential
from policies.judge import judge
from policies.limits import Window

TEST = Sequential(ok=0.0001, bad=0.01, error=0.05, cap=600)


def _criterion(**fields: Any) -> Criterion:
    given: dict[str, Any] = {
        "id": "corruption",
        "metric": "corrupted_sessions",
        "comparison": "at_most",
        "bound": 0.01,
        "confidence": 0.95,
        "hard_count": 2,
        "sequential": TEST,
        "because": "a test",
    }
    return Criterion(**{**given, **fields})


def _sessions(bad: int, n: int, **fields: Any) -> Reading:
    given: dict[str, Any] = {
        "metric": "corrupted_sessions",
        "phase": "candidate",
        "value": bad / n,
        "unit": "share",
        "n": n,
        "bad": bad,
        "concurrency": 96,
    }
    return Reading(**{**given, **fields})


def _check(acts: tuple[int, int] | None) -> Check:
    return Check(name="sessions", concurrency=(96,), count=300, tokens=256, why="a test", acts=acts)


@pytest.mark.parametrize(
    ("ok", "bad", "error", "clean"),
    [
        (0.001, 0.01, 0.05, 326),
        (0.001, 0.01, 0.01, 508),
        (0.0001, 0.01, 0.05, 296),
        (0.0001, 0.01, 0.01, 462),
        (0.001, 0.03, 0.05, 100),
        (0.0001, 0.003, 0.05, 1014),
    ],
)
def test_clean_samples_that_suffice(ok: float, bad: float, error: float, clean: int) -> None:
    """The test ends after as many clean samples as the published table says, and not one earlier."""
    test = Sequential(ok=ok, bad=bad, error=error, cap=10_000)

    assert sequential.enough(test) == clean
    assert sequential.standing(test, clean - 1, 0) == "open"
    assert sequential.standing(test, clean, 0) == "acceptable"


@pytest.mark.parametrize(
    ("bad", "n", "outcome", "says"),
    [
        (0, 300, "met", "0 of 300 sessions corrupted at 96 in flight: under 1 % at 95 %"),
        (0, 200, "undecided", "needs 296 with no more bad ones"),
        (1, 40, "breached", "says bad"),
        (2, 600, "breached", "two or more are a breach"),
    ],
)
def test_a_sequential_criterion(bad: int, n: int, outcome: str, says: str) -> None:
    """Enough clean ones are met, too few are not settled, and what the test calls bad is a breach."""
    (finding,) = judge([_criterion()], [_sessions(bad, n)], None).findings

    assert finding.outcome == outcome
    assert says in finding.says


def test_the_cap_ends_in_a_deferral() -> None:
    """A test that has not decided within its samples settles nothing."""
    test = Sequential(ok=0.005, bad=0.01, error=0.05, cap=600)

    judged = judge([_criterion(sequential=test, hard_count=None)], [_sessions(4, 600)], None)

    assert judged.decision == "deferred"
    assert "did not decide within 600 sessions" in judged.why


def test_a_worker_that_was_bad_before_is_compared_with_itself() -> None:
    """As many bad ones as before are not the change's; clearly more are."""
    before = _sessions(1, 300, phase="baseline")

    same = judge([_criterion()], [before, _sessions(2, 300)], None)
    worse = judge([_criterion()], [before, _sessions(9, 300)], None)

    assert same.decision == "deferred"
    assert "before the change 1 of 300" in same.why
    assert worse.decision == "rolled_back"


def test_fishers_test_against_the_published_case() -> None:
    """With 1 of 300 before, 7 of 300 are the first count that chance explains with less than 5 %."""
    assert fisher.chance(1, 300, 6, 300) > 0.05 > fisher.chance(1, 300, 7, 300)


@pytest.mark.parametrize(
    ("exposure", "acts", "outcome"),
    [
        (0.4, (32, 96), "met"),
        (0.05, (32, 96), "undecided"),
        (None, (32, 96), "undecided"),
        (None, None, "met"),
        (float("nan"), (32, 96), "undecided"),
    ],
)
def test_clean_sessions_count_where_the_change_acts(
    exposure: float | None, acts: tuple[int, int] | None, outcome: str
) -> None:
    """Clean sessions in small batches prove nothing about the sizes that are newly captured."""
    (finding,) = judge(
        [_criterion(exposure=0.2)], [_sessions(0, 300, exposure=exposure)], None, [_check(acts)]
    ).findings

    assert finding.outcome == outcome
    assert acts is None or "33 to 96" in finding.says


def test_sessions_of_unknown_exposure_count_as_unexposed() -> None:
    """Where it is known of one start and not of the other, the unknown half does not ride on the known one."""
    known, unknown = _sessions(0, 150, exposure=0.3), _sessions(0, 150, boot=2)

    judged = judge([_criterion(exposure=0.2)], [known, unknown], None, [_check((32, 96))])

    assert judged.decision == "deferred"
    assert "only 15 %" in judged.why


def test_two_starts_are_two_samples() -> None:
    """Sessions after a second start add to those after the first; a repeat of the same reading does not."""
    first, second = _sessions(0, 150), _sessions(0, 150, boot=2)

    assert judge([_criterion()], [first, second], None).decision == "kept"
    assert judge([_criterion()], [first, first], None).decision == "deferred"


def test_a_window_of_the_week() -> None:
    """A window that closes after midnight belongs to the day on which it opened."""
    night = Window.model_validate({"days": ["fri"], "opens": "22:00", "closes": "02:00", "zone": "Europe/Berlin"})

    assert night.covers(datetime(2026, 11, 27, 21, 30, tzinfo=UTC))
    assert night.covers(datetime(2026, 11, 28, 0, 30, tzinfo=UTC))
    assert not night.covers(datetime(2026, 11, 28, 1, 30, tzinfo=UTC))
    assert not night.covers(datetime(2026, 11, 26, 21, 30, tzinfo=UTC))
