"""Change, Risk, Forecast -> Plan: the edit, the steps with their undo, the checks, and when it is taken back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from langgraph.runtime import Runtime
from langgraph.types import Command

from agent.domain import Change, Check, Criterion, Forecast, HostState, Knob, Plan, Step, Traffic, Verdict
from agent.errors import EditRefused, NotAllowed
from agent.nodes.carried import carried
from agent.nodes.starts import further_starts, starts_say
from agent.state import Parts, RunState, Tell
from policies.demands import checks_for, compared, criteria_for
from tools.engines.catalogue import in_force
from tools.serve_script.handover import Handover
from tools.serve_script.prove import Proof
from tools.worker import Edited, Snapshot

LIMIT_OF_A_CHECK_SECONDS = 1800.0


def plan_verification(state: RunState, runtime: Runtime[Parts]) -> Command[Literal["approve", "record"]]:
    """Lay out everything that one approval covers."""
    return carried(_plan_verification, state, runtime)


def _plan_verification(state: RunState, parts: Parts, tell: Tell) -> Command[Literal["approve", "record"]]:
    request, change = state["request"], state["change"]
    precedents, risk, forecast = tuple(state.get("precedents", ())), state["risk"], state["forecast"]
    snapshot = parts.worker.snapshot()
    tell({"kind": "progress", "text": "proving the edit by executing it"})
    edit = parts.worker.edit(snapshot.script, change)
    proof = parts.worker.prove(snapshot.script, edit)
    if not proof.proven and parts.policy.unproven_edits == "refuse":
        raise EditRefused(f"The edit could not be proven. {proof.how}", "Edit it by hand; nothing was touched.")
    tell({"kind": "edit", "text": edit.explanation})
    if edit.handover is not None:
        return Command(update={"verdict": _handed_over(edit, edit.handover, proof)}, goto="record")
    knobs = tuple(knob for knob in parts.knobs if knob.name in {s.knob for s in change.settings})
    reach = _reach(snapshot, change)
    checks = checks_for(
        parts.policy,
        knobs=knobs,
        precedents=precedents,
        risk=risk,
        captured_max=reach.captured,
        running_max=reach.running,
        acts=reach.acts,
    )
    criteria = criteria_for(parts.policy, checks)
    steps = _steps(request.run, change, snapshot, edit.sha256, parts, knobs, again=_compares(criteria, checks))
    checks = _affordable(checks, 1 + sum(step.id == f"{request.run}-again" for step in steps), parts)
    live = parts.worker.live_requests()
    last_start = _last_start(snapshot, forecast)
    plan = Plan(
        run=request.run,
        worker=parts.name,
        host=parts.worker.host.name,
        made_at=parts.clock(),
        change=change,
        diff=edit.diff,
        edit_proof=proof.how if proof.proven else f"UNPROVEN: {proof.how}",
        backup_of=parts.settings.script,
        new_script_sha256=edit.sha256,
        risk=risk,
        precedents=precedents,
        forecast=forecast,
        steps=steps,
        checks=checks,
        criteria=criteria,
        policy=parts.policy.label,
        traffic=Traffic(live_requests=live, loses=_loses(live, forecast, steps, parts), load=_load(checks, parts)),
        watchdog_seconds=parts.policy.times.watchdog_seconds(last_start),
        approve_within_seconds=parts.policy.approve_within_seconds,
    )
    if parts.policy.limits.autonomy == "propose":
        return Command(update={"plan": plan, "verdict": _proposed(plan)}, goto="record")
    if not parts.policy.limits.open_at(parts.clock()):
        raise outside_the_window(parts)
    parts.store.offer_plan(plan)
    return Command(update={"plan": plan}, goto="approve")


def outside_the_window(parts: Parts) -> NotAllowed:
    """What is said where the policy allows changes at other times."""
    return NotAllowed(
        f"The policy {parts.policy.name} lets worker {parts.name} be changed {parts.policy.limits.windows_say()}, "
        "and not now.",
        "Ask again then; nothing was touched.",
    )


def _compares(criteria: Sequence[Criterion], checks: Sequence[Check]) -> bool:
    """Whether a noisy rate is held against the worker as it was."""
    measured = {check.name for check in checks if check.before}
    return any(measured.intersection(measuring) for measuring in compared(criteria).values())


def _affordable(checks: Sequence[Check], starts: int, parts: Parts) -> tuple[Check, ...]:
    """The checks, within the sessions that a run may cost, all of its `starts` with the change included.

    How many a soak sends nobody knows before; it gets what the others leave, and no more.

    Raises:
        NotAllowed: there is not enough.
    """
    most = parts.policy.limits.budgets.sessions
    cost = sum(
        (check.sequential.cap if check.sequential else check.count) * (starts + check.before)
        for check in checks
        if check.name == "sessions"
    )
    soaks = sum(starts + check.before for check in checks if check.name == "soak")
    least = sum((starts + check.before) * max(check.concurrency) for check in checks if check.name == "soak")
    if cost + least > most:
        raise NotAllowed(
            f"The plan would send up to {cost + least} sessions, and the policy {parts.policy.name} allows {most} in a "
            "run.",
            "Raise limits.budgets.sessions, or ask for less in checks.sessions and its criterion.",
        )
    return tuple(
        check.model_copy(update={"most": (most - cost) // soaks}) if check.name == "soak" else check for check in checks
    )


def _proposed(plan: Plan) -> Verdict:
    """A plan that a person carries out, because the policy lets Prudent only propose."""
    return Verdict(
        decision="needs_human",
        state="untouched",
        why=f"The policy {plan.policy.split()[0]} lets Prudent propose and not carry out.",
        remedy=f"Carry it out by hand if you agree, or set limits.autonomy to ask.\n\n{plan.diff}",
    )


def _handed_over(edit: Edited, handover: Handover, proof: Proof) -> Verdict:
    """A file that no service of ours starts: the diff and the commands, and no claim to have applied anything."""
    commands = "".join(f"\n  {command}" for command in handover.commands)
    return Verdict(
        decision="needs_human",
        state="untouched",
        why=f"{handover.sentence} {'' if proof.proven else 'UNPROVEN: '}{proof.how}",
        remedy=f"Apply this diff and run the commands below it.\n\n{edit.diff}{commands}",
    )


def wanted_in_force(change: Change, knobs: Sequence[Knob]) -> dict[str, str]:
    """The values that have to be in force after a change, where the script says them and not the engine's default."""
    wanted = {}
    for setting in change.settings:
        knob = next(knob for knob in knobs if knob.name == setting.knob)
        value = in_force(knob, setting.new)
        if value is not None:
            wanted[setting.knob] = value
    return wanted


