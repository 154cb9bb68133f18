"""Verdict -> Record: chained to the one before, and a paragraph in the plan document that people read."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from langgraph.runtime import Runtime
from langgraph.types import Command

from agent.domain import Record
from agent.errors import HostError, Refused
from agent.nodes.carried import still_ours
from agent.state import Parts, RunState, Tell, tell_of
from tools.perf_plan import append_record


def record(state: RunState, runtime: Runtime[Parts]) -> Command[Literal["__end__"]]:
    """Write down what was asked, seen, done and decided; a second time returns what was written the first."""
    parts, tell = runtime.context, tell_of(runtime.stream_writer)
    tell({"kind": "node", "text": "record"})
    still_ours(state["request"].run, parts)
    request, plan = state["request"], state.get("plan")
    written = parts.store.append(
        Record(
            seq=1,
            run=request.run,
            worker=request.worker,
            at=parts.clock(),
            request=request,
            change=state.get("change"),
            evidence=tuple(state.get("evidence", ())),
            precedents=tuple(state.get("precedents", ())),
            risk=state.get("risk"),
            forecast=state.get("forecast"),
            plan=plan,
            plan_digest=plan.digest if plan else None,
            approval=state.get("approval"),
            execution=state.get("execution"),
            readings=tuple(state.get("readings", ())),
            noise=state.get("noise"),
            verdict=state["verdict"],
            notes=(*state.get("notes", ()), *parts.heard.lines),
            previous="0" * 64,
        )
    )
    _let_go(parts, tell, request.run, begun=state.get("approval") is not None)
    _write_plan_document(written, parts, tell)
    parts.store.end_run(written.run, parts.clock())
    tell({"kind": "recorded", "text": f"record {written.seq}, hash {written.hash[:12]}: prudent show {written.run}"})
    return Command(update={"record": written}, goto="__end__")


def _let_go(parts: Parts, tell: Tell, run: str, *, begun: bool) -> None:
    """Give the worker's lease back, where it was taken; where that fails it runs out by itself."""
    try:
        parts.worker.transaction(run).release(inherited=begun)
    except (Refused, HostError) as problem:
        tell({"kind": "note", "text": f"the lease runs out by itself: {problem}"})


def _write_plan_document(written: Record, parts: Parts, tell: Tell) -> None:
    """Append the decision to the performance plan, where the worker has one and the change was tried on it."""
    if parts.settings.plan is None or written.execution is None or written.change is None:
        return
    words = tuple(word for setting in written.change.settings for word in _names(parts, setting.knob))
    outcome = append_record(Path(parts.settings.plan), written, words=words)
    for note in outcome.notes:
        tell({"kind": "note", "text": note})
    if outcome.written:
        commit = f", commit {outcome.committed[:10]}" if outcome.committed else ""
        tell({"kind": "recorded", "text": f"{parts.settings.plan}{commit}"})


def _names(parts: Parts, name: str) -> tuple[str, ...]:
    knob = next((knob for knob in parts.knobs if knob.name == name), None)
    return (name, *(spelling.text for spelling in knob.spellings), *knob.words) if knob else (name,)
