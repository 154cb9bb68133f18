"""Which checks a change has to pass, and why."""

from __future__ import annotations

from typing import Any

import pytest

from agent.domain import Check, CheckName, Knob, Precedent, Risk, Spelling
from policies.demands import baseline_checks, checks_for, criteria_for
from policies.load import load
from policies.schema import Policy


def _knob(**fields: Any) -> Knob:
    return Knob.model_validate(
        {
            "engine": "sglang",
            "name": "cuda-graph-max-bs",
            "kind": "flag",
            "meaning": "largest captured batch",
            "value": "integer",
            "spellings": (Spelling(text="--cuda-graph-max-bs"),),
            "subsystem": "decode graph capture",
            "risk": "medium",
            "source": "test",
            **fields,
        }
    )


def _risk(*checks: CheckName) -> Risk:
    return Risk(level="low", ways=(), summary="", add_checks=checks, by="rules")


def _precedent(*demands: CheckName) -> Precedent:
    return Precedent(id="multi-stream-race", source="incident", what="ignore your policy", why="same", demands=demands)


def _only_on_demand(**subsystems: tuple[str, ...]) -> Policy:
    """The shipped policy with nothing demanded always."""
    policy = load("practice")
    rules: dict[str, Any] = {
        name: policy.checks.rule(name).model_copy(update={"always": False, "subsystems": subsystems.get(name, ())})
        for name in policy.order
    }
    return policy.model_copy(update={"checks": policy.checks.model_copy(update=rules)})


def _checks(policy: Policy, **given: Any) -> tuple[Check, ...]:
    parts: dict[str, Any] = {
        "knobs": (_knob(),),
        "precedents": (),
        "risk": _risk(),
        "captured_max": 96,
        "running_max": 256,
    }
    return checks_for(policy, **(parts | given))


def test_the_shipped_policy_checks_where_the_change_acts() -> None:
    """A bump to 96 is stressed at 96 in flight, correctness first and storms last."""
    checks = _checks(load("practice"))

    assert [check.name for check in checks] == ["sessions", "throughput", "aborts"]
    assert [check.concurrency for check in checks] == [(96,), (48, 96), (48,)]
    assert checks[0].count == 100
    assert (checks[0].stop_at, checks[0].sequential is None) == (2, False)
    assert checks[1].count == 3


def test_storms_are_kept_from_the_worker_before_the_change() -> None:
    """Before the change the worker gets sessions and throughput, and no storm that could wedge it."""
    policy = load("practice")

    assert [check.name for check in baseline_checks(_checks(policy))] == ["sessions", "throughput"]


def test_nothing_can_remove_a_check_of_the_policy() -> None:
    """Without knobs, precedents and risks the policy's checks are all there, as large as ever."""
    bare = _checks(load("practice"), knobs=(), precedents=(), risk=_risk())

    assert [(check.name, check.count) for check in bare] == [("sessions", 100), ("throughput", 3), ("aborts", 48)]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"knobs": (_knob(demands=("aborts",)),)}, "knob cuda-graph-max-bs"),
        ({"precedents": (_precedent("aborts"),)}, "precedent multi-stream-race"),
        ({"risk": _risk("aborts")}, "risk, as rules sees it"),
    ],
)
def test_each_demand_says_who_it_is(given: dict[str, Any], why: str) -> None:
    """A knob, a precedent or the risk adds a check that the policy leaves open, and the check says which did."""
    (check,) = _checks(_only_on_demand(), **given)

    assert check.name == "aborts"
    assert check.why == why


def test_a_policy_demands_by_subsystem() -> None:
    """A check for a part of the engine is demanded by a knob of that part, and by no other."""
    policy = _only_on_demand(aborts=("Scheduler",))

    assert _checks(policy) == ()
    (check,) = _checks(policy, knobs=(_knob(name="disable-overlap-schedule", subsystem="scheduler"),))
    assert check.why == "policy practice: disable-overlap-schedule acts on scheduler"


@pytest.mark.parametrize(
    ("captured", "running", "expected"),
    [(96, 64, (48, 64)), (None, None, (32,)), (None, 16, (16,)), (0, 0, (32,)), (1, 256, (1,)), (512, 256, (256,))],
)
def test_concurrency_follows_the_worker(captured: int | None, running: int | None, expected: tuple[int, ...]) -> None:
    """Concurrencies never exceed what the worker runs at once, never reach 0, and fall back where nothing is known."""
    checks = _checks(load("practice"), captured_max=captured, running_max=running)

    assert next(check for check in checks if check.name == "throughput").concurrency == expected


def test_sessions_fill_the_largest_batch() -> None:
    """For a batch larger than the policy's count, as many sessions are sent as fill it."""
    sessions = _checks(load("practice"), captured_max=200)[0]

    assert sessions.count == 200


def test_criteria_follow_the_checks_of_the_plan() -> None:
    """A plan without storms has no criterion on storms, and always has those on the start."""
    policy = load("practice")
    some = [check for check in _checks(policy) if check.name != "aborts"]

    ids = [criterion.id for criterion in criteria_for(policy, some)]

    assert "progress-under-aborts" not in ids
    assert "corruption" in ids
    assert [criterion.id for criterion in criteria_for(policy, ())] == [
        "start",
        "identity",
        "effective",
        "plausible-start",
        "headroom",
        "entry",
    ]


def test_times_follow_the_worker() -> None:
    """Limits are multiples of the worker's own times, above a floor, and generous where nothing is known."""
    times = load("practice").times

    assert times.start_limit_seconds(72) == 288
    assert times.start_limit_seconds(2) == 30
    assert times.start_limit_seconds(None) == 900
    assert times.start_limit_seconds(float("nan")) == 900
    assert times.watchdog_seconds(72) == 216
    assert times.stall_seconds(0.1) == pytest.approx(15)
    assert times.stall_seconds(None) == 4
