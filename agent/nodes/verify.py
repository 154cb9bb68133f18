"""Execution -> Readings: the start first, then load, cheap and decisive checks before dear ones; a breach ends it."""

from __future__ import annotations

from typing import Literal

from langgraph.runtime import Runtime
from langgraph.types import Command

from agent.domain import Reading
from agent.errors import HostError, Refused, Stopped
from agent.nodes.execute import measure, said
from agent.nodes.plan_verification import wanted_in_force
from agent.nodes.startup import log_bytes, read_start
from agent.state import Parts, RunState, stoppable, tell_of
from policies.judge import breached_so_far


def verify(state: RunState, runtime: Runtime[Parts]) -> Command[Literal["decide"]]:
    """Measure; what could not be measured is a reading without a value, and the law knows what that means."""
    parts, tell = runtime.context, tell_of(runtime.stream_writer)
    tell({"kind": "node", "text": "verify"})
    plan, execution = state["plan"], state["execution"]
    taken = [reading for reading in state.get("readings", ()) if reading.phase == "baseline"]
    if parts.stop.asked.is_set():
        return Command(update={"notes": (_cut_short(parts),)}, goto="decide")
    baseline_start = next((r.value for r in taken if r.metric == "start_seconds"), None)
    new: list[Reading] = []
    try:
        with parts.worker.transaction(plan.run).heartbeat(plan.watchdog_seconds) as pulse:
            new += read_start(
                execution,
                plan.change.settings,
                wanted_in_force(plan.change, parts.knobs),
                plan.steps[0].before.effective,
                phase="candidate",
                limit_seconds=parts.policy.times.start_limit_seconds(baseline_start),
                log_before=log_bytes(plan.run, "candidate", parts),
                parts=parts,
                tell=stoppable(tell, parts.stop),
                pause=lambda seconds: _pause(seconds, parts),
            )
            for reading in new:
                tell({"kind": "reading", "text": f"candidate: {said(reading)}"})
            for number, check in enumerate(plan.checks):
                if pulse.lost is not None or parts.stop.asked.is_set():
                    break
                if breached_so_far(plan.criteria, (*taken, *new), state.get("noise"), plan.checks):
                    break
                new += measure(check, "candidate", parts.seed + 100 + number, parts, tell)
    except Stopped:
        return Command(update={"readings": tuple(new), "notes": (_cut_short(parts),)}, goto="decide")
    except (Refused, HostError) as problem:
        tell({"kind": "note", "text": f"verification broke off: {problem}"})
        return Command(update={"readings": tuple(new), "notes": (f"Verification broke off: {problem}",)}, goto="decide")
    notes = (f"The transaction was lost while it was verified: {pulse.lost}",) if pulse.lost else ()
    parts.store.keep_readings(plan.run, new)
    return Command(update={"readings": tuple(new), "notes": notes}, goto="decide")


def _pause(seconds: float, parts: Parts) -> None:
    """Let time pass, unless somebody asked to stop: a start that stands still says nothing that would end the wait."""
    if parts.stop.asked.wait(seconds):
        raise Stopped(parts.stop.why)


def _cut_short(parts: Parts) -> str:
    return f"The run was {parts.stop.why} before it was verified."
