"""What is brought up before a change, why, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from agent.domain import Change, Criterion, Finding, Precedent, Record, Verdict
from memory.incidents import Incident, incidents
from memory.precedents import precedents_for, reopening
from memory.store import Store

RACE, WEDGE = "multi-stream-race-under-capture", "overlap-scheduler-abort-wedge"
SAFE = {"SGLANG_OPT_USE_MULTI_STREAM_OVERLAP": "0", "disable-overlap-schedule": "true", "cuda-graph-max-bs": "32"}


@pytest.fixture
def find(nouns: Any, store: Store) -> Any:
    """Asks each store for precedents on a small catalogue."""
    catalogue = (
        nouns.knob("cuda-graph-max-bs", subsystem="decode graph capture", couples=("max-running-requests",)),
        nouns.knob("SGLANG_OPT_USE_MULTI_STREAM_OVERLAP", subsystem="decode graph capture", kind="env"),
        nouns.knob("max-running-requests", subsystem="admission"),
        nouns.knob("disable-overlap-schedule", subsystem="scheduler overlap").model_copy(update={"value": "switch"}),
        nouns.knob("page-size", subsystem="KV pool"),
    )

    def ask(
        change: Change,
        *,
        records: Sequence[Record] = (),
        given: Sequence[Incident] | None = None,
        version: str | None = "0.5.14",
        in_force: dict[str, str] | None = None,
    ) -> dict[str, Precedent]:
        for record in sorted(records, key=lambda one: one.seq):
            store.append(record)
        found = precedents_for(
            change,
            knobs=catalogue,
            history=store,
            incidents=incidents() if given is None else given,
            engine="sglang",
            version=version,
            settings_in_force=SAFE if in_force is None else in_force,
        )
        assert len({precedent.id for precedent in found}) == len(found)
        return {precedent.id: precedent for precedent in found}

    return ask


def breach(metric: str, decision: str, reopen_when: str | None = None) -> dict[str, Any]:
    """Fields of a record whose run broke one criterion."""
    return {
        "verdict": Verdict.model_validate(
            {
                "decision": decision,
                "state": "restored",
                "why": "it broke",
                "findings": (Finding(criterion=metric, outcome="breached", says=""),),
                "reopen_when": reopen_when,
            }
        )
    }


def test_raising_the_captured_range_brings_up_the_race_that_was_fixed_below_it(find: Any, nouns: Any) -> None:
    """With the fix in force the old corruption still comes first, says so, and demands sessions at the new sizes."""
    found = find(nouns.change("cuda-graph-max-bs", "32", "96"))
    assert next(iter(found)) == RACE
    why = found[RACE].why
    assert "same knob: cuda-graph-max-bs" in why
    assert "the fix is in force" in why
    assert "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP=0" in why
    assert "re-verify corruption at the newly captured sizes, 33 to 96" in why
    assert found[RACE].demands == ("sessions",)
    assert not found[RACE].tainted


def test_within_the_proven_range_nothing_has_to_be_proven_again(find: Any, nouns: Any) -> None:
    """A captured range that stays within what the fix was proven at is said to be that."""
    why = find(nouns.change("cuda-graph-max-bs", "16", "32"))[RACE].why
    assert "proven up to 32" in why
    assert "re-verify" not in why


def test_without_the_fix_the_race_can_happen_now(find: Any, nouns: Any) -> None:
    """A variable that is not set has the engine's default, which is the dangerous one."""
    why = find(nouns.change("cuda-graph-max-bs", "32", "96"), in_force={})[RACE].why
    assert "it can happen now, the fix is not in force" in why


@pytest.mark.parametrize("new", ["1", None])
def test_a_change_that_would_undo_a_fix_is_called_that(find: Any, nouns: Any, new: str | None) -> None:
    """Setting the variable back, or taking it out, comes first as the undoing of the fix."""
    found = find(nouns.change("SGLANG_OPT_USE_MULTI_STREAM_OVERLAP", "0", new, kind="env"))
    assert next(iter(found)) == RACE
    assert found[RACE].why.startswith("fix that this would undo: SGLANG_OPT_USE_MULTI_STREAM_OVERLAP=0")
    assert found[RACE].demands == ("sessions",)
    assert found[RACE].undoes_fix


def test_our_own_fix_is_known_as_one(find: Any, nouns: Any) -> None:
    """A record that set what keeps an incident away is a fix that would be undone; one that set a size is not."""
    fix = nouns.record("r-1", change=nouns.change("SGLANG_OPT_USE_MULTI_STREAM_OVERLAP", None, "0", kind="env"), seq=1)
    size = nouns.record("r-2", change=nouns.change("cuda-graph-max-bs", "96", "32"), seq=2)
    back = find(nouns.change("SGLANG_OPT_USE_MULTI_STREAM_OVERLAP", "0", None, kind="env"), records=[fix, size])
    assert "fix that this would undo: r-1 set it" in back["r-1"].why
    assert (back["r-1"].undoes_fix, back["r-2"].undoes_fix) == (True, False)
    bump = find(nouns.change("cuda-graph-max-bs", "32", "96"), records=[fix, size])
    assert "this would take back what r-2 set" in bump["r-2"].why
    assert not any(precedent.undoes_fix for precedent in bump.values())


