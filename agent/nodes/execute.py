"""Approval -> Execution: the baseline first, then the steps, each through the helper on the host."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any, Literal

from langgraph.runtime import Runtime
from langgraph.types import Command

from agent.domain import Check, Execution, Phase, Plan, Reading, Verdict
from agent.errors import (
    ApprovalExpired,
    ForeignApproval,
    HelperRefused,
    HostError,
    NoAnswer,
    NotAllowed,
    PrudentError,
    Refused,
    RunInFlight,
    SpentApproval,
    StaleState,
    Stopped,
    UsersOnWorker,
)
from agent.nodes.carried import refused, silent, still_ours, stopped
from agent.nodes.plan_verification import LIMIT_OF_A_CHECK_SECONDS, outside_the_window
from agent.nodes.spent import note_first_change
from agent.nodes.startup import note_log_mark, start_seconds
from agent.state import Parts, RunState, Tell, stoppable, tell_of
from policies.demands import baseline_checks
from policies.judge import judge_baseline
from tools.probe import Stall
from tools.worker import RunTransaction, Snapshot

Exits = Command[Literal["verify", "roll_back", "record"]]
EXECUTING = "executing"
"""The state of a run from before anything is sent to the host that writes; whoever finds it has had a predecessor."""
FIRST_START = 2
"""Steps up to the first start with the change: the edit and the restart. What follows is `verify`'s."""


def execute(state: RunState, runtime: Runtime[Parts]) -> Exits:
    """Carry the plan out. Run again after a crash, it asks the host what was done and goes on from there."""
    parts, tell = runtime.context, tell_of(runtime.stream_writer)
    tell({"kind": "node", "text": "execute"})
    still_ours(state["request"].run, parts)
    plan = state["plan"]
    transaction, row = parts.worker.transaction(plan.run), parts.store.run(plan.run)
    predecessor = row is not None and row.state == EXECUTING
    parts.store.set_state(plan.run, EXECUTING)
    try:
        done = transaction.status()
        if done is None and predecessor:
            done = fenced(transaction, plan.watchdog_seconds)
    except (Refused, HostError) as error:
        verdict = _given_up(f"The host did not say how the change stands: {error}")
        return Command(update={"verdict": verdict}, goto="roll_back")
    return _go_on(state, done, parts, tell) if done is not None else _begin(state, parts, tell)


def _begin(state: RunState, parts: Parts, tell: Tell) -> Exits:
    """Everything before the first write, and the opening of the transaction: what stops it leaves nothing touched."""
    plan = state["plan"]
    transaction = parts.worker.transaction(plan.run)
    update: dict[str, Any] = {}
    try:
        if parts.stop.asked.is_set():
            return Command(update={"verdict": stopped(parts)}, goto="record")
        _check_approval(state, parts)
        _check_law(plan, parts)
        transaction.take(plan.watchdog_seconds + parts.policy.users.wait_seconds)
        # The lease is renewed all the way: users who take long, or a host that does, must not cost it.
        with transaction.heartbeat(plan.watchdog_seconds, opened=False):
            wait_for_users(plan, parts, tell)
            readings = _baseline(plan, parts, tell)
            noise = parts.store.noise(parts.name) or parts.policy.noise
            update = {"readings": readings, "noise": noise}
            unfit = _unfit(plan, readings)
            if unfit is not None:
                return Command(update={**update, "verdict": unfit}, goto="record")
            wait_for_users(plan, parts, tell)
            script = parts.worker.script()
            if hashlib.sha256(script).hexdigest() != plan.steps[0].before.script_sha256:
                raise _moved("script")
            note_log_mark(plan.run, "candidate", parts)
            content = parts.worker.edit(script, plan.change).content
            _check_law(plan, parts)  # the baseline and the users may have taken long
            note_first_change(plan.run, parts)
            done = transaction.open(plan, state["approval"], content, now=parts.clock())
    except Stopped:
        return Command(update={**update, "verdict": stopped(parts)}, goto="record")
    except Refused as refusal:
        return Command(update={**update, "verdict": refused(refusal)}, goto="record")
    except NoAnswer as error:
        return Command(update={**update, "verdict": _given_up(f"The host did not answer: {error}")}, goto="roll_back")
    except HostError as error:
        return Command(update={**update, "verdict": silent(error)}, goto="record")
    tell({"kind": "step", "text": "backup taken, watchdog armed"})
    return _steps(state, done, update, parts, tell)