def _steps(
    run: str, change: Change, snapshot: Snapshot, sha256: str, parts: Parts, knobs: Sequence[Knob], *, again: bool
) -> tuple[Step, ...]:
    now = dict(snapshot.in_force)
    process = snapshot.process.identity if snapshot.process else None
    before = HostState(script_sha256=snapshot.script_sha256, process=process, effective=now)
    after = HostState(script_sha256=sha256, process=None, effective=wanted_in_force(change, knobs))
    return (
        Step(
            id=f"{run}-edit",
            action="edit_script",
            what=f"edit {parts.settings.script}: {change.summary}",
            before=before,
            after=HostState(script_sha256=sha256, process=process, effective=now),
            undo="put the backup back, byte for byte",
        ),
        Step(
            id=f"{run}-restart",
            action="restart",
            what=f"restart {parts.name} and wait until it is ready",
            before=HostState(script_sha256=sha256, process=process, effective=now),
            after=after,
            undo="restart it with the backup in place",
        ),
        *further_starts(run, parts.name, change, before, after, parts.policy, compared=again),
    )


class _Reach(NamedTuple):
    """How far the worker's batches go."""

    captured: int | None
    """The largest captured batch before or after the change."""
    running: int | None
    """The most requests that run at once, before or after it: what a lower limit costs shows above that limit only."""
    acts: tuple[int, int] | None
    """The batch sizes between the captured range of before and of after, where the change moves it."""