def test_the_change_that_is_the_fix_is_called_that(find: Any, nouns: Any) -> None:
    """Setting the variable to its safe value takes the incident out of play, and demands nothing for it."""
    change = nouns.change("SGLANG_OPT_USE_MULTI_STREAM_OVERLAP", None, "0", kind="env")
    found = find(change, in_force={})
    assert "takes it out of play" in found[RACE].why
    assert found[RACE].demands == ()


def test_turning_the_overlap_scheduler_on_brings_up_the_wedge_with_its_condition(find: Any, nouns: Any) -> None:
    """The wedge comes first, demands aborts, and says when the change may be tried again."""
    found = find(nouns.change("disable-overlap-schedule", "", None))
    assert next(iter(found)) == WEDGE
    assert found[WEDGE].why.startswith("fix that this would undo: --disable-overlap-schedule")
    assert set(found[WEDGE].demands) == {"aborts", "throughput"}
    assert found[WEDGE].signature == ("wedged_storms",)
    assert "agree-or-defer" in (found[WEDGE].reopen_when or "")


def test_the_condition_for_reopening_is_quoted_from_the_datum(find: Any, nouns: Any) -> None:
    """The sentence names its incident, is given only for a breach of its signature, and is gone without the datum."""
    change = nouns.change("disable-overlap-schedule", "", None)
    found = tuple(find(change).values())
    sentence = reopening(found, ["wedged_storms"])
    assert sentence is not None
    assert "agree-or-defer step on the TP CPU group" in sentence
    assert sentence.endswith(f"(incident {WEDGE})")
    assert reopening(found, ["throughput_tokens_per_second"]) is None
    assert reopening(found, []) is None
    without = [incident for incident in incidents() if incident.id != WEDGE]
    assert reopening(tuple(find(change, given=without).values()), ["wedged_storms"]) is None


def test_an_incident_that_needs_something_else_demands_nothing(find: Any, nouns: Any) -> None:
    """An incident of several nodes is mentioned on one node as not live, and as live on two."""
    change = nouns.change("disable-overlap-schedule", "", None)
    alone = find(change)["overlap-wedge-across-nodes"]
    assert "not live here: it needs that the worker spans several nodes" in alone.why
    assert (alone.demands, alone.reopen_when) == ((), None)
    two = find(change, in_force={**SAFE, "nnodes": "2"})["overlap-wedge-across-nodes"]
    assert two.why.startswith("fix that this would undo")
    assert two.demands == ("aborts",)


def test_an_incident_of_other_versions_demands_nothing(find: Any, nouns: Any) -> None:
    """Outside its versions an incident is a remark, and only on its own knob; of another engine it is nothing."""
    change = nouns.change("max-running-requests", "256", "32")
    older = find(change, version="0.5.14")["concurrency-clamped-by-state-cache"]
    assert "known from 0.5.19 on, and this worker runs 0.5.14" in older.why
    assert older.demands == ()
    inside = find(change, version="v0.5.19.post1")["concurrency-clamped-by-state-cache"]
    assert "same engine version range: from 0.5.19 on" in inside.why
    assert inside.demands == ("throughput",)
    assert "concurrency-default-quadruples" not in find(change)


def test_a_coupled_knob_is_a_weaker_reason_than_a_shared_subsystem(find: Any, nouns: Any) -> None:
    """The same knob comes before the same subsystem, and that before a coupling, each said in words."""
    records = [
        nouns.record("r-same", change=nouns.change("cuda-graph-max-bs", "16", "24"), seq=1),
        nouns.record("r-sub", change=nouns.change("SGLANG_OPT_USE_MULTI_STREAM_OVERLAP", "1", "0", kind="env"), seq=2),
        nouns.record("r-coupled", change=nouns.change("max-running-requests", "256", "128"), seq=3),
        nouns.record("r-other", change=nouns.change("page-size", "1", "64"), seq=4),
        nouns.record("r-question", seq=5),
    ]
    found = find(nouns.change("cuda-graph-max-bs", "32", "96"), records=records, given=())
    assert list(found) == ["r-same", "r-sub", "r-coupled"]
    assert found["r-sub"].why.startswith("same subsystem: decode graph capture")
    assert found["r-coupled"].why.startswith("coupled knob: cuda-graph-max-bs and max-running-requests")


