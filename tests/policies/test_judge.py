"""The decisions of `policies/judge.py`, one file each in `tests/data/policies/`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.domain import Check, Criterion, Noise, Reading
from policies.judge import (
    BaselineJudgement,
    Judgement,
    breached_metrics,
    breached_so_far,
    judge,
    judge_baseline,
)

CASES = sorted((Path(__file__).parents[1] / "data" / "policies").glob("*.yaml"))


def _judged(case: dict[str, Any]) -> Judgement | BaselineJudgement:
    criteria = tuple(Criterion.model_validate(fields) for fields in case["criteria"])
    readings = tuple(Reading.model_validate(fields) for fields in case["readings"])
    checks = tuple(Check.model_validate(fields) for fields in case.get("checks", ()))
    if case.get("before"):
        return judge_baseline(criteria, readings, checks)
    noise = Noise.model_validate(case["noise"]) if "noise" in case else None
    return judge(criteria, readings, noise, checks)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_case_of_the_manual(path: Path) -> None:
    """Each file's readings lead to the decision, the deciding criteria and the very sentences that it expects."""
    case = yaml.safe_load(path.read_text(encoding="utf-8"))

    judgement = _judged(case)

    assert judgement.decision == case["expect"]["decision"]
    assert list(judgement.decided_by) == case["expect"]["decided_by"]
    assert [finding.says for finding in judgement.findings] == case["expect"]["says"]


def test_the_manual_shows_every_decision() -> None:
    """The manual has a case of each decision, before the change and with it."""
    seen = {
        (bool(case.get("before")), case["expect"]["decision"])
        for case in (yaml.safe_load(path.read_text(encoding="utf-8")) for path in CASES)
    }

    assert seen == {
        (False, "kept"),
        (False, "rolled_back"),
        (False, "deferred"),
        (True, "proceed"),
        (True, "refused"),
        (True, "deferred"),
    }


def _reading(metric: str, value: float | None, **fields: Any) -> Reading:
    return Reading.model_validate({"metric": metric, "phase": "candidate", "value": value, "unit": "", **fields})


def _criterion(metric: str, **fields: Any) -> Criterion:
    return Criterion.model_validate(
        {"id": metric, "metric": metric, "comparison": "at_most", "bound": 0, "because": "of the test", **fields}
    )


CORRUPTION = _criterion("corrupted_sessions", bound=0.03, confidence=0.95, hard_count=2, minimum_n=99)
FAILED = _criterion("failed_requests", bound=0.02, confidence=0.95, hard_count=3, minimum_n=149)
THROUGHPUT = _criterion(
    "throughput_tokens_per_second", comparison="at_least", of="baseline", bound=0.9, confidence=0.95, minimum_n=3
)
NOISE = Noise(boot_sd=0.01, run_sd=0.01, basis="test")


def _runs(phase: str, concurrency: int, *values: float) -> Reading:
    return _reading(
        "throughput_tokens_per_second",
        sum(values) / len(values),
        phase=phase,
        concurrency=concurrency,
        n=len(values),
        values=values,
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), None])
def test_what_is_no_number_defers(value: float | None) -> None:
    """A reading that is not a number defers, on whichever side of the bound infinity may lie."""
    criterion = _criterion("free_after_capture_gb", comparison="at_least", bound=6)

    judgement = judge([criterion], [_reading("free_after_capture_gb", value)], None)

    assert judgement.decision == "deferred"
    assert judgement.findings[0].outcome == "no_data"


@pytest.mark.parametrize(
    ("n", "bad", "value"),
    [(99, None, 0.0), (0, 0, 0.0), (99, 100, 1.0), (99, -1, 0.0), (99, 0, 0.5), (10**9, 0, 0.0)],
    ids=["no counts", "of nothing", "more bad than all", "negative", "value against counts", "beyond belief"],
)
def test_counts_that_cannot_be_are_no_reading(n: int, bad: int | None, value: float) -> None:
    """Counts that cannot be true never show a clean worker, before the change or with it."""
    after = judge([CORRUPTION], [_reading("corrupted_sessions", value, n=n, bad=bad)], None)
    before = judge_baseline([CORRUPTION], [_reading("corrupted_sessions", value, n=n, bad=bad, phase="baseline")])

    assert after.decision == "deferred"
    assert before.decision == "deferred"


