"""What every store promises, said once and asked of each."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agent.domain import Reading, Record
from agent.errors import UnknownRun
from memory.chain import NOTHING_BEFORE
from memory.incidents import incidents
from memory.store import Fact, Store


def test_a_run_is_remembered_as_it_was_opened(store: Store, nouns: Any) -> None:
    """A new run is being planned by its owner, and nobody has ended it."""
    store.open_run(nouns.request("r-1"), nouns.owner)
    row = store.run("r-1")
    assert row is not None
    assert (row.request, row.owner, row.state, row.ended) == (nouns.request("r-1"), nouns.owner, "planning", None)
    assert store.run("r-2") is None


def test_opening_the_same_run_again_changes_nothing(store: Store, nouns: Any) -> None:
    """A node that is run again may open its run again; another request may not take its id."""
    store.open_run(nouns.request("r-1"), nouns.owner)
    store.set_state("r-1", "executing")
    store.open_run(nouns.request("r-1"), nouns.other)
    row = store.run("r-1")
    assert row is not None
    assert (row.owner, row.state) == (nouns.owner, "executing")
    with pytest.raises(ValueError, match="another request"):
        store.open_run(nouns.request("r-1", text="something else"), nouns.owner)


def test_runs_come_newest_first_and_can_be_narrowed(store: Store, nouns: Any) -> None:
    """Runs are listed from the newest, by worker, and without those that have ended."""
    for run, worker in (("r-1", "decode"), ("r-2", "prefill"), ("r-3", "decode")):
        store.open_run(nouns.request(run, worker=worker), nouns.owner)
    store.append(nouns.record("r-3"))
    store.end_run("r-3", nouns.record("r-3").at)
    assert [row.request.run for row in store.runs()] == ["r-3", "r-2", "r-1"]
    assert [row.request.run for row in store.runs(worker="decode")] == ["r-3", "r-1"]
    assert [row.request.run for row in store.runs(open_only=True)] == ["r-2", "r-1"]
    assert [row.request.run for row in store.runs(worker="decode", open_only=True)] == ["r-1"]


def test_only_one_heir_takes_a_run_over(store: Store, nouns: Any) -> None:
    """Adoption compares with the owner who was seen dead, and an ended run is nobody's to take."""
    store.open_run(nouns.request("r-1"), nouns.owner)
    assert store.adopt_run("r-1", nouns.other, nouns.owner)
    assert not store.adopt_run("r-1", nouns.other._replace(pid=1), nouns.owner)
    row = store.run("r-1")
    assert row is not None
    assert row.owner == nouns.other
    store.append(nouns.record("r-1"))
    store.end_run("r-1", nouns.record("r-1").at)
    assert not store.adopt_run("r-1", nouns.owner, nouns.other)
    assert not store.adopt_run("r-unheard", nouns.owner, nouns.other)


def test_an_ended_run_stays_ended(store: Store, nouns: Any) -> None:
    """A late writer cannot wake a run that has ended, and an unknown run has no state."""
    store.open_run(nouns.request("r-1"), nouns.owner)
    store.append(nouns.record("r-1"))
    store.end_run("r-1", nouns.record("r-1").at)
    store.end_run("r-1", nouns.record("r-1").at.replace(year=2099))
    row = store.run("r-1")
    assert row is not None
    assert (row.state, row.ended) == ("ended", nouns.record("r-1").at)
    with pytest.raises(UnknownRun, match="has ended"):
        store.set_state("r-1", "executing")
    with pytest.raises(UnknownRun, match="no run"):
        store.set_state("r-2", "executing")


def test_a_recorded_run_is_open_until_it_is_ended(store: Store, nouns: Any) -> None:
    """An owner who dies between the record and what follows from it leaves a run that can be resumed."""
    store.open_run(nouns.request("r-1"), nouns.owner)
    store.append(nouns.record("r-1"))
    assert [(row.request.run, row.state, row.ended) for row in store.runs(open_only=True)] == [
        ("r-1", "recorded", None)
    ]
    assert store.adopt_run("r-1", nouns.other, nouns.owner)


