"""Whatever the readings, `judge` gives a judgement, and "kept" only where everything was shown."""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.domain import Check, Criterion, Noise, Reading
from policies.judge import judge, judge_baseline
from policies.load import load
from policies.metrics import METRICS
from policies.schema import Policy

NAMES = [metric.name for metric in METRICS] + ["nobody_knows_this"]
NUMBERS = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 0.5, 6.0, 700.0, float("nan"), float("inf"), float("-inf"), 1e308, 5e-324]),
    st.floats(),
)
COUNTS = st.one_of(st.integers(-5, 700), st.sampled_from([99, 297, 10**7, 10**8, -(10**30), 10**400]))
PLACES = st.sampled_from([None, 1, 64, 96, -3])


@st.composite
def readings(draw: st.DrawFn) -> Reading:
    """Any reading at all."""
    return Reading.model_construct(
        metric=draw(st.sampled_from(NAMES)),
        phase=draw(st.sampled_from(["baseline", "candidate", "restored"])),
        value=draw(st.none() | NUMBERS),
        unit=draw(st.sampled_from(["", "s", "tokens/s"])),
        n=draw(COUNTS),
        bad=draw(st.none() | COUNTS),
        values=tuple(draw(st.lists(NUMBERS, max_size=4))),
        concurrency=draw(PLACES),
        no_data=draw(st.none() | st.text(max_size=30)),
        source=draw(st.sampled_from(["", "a", "b"])),
        detail="",
    )


@st.composite
def criteria(draw: st.DrawFn) -> Criterion:
    """Any criterion at all, sensible or not."""
    return Criterion.model_construct(
        id=draw(st.sampled_from(["a", "b", "c"])),
        metric=draw(st.sampled_from(NAMES)),
        comparison=draw(st.sampled_from(["at_most", "at_least"])),
        bound=draw(NUMBERS),
        of=draw(st.sampled_from(["absolute", "baseline"])),
        minimum_n=draw(COUNTS),
        confidence=draw(st.none() | st.sampled_from([0.95, 0.5, 0.0, 1.0, float("nan")])),
        hard_count=draw(st.none() | COUNTS),
        missing=draw(st.sampled_from(["defer", "breach"])),
        because="",
    )


NOISES = st.none() | st.builds(Noise.model_construct, boot_sd=NUMBERS, run_sd=NUMBERS, basis=st.just(""))
CHECKS = st.lists(
    st.builds(
        Check,
        name=st.sampled_from(["sessions", "throughput", "aborts"]),
        concurrency=st.lists(st.integers(1, 96), max_size=2).map(tuple),
        count=st.integers(1, 99),
        tokens=st.just(1),
        why=st.just(""),
    ),
    max_size=2,
)


@functools.cache
def _shipped() -> Policy:
    return load("practice")


CALM = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


@CALM
@given(st.lists(criteria(), max_size=4), st.lists(readings(), max_size=8), NOISES, CHECKS)
def test_total(rules: list[Criterion], measured: list[Reading], noise: Noise | None, checks: list[Check]) -> None:
    """Any criteria and readings give a judgement with a finding for each; kept means that each of them is met."""
    judgement = judge(rules, measured, noise, checks)
    baseline = judge_baseline(rules, measured, checks)

    outcomes = [finding.outcome for finding in judgement.findings]
    assert len(outcomes) == len(rules)
    assert (judgement.decision == "kept") == (bool(outcomes) and set(outcomes) == {"met"})
    assert (judgement.decision == "rolled_back") == ("breached" in outcomes)
    assert all(finding.says for finding in judgement.findings)
    assert baseline.decision in {"proceed", "refused", "deferred"}


@CALM
@given(st.lists(criteria(), max_size=3), st.lists(readings(), max_size=6), st.randoms(use_true_random=False))
def test_order_does_not_matter(rules: list[Criterion], measured: list[Reading], random: Any) -> None:
    """The order in which readings arrive changes no decision."""
    shuffled = list(measured)
    random.shuffle(shuffled)

    assert judge(rules, measured, None).decision == judge(rules, shuffled, None).decision


def _sound() -> list[Reading]:
    """Readings that the shipped policy keeps."""
    plain: list[dict[str, Any]] = [
        {"metric": "start_failed", "value": 0},
        {"metric": "identity_proven", "value": 1},
        {"metric": "effective_matches", "value": 1},
        {"metric": "start_seconds", "value": 70},
        {"metric": "start_seconds", "value": 72, "phase": "baseline"},
        {"metric": "free_after_capture_gb", "value": 15.1},
        {"metric": "entry_answers", "value": 1},
        {"metric": "corrupted_sessions", "value": 0, "n": 100, "bad": 0, "concurrency": 96},
        {"metric": "failed_requests", "value": 0, "n": 297, "bad": 0},
        {"metric": "wedged_storms", "value": 0, "n": 3, "bad": 0},
        {"metric": "lingering_storms", "value": 0, "n": 3, "bad": 0},
        {"metric": "throughput_tokens_per_second", "value": 700, "n": 3, "concurrency": 96, "phase": "baseline"},
        {"metric": "throughput_tokens_per_second", "value": 720, "n": 3, "concurrency": 96},
    ]
    return [Reading.model_validate({"phase": "candidate", "unit": "", **fields}) for fields in plain]


def test_the_shipped_policy_keeps_a_sound_change() -> None:
    """There are readings that the shipped policy keeps, so that the properties below say something."""
    policy = _shipped()

    assert judge(policy.criteria, _sound(), policy.noise).decision == "kept"


@CALM
@given(st.integers(0, 12), st.sampled_from([None, float("nan"), float("inf"), float("-inf")]), st.booleans())
def test_nothing_is_kept_without_each_reading(index: int, value: float | None, gone: bool) -> None:
    """Take any one reading away, or spoil it, and the change is not kept, nor called a measured breach."""
    policy = _shipped()
    measured = _sound()
    if gone:
        del measured[index]
    else:
        measured[index] = measured[index].model_copy(update={"value": value})

    assert judge(policy.criteria, measured, policy.noise).decision == "deferred"


@CALM
@given(st.integers(1, 400), st.data())
def test_fewer_bad_sessions_never_judge_worse(n: int, data: st.DataObject) -> None:
    """With the same number of sessions, fewer bad ones never turn a better decision into a worse one."""
    policy = _shipped()
    corruption = [criterion for criterion in policy.criteria if criterion.id == "corruption"]
    more = data.draw(st.integers(0, n))
    fewer = data.draw(st.integers(0, more))

    def rank(bad: int) -> int:
        reading = Reading(
            metric="corrupted_sessions", phase="candidate", value=bad / n, unit="share", n=n, bad=bad, concurrency=96
        )
        return ["rolled_back", "deferred", "kept"].index(judge(corruption, [reading], None).decision)

    assert rank(fewer) >= rank(more)