def test_a_reading_reported_twice_counts_once() -> None:
    """Fifty clean sessions that are reported twice are not a hundred."""
    once = _reading("failed_requests", 0, n=100, bad=0, source="probe sessions")

    assert judge([FAILED], [once, once], None).decision == "deferred"
    assert judge([FAILED], [once, once.model_copy(update={"detail": "again"})], None).decision == "deferred"


def test_requests_of_two_checks_add_up() -> None:
    """Failed requests pool over checks and concurrencies: neither alone would show the share, both do."""
    readings = [
        _reading("failed_requests", 0, n=100, bad=0, source="probe sessions"),
        _reading("failed_requests", 0, n=60, bad=0, source="probe throughput", concurrency=32),
    ]

    judgement = judge([FAILED], readings, None)

    assert judgement.decision == "kept"
    assert judgement.findings[0].says == "0 of 160 requests failed: under 1.9 % at 95 %"


def test_sessions_of_two_concurrencies_do_not_add_up() -> None:
    """Corruption is judged at each concurrency by itself, so clean small batches cannot dilute dirty large ones."""
    readings = [
        _reading("corrupted_sessions", 0, n=500, bad=0, concurrency=8),
        _reading("corrupted_sessions", 0, n=40, bad=0, concurrency=96),
    ]

    judgement = judge([CORRUPTION], readings, None)

    assert judgement.decision == "deferred"
    assert "at 96 in flight" in judgement.findings[0].says


def test_part_of_a_metric_without_data_defers() -> None:
    """Clean requests of one check do not speak for another check that brought nothing."""
    readings = [
        _reading("failed_requests", 0, n=300, bad=0, source="sessions"),
        _reading("failed_requests", None, no_data="the probe died", source="throughput"),
    ]

    judgement = judge([FAILED], readings, None)

    assert judgement.decision == "deferred"
    assert judgement.findings[0].says == "failed requests: no reading (the probe died)"


@pytest.mark.parametrize(
    ("bad", "n", "decision"),
    [(0, 20, "kept"), (2, 20, "kept"), (3, 20, "rolled_back"), (1, 10, "deferred"), (2, 10, "rolled_back")],
)
def test_a_share_without_confidence_is_what_it_is(bad: int, n: int, decision: str) -> None:
    """Without a confidence the share itself is compared, still of a sample that is large enough."""
    plain = _criterion("wedged_storms", bound=0.1, minimum_n=20)

    assert judge([plain], [_reading("wedged_storms", bad / n, n=n, bad=bad)], None).decision == decision


def test_reports_that_differ_are_read_the_worse_way() -> None:
    """Two reports of one place may speak of one sample: the larger sample counts, and all the bad ones of both."""
    plain = _criterion("wedged_storms", bound=0.1, minimum_n=20)
    reports = [_reading("wedged_storms", 0.1, n=20, bad=2), _reading("wedged_storms", 0.05, n=20, bad=1)]

    judgement = judge([plain], reports, None)

    assert judgement.decision == "deferred"
    assert (
        judgement.findings[0].says
        == "2 of 20 abort storms wedged the worker: the reports differ, at most 10 % is allowed"
    )