def test_the_first_decision_on_a_plan_stands(store: Store, nouns: Any) -> None:
    """A second decision on one digest is not written, whichever way it goes; another digest has its own."""
    assert store.decide(nouns.approval(decision="reject"))
    assert not store.decide(nouns.approval(decision="approve", by="ben"))
    assert not store.decide(nouns.approval(decision="reject"))
    assert store.decision("r-1", "d" * 64) == nouns.approval(decision="reject")
    assert store.decision("r-1", "e" * 64) is None
    assert store.decide(nouns.approval(digest="e" * 64))


def test_an_approval_is_spent_once(store: Store, nouns: Any) -> None:
    """Spending succeeds once, and never for a no or for a plan that nobody decided on."""
    store.decide(nouns.approval())
    assert not store.is_spent("r-1", "d" * 64)
    assert store.spend("r-1", "d" * 64)
    assert store.is_spent("r-1", "d" * 64)
    assert not store.spend("r-1", "d" * 64)
    store.decide(nouns.approval(digest="e" * 64, decision="reject"))
    assert not store.spend("r-1", "e" * 64)
    assert not store.spend("r-1", "f" * 64)


def test_many_at_once_spend_an_approval_once(store: Store, nouns: Any) -> None:
    """Of many threads that decide and spend at the same time, one succeeds at each."""
    with ThreadPoolExecutor(16) as crowd:
        decided = list(crowd.map(lambda place: store.decide(nouns.approval(by=f"p{place}")), range(32)))
        spent = list(crowd.map(lambda _: store.spend("r-1", "d" * 64), range(32)))
    assert (decided.count(True), spent.count(True)) == (1, 1)


def test_readings_keep_their_order_and_the_last_of_a_kind(store: Store, nouns: Any) -> None:
    """A repeated measurement replaces the earlier one and stands where it was taken."""
    first, second = nouns.throughput("baseline", 32, 500.0), nouns.throughput("baseline", 64, 650.0)
    free = Reading(metric="free_after_capture_gb", phase="baseline", value=15.2, unit="GB", n=1)
    again, later = nouns.throughput("baseline", 32, 510.0), nouns.throughput("candidate", 32, 520.0)
    store.keep_readings("r-1", [first, free, second])
    store.keep_readings("r-1", [again, later, free])
    assert store.readings("r-1") == (second, again, later, free)
    assert store.readings("r-1", "candidate") == (later,)
    assert store.readings("r-2") == ()


def test_a_number_that_is_not_finite_stays_what_it_is(store: Store) -> None:
    """A reading of NaN or infinity comes back as such, and never as "no data" or as a number."""
    odd = [
        Reading(metric="a", phase="baseline", value=math.nan, unit=""),
        Reading(metric="b", phase="baseline", value=math.inf, unit=""),
        Reading(metric="c", phase="baseline", value=None, unit="", no_data="nobody answered"),
    ]
    store.keep_readings("r-1", odd)
    values = [reading.value for reading in store.readings("r-1")]
    assert values[0] is not None
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, None]


def test_records_are_chained(store: Store, nouns: Any) -> None:
    """Each record names the hash of the one before, the first one names nothing, and the chain holds."""
    assert store.broken_at() is None
    first = store.append(nouns.record("r-1", seq=99, previous="whatever"))
    second = store.append(nouns.record("r-2"))
    assert (first.seq, first.previous) == (1, NOTHING_BEFORE)
    assert (second.seq, second.previous) == (2, first.hash)
    assert store.records() == (second, first)
    assert store.record("r-1") == first
    assert store.record("r-3") is None
    assert store.broken_at() is None


def test_a_record_is_written_once(store: Store, nouns: Any) -> None:
    """A second record of a run is not written: the first one comes back, unaltered."""
    first = store.append(nouns.record("r-1"))
    again = store.append(nouns.record("r-1", notes=("another story",)))
    assert again == first
    assert len(store.records()) == 1