def test_an_earlier_deferral_of_the_same_change_comes_with_its_condition(find: Any, nouns: Any) -> None:
    """Asked again, the earlier decision comes first with its date, its reason and what it waits for."""
    change = nouns.change("disable-overlap-schedule", "", None)
    earlier = nouns.record("r-9", change=change, seq=9, **breach("wedged_storms", "deferred", "the engine is mended"))
    found = find(change, records=[earlier], given=())
    assert "the same change, deferred then" in found["r-9"].why
    assert found["r-9"].at == "2026-11-29"
    assert found["r-9"].reopen_when == "the engine is mended"
    assert found["r-9"].demands == ("aborts",)
    assert found["r-9"].tainted
    assert reopening(tuple(found.values()), ["wedged_storms"]) == "the engine is mended (record r-9)"


def test_a_record_is_retold_with_its_numbers_and_its_end(find: Any, nouns: Any) -> None:
    """What a record says holds the decision, the measured numbers, and that it was taken back later."""
    readings = (
        nouns.throughput("baseline", 64, 657.0),
        nouns.throughput("candidate", 64, 711.0),
        nouns.throughput("candidate", 64, 0.0).model_copy(
            update={"metric": "corrupted_sessions", "n": 288, "bad": 0, "concurrency": None}
        ),
    )
    kept = nouns.record("r-1", change=nouns.change("cuda-graph-max-bs", "32", "64"), readings=readings, seq=1)
    undo = nouns.change("cuda-graph-max-bs", "64", "32").model_copy(update={"undoes": "r-1", "operation": "roll_back"})
    back = nouns.record("r-2", change=undo, seq=2)
    what = find(nouns.change("cuda-graph-max-bs", "32", "96"), records=[back, kept], given=())["r-1"].what
    assert "711 tokens/s at 64 (+8.2 % against 657)" in what
    assert "0 of 288 corrupted sessions" in what
    assert "Taken back later by r-2" in what


def test_taking_back_what_a_record_set_is_said(find: Any, nouns: Any) -> None:
    """A change to the value from before a kept change names the run that it would take back."""
    kept = nouns.record("r-1", change=nouns.change("cuda-graph-max-bs", "96", "32"), seq=1)
    why = find(nouns.change("cuda-graph-max-bs", "32", "96.0"), records=[kept], given=())["r-1"].why
    assert "this would take back what r-1 set" in why


def test_the_same_failure_signature_connects_a_record_and_an_incident(find: Any, nouns: Any, plan: Any) -> None:
    """A run of an unrelated knob that wedged is brought up before a change known to wedge, and both say so."""
    criterion = Criterion(id="progress", metric="wedged_storms", comparison="at_most", bound=0, because="")
    laid = plan("r-5", watchdog_seconds=1.0).model_copy(update={"criteria": (criterion,)})
    fields = breach("progress", "rolled_back")
    wedged = nouns.record("r-5", change=nouns.change("page-size", "1", "64"), plan=laid, seq=5, **fields)
    found = find(nouns.change("disable-overlap-schedule", "", None), records=[wedged])
    assert "same failure signature: wedged_storms" in found["r-5"].why
    assert "same failure signature as r-5 (wedged_storms)" in found[WEDGE].why


def test_a_long_history_does_not_crowd_the_incidents_out(find: Any, nouns: Any) -> None:
    """Of a hundred records of one knob the newest few are brought up, beside the incident that matters."""
    records = [
        nouns.record(f"r-{place}", change=nouns.change("cuda-graph-max-bs", "8", "16"), seq=place)
        for place in range(1, 101)
    ]
    found = find(nouns.change("cuda-graph-max-bs", "32", "96"), records=records)
    own = [name for name in found if name.startswith("r-")]
    assert own == ["r-100", "r-99", "r-98", "r-97", "r-96", "r-95"]
    assert RACE in found


def test_another_workers_record_comes_after_ours(find: Any, nouns: Any) -> None:
    """The same change on another worker is brought up and said to be another's."""
    change = nouns.change("cuda-graph-max-bs", "32", "96")
    ours = nouns.record("r-1", change=change, seq=1)
    theirs = nouns.record("r-2", worker="prefill", change=change, seq=2)
    found = find(change, records=[theirs, ours], given=())
    assert list(found) == ["r-1", "r-2"]
    assert "on worker prefill" in found["r-2"].why


def test_a_teams_incident_stays_tainted(find: Any, nouns: Any) -> None:
    """Text of a team's own incident is marked as such in the precedent."""
    own = [incident.model_copy(update={"tainted": True}) for incident in incidents() if incident.id == RACE]
    assert find(nouns.change("cuda-graph-max-bs", "32", "96"), given=own)[RACE].tainted


def test_a_change_without_settings_has_no_precedents(find: Any) -> None:
    """A restart touches no knob."""
    assert find(Change(worker="decode", operation="restart", summary="restart")) == {}
