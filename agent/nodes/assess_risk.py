"""Change, Evidence, Precedents -> Risk: how it can fail, each way tied to what was seen or has happened before."""

from __future__ import annotations

from typing import Literal

from langgraph.runtime import Runtime
from langgraph.types import Command

from agent.domain import Level, Risk, Verdict
from agent.errors import ModelSlip
from agent.nodes.carried import carried
from agent.nodes.looking import tools_for
from agent.nodes.notebook import Notebook
from agent.reasoning.grounding import check_risk
from agent.state import Parts, RunState, Tell

_LEVELS: tuple[Level, ...] = ("low", "medium", "high")


def assess_risk(state: RunState, runtime: Runtime[Parts]) -> Command[Literal["estimate_memory", "record"]]:
    """Weigh the change. Others' incidents demand checks; only what was measured here ends a run before the edit."""
    return carried(_assess_risk, state, runtime)


def _assess_risk(state: RunState, parts: Parts, tell: Tell) -> Command[Literal["estimate_memory", "record"]]:
    change, precedents = state["change"], tuple(state.get("precedents", ()))
    notebook = Notebook(state.get("evidence", ()), parts.clock)
    floor = parts.rules.assess_risk(change, parts.knobs, notebook.all, precedents, ())
    risk = parts.reasoner.assess_risk(change, parts.knobs, notebook.all, precedents, tools_for(parts, notebook))
    notes: tuple[str, ...] = ()
    try:
        check_risk(risk, change, notebook.all, precedents)
    except ModelSlip as slip:
        risk = floor.model_copy(update={"instead_of": f"{risk.by}: {slip}"})
    if risk.instead_of:
        notes = (f"The rules assessed the risk instead of {risk.instead_of}",)
    risk = _at_least(risk, floor)
    tell({"kind": "risk", "text": f"risk {risk.level}: {risk.summary}"})
    update = {"risk": risk, "evidence": tuple(notebook.new), "notes": notes}
    undone = next((p for p in precedents if p.source == "record" and p.undoes_fix), None)
    if change.unless_unsafe and undone is not None:
        verdict = Verdict(
            decision="deferred",
            state="untouched",
            why=f"The request said to skip it if it is unsafe, and it is: {undone.what} ({undone.id}: {undone.why})",
            reopen_when=undone.reopen_when,
            remedy="Ask without the condition to go through the plan and its checks all the same.",
        )
        return Command(update={**update, "verdict": verdict}, goto="record")
    return Command(update=update, goto="estimate_memory")


def _at_least(risk: Risk, floor: Risk) -> Risk:
    """A model may find a change more dangerous than the rules do, and ask for more checks; never the reverse."""
    level = max(risk.level, floor.level, key=_LEVELS.index)
    checks = tuple(dict.fromkeys((*floor.add_checks, *risk.add_checks)))
    return risk.model_copy(update={"level": level, "add_checks": checks})
