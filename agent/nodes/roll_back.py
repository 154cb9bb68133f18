"""Verdict -> the configuration from before, proven; what cannot be proven needs a person, loudly."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from langgraph.runtime import Runtime
from langgraph.types import Command

from agent.domain import Execution, HostState, Plan, ProvenState, Reading, Setting, Verdict
from agent.errors import HostError, NoAnswer, PrudentError, Refused
from agent.nodes.carried import still_ours
from agent.nodes.execute import fenced, said
from agent.nodes.startup import log_mark, note_log_mark, read_start
from agent.state import Parts, RunState, Tell, tell_of
from tools.transaction import Observation

ATTEMPTS = 3
"""How often an undo is asked for when the link or the restart fails; the helper does each part of it once."""


def roll_back(state: RunState, runtime: Runtime[Parts]) -> Command[Literal["record"]]:
    """Take the change back through the helper and prove that the worker is as it was."""
    parts, tell = runtime.context, tell_of(runtime.stream_writer)
    tell({"kind": "node", "text": "roll back"})
    still_ours(state["request"].run, parts)
    plan, verdict = state["plan"], state["verdict"]
    undone = _undo(plan, parts, tell)
    update: dict[str, Any] = {"execution": undone.execution} if undone.execution else {}
    if undone.execution is not None and _by_watchdog(undone.execution):
        update["notes"] = ("The host's watchdog took the change back, because it heard nothing more of the run.",)
    if undone.execution is None and undone.problem is None:
        return Command(update={"verdict": verdict.model_copy(update={"state": "untouched"})}, goto="record")
    if undone.problem is not None or undone.execution is None:
        return Command(update={**update, "verdict": _lost(verdict, plan, str(undone.problem))}, goto="record")
    if undone.execution.state == "committed":
        return Command(
            update={**update, "verdict": _lost(verdict, plan, "it was confirmed on the host")}, goto="record"
        )
    proof = _prove(plan, undone.execution, parts, tell)
    if proof.doubt is not None:
        return Command(
            update={**update, "readings": proof.readings, "verdict": _lost(verdict, plan, proof.doubt)}, goto="record"
        )
    tell({"kind": "step", "text": "the configuration from before is live again, proven"})
    why = f"{verdict.why} {proof.since}" if proof.since else verdict.why
    settled = verdict.model_copy(update={"state": proof.state, "why": why})
    return Command(update={**update, "readings": proof.readings, "verdict": settled}, goto="record")


class _Undone(NamedTuple):
    execution: Execution | None
    problem: PrudentError | None


class _Proof(NamedTuple):
    state: ProvenState
    readings: tuple[Reading, ...] = ()
    doubt: str | None = None
    since: str | None = None
    """What somebody else has done to the worker since then."""


def _undo(plan: Plan, parts: Parts, tell: Tell) -> _Undone:
    """Ask the helper until it answers; it knows what is done already."""
    transaction = parts.worker.transaction(plan.run)
    problem: PrudentError | None = None
    execution: Execution | None = None
    for attempt in range(1, ATTEMPTS + 1):
        still_ours(plan.run, parts)
        try:
            execution = transaction.status() or fenced(transaction, plan.watchdog_seconds)
            if execution is None:
                return _Undone(None, None)
            if execution.state in {"undone", "committed"}:
                return _Undone(execution, None)
            tell({"kind": "step", "text": f"taking it back: {plan.change.summary}"})
            if not log_mark(plan.run, "restored", parts):
                # Asked again, the start may lie behind us: what proves it is in the log from the first time on.
                note_log_mark(plan.run, "restored", parts)
            return _Undone(transaction.undo(plan.watchdog_seconds), None)
        except NoAnswer as error:
            problem = error
        except (Refused, HostError) as error:
            problem = error
            if getattr(error, "kind", "") in {"foreign_edit", "not_open"}:
                break
        tell({"kind": "note", "text": f"attempt {attempt} of {ATTEMPTS}: {problem}"})
        parts.worker.rest(min(2.0**attempt, 10.0))
    return _Undone(execution, problem)


def _prove(plan: Plan, execution: Execution, parts: Parts, tell: Tell) -> _Proof:
    """The script's bytes, the process, its argv, the values in force and a request through the entry."""
    expected = plan.steps[0].before
    try:
        seen = parts.worker.observe()
    except (Refused, HostError) as problem:
        return _Proof("unknown", doubt=f"the host does not say how things stand: {problem}")
    if seen.script_sha256 != expected.script_sha256:
        since = _since(seen, execution, expected)
        if since is not None:
            return _Proof("restored", since=since)
        return _Proof("unknown", doubt="the serve script is not, byte for byte, the one from before")
    if seen.process is not None and seen.process.identity == expected.process:
        return _Proof("untouched" if _never_written(execution) else "restored")
    process = execution.after or seen.process
    if seen.process is not None and process is not None and process.identity != seen.process.identity:
        process = seen.process
    baseline_start = next(
        (r.value for r in parts.store.readings(plan.run, "baseline") if r.metric == "start_seconds"), None
    )
    readings = read_start(
        execution.model_copy(update={"after": process, "problem": None}),
        tuple(_backwards(setting) for setting in plan.change.settings),
        {
            setting.knob: expected.effective[setting.knob]
            for setting in plan.change.settings
            if setting.knob in expected.effective
        },
        dict(expected.effective),
        phase="restored",
        limit_seconds=parts.policy.times.start_limit_seconds(baseline_start),
        log_before=log_mark(plan.run, "restored", parts) or log_mark(plan.run, "candidate", parts),
        parts=parts,
        tell=tell,
    )
    parts.store.keep_readings(plan.run, readings)
    wanted = {"start_failed": 0.0, "identity_proven": 1.0, "effective_matches": 1.0, "entry_answers": 1.0}
    by_metric = {reading.metric: reading for reading in readings}
    for metric, value in wanted.items():
        reading = by_metric.get(metric)
        if reading is None or reading.value != value:
            heard = "no reading" if reading is None else said(reading)
            return _Proof("unknown", readings, f"{metric.replace('_', ' ')}: {heard}")
    for reading in readings:
        tell({"kind": "reading", "text": f"restored: {said(reading)}"})
    return _Proof("restored", readings)