def test_a_share_can_be_proven_bad_without_a_hard_count() -> None:
    """A share whose lower bound lies above what is allowed is a breach by arithmetic alone."""
    soft = CORRUPTION.model_copy(update={"hard_count": None})

    judgement = judge([soft], [_reading("corrupted_sessions", 15 / 99, n=99, bad=15, concurrency=96)], None)

    assert judgement.decision == "rolled_back"
    assert judgement.findings[0].says == (
        "15 of 99 sessions corrupted at 96 in flight: over 9.5 % at 95 %, at most 3 % is allowed"
    )
    assert judge([soft], [_reading("corrupted_sessions", 4 / 99, n=99, bad=4)], None).decision == "deferred"


def test_a_breach_counts_although_a_repeat_denies_it() -> None:
    """The entry answered once and then no more: that is a breach, not a contradiction."""
    entry = _criterion("entry_answers", comparison="at_least", bound=1)

    judgement = judge([entry], [_reading("entry_answers", 1), _reading("entry_answers", 0)], None)

    assert judgement.decision == "rolled_back"


def test_a_fact_that_is_neither_yes_nor_no_defers() -> None:
    """An identity proven by half proves nothing."""
    identity = _criterion("identity_proven", comparison="at_least", bound=0)

    assert judge([identity], [_reading("identity_proven", 0.5)], None).decision == "deferred"


def test_every_concurrency_has_to_hold() -> None:
    """A gain at 32 does not make up for a candidate that nobody measured at 96."""
    readings = [_runs("baseline", 32, 560, 561, 559), _runs("candidate", 32, 600, 601, 599)]
    readings.append(_runs("baseline", 96, 720, 721, 719))

    judgement = judge([THROUGHPUT], readings, NOISE)

    assert judgement.decision == "deferred"
    assert judgement.findings[0].says == "throughput at 96 with the change: no reading"


def test_a_concurrency_of_the_plan_has_to_be_measured() -> None:
    """A run that skipped a planned concurrency, before and after alike, shows less than was approved."""
    readings = [_runs("baseline", 32, 560, 561, 559), _runs("candidate", 32, 560, 561, 559)]
    planned = Check(name="throughput", concurrency=(32, 96), count=3, tokens=48, why="policy")

    assert judge([THROUGHPUT], readings, NOISE).decision == "kept"
    assert judge([THROUGHPUT], readings, NOISE, [planned]).decision == "deferred"


def test_runs_that_scatter_widen_the_bounds() -> None:
    """What the runs at hand show about noise counts where it is more than the history says, never where it is less."""
    calm = [_runs("baseline", 64, 700, 701, 699), _runs("candidate", 64, 680, 681, 679)]
    wild = [_runs("baseline", 64, 600, 800, 700), _runs("candidate", 64, 580, 780, 680)]

    assert judge([THROUGHPUT], calm, NOISE).decision == "kept"
    assert judge([THROUGHPUT], wild, NOISE).decision == "deferred"


@pytest.mark.parametrize("sd", [float("nan"), float("inf"), -0.01, 10.0])
def test_noise_that_is_none_settles_nothing(sd: float) -> None:
    """Without a believable figure for the noise, a comparison proves neither a gain nor a loss."""
    same = [_runs("baseline", 64, 700, 701, 699), _runs("candidate", 64, 700, 701, 699)]
    worse = [_runs("baseline", 64, 700, 701, 699), _runs("candidate", 64, 350, 351, 349)]

    for noise in (None, Noise(boot_sd=sd, run_sd=0.01, basis="test"), Noise(boot_sd=0.01, run_sd=sd, basis="test")):
        assert judge([THROUGHPUT], same, noise).decision == "deferred"
        assert judge([THROUGHPUT], worse, noise).decision == "deferred"


def test_too_few_runs_settle_nothing() -> None:
    """Two runs where three are asked for are no comparison, before the change or with it."""
    three, two = _runs("baseline", 64, 700, 701, 699), _runs("candidate", 64, 720, 721)

    judgement = judge([THROUGHPUT], [three, two], NOISE)

    assert judgement.decision == "deferred"
    assert judgement.findings[0].says == "throughput at 64: 2 runs, 3 are needed"
    assert judge_baseline([THROUGHPUT], [_runs("baseline", 64, 700, 701)]).decision == "deferred"


