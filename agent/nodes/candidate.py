"""The worker with the change, measured start by start until the law says that it is settled."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from agent.domain import Check, CheckName, Execution, Finding, Phase, Plan, Process, Reading, Setting, Step
from agent.errors import HelperRefused, HostError, Refused, Stopped
from agent.nodes.execute import FIRST_START, measure, said, wait_for_users
from agent.nodes.plan_verification import LIMIT_OF_A_CHECK_SECONDS, outside_the_window, wanted_in_force
from agent.nodes.spent import first_change
from agent.nodes.starts import Turn, turns, values_before
from agent.nodes.startup import log_mark, note_log_mark, nothing_known, read_start
from agent.state import Parts, RunState, Tell, stoppable
from policies.demands import compared
from policies.judge import breached_so_far, judge
from policies.metrics import known
from tools.transaction import TICKS_PER_SECOND, Heartbeat

PROVEN = {"start_failed": 0.0, "identity_proven": 1.0, "effective_matches": 1.0}
"""What a start of the old setting has to show before anything that is measured of it counts as its own."""


class Candidate:
    """A change that is live, as far as it has been measured.

    Args:
        state: The run, with its plan and its baseline.
        parts: What a node may use.
        tell: Hears what is found.
    """

    def __init__(self, state: RunState, parts: Parts, tell: Tell) -> None:
        self.execution: Execution = state["execution"]
        self.readings: list[Reading] = []
        self.notes: list[str] = []
        self._plan: Plan = state["plan"]
        self._noise = state.get("noise")
        self._before = [reading for reading in state.get("readings", ()) if reading.phase == "baseline"]
        self._parts = parts
        self._tell = tell
        self._last_start = next((r.value for r in self._before if r.metric == "start_seconds"), None)
        self._earlier: Process | None = None
        self._boots: dict[Phase, int] = {"baseline": 1, "candidate": 1}
        self._taken: set[str] = set()
        self._gone = False
        begun = first_change(self._plan.run, parts) or parts.clock()
        self._ends = begun + timedelta(minutes=parts.policy.limits.budgets.minutes)

    def measure(self, pulse: Heartbeat) -> None:
        """Follow the start, send the load, and start again, as the plan has it, while something is not settled."""
        with suppress(HostError):  # a start is followed over a link that fails for a while, too
            moved = self._moved()
            if moved is not None:
                self.notes.append(moved)
                return
        self._start("candidate")
        self._load(self._plan.checks, pulse, "candidate")
        for turn in turns(self._plan.steps[FIRST_START:]):
            pair = len(turn) > 1
            unsettled = self._compares() if pair else self._undecided()
            if self._over(pulse) or (turn[-1].optional and not unsettled) or not self._allowed():
                return
            again = [check for check in self._plan.checks if check.name in unsettled]
            # Nothing may be kept from here on before the start that ends this turn is proven.
            self._boots["candidate"] += 1
            if pair and not (self._old(turn[:2], again, pulse) and self._allowed()):
                return
            self._take(turn[-2:])
            self._start("candidate")
            self._load(again, pulse, "candidate")

    def admit_what_is_not_known(self) -> None:
        """Say of a start that was begun and not followed that nothing is known: what went before proves nothing."""
        boot = self._boots["candidate"]
        if boot > 1 and not self._of("start_failed", "candidate", boot):
            unknown = nothing_known("candidate", f"nobody saw how start {boot} went")
            self.readings += [reading.model_copy(update={"boot": boot}) for reading in unknown]

    def _old(self, steps: Turn, checks: Sequence[Check], pulse: Heartbeat) -> bool:
        """Start the old setting and measure it again; False: nothing is gained by starting the change after it."""
        self._boots["baseline"] += 1
        boot = self._boots["baseline"]
        self._take(steps)
        self._start("baseline")
        for metric, value in PROVEN.items():
            here = self._of(metric, "baseline", boot)
            if [reading.value for reading in here] != [value]:
                heard = said(here[0]) if here else "no reading"
                self.notes.append(f"The old setting could not be measured again: {heard}")
                return False
        self._load([check for check in checks if check.before], pulse, "baseline")
        measured = {criterion.metric for criterion in self._plan.criteria if criterion.of == "baseline"}
        silent = [r for metric in measured for r in self._of(metric, "baseline", boot) if r.no_data is not None]
        if silent:
            self.notes.append(f"The old setting could not be measured again: {said(silent[0])}")
        return not silent and not self._over(pulse)

    def _moved(self) -> str | None:
        """Why the worker does not run as this run's own steps left it; None: it does.

        Raises:
            Refused, HostError: the host does not say.
        """
        done = self._parts.worker.transaction(self._plan.run).status()
        if done is None or done.state != "open":
            return "The host took the change back before it was verified."
        later = {step.id for step in self._plan.steps[FIRST_START:]} - self._taken
        if any(entry.step in later for entry in done.journal):
            return "The run was left in a further start, and what it had measured before is lost."
        return None

    def _allowed(self) -> bool:
        """Whether the worker may be started once more now."""
        try:
            if not self._parts.policy.limits.open_at(self._parts.clock()):
                raise outside_the_window(self._parts)
            wait_for_users(self._plan, self._parts, self._tell)
        except Refused as refusal:
            self.notes.append(f"It was not started again: {refusal.sentence}")
            return False
        return True

    def _take(self, steps: Sequence[Step]) -> None:
        """Take the steps of one further start; a start that fails is a problem of the execution."""
        transaction = self._parts.worker.transaction(self._plan.run)
        self._earlier = self.execution.after
        for step in steps:
            self._tell({"kind": "step", "text": step.what})
            if step.action == "restart":
                note_log_mark(self._plan.run, "candidate", self._parts)
            self._taken.add(step.id)
            try:
                self.execution = transaction.step(step.id)
            except HelperRefused as refusal:
                if refusal.kind != "failed":
                    raise
                self.execution = self.execution.model_copy(update={"problem": refusal.said})

    def _start(self, phase: Phase) -> None:
        """Follow the start that was asked for last: of the change, or of the old setting."""
        change, effective = self._plan.change, self._plan.steps[0].before.effective
        old = phase == "baseline"
        execution = self.execution.model_copy(update={"before": self._earlier or self.execution.before})
        found = read_start(
            execution,
            tuple(map(_backwards, change.settings)) if old else change.settings,
            values_before(change, effective) if old else wanted_in_force(change, self._parts.knobs),
            effective,
            phase=phase,
            limit_seconds=self._parts.policy.times.start_limit_seconds(self._last_start),
            log_before=log_mark(self._plan.run, "candidate", self._parts),
            parts=self._parts,
            tell=stoppable(self._tell, self._parts.stop),
            pause=lambda seconds: _pause(seconds, self._parts),
        )
        for reading in found:
            self._tell({"kind": "reading", "text": f"{phase}: {said(reading)}"})
        self._keep(found, phase)

    def _load(self, checks: Sequence[Check], pulse: Heartbeat, phase: Phase) -> None:
        boot = self._boots[phase]
        for number, check in enumerate(checks):
            if self._over(pulse):
                return
            left = (self._ends - self._parts.clock()).total_seconds()
            # The baseline of the first boot has the seeds below 100, and no two boots share any.
            seed = self._parts.seed + 100 * boot + (5000 if phase == "baseline" else 0) + number
            limit = min(LIMIT_OF_A_CHECK_SECONDS + check.seconds, left)
            found = measure(check, phase, seed, self._parts, self._tell, limit_seconds=limit)
            self._keep((*found, *self._ended(check, found, phase)), phase)

    def _ended(self, check: Check, found: Sequence[Reading], phase: Phase) -> tuple[Reading, ...]:
        """Evidence that the process that was proven is no more, where its load brought errors or nothing home."""
        started = self.execution.after
        if started is None or all(reading.no_data is None and not reading.bad for reading in found):
            return ()
        try:
            seen = self._parts.worker.observe()
            rebooted = seen.now is not None and seen.now * TICKS_PER_SECOND < started.start_ticks
            here = None if seen.process is None else seen.process.identity
            if seen.process_problem is not None or rebooted or here == started.identity:
                return ()
            facts = self._parts.worker.facts(after=log_mark(self._plan.run, "candidate", self._parts))
        except (Refused, HostError):
            return ()
        instead = "nobody runs instead" if seen.process is None else f"pid {seen.process.pid} runs instead"
        fatal = [failure.line[:300] for failure in facts.failures if failure.fatal] if facts else []
        last = f"; the log says: {fatal[0]}" if fatal else ""
        detail = f"pid {started.pid} ended under the load of {check.name}, {instead}{last}"
        self._tell({"kind": "reading", "text": f"{phase}: {detail}"})
        self.notes.append(f"The worker ended while it was measured: {detail}.")
        gone = Reading(
            metric="identity_proven", phase=phase, value=0.0, unit="", n=1, source="its service", detail=detail
        )
        return (gone,)

    def _keep(self, found: Sequence[Reading], phase: Phase) -> None:
        """Keep readings; those that show a breach only if the host says that the change is still in place."""
        had = len(self.readings)
        self.readings += [reading.model_copy(update={"boot": self._boots[phase]}) for reading in found]
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
        return breached_so_far(self._plan.criteria, self._all, self._noise, self._plan.checks)

    def _compares(self) -> set[CheckName]:
        """The checks of comparisons that more boots of both sides can settle; none where something else stays open."""
        measuring = compared(self._plan.criteria)
        judged = judge(self._plan.criteria, self._all, self._noise, self._plan.checks)
        still = {finding.criterion for finding in judged.findings if finding.outcome != "met"}
        flawed = [
            reading
            for criterion in self._plan.criteria
            for reading in self._all
            if criterion.id in still and reading.metric == criterion.metric
            if reading.value is None or reading.n < criterion.minimum_n
        ]
        if flawed or not still <= set(measuring):
            return set()
        return {check for id_ in still for check in measuring[id_]}

    def _undecided(self) -> set[CheckName]:
        """The checks that a further start has to repeat: those of criteria that have readings and are not settled."""
        judged = judge(self._plan.criteria, self._all, self._noise, self._plan.checks)
        metrics = {criterion.id: known(criterion.metric) for criterion in self._plan.criteria}
        undecided = [metrics[finding.criterion] for finding in judged.findings if finding.outcome == "undecided"]
        return {check for metric in undecided if metric is not None for check in metric.checks}

    def _of(self, metric: str, phase: Phase, boot: int) -> list[Reading]:
        return [r for r in self.readings if (r.metric, r.phase, r.boot) == (metric, phase, boot)]

    @property
    def _all(self) -> tuple[Reading, ...]:
        return (*self._before, *self.readings)


def _backwards(setting: Setting) -> Setting:
    return setting.model_copy(update={"old": setting.new, "new": setting.old})


def _pause(seconds: float, parts: Parts) -> None:
    """Let time pass, unless somebody asked to stop: a start that stands still says nothing that would end the wait."""
    if parts.stop.asked.wait(seconds):
        raise Stopped(parts.stop.why)
