"""Readings -> Verdict: arithmetic, and the host's word that the change stays."""

from __future__ import annotations

from typing import Literal

from langgraph.runtime import Runtime
from langgraph.types import Command

from agent.domain import Decision, Verdict
from agent.errors import HostError, Refused
from agent.nodes.carried import still_ours
from agent.state import Parts, RunState, tell_of
from memory.precedents import reopening
from policies.judge import breached_metrics, judge


def decide(state: RunState, runtime: Runtime[Parts]) -> Command[Literal["roll_back", "record"]]:
    """Judge; a change that is kept is confirmed on the host first, and anything else goes back."""
    parts, tell = runtime.context, tell_of(runtime.stream_writer)
    tell({"kind": "node", "text": "decide"})
    still_ours(state["request"].run, parts)
    plan, readings = state["plan"], tuple(state.get("readings", ()))
    judged = judge(plan.criteria, readings, state.get("noise"), plan.checks)
    if judged.decision == "kept" and not _may_commit(plan.run, parts):
        verdict = Verdict(
            decision="deferred",
            state="unknown",
            why=f"Every criterion was met, but the run was {parts.stop.why} before the change was confirmed.",
            findings=judged.findings,
            remedy="Ask again when it suits.",
        )
        return Command(update={"verdict": verdict}, goto="roll_back")
    if judged.decision == "kept":
        try:
            execution = parts.worker.transaction(plan.run).commit()
        except (Refused, HostError) as problem:
            verdict = Verdict(
                decision="deferred",
                state="unknown",
                why=f"Every criterion was met, but the host would not let the change stay: {problem}",
                findings=judged.findings,
                remedy="Ask again once the host is well.",
            )
            return Command(update={"verdict": verdict}, goto="roll_back")
        verdict = Verdict(
            decision="kept",
            state="new",
            why=judged.why,
            findings=judged.findings,
            decided_by=judged.decided_by,
        )
        return Command(update={"verdict": verdict, "execution": execution}, goto="record")
    breached = breached_metrics(plan.criteria, judged.findings)
    reopen_when = reopening(tuple(state.get("precedents", ())), breached)
    decision: Decision = judged.decision
    why = judged.why
    if parts.stop.asked.is_set() and decision == "deferred":
        why = f"The run was {parts.stop.why} before it was verified. {why}"
    if judged.decision == "rolled_back" and (plan.change.unless_unsafe or reopen_when):
        decision = "deferred"
        if plan.change.unless_unsafe:
            why = f"The request said to skip it if it is unsafe, and it is. {why}"
    verdict = Verdict(
        decision=decision,
        state="unknown",
        why=why,
        findings=judged.findings,
        decided_by=judged.decided_by,
        reopen_when=reopen_when,
    )
    tell({"kind": "verdict", "text": f"{decision.replace('_', ' ')}: {why}"})
    return Command(update={"verdict": verdict}, goto="roll_back")


def _may_commit(run: str, parts: Parts) -> bool:
    """Whether a change may be confirmed: nobody wants to stop, or the host has confirmed it already."""
    if not parts.stop.asked.is_set():
        return True
    try:
        done = parts.worker.transaction(run).status()
    except (Refused, HostError):
        return False
    return done is not None and done.state == "committed"