def test_a_worker_that_makes_nothing_is_a_breach() -> None:
    """No token at all with the change is a loss that needs no statistics; without a baseline it refuses the edit."""
    dead = _reading("throughput_tokens_per_second", 0.0, concurrency=64, n=3)
    alive = _runs("baseline", 64, 700, 701, 699)

    assert judge([THROUGHPUT], [alive, dead], NOISE).decision == "rolled_back"
    assert judge_baseline([THROUGHPUT], [dead.model_copy(update={"phase": "baseline"})]).decision == "refused"


def test_a_mean_that_is_not_the_mean_of_its_runs_defers() -> None:
    """A value that its own runs contradict is not believed."""
    forged = _runs("candidate", 64, 500, 500, 500).model_copy(update={"value": 700.0})

    judgement = judge([THROUGHPUT], [_runs("baseline", 64, 700, 701, 699), forged], NOISE)

    assert judgement.decision == "deferred"
    assert "contradicts itself" in judgement.findings[0].says


def test_one_stray_comparison_of_many_is_no_breach() -> None:
    """Holm: a loss at one of six concurrencies that would be proven alone is not, among six."""
    alone = [_runs("baseline", 1, 100, 100, 100), _runs("candidate", 1, 94.2, 94.2, 94.2)]
    noise = Noise(boot_sd=0.02, run_sd=0.01, basis="test")
    tight = THROUGHPUT.model_copy(update={"bound": 0.95})
    others = [
        reading
        for size in (2, 4, 8, 16, 32)
        for reading in (_runs("baseline", size, 100, 100, 100), _runs("candidate", size, 104, 104, 104))
    ]

    assert judge([tight], alone, noise).decision == "rolled_back"
    assert judge([tight], alone + others, noise).decision == "deferred"


def test_a_loss_within_the_approved_margin_is_kept() -> None:
    """On a worker with little noise a proven loss of 4 % is within a margin of 10 %, and the sentence shows it."""
    readings = [_runs("baseline", 64, 700, 701, 699), _runs("candidate", 64, 672, 673, 671)]

    judgement = judge([THROUGHPUT], readings, Noise(boot_sd=0.003, run_sd=0.003, basis="test"))

    assert judgement.decision == "kept"
    assert judgement.findings[0].says == "throughput at 64: -4.0 % (-4.8 to -3.2 % at 95 %)"


def test_a_latency_is_compared_the_other_way_round() -> None:
    """at_most against the baseline: more is worse, and the same arithmetic holds."""
    latency = _criterion("ttft_p50_ms", of="baseline", bound=1.1, confidence=0.95)
    before = _reading("ttft_p50_ms", 100.0, phase="baseline", n=3)
    noise = Noise(boot_sd=0.025, run_sd=0.01, basis="test")

    def decision(value: float) -> str:
        return judge([latency], [before, _reading("ttft_p50_ms", value, n=3)], noise).decision

    assert [decision(90.0), decision(106.0), decision(130.0)] == ["kept", "deferred", "rolled_back"]


@pytest.mark.parametrize(
    "fields",
    [{"bound": float("nan")}, {"bound": float("inf")}, {"bound": 0.03, "confidence": 1.0}, {"bound": -1}],
    ids=["nan", "infinity", "certainty", "negative share"],
)
def test_a_rule_that_cannot_be_applied_keeps_nothing(fields: dict[str, Any]) -> None:
    """A criterion that no policy file could hold still never leads to keeping."""
    clean = _reading("corrupted_sessions", 0, n=500, bad=0)

    assert judge([CORRUPTION.model_copy(update=fields)], [clean], None).decision != "kept"


