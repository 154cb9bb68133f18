"""Change -> Precedents: what happened here and elsewhere when somebody touched this."""

from __future__ import annotations

import re
from typing import Literal

from langgraph.runtime import Runtime
from langgraph.types import Command

from agent.domain import Record, Verdict
from agent.nodes.carried import carried
from agent.state import Parts, RunState, Tell
from memory.deferral import earlier_deferral, standing
from memory.precedents import precedents_for

_INSISTS = re.compile(r"\b(?:anyway|all the same|nevertheless|try again|once more|regardless)\b")


def consult_history(state: RunState, runtime: Runtime[Parts]) -> Command[Literal["assess_risk", "record"]]:
    """Find what bears on the change; a deferral whose condition cannot have come true yet is answered, not tried."""
    return carried(_consult_history, state, runtime)


def _consult_history(state: RunState, parts: Parts, tell: Tell) -> Command[Literal["assess_risk", "record"]]:
    change = state["change"]
    snapshot = parts.worker.snapshot()
    precedents = precedents_for(
        change,
        knobs=parts.knobs,
        history=parts.store,
        incidents=parts.incidents,
        engine=parts.settings.engine,
        version=snapshot.version,
        settings_in_force=snapshot.in_force,
    )
    for precedent in precedents:
        title = precedent.what.partition(". ")[0]
        tell({"kind": "precedent", "text": f"{precedent.id}: {title}. ({precedent.why})"})
    earlier = earlier_deferral(change, parts.knobs, parts.store)
    if earlier is None:
        return Command(update={"precedents": precedents}, goto="assess_risk")
    now = standing(
        earlier,
        change,
        incidents=parts.incidents,
        version=snapshot.version,
        settings_in_force=snapshot.in_force,
    )
    waits = f"Run {earlier.run} put this off until this holds: {earlier.verdict.reopen_when}. Now: {now.says}."
    tell({"kind": "note", "text": waits})
    insists = bool(_INSISTS.search(state["request"].text.lower()))
    if now.holds is False and not insists:
        return Command(update={"precedents": precedents, "verdict": _answer(earlier, now.says)}, goto="record")
    return Command(update={"precedents": precedents, "notes": (waits,)}, goto="assess_risk")


def _answer(earlier: Record, now: str) -> Verdict:
    """The earlier decision once more, with what it rested on, and why it stands."""
    return Verdict(
        decision="deferred",
        state="untouched",
        why=f"This was tried on {earlier.at:%Y-%m-%d} (run {earlier.run}) and deferred: {earlier.verdict.why}",
        findings=earlier.verdict.findings,
        decided_by=earlier.verdict.decided_by,
        reopen_when=earlier.verdict.reopen_when,
        remedy=(
            f"It waits on, because {now}; see prudent show {earlier.run}. To try it all the same, add the word: anyway"
        ),
    )