def _since(seen: Observation, execution: Execution, expected: HostState) -> str | None:
    """Who has changed the worker since it was taken back; None: that cannot be told from the host's journal.

    The later transaction has to start from the very process that the undo left, with the script as it was: only then
    nothing lies between the two.
    """
    undone, later = execution.journal[-1], seen.execution
    if undone.event != "undone" or undone.detail.get("script_sha256") != expected.script_sha256:
        return None
    if later is None or later.before is None or execution.after is None:
        return None
    if later.transaction == execution.transaction or later.before.identity != execution.after.identity:
        return None
    who = later.journal[0].detail.get("who")
    carried = f", carried by {who}," if who else ""
    return (
        f"By the host's journal the {undone.by} restored the configuration from before, and run {later.transaction}"
        f"{carried} has changed the worker since then."
    )


def _by_watchdog(execution: Execution) -> bool:
    return execution.journal[-1].event == "undone" and execution.journal[-1].by == "watchdog"


def _never_written(execution: Execution) -> bool:
    return all(entry.event not in {"begun", "done"} for entry in execution.journal)


def _backwards(setting: Setting) -> Setting:
    return setting.model_copy(update={"old": setting.new, "new": setting.old})


def _lost(verdict: Verdict, plan: Plan, why: str) -> Verdict:
    """What cannot be proven is said to be unknown, with what was meant to come of it."""
    return Verdict(
        decision="needs_human",
        state="unknown",
        why=f"The change was to be taken back ({verdict.why}), and that could not be proven: {why}",
        findings=verdict.findings,
        decided_by=verdict.decided_by,
        reopen_when=verdict.reopen_when,
        remedy=(
            f"Look at {plan.worker} on {plan.host} now: the script {plan.backup_of}, its process and its log; "
            f"prudent show {plan.run} has the journal. If the next ask says that this run is not settled, put the "
            f"worker right and say so with: prudent settle {plan.run} --reason WHAT-YOU-DID"
        ),
    )