def test_records_can_be_narrowed(store: Store, nouns: Any) -> None:
    """Records are listed from the newest, by worker, and no more than asked for."""
    for run, worker in (("r-1", "decode"), ("r-2", "prefill"), ("r-3", "decode")):
        store.append(nouns.record(run, worker=worker))
    assert [record.run for record in store.records(worker="decode")] == ["r-3", "r-1"]
    assert [record.run for record in store.records(worker="decode", limit=1)] == ["r-3"]
    assert [record.run for record in store.records(limit=2)] == ["r-3", "r-2"]


def test_a_chain_holds_for_records_full_of_odd_text(store: Store, nouns: Any) -> None:
    """Quotes, newlines, emoji, NaN and other people's time zones do not break the chain."""
    text = 'x\'; DROP TABLE records; --\n"…" 🦜 \x00\u2028'
    reading = Reading(metric="a", phase="baseline", value=math.nan, unit="")
    kept = store.append(nouns.record("r-1", request=nouns.request("r-1", text=text), readings=(reading,)))
    store.append(nouns.record("r-2"))
    found = store.record("r-1")
    assert found is not None
    assert (found.request.text, found.hash) == (text, kept.hash)
    assert store.broken_at() is None


def test_a_plan_is_replaced_by_a_newer_one_of_its_run(store: Store, nouns: Any, plan: Any) -> None:
    """The plan of a run is the last that was laid out, digest and all."""
    store.offer_plan(plan("r-1", watchdog_seconds=60.0))
    newer = plan("r-1", watchdog_seconds=math.inf)
    store.offer_plan(newer)
    found = store.plan("r-1")
    assert found is not None
    assert found.digest == newer.digest
    assert store.plan("r-2") is None


def test_many_records_are_appended_together_or_not_at_all(store: Store, nouns: Any) -> None:
    """An imported past is chained in its order; what has a record already, or comes twice, is left out."""
    store.open_run(nouns.request("r-2"), nouns.owner)
    first = store.append(nouns.record("r-1"))
    past = [nouns.record(run, notes=(run,)) for run in ("r-1", "r-2", "r-3", "r-2")]
    added = store.append_all(past)
    assert [record.run for record in added] == ["r-2", "r-3"]
    assert added[0].previous == first.hash
    assert store.append_all(past) == ()
    assert [record.run for record in store.records()] == ["r-3", "r-2", "r-1"]
    assert (store.appended(), store.breaks()) == (3, ())
    row = store.run("r-2")
    assert row is not None
    assert row.state == "recorded"


def test_a_record_is_kept_as_its_text(store: Store, nouns: Any) -> None:
    """The link of a run holds the very text that was hashed, and the links come in the order of the chain."""
    kept = [store.append(nouns.record(f"r-{place}")) for place in range(1, 5)]
    link = store.link("r-2")
    assert link is not None
    assert (link.seq, link.hash) == (2, kept[1].hash)
    assert Record.model_validate_json(link.document) == kept[1]
    assert store.link("r-9") is None
    assert [one.seq for one in store.links()] == [1, 2, 3, 4]
    assert [one.seq for one in store.links(after=1, limit=2)] == [2, 3]


def test_the_end_of_a_chain_can_be_looked_at_alone(store: Store, nouns: Any) -> None:
    """Looking at the newest records only finds that they hold, however many are asked for."""
    assert store.breaks(newest=5) == ()
    for place in range(1, 8):
        store.append(nouns.record(f"r-{place}"))
    assert [store.broken_at(newest=count) for count in (0, 1, 3, 7, 99)] == [None] * 5


