"""Execution -> Readings: the start first, then load, cheap and decisive checks before dear ones; a breach ends it."""

from __future__ import annotations

from typing import Literal

from langgraph.runtime import Runtime
from langgraph.types import Command

from agent.errors import HostError, Refused, Stopped
from agent.nodes.candidate import Candidate
from agent.nodes.carried import still_ours
from agent.state import Parts, RunState, tell_of


def verify(state: RunState, runtime: Runtime[Parts]) -> Command[Literal["decide"]]:
    """Measure; what could not be measured is a reading without a value, and the law knows what that means."""
    parts, tell = runtime.context, tell_of(runtime.stream_writer)
    tell({"kind": "node", "text": "verify"})
    still_ours(state["request"].run, parts)
    if parts.stop.asked.is_set():
        return Command(update={"notes": (_cut_short(parts),)}, goto="decide")
    plan = state["plan"]
    notes: tuple[str, ...] = ()
    with_the_change = Candidate(state, parts, tell)
    try:
        with parts.worker.transaction(plan.run).heartbeat(plan.watchdog_seconds) as pulse:
            with_the_change.measure(pulse)
        if pulse.lost:
            notes = (f"The transaction was lost while it was verified: {pulse.lost}",)
    except Stopped:
        notes = (_cut_short(parts),)
    except (Refused, HostError) as problem:
        tell({"kind": "note", "text": f"verification broke off: {problem}"})
        notes = (f"Verification broke off: {problem}",)
    with_the_change.admit_what_is_not_known()
    parts.store.keep_readings(plan.run, with_the_change.readings)
    update = {"readings": tuple(with_the_change.readings), "execution": with_the_change.execution}
    return Command(update={**update, "notes": (*with_the_change.notes, *notes)}, goto="decide")


def _cut_short(parts: Parts) -> str:
    return f"The run was {parts.stop.why} before it was verified."
