"""The index finds what weighing every record would find, on each database, whatever the history."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agent.domain import Change, Evidence, Finding, Knob, Precedent, Record, Setting, Verdict
from memory.bearing import Scene, of_record, paths_to
from memory.in_memory import InMemoryStore
from memory.postgres import PostgresStore
from memory.precedents import MOST_RECORDS, precedents_for
from memory.sqlite import SqliteStore
from memory.store import Store
from memory.traces import Path as Way
from memory.traces import Trace, to_values

METRICS = ("corrupted_sessions", "wedged_storms", "throughput_tokens_per_second")
KNOBS = {
    "cuda-graph-max-bs": ("8", "16", "32", "32.0", "96", None),
    "max-running-requests": ("64", "128", "256"),
    "page-size": ("1", "64"),
    "SGLANG_OVERLAP": ("0", "1", "true", "False", None),
    "disable-overlap-schedule": ("", "true", None),
}


@pytest.fixture
def catalogue(nouns: Any) -> tuple[Knob, ...]:
    """Knobs of which some are coupled, some share a subsystem, and some are switches."""
    switch = {"value": "switch"}
    return (
        nouns.knob("cuda-graph-max-bs", subsystem="decode graph capture", couples=("max-running-requests",)),
        nouns.knob("SGLANG_OVERLAP", subsystem="decode graph capture", kind="env").model_copy(update=switch),
        nouns.knob("max-running-requests", subsystem="admission"),
        nouns.knob("disable-overlap-schedule", subsystem="scheduler overlap").model_copy(update=switch),
        nouns.knob("page-size", subsystem="KV pool"),
    )


class Histories:
    """Makes up records."""

    def __init__(self, nouns: Any, chance: random.Random) -> None:
        self.nouns = nouns
        self.chance = chance

    def change(self, worker: str = "decode") -> Change:
        names = self.chance.sample(sorted(KNOBS), self.chance.choice((1, 1, 1, 2)))
        settings = tuple(
            Setting.model_validate(
                {
                    "knob": name,
                    "kind": "flag",
                    "spelling": name,
                    "old": self.chance.choice(KNOBS[name]),
                    "new": self.chance.choice(KNOBS[name]),
                }
            )
            for name in names
        )
        return Change(worker=worker, operation="set", settings=settings, summary="a change")

    def record(self, place: int) -> Record:
        worker = self.chance.choice(("decode", "decode", "prefill"))
        decision = self.chance.choice(("kept", "imported", "rolled_back", "deferred", "answered", "needs_human"))
        broken = self.chance.sample(METRICS, self.chance.choice((0, 0, 1, 2)))
        why = self.chance.choice(("as expected", "it had to do with --cuda-graph-max-bs again", "page size"))
        more = {
            "change": self.chance.choice((self.change(worker), self.change(worker), None)),
            "evidence": (
                Evidence(id="e1", what="engine version 0.5.14", source="the test", at=self.nouns.request().at),
            ),
            "verdict": Verdict.model_validate(
                {
                    "decision": decision,
                    "state": "new",
                    "why": why,
                    "findings": [Finding(criterion=name, outcome="breached", says="") for name in broken],
                }
            ),
        }
        return self.nouns.record(f"r-{place}", worker=worker, **more)


@pytest.mark.slow
def test_the_index_finds_what_weighing_every_record_finds(
    tmp_path: Path, postgres_url: str, nouns: Any, catalogue: tuple[Knob, ...]
) -> None:
    """For random histories and changes the records that are brought up are the heaviest of all, on each database."""
    chance = random.Random(20261129)
    histories = Histories(nouns, chance)
    stores: list[Store] = [InMemoryStore(), SqliteStore(tmp_path / "prudent.sqlite"), PostgresStore(postgres_url)]
    closing_all = ExitStack()
    for store in stores:
        closing_all.callback(store.close)
    with closing_all:
        assert compared(histories, stores, catalogue) > 15


def compared(histories: Histories, stores: list[Store], catalogue: tuple[Knob, ...]) -> int:
    """Fill the stores and ask them again and again; how often there was something to find."""
    chance, found_any = histories.chance, 0
    for place in range(1, 177):
        record = histories.record(place)
        for store in stores:
            store.append(record)
        if place % 8:
            continue
        change = histories.change()
        signature = frozenset(chance.sample(METRICS, chance.choice((0, 1, 2))))
        guards = frozenset(setting.knob for setting in change.settings if chance.random() < 0.3)
        before = {setting.knob: setting.old for setting in change.settings}
        after = before | {setting.knob: setting.new for setting in change.settings}
        scene = Scene(change, {knob.name: knob for knob in catalogue}, before, after, "sglang", "0.5.14")
        weighed = [
            (of_record(one, scene, signature, guards).weight, one)
            for one in (*stores[0].records(), *stores[0].records(imported=True))
        ]
        heaviest = sorted((pair for pair in weighed if pair[0]), key=lambda pair: (-pair[0], -pair[1].seq))
        expected = [one.run for _, one in heaviest[:MOST_RECORDS]]
        for store in stores:
            got = store.akin(paths_to(scene, signature, guards), MOST_RECORDS)
            assert [one.run for one in got] == expected, (type(store).__name__, change)
        found_any += bool(expected)
    return found_any


def test_a_record_that_only_speaks_of_a_knob_is_brought_up_last(
    store: Store, nouns: Any, catalogue: tuple[Knob, ...]
) -> None:
    """A run that never became a change is found by its words, says so, and comes after a change of a coupled knob."""
    words = "after raising --cuda-graph-max-bs by hand the worker hung"
    told = Verdict(decision="needs_human", state="unknown", why=words)
    store.append(nouns.record("r-alarm", verdict=told))
    store.append(nouns.record("r-coupled", change=nouns.change("max-running-requests", "64", "128")))
    store.append(nouns.record("r-other", change=nouns.change("page-size", "1", "64")))
    found = _ask(nouns.change("cuda-graph-max-bs", "32", "96"), store, catalogue)
    assert list(found) == ["r-coupled", "r-alarm"]
    assert found["r-alarm"].why.startswith("speaks of cuda-graph-max-bs")
    assert found["r-alarm"].tainted


def test_a_record_says_on_which_engine_version_it_was(store: Store, nouns: Any, catalogue: tuple[Knob, ...]) -> None:
    """A precedent of the same version says so, and one of another names it."""
    for version in ("0.5.13", "0.5.14"):
        fact = Evidence(id="e1", what=f"engine version {version}", source="the worker", at=nouns.request().at)
        change = nouns.change("cuda-graph-max-bs", "16", "24")
        store.append(nouns.record(f"r-{version}", change=change, evidence=(fact,)))
    found = _ask(nouns.change("cuda-graph-max-bs", "32", "96"), store, catalogue)
    assert "same engine version: 0.5.14" in found["r-0.5.14"].why
    assert "with engine version 0.5.13" in found["r-0.5.13"].why


def test_a_roll_back_that_was_not_kept_took_nothing_back(store: Store, nouns: Any, catalogue: tuple[Knob, ...]) -> None:
    """Only a kept roll back is told of the change that it took back."""
    change = nouns.change("cuda-graph-max-bs", "32", "64")
    store.append(nouns.record("r-1", change=change))
    undo = nouns.change("cuda-graph-max-bs", "64", "32").model_copy(update={"undoes": "r-1", "operation": "roll_back"})
    no = Verdict(decision="rejected", state="untouched", why="not today")
    store.append(nouns.record("r-2", change=undo, verdict=no))
    assert store.taken_back_by(["r-1"]) == {}
    assert "Taken back" not in _ask(change, store, catalogue)["r-1"].what
    store.append(nouns.record("r-3", change=undo))
    assert store.taken_back_by(["r-1", "r-2"]) == {"r-1": "r-3"}
    assert "Taken back later by r-3" in _ask(change, store, catalogue)["r-1"].what


def test_the_last_kept_change_of_a_worker_is_found(store: Store, nouns: Any) -> None:
    """It is the newest of that worker that was kept, whatever came after it."""
    assert store.last_kept("decode") is None
    store.append(nouns.record("r-1", change=nouns.change("page-size", "1", "64")))
    store.append(nouns.record("r-2", worker="prefill", change=nouns.change("page-size", "1", "64")))
    no = Verdict(decision="rolled_back", state="restored", why="slower")
    store.append(nouns.record("r-3", change=nouns.change("page-size", "64", "1"), verdict=no))
    found = store.last_kept("decode")
    assert found is not None
    assert found.run == "r-1"


def test_odd_values_and_names_are_indexed_and_found(store: Store, nouns: Any) -> None:
    """A value of a hundred kilobytes, quotes, NUL and foreign signs neither break the index nor hide a record."""
    for place, value in enumerate(("x" * 100_000, "a'\"b; --", "\0", "größer 🦜", "nan", "1e999")):
        change = nouns.change("json-model-override-args", None, value)
        why = f"{value} and --json-model-override-args"
        kept = nouns.record(f"r-{place}", change=change, verdict=Verdict(decision="kept", state="new", why=why))
        store.append(kept)
        found = store.akin([Way(1, Trace(aim=to_values(change, {})))], 1)
        assert [one.run for one in found] == [f"r-{place}"]


def _ask(change: Change, store: Store, catalogue: tuple[Knob, ...]) -> dict[str, Precedent]:
    found = precedents_for(
        change,
        knobs=catalogue,
        history=store,
        incidents=(),
        engine="sglang",
        version="0.5.14",
        settings_in_force={},
    )
    return {precedent.id: precedent for precedent in found}
