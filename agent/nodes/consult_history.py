"""Change -> Precedents: what happened here and elsewhere when somebody touched this."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from langgraph.runtime import Runtime
from langgraph.types import Command

from agent.domain import Change, Record, Verdict
from agent.nodes.carried import carried
from agent.state import Parts, RunState, Tell
from memory.precedents import precedents_for

_INSISTS = re.compile(r"\b(?:anyway|all the same|nevertheless|try again|once more|regardless)\b")
RECORDS = 1000
"""Records that are looked through: parsing so many takes 0.2 s."""


def consult_history(state: RunState, runtime: Runtime[Parts]) -> Command[Literal["assess_risk", "record"]]:
    """Find what bears on the change; a deferral whose condition cannot have come true yet is answered, not tried."""
    return carried(_consult_history, state, runtime)


def _consult_history(state: RunState, parts: Parts, tell: Tell) -> Command[Literal["assess_risk", "record"]]:
    change = state["change"]
    snapshot = parts.worker.snapshot()
    records = parts.store.records(worker=parts.name, limit=RECORDS)
    precedents = precedents_for(
        change,
        knobs=parts.knobs,
        records=records,
        incidents=parts.incidents,
        engine=parts.settings.engine,
        version=snapshot.version,
        settings_in_force=snapshot.in_force,
    )
    for precedent in precedents:
        title = precedent.what.partition(". ")[0]
        tell({"kind": "precedent", "text": f"{precedent.id}: {title}. ({precedent.why})"})
    insists = bool(_INSISTS.search(state["request"].text.lower()))
    waiting = None if insists else _still_deferred(change, records, snapshot.version)
    if waiting is not None:
        return Command(update={"precedents": precedents, "verdict": _answer(waiting)}, goto="record")
    return Command(update={"precedents": precedents}, goto="assess_risk")


def _still_deferred(change: Change, records: Sequence[Record], version: str | None) -> Record | None:
    """The newest record of this very change, if it was deferred under a condition and the engine is still the same."""
    wanted = {(setting.knob, setting.new) for setting in change.settings}
    for earlier in records:
        if earlier.change is None or {(s.knob, s.new) for s in earlier.change.settings} != wanted:
            continue
        if earlier.verdict.decision != "deferred" or earlier.verdict.reopen_when is None:
            return None
        ran_on = next((fact.what for fact in earlier.evidence if fact.what.startswith("engine version ")), None)
        return earlier if version is not None and ran_on == f"engine version {version}" else None
    return None


def _answer(earlier: Record) -> Verdict:
    return Verdict(
        decision="deferred",
        state="untouched",
        why=f"This was tried on {earlier.at:%Y-%m-%d} (run {earlier.run}) and deferred: {earlier.verdict.why}",
        reopen_when=earlier.verdict.reopen_when,
        remedy=(
            "The engine is the one from then, and nothing here says that the condition holds; "
            f"see prudent show {earlier.run}. To try it all the same, add the word: anyway"
        ),
    )