def _reach(snapshot: Snapshot, change: Change) -> _Reach:
    after = dict(snapshot.in_force)
    for setting in change.settings:
        if setting.new:
            after[setting.knob] = setting.new
    captured = [_whole(values.get("cuda-graph-max-bs")) for values in (snapshot.in_force, after)]
    known = [number for number in captured if number is not None]
    running = _whole(after.get("max-running-requests"))
    acts = (min(known), min(max(known), running or max(known))) if len(set(known)) > 1 else None
    before = _whole(snapshot.in_force.get("max-running-requests"))
    most = max(running, before) if running is not None and before is not None else running
    return _Reach(max(known) if known else None, most, acts if acts and acts[0] < acts[1] else None)


def _whole(text: str | None) -> int | None:
    try:
        return None if text is None else int(float(text))
    except ValueError:
        return None


def _last_start(snapshot: Snapshot, forecast: Forecast) -> float | None:
    """Seconds of the last start, from the log; else the upper end of the forecast."""
    if snapshot.facts is not None and snapshot.facts.log_seconds is not None:
        return snapshot.facts.log_seconds
    return forecast.restart_seconds.high if forecast.restart_seconds else None


def _loses(live: int | None, forecast: Forecast, steps: Sequence[Step], parts: Parts) -> str:
    span = forecast.restart_seconds
    away = f"{span.low:.0f} to {span.high:.0f} s" if span else "as long as a start takes"
    users = parts.policy.users
    if live is None:
        now = "how many requests are in flight could not be counted"
    else:
        now = f"{live} requests are in flight now"
    patience = f"up to {users.wait_seconds:.0f} s for at most {users.at_most} in flight"
    if any(step.action == "restore_script" for step in steps):
        often = f"at each restart: {starts_say(steps)}, and one more if the change is taken back"
    else:
        often = "twice, if the change is taken back"
    return (
        f"{now}{_beside(parts)}; before each restart it waits {patience}. "
        f"Nobody is served for {away} ({often}); requests that still run then are cut off."
    )


def _beside(parts: Parts) -> str:
    """Who else is touched: the other side of a pair stands still, replicas take over."""
    peers = ", ".join(parts.settings.peers)
    if not peers:
        return ""
    if parts.settings.role == "whole":
        return f"; behind {parts.settings.entry} {peers} go on serving"
    return (
        f", on both sides of the pair; without its {parts.settings.role} side nothing that comes in through "
        f"{parts.settings.entry} is served, whatever {peers} does"
    )


def _load(checks: Sequence[Check], parts: Parts) -> str:
    sent = []
    for check in checks:
        at = "/".join(str(number) for number in check.concurrency)
        what = {
            "sessions": "tool-call sessions",
            "throughput": f"runs of {parts.settings.benchmark[0]}" if parts.settings.benchmark else "runs",
            "aborts": "streams in each abort storm",
            "overload": "times more than the worker runs, with clients that hang up in between,",
            "soak": f"s of load ({check.most} sessions at most),",
        }
        number = f"{check.seconds:g}" if check.name == "soak" else str(check.count)
        most = f" (up to {check.sequential.cap}, until they settle it)" if check.sequential else ""
        deep = f", {'/'.join(map(str, check.depths))} tokens deep" if check.depths else ""
        deep += f", and {check.texts} long texts" if check.texts else ""
        sent.append(f"{number} {what[check.name]}{most} at {at} in flight{deep}")
    return "Prudent itself sends " + ", ".join(sent) + ", before and after the restart where it compares."