def test_baselines_are_found_by_worker_metric_phase_and_concurrency(store: Store, nouns: Any) -> None:
    """What records measured is found from the newest, with the boot and the configuration that it was measured on."""
    for place in (1, 2):
        before, after = nouns.process(place), nouns.process(place + 10, argv=("sglang", "--other"))
        readings = [
            nouns.throughput("baseline", 32, 500.0 + place),
            nouns.throughput("baseline", 64, 650.0 + place),
            nouns.throughput("restored", 32, 510.0 + place),
            Reading(metric="start_seconds", phase="baseline", value=90.0 + place, unit="s", n=1),
        ]
        store.keep_readings(f"r-{place}", readings)
        store.append(nouns.record(f"r-{place}", execution=nouns.execution(before, after)))
    store.append(nouns.record("r-3", worker="prefill", readings=(nouns.throughput("baseline", 32, 1.0),)))
    starts = store.baselines("decode", metric="start_seconds")
    assert [(one.run, one.seq, one.reading.value) for one in starts] == [("r-2", 2, 92.0), ("r-1", 1, 91.0)]
    found = store.baselines("decode", metric="throughput_tokens_per_second", concurrency=32)
    assert [(one.run, one.reading.phase) for one in found] == [
        ("r-2", "restored"), ("r-2", "baseline"), ("r-1", "restored"), ("r-1", "baseline"),
    ]  # fmt: skip
    assert len({one.process for one in found}) == 4
    assert len({one.configuration for one in found}) == 2
    assert len(store.baselines("decode", limit=3)) == 3
    assert [one.process for one in store.baselines("prefill")] == [""]


def test_noise_can_be_asked_for_one_concurrency(store: Store, nouns: Any) -> None:
    """A worker that is noisy at one concurrency is not noisy at another, and at one never measured nothing is known."""
    for place in range(8):
        wide, narrow = (1.1 if place % 2 else 0.9), (1.001 if place % 2 else 0.999)
        readings = [
            nouns.throughput("baseline", 1, 50.0 * wide, 51.0 * wide, 49.0 * wide),
            nouns.throughput("baseline", 64, 650.0 * narrow, 651.0 * narrow, 649.0 * narrow),
        ]
        store.keep_readings(f"r-{place}", readings)
        store.append(nouns.record(f"r-{place}", execution=nouns.execution(nouns.process(place))))
    one, many = store.noise("decode", 1), store.noise("decode", 64)
    assert one is not None
    assert many is not None
    assert one.boot_sd > 0.08 > 0.01 > many.boot_sd
    assert store.noise("decode", 32) is None


def test_facts_are_learned_per_worker_and_the_newest_comes_first(store: Store, nouns: Any) -> None:
    """A later run's fact comes first, the same run's replaces its own, and another worker's is not ours."""
    at = nouns.request().at

    def fact(run: str, value: float, *, name: str = "gb_per_graph", worker: str = "decode") -> Fact:
        return Fact(worker=worker, name=name, value=value, unit="GB", basis="measured", run=run, at=at)

    for one in (fact("r-1", 0.5), fact("r-1", 0.6), fact("r-2", 0.7), fact("r-2", 9.0, name="restart_seconds")):
        store.learn(one)
    store.learn(fact("r-3", 1.0, worker="prefill"))
    assert store.facts("decode", "gb_per_graph") == (fact("r-2", 0.7), fact("r-1", 0.6))
    assert [one.name for one in store.facts("decode")] == ["restart_seconds", "gb_per_graph", "gb_per_graph"]
    assert store.facts("nobody") == ()
    assert store.facts("decode", limit=1) == (fact("r-2", 9.0, name="restart_seconds"),)


def test_a_teams_incident_is_kept_and_stays_tainted(store: Store) -> None:
    """An incident of the team's own comes back as text from outside, and its id is taken from then on."""
    shipped = incidents()
    later, first = (one.model_copy(update={"id": f"our-{name}"}) for one, name in zip(shipped, "ba", strict=False))
    assert store.add_incident(later)
    assert store.add_incident(first)
    assert store.add_incident(first), "the very same again changes nothing"
    assert not store.add_incident(later.model_copy(update={"id": "our-a"}))
    assert [one.id for one in store.incidents()] == ["our-a", "our-b"]
    assert all(one.tainted for one in store.incidents())
    assert store.incidents()[0].title == first.title
