"""Asked again: the earlier deferral, and whether its condition holds by now."""

from __future__ import annotations

from typing import Any

import pytest

from agent.domain import Change, Evidence, Precedent, Record, Verdict
from memory.bearing import IN_FORCE
from memory.deferral import Standing, earlier_deferral, standing
from memory.incidents import Condition, Incident
from memory.store import Store

CONDITION = "the race is mended in the engine (incident overlap-wedge)"


@pytest.fixture
def change(nouns: Any) -> Change:
    """The change that is asked for again and again: a switch is taken out."""
    return nouns.change("disable-overlap-schedule", "", None)


@pytest.fixture
def deferred(nouns: Any, change: Change) -> Any:
    """A maker of records that tried the change and put it off."""

    def make(run: str, *, version: str | None = "0.5.14", **more: Any) -> Record:
        fact = Evidence(id="e1", what=f"engine version {version}", source="the worker", at=nouns.request().at)
        fields = {
            "change": change,
            "evidence": () if version is None else (fact,),
            "execution": nouns.execution(nouns.process(1), nouns.process(2)),
            "verdict": Verdict(decision="deferred", state="restored", why="3 of 8 wedged", reopen_when=CONDITION),
            **more,
        }
        return nouns.record(run, **fields)

    return make


@pytest.fixture
def incident() -> Incident:
    """What the condition is quoted from: known below 0.5.20, kept away by a variable."""
    guard = Condition(knob="SGLANG_STEP", enabled=False, guard=True, says="SGLANG_STEP=1 keeps the ranks in step")
    return Incident(
        id="overlap-wedge",
        title="It wedges",
        engine="sglang",
        until="0.5.20",
        knobs=("disable-overlap-schedule",),
        subsystem="scheduler overlap",
        conditions=(guard,),
        happened="It wedged.",
        outcome="harmed",
        lesson="Send aborts.",
        certainty="confirmed",
        source="the test",
    )


def test_the_deferral_is_found_again_on_its_worker(store: Store, nouns: Any, deferred: Any, change: Change) -> None:
    """The very same change on the same worker meets it; another value, another worker and other knobs do not."""
    store.append(deferred("r-1"))
    knobs = (nouns.knob("disable-overlap-schedule", subsystem="x").model_copy(update={"value": "switch"}),)
    found = earlier_deferral(change, knobs, store)
    assert found is not None
    assert found.run == "r-1"
    as_zero = change.model_copy(update={"settings": (change.settings[0].model_copy(update={"new": "0"}),)})
    assert earlier_deferral(as_zero, knobs, store) == found, "an absent switch and one of 0 are the same"
    assert earlier_deferral(nouns.change("disable-overlap-schedule", None, ""), knobs, store) is None
    assert earlier_deferral(change.model_copy(update={"worker": "prefill"}), knobs, store) is None
    assert earlier_deferral(nouns.change("page-size", "1", None), knobs, store) is None
    assert earlier_deferral(Change(worker="decode", operation="restart", summary="restart"), knobs, store) is None


def test_refusals_and_rejections_in_between_change_nothing(
    store: Store, nouns: Any, deferred: Any, change: Change
) -> None:
    """A plan that somebody said no to, and a worker that was down, do not lift a deferral."""
    store.append(deferred("r-1"))
    for place, decision in enumerate(("rejected", "refused", "needs_human")):
        verdict = Verdict.model_validate({"decision": decision, "state": "untouched", "why": "not now"})
        store.append(nouns.record(f"r-no-{place}", change=change, verdict=verdict))
    found = earlier_deferral(change, (), store)
    assert found is not None
    assert found.run == "r-1"


def test_a_change_that_was_kept_later_is_not_put_off_any_more(
    store: Store, nouns: Any, deferred: Any, change: Change
) -> None:
    """What was tried last decides."""
    store.append(deferred("r-1"))
    done = nouns.execution(nouns.process(3), nouns.process(4), state="committed")
    store.append(nouns.record("r-2", change=change, execution=done))
    assert earlier_deferral(change, (), store) is None


