"""Plan -> Approval: the run stands still until somebody says yes or no to this very plan."""

from __future__ import annotations

from typing import Literal

from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt

from agent.domain import Verdict
from agent.errors import ApprovalExpired
from agent.nodes.carried import carried
from agent.state import Parts, RunState, Tell


def approve(state: RunState, runtime: Runtime[Parts]) -> Command[Literal["execute", "record"]]:
    """Wait for the decision. What the interrupt is resumed with means nothing: the store says what was decided."""
    return carried(_approve, state, runtime)


def _approve(state: RunState, parts: Parts, tell: Tell) -> Command[Literal["execute", "record"]]:
    plan = state["plan"]
    parts.store.set_state(plan.run, "awaiting approval")
    interrupt({"run": plan.run, "digest": plan.digest})
    decision = parts.store.decision(plan.run, plan.digest)
    if decision is None:
        raise ApprovalExpired(
            f"Nobody decided on the plan within {plan.approve_within_seconds:.0f} s.",
            "Ask again; a new plan is made from the worker as it is then.",
        )
    tell({"kind": "decision", "text": f"{decision.decision} by {decision.by} through {decision.door}"})
    if decision.decision == "reject":
        verdict = Verdict(
            decision="rejected",
            state="untouched",
            why=f"{decision.by} rejected the plan" + (f": {decision.reason}" if decision.reason else "."),
        )
        return Command(update={"approval": decision, "verdict": verdict}, goto="record")
    return Command(update={"approval": decision}, goto="execute")