def fenced(transaction: RunTransaction, ttl: float) -> Execution | None:
    """Where no transaction is open yet, make sure that none will be: an opening may still be on its way to the host.

    Raises:
        Refused, HostError: the host does not say, so that an opening may still come to pass.
    """
    with suppress(RunInFlight):  # whoever else holds the lease has fenced us off already
        transaction.take(ttl)
    return transaction.status()


def _go_on(state: RunState, done: Execution, parts: Parts, tell: Tell) -> Exits:
    """A transaction is there already: go on with it while it is open and nobody wants to stop, else take it back."""
    plan = state["plan"]
    readings = tuple(r for r in parts.store.readings(plan.run, "baseline"))
    update: dict[str, Any] = {"readings": readings, "noise": parts.store.noise(parts.name) or parts.policy.noise}
    if parts.stop.asked.is_set():
        verdict = _given_up(f"The run was {parts.stop.why} with the change begun.")
        return Command(update={**update, "execution": done, "verdict": verdict}, goto="roll_back")
    if done.state != "open":
        verdict = _given_up(f"The host took the change back before it was verified ({done.state.replace('_', ' ')}).")
        return Command(update={**update, "execution": done, "verdict": verdict}, goto="roll_back")
    try:
        if not {step.id for step in plan.steps[:FIRST_START]} <= {e.step for e in done.journal if e.event == "done"}:
            _check_law(plan, parts)
    except NotAllowed as refusal:
        verdict = _given_up(f"With the change begun, it may not go on. {refusal.sentence}")
        return Command(update={**update, "execution": done, "verdict": verdict}, goto="roll_back")
    return _steps(state, done, update, parts, tell)


def _steps(state: RunState, done: Execution, update: dict[str, Any], parts: Parts, tell: Tell) -> Exits:
    """Take the steps that are not taken. From here on whatever goes wrong is taken back, never called untouched."""
    plan = state["plan"]
    transaction = parts.worker.transaction(plan.run)
    try:
        parts.store.spend(plan.run, plan.digest)
        with transaction.heartbeat(plan.watchdog_seconds) as pulse:
            for step in plan.steps[:FIRST_START]:
                if parts.stop.asked.is_set() or pulse.lost is not None:
                    why = pulse.lost or f"The run was {parts.stop.why} with the change begun."
                    return Command(update={**update, "execution": done, "verdict": _given_up(why)}, goto="roll_back")
                tell({"kind": "step", "text": step.what})
                done = transaction.step(step.id)
    except HelperRefused as refusal:
        if refusal.kind == "failed":
            failed = done.model_copy(update={"problem": refusal.said})
            return Command(update={**update, "execution": failed}, goto="verify")
        verdict = _given_up(f"The host refused a step: {refusal.said}")
        return Command(update={**update, "execution": done, "verdict": verdict}, goto="roll_back")
    except PrudentError as error:
        verdict = _given_up(f"A step could not be carried out: {error}")
        return Command(update={**update, "execution": done, "verdict": verdict}, goto="roll_back")
    return Command(update={**update, "execution": done}, goto="verify")


def _moved(what: str) -> StaleState:
    return StaleState(
        f"The worker's {what} is not the one that the plan was made for.",
        "Ask again: the plan has to be made anew for what is there now.",
    )


def _check_approval(state: RunState, parts: Parts) -> None:
    """The approval must be a yes to this very plan, in time and unspent; the helper on the host checks it again."""
    plan, approval = state["plan"], state["approval"]
    if approval.decision != "approve" or approval.digest != plan.digest or approval.run != plan.run:
        raise ForeignApproval("The approval is not for this plan.", f"Read the plan with prudent show {plan.run}.")
    if parts.clock() > approval.expires:
        raise ApprovalExpired(
            f"The approval ran out at {approval.expires:%H:%M:%S} UTC.",
            "Ask again; a new plan is made from the worker as it is then.",
        )
    if parts.store.is_spent(plan.run, plan.digest):
        raise SpentApproval("The approval has been used.", "Ask again for a new plan.")


def _check_law(plan: Plan, parts: Parts) -> None:
    """The policy must be the one that the plan was made under, and let the worker be changed now.

    Raises:
        NotAllowed: it was changed since, or its window has closed.
    """
    if plan.policy != parts.policy.label:
        raise NotAllowed(
            f"The plan was made under policy {plan.policy}, and worker {parts.name} is under {parts.policy.label} now.",
            "Ask again: the plan has to be made anew under the policy as it is now.",
        )
    if not parts.policy.limits.open_at(parts.clock()):
        raise outside_the_window(parts)


