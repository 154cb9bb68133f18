"""Execution -> Readings: the start first, then load, cheap and decisive checks before dear ones; a breach ends it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Literal

from langgraph.runtime import Runtime
from langgraph.types import Command

from agent.domain import Check, Execution, Finding, Plan, Reading, Step
from agent.errors import HelperRefused, HostError, Refused, Stopped
from agent.nodes.carried import still_ours
from agent.nodes.execute import FIRST_START, measure, said, wait_for_users
from agent.nodes.plan_verification import LIMIT_OF_A_CHECK_SECONDS, outside_the_window, wanted_in_force
from agent.nodes.startup import log_mark, note_log_mark, nothing_known, read_start
from agent.state import Parts, RunState, Tell, stoppable, tell_of
from policies.judge import breached_so_far, judge
from policies.metrics import known
from tools.transaction import Heartbeat


def verify(state: RunState, runtime: Runtime[Parts]) -> Command[Literal["decide"]]:
    """Measure; what could not be measured is a reading without a value, and the law knows what that means."""
    parts, tell = runtime.context, tell_of(runtime.stream_writer)
    tell({"kind": "node", "text": "verify"})
    still_ours(state["request"].run, parts)
    if parts.stop.asked.is_set():
        return Command(update={"notes": (_cut_short(parts),)}, goto="decide")
    plan = state["plan"]
    notes: tuple[str, ...] = ()
    with_the_change = _Candidate(state, parts, tell)
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


class _Candidate:
    """The worker with the change, as far as it has been measured."""

    def __init__(self, state: RunState, parts: Parts, tell: Tell) -> None:
        self.execution: Execution = state["execution"]
        self.readings: list[Reading] = []
        self.notes: list[str] = []
        self._plan: Plan = state["plan"]
        self._noise = state.get("noise")
        self._before = [reading for reading in state.get("readings", ()) if reading.phase == "baseline"]
        self._parts = parts
        self._tell = tell
        self._boot = 1
        self._gone = False
        self._ends = parts.clock() + timedelta(minutes=parts.policy.limits.budgets.minutes)

    def measure(self, pulse: Heartbeat) -> None:
        """Follow the start, send the load, and start a second time where the plan has a step for it that is needed."""
        with suppress(HostError):  # a start is followed over a link that fails for a while, too
            moved = self._moved()
            if moved is not None:
                self.notes.append(moved)
                return
        self._start(self.execution, boot=1)
        self._load(self._plan.checks, pulse, boot=1)
        for step in self._plan.steps[FIRST_START:]:
            unsettled = self._unsettled()
            first = self.execution.after
            if self._over(pulse) or (step.optional and not unsettled) or not self._again(step):
                return
            self._start(self.execution.model_copy(update={"before": first}), boot=2)
            self._load([check for check in self._plan.checks if check.name in unsettled], pulse, boot=2)

    def _moved(self) -> str | None:
        """Why the worker does not run as this run's own steps left it; None: it does.

        Raises:
            Refused, HostError: the host does not say.
        """
        done = self._parts.worker.transaction(self._plan.run).status()
        if done is None or done.state != "open":
            return "The host took the change back before it was verified."
        later = {step.id for step in self._plan.steps[FIRST_START:]}
        if self._boot == 1 and any(entry.step in later for entry in done.journal):
            return "The run was left in its second start, and what it had measured before is lost."
        return None

    def admit_what_is_not_known(self) -> None:
        """Say of a start that was begun and not followed that nothing is known: what went before proves nothing."""
        if self._boot > 1 and not any(r.metric == "start_failed" and r.boot == self._boot for r in self.readings):
            unknown = nothing_known("candidate", "nobody saw how the second start went")
            self.readings += [reading.model_copy(update={"boot": self._boot}) for reading in unknown]

    def _again(self, step: Step) -> bool:
        """Start the worker a second time with the change; False: that may not be done now."""
        transaction = self._parts.worker.transaction(self._plan.run)
        try:
            if not self._parts.policy.limits.open_at(self._parts.clock()):
                raise outside_the_window(self._parts)
            wait_for_users(self._plan, self._parts, self._tell)
        except Refused as refusal:
            self.notes.append(f"It was not started a second time: {refusal.sentence}")
            return False
        self._tell({"kind": "step", "text": step.what})
        note_log_mark(self._plan.run, "candidate", self._parts)
        self._boot = 2
        try:
            self.execution = transaction.step(step.id)
        except HelperRefused as refusal:
            if refusal.kind != "failed":
                raise
            self.execution = self.execution.model_copy(update={"problem": refusal.said})
        return True

    def _start(self, execution: Execution, *, boot: int) -> None:
        baseline_start = next((r.value for r in self._before if r.metric == "start_seconds"), None)
        found = read_start(
            execution,
            self._plan.change.settings,
            wanted_in_force(self._plan.change, self._parts.knobs),
            self._plan.steps[0].before.effective,
            phase="candidate",
            limit_seconds=self._parts.policy.times.start_limit_seconds(baseline_start),
            log_before=log_mark(self._plan.run, "candidate", self._parts),
            parts=self._parts,
            tell=stoppable(self._tell, self._parts.stop),
            pause=lambda seconds: _pause(seconds, self._parts),
        )
        for reading in found:
            self._tell({"kind": "reading", "text": f"candidate: {said(reading)}"})
        self._keep(found, boot)

    def _load(self, checks: Sequence[Check], pulse: Heartbeat, *, boot: int) -> None:
        for number, check in enumerate(checks):
            if self._over(pulse):
                return
            left = (self._ends - self._parts.clock()).total_seconds()
            seed = self._parts.seed + 100 * boot + number
            limit = min(LIMIT_OF_A_CHECK_SECONDS + check.seconds, left)
            self._keep(measure(check, "candidate", seed, self._parts, self._tell, limit_seconds=limit), boot)

    def _keep(self, found: Sequence[Reading], boot: int) -> None:
        """Keep readings; those that show a breach only if the host says that the change is still in place."""
        had = len(self.readings)
        self.readings += [reading.model_copy(update={"boot": boot}) for reading in found]
        breached = self._breached()
        if not breached:
            return
        try:
            doubt = self._moved()
        except (Refused, HostError) as problem:
            doubt = f"The host does not say whether the change was in place: {problem}"
        if doubt is not None:
            del self.readings[had:]
            self._gone = True
            self.notes.append(f"{doubt} So this does not count: {breached[0].says}")

    def _over(self, pulse: Heartbeat) -> bool:
        """Whether nothing more is to be measured: it is lost, stopped, decided, or the budget is spent."""
        if self._gone or pulse.lost is not None or self._parts.stop.asked.is_set() or self._breached():
            return True
        if self._parts.clock() < self._ends:
            return False
        minutes = self._parts.policy.limits.budgets.minutes
        self.notes.append(f"The budget of {minutes:g} minutes was spent before everything was measured.")
        return True

    def _breached(self) -> tuple[Finding, ...]:
        return breached_so_far(self._plan.criteria, (*self._before, *self.readings), self._noise, self._plan.checks)

    def _unsettled(self) -> set[str]:
        """The checks that a second start has to repeat: those of criteria that have readings and are not settled."""
        judged = judge(self._plan.criteria, (*self._before, *self.readings), self._noise, self._plan.checks)
        metrics = {criterion.id: known(criterion.metric) for criterion in self._plan.criteria}
        undecided = [metrics[finding.criterion] for finding in judged.findings if finding.outcome == "undecided"]
        return {check for metric in undecided if metric is not None for check in metric.checks}


def _pause(seconds: float, parts: Parts) -> None:
    """Let time pass, unless somebody asked to stop: a start that stands still says nothing that would end the wait."""
    if parts.stop.asked.wait(seconds):
        raise Stopped(parts.stop.why)


def _cut_short(parts: Parts) -> str:
    return f"The run was {parts.stop.why} before it was verified."