def test_text_from_outside_stays_one_short_line() -> None:
    """A reason that came from a log cannot break the record's layout or colour a terminal."""
    loud = _reading("entry_answers", None, no_data="\x1b[31mred\nKEPT\r" + "x" * 5000)

    says = judge([_criterion("entry_answers", comparison="at_least", bound=1)], [loud], None).findings[0].says

    assert len(says) < 260
    assert says.isprintable()


def test_a_run_stops_at_a_measured_breach_only() -> None:
    """Between two checks only what was measured is a breach, not what is still to come."""
    entry = _criterion("entry_answers", comparison="at_least", bound=1, missing="breach")

    assert breached_so_far([entry, CORRUPTION], [], None) == ()
    assert breached_so_far([entry, CORRUPTION], [_reading("corrupted_sessions", 0, n=99, bad=0)], None) == ()
    (finding,) = breached_so_far([entry, CORRUPTION], [_reading("corrupted_sessions", 0.1, n=20, bad=2)], None)
    assert finding.criterion == "corrupted_sessions"


def test_repeats_that_contradict_each_other_settle_nothing() -> None:
    """Two different rates of one concurrency and phase are no comparison, on either side of the change."""
    good = [_runs("baseline", 64, 700, 701, 699), _runs("candidate", 64, 720, 721, 719)]

    for extra in (_runs("baseline", 64, 650, 651, 649), _runs("candidate", 64, 780, 781, 779)):
        judgement = judge([THROUGHPUT], [*good, extra], NOISE)

        assert judgement.decision == "deferred"
        assert "contradict each other" in judgement.findings[0].says
    assert judge([THROUGHPUT], good + good, NOISE).decision == "kept"
    assert judge_baseline([THROUGHPUT], [good[0], _runs("baseline", 64, 650, 651, 649)]).decision == "deferred"


def test_before_the_change_amounts_refuse_nothing() -> None:
    """Little memory is no reason to refuse the change that may mend it; an entry that does not answer is one."""
    headroom = _criterion("free_after_capture_gb", comparison="at_least", bound=6)
    entry = _criterion("entry_answers", comparison="at_least", bound=1)

    tight = judge_baseline([headroom], [_reading("free_after_capture_gb", 2.0, phase="baseline")])
    deaf = judge_baseline([headroom, entry], [_reading("entry_answers", 0, phase="baseline")])
    fine = judge_baseline([headroom, entry], [_reading("entry_answers", 1, phase="baseline")])

    assert (tight.decision, tight.findings, tight.why) == (
        "proceed",
        (),
        "Nothing had to be measured before the change.",
    )
    assert (deaf.decision, deaf.decided_by) == ("refused", ("entry_answers",))
    assert (fine.decision, fine.why) == ("proceed", "The worker is sound as it is.")
    assert judge_baseline([], []).decision == "deferred"


def test_the_reason_counts_and_names() -> None:
    """The reason says how many criteria are met, or names the first that are not and how many more there are."""
    facts = [_criterion(name, comparison="at_least", bound=1) for name in ("identity_proven", "effective_matches")]
    more = [*facts, _criterion("entry_answers", comparison="at_least", bound=1), _criterion("start_failed")]
    met = [_reading("identity_proven", 1), _reading("effective_matches", 1)]

    assert judge(facts[:1], met, None).why == "The only criterion is met."
    assert judge(facts, met, None).why == "All 2 criteria are met."
    assert judge(facts, met[:1], None).why == "Not shown: values in force: no reading [effective_matches]."
    assert judge(more, [], None).why.endswith("traffic entry: no reading [entry_answers]; and 1 more.")


def test_breached_metrics_name_the_signature() -> None:
    """What an incident's signature is compared with are the metrics of the breached criteria."""
    wedge = _criterion("wedged_storms", hard_count=1)
    readings = [_reading("wedged_storms", 1, n=1, bad=1), _reading("corrupted_sessions", 0, n=99, bad=0)]

    judgement = judge([wedge, CORRUPTION], readings, None)

    assert breached_metrics([wedge, CORRUPTION], judgement.findings) == ("wedged_storms",)