def test_an_answer_from_memory_is_not_taken_for_the_deferral_itself(
    store: Store, nouns: Any, deferred: Any, change: Change
) -> None:
    """However often it was asked again, the record that tried it is the one that is answered with, and brought up."""
    first = store.append(deferred("r-1"))
    told = Precedent(id="r-1", source="record", what="It wedged.", why="the same change")
    for place in range(30):
        why = f"This was tried (run r-1) and deferred: {first.verdict.why}"
        echo = Verdict(decision="deferred", state="untouched", why=why, reopen_when=CONDITION)
        store.append(nouns.record(f"r-echo-{place}", change=change, precedents=(told,), verdict=echo))
    found = earlier_deferral(change, (), store)
    assert found is not None
    assert found.run == "r-1"


def test_a_deferral_that_the_request_itself_asked_for_does_not_wait(
    store: Store, nouns: Any, deferred: Any, change: Change
) -> None:
    """A "skip it if it is unsafe" was that request's condition; asked without it, the change is planned."""
    careful = change.model_copy(update={"unless_unsafe": True})
    store.append(deferred("r-1", change=careful, execution=None))
    assert earlier_deferral(change, (), store) is None


def test_a_deferral_that_was_imported_counts(store: Store, deferred: Any, change: Change) -> None:
    """A deferral out of an old plan document was never executed by us, and waits all the same."""
    store.append(deferred("r-import", execution=None))
    found = earlier_deferral(change, (), store)
    assert found is not None
    assert found.run == "r-import"


@pytest.mark.parametrize(
    ("version", "holds", "says"),
    [
        ("0.5.14", False, "gone only from 0.5.20 on"),
        ("0.5.19.post1", False, "gone only from 0.5.20 on"),
        ("0.5.20", True, "gone from 0.5.20 on"),
        ("v0.6.0", True, "gone from 0.5.20 on"),
    ],
)
def test_the_engines_version_decides_where_the_incident_names_one(
    deferred: Any, change: Change, incident: Incident, version: str, holds: bool, says: str
) -> None:
    """A version in which the incident is gone makes the condition hold; one in which it is not does not."""
    now = standing(deferred("r-1"), change, incidents=[incident], version=version, settings_in_force={})
    assert now.holds is holds
    assert says in now.says


def test_a_fix_that_is_in_place_now_makes_it_hold(deferred: Any, change: Change, incident: Incident) -> None:
    """A guard that was not set then and is now lets the change be tried; one that was set then did not help."""
    known = [incident.model_copy(update={"until": None})]
    fixed = {"SGLANG_STEP": "1"}
    now = standing(deferred("r-1"), change, incidents=known, version="0.5.14", settings_in_force=fixed)
    assert now == Standing(True, "a fix is in force now: SGLANG_STEP=1 keeps the ranks in step")
    then = Precedent(id="overlap-wedge", source="incident", what="It wedges", why=f"{IN_FORCE} (SGLANG_STEP=1)")
    in_spite = deferred("r-1", precedents=(then,))
    assert standing(in_spite, change, incidents=known, version="0.5.14", settings_in_force=fixed).holds is False
    assert standing(deferred("r-1"), change, incidents=known, version="0.5.14", settings_in_force={}).holds is False


@pytest.mark.parametrize(
    ("then", "now", "holds"),
    [("0.5.14", "0.5.14", False), ("0.5.14", "0.5.15", None), ("0.5.14", None, None), (None, "0.5.14", None)],
)
def test_without_a_datum_only_the_same_engine_says_no(
    deferred: Any, change: Change, then: str | None, now: str | None, holds: bool | None
) -> None:
    """A condition in free words does not hold on the engine from then; on another one it cannot be read."""
    assert (
        standing(deferred("r-1", version=then), change, incidents=[], version=now, settings_in_force={}).holds is holds
    )