def _baseline(plan: Plan, parts: Parts, tell: Tell) -> tuple[Reading, ...]:
    """Measure the worker as it is, just before the change; what was measured before a crash is not measured again."""
    snapshot = parts.worker.snapshot()
    expected = plan.steps[0].before
    if snapshot.script_sha256 != expected.script_sha256 or snapshot.process.identity != expected.process:
        raise _moved("script" if snapshot.script_sha256 != expected.script_sha256 else "process")
    kept = tuple(parts.store.readings(plan.run, "baseline"))
    if kept:
        return kept
    readings = [_last_start(snapshot, parts)]
    for number, check in enumerate(baseline_checks(plan.checks)):
        readings += measure(check, "baseline", parts.seed + number, parts, tell)
    parts.store.keep_readings(plan.run, readings)
    return tuple(readings)


def _last_start(snapshot: Snapshot, parts: Parts) -> Reading:
    """How long the last start took; where its log is gone, how long the last one took that a record tells of."""
    read = start_seconds(snapshot.facts, "baseline", parts)
    if read.value is not None:
        return read
    for record in parts.store.records(worker=parts.name, limit=20):
        for earlier in reversed(record.readings):
            if earlier.metric == "start_seconds" and earlier.value is not None:
                return earlier.model_copy(update={"phase": "baseline", "source": f"run {record.run}"})
    return read


def measure(
    check: Check,
    phase: Phase,
    seed: int,
    parts: Parts,
    tell: Tell,
    *,
    limit_seconds: float = LIMIT_OF_A_CHECK_SECONDS,
) -> tuple[Reading, ...]:
    """Run one check and say what it found."""
    at = ", ".join(map(str, check.concurrency))
    tell({"kind": "check", "text": f"{phase}: {check.name} at {at} in flight"})
    or_stop = stoppable(tell, parts.stop)
    readings = parts.worker.check(
        check,
        phase=phase,
        seed=seed,
        limit_seconds=limit_seconds,
        stall=Stall(parts.policy.times.stall, parts.policy.times.stall_floor_seconds),
        tell=lambda text, share: or_stop({"kind": "progress", "text": f"{phase}: {text}", "share": share}),
    )
    for reading in readings:
        tell({"kind": "reading", "text": f"{phase}: {said(reading)}"})
    return readings


def said(reading: Reading) -> str:
    """A reading for people: the number where it is a rate, and what the probe says about it."""
    if reading.value is None:
        return f"{reading.metric.replace('_', ' ')}: no data, {reading.no_data}"
    if reading.concurrency is not None and reading.bad is None:
        return f"{reading.value:.0f} {reading.unit} at {reading.concurrency} in flight; {reading.detail}"
    return reading.detail or f"{reading.metric.replace('_', ' ')}: {reading.value:g} {reading.unit}".strip()


def _unfit(plan: Plan, readings: tuple[Reading, ...]) -> Verdict | None:
    """A baseline that is broken, or that there is none of, ends the run before the first write."""
    judged = judge_baseline(plan.criteria, readings, baseline_checks(plan.checks))
    if judged.decision == "proceed":
        return None
    if judged.decision == "refused":
        return Verdict(
            decision="refused",
            state="untouched",
            why=judged.why,
            findings=judged.findings,
            decided_by=judged.decided_by,
            refusal="CorruptBaseline",
            remedy="Mend the worker first; after a change nobody could tell whose fault it is.",
        )
    return Verdict(
        decision="deferred",
        state="untouched",
        why=judged.why,
        findings=judged.findings,
        decided_by=judged.decided_by,
        remedy="See why the baseline could not be measured, then ask again.",
    )


def wait_for_users(plan: Plan, parts: Parts, tell: Tell) -> None:
    """Give the users on the worker time to finish; beyond that the run gives way to them."""
    users = parts.policy.users
    begun = parts.clock()
    while True:
        live = parts.worker.live_requests()
        if live is not None and live <= users.at_most:
            return
        waited = (parts.clock() - begun).total_seconds()
        if waited >= users.wait_seconds:
            count = "an unknown number of" if live is None else str(live)
            raise UsersOnWorker(
                f"{count} requests are still in flight on worker {plan.worker} after {waited:.0f} s.",
                "Drain it or come back when it is quiet; nothing was touched.",
            )
        stoppable(tell, parts.stop)(
            {"kind": "progress", "text": f"waiting for users: {live if live is not None else '?'} in flight"}
        )
        parts.worker.rest(1.0)


def _given_up(why: str) -> Verdict:
    """A run that ends before its change was verified; what state the worker is in is proven on the way back."""
    return Verdict(decision="deferred", state="unknown", why=why, remedy="Ask again when it suits.")
