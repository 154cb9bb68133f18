"""A start -> readings: did it come up, is it really the new process, did the values take, does the entry answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from agent.domain import Execution, Phase, Process, Reading, Setting
from agent.errors import HostError, Refused
from agent.nodes.anchors import learn_start
from agent.state import Parts, Tell
from tools.engines.catalogue import in_force, spellings
from tools.engines.drift import compare
from tools.engines.facts import StartupFacts
from tools.worker import Snapshot


def read_start(
    execution: Execution,
    settings: tuple[Setting, ...],
    wanted: Mapping[str, str],
    before: Mapping[str, str],
    *,
    phase: Phase,
    limit_seconds: float,
    log_before: str,
    parts: Parts,
    tell: Tell,
    pause: Callable[[float], None] | None = None,
) -> tuple[Reading, ...]:
    """Follow a start to its end and read everything that it proves or fails to prove.

    Args:
        execution: What the host did; its `after` is the process that was started.
        settings: What argv and environment have to show; a setting's `new` is what is meant.
        wanted: Values that have to be in force by knob name.
        before: Values that were in force before, to find what moved without being asked.
        phase: `candidate` or `restored`.
        limit_seconds: After this the start has failed.
        log_before: The mark of the log from before: starts up to there are not this one.
        parts: What a node may use.
        tell: Hears how far it is.
        pause: Lets time pass between two looks; may raise to end the wait.
    """
    if execution.after is None or execution.problem is not None:
        why = execution.problem or "the service manager started no new process"
        return (_fact("start_failed", phase, 1.0, "host journal", why),)
    waited = parts.worker.follow_start(
        execution.after,
        limit_seconds=limit_seconds,
        log_before=log_before,
        pause=pause,
        tell=lambda text, share: tell({"kind": "progress", "text": f"start: {text}", "share": share}),
    )
    if waited.outcome == "unheard":
        return nothing_known(phase, waited.says)
    if waited.outcome != "ready":
        return (
            _fact(
                "start_failed", phase, 1.0, parts.settings.log, _last_words(execution, waited.says, log_before, parts)
            ),
        )
    came_up = _fact("start_failed", phase, 0.0, "service and log", f"ready after {waited.seconds:.1f} s")
    try:
        proof = _proof(execution, settings, wanted, before, phase, log_before, parts)
    except (Refused, HostError) as problem:
        proof = _silence(phase, str(problem))
    return (came_up, *proof)


def _proof(
    execution: Execution,
    settings: tuple[Setting, ...],
    wanted: Mapping[str, str],
    before: Mapping[str, str],
    phase: Phase,
    log_before: str,
    parts: Parts,
) -> tuple[Reading, ...]:
    """What a worker that is up shows of itself; arguments as above.

    Raises:
        Refused, HostError: one of the questions found no answer.
    """
    snapshot = parts.worker.snapshot()
    facts = parts.worker.facts(snapshot.version, after=log_before)
    learn_start(execution.transaction, facts, snapshot.version, parts)
    free = facts.free_after_capture_gb if facts else None
    return (
        start_seconds(facts, phase, parts),
        _identity(execution, snapshot, settings, phase, parts),
        _effective(snapshot, settings, wanted, before, phase, parts),
        Reading(
            metric="free_after_capture_gb",
            phase=phase,
            value=free,
            unit="GB",
            n=0 if free is None else 1,
            no_data=None if free is not None else "the log of the start does not say it",
            source=parts.settings.log,
            detail="" if free is None else f"{free:g} GB free after capture",
        ),
        parts.worker.through_entry(phase, parts.policy.times.entry_seconds),
    )


def nothing_known(phase: Phase, why: str) -> tuple[Reading, ...]:
    """The readings of a start of which nobody could learn how it went: no failure, and no proof either."""
    return (Reading(metric="start_failed", phase=phase, value=None, unit="", no_data=why), *_silence(phase, why))


def start_seconds(facts: StartupFacts | None, phase: Phase, parts: Parts) -> Reading:
    """How long a start took, by its log, whose timestamps are whole seconds: a start within one counts as one."""
    seconds = max(facts.log_seconds, 1.0) if facts and facts.log_seconds is not None else None
    return Reading(
        metric="start_seconds",
        phase=phase,
        value=seconds,
        unit="s",
        n=0 if seconds is None else 1,
        no_data=None if seconds is not None else "the log holds no whole start",
        source=parts.settings.log,
        detail="" if seconds is None else f"the start took {seconds:g} s by the timestamps of its log",
    )


def _identity(
    execution: Execution, snapshot: Snapshot, settings: tuple[Setting, ...], phase: Phase, parts: Parts
) -> Reading:
    """The process that serves is new, is the service's own, and was started with what was meant."""
    process = snapshot.process
    seen = parts.worker.observe()
    doubts = []
    if execution.before is not None and process.identity == execution.before.identity:
        doubts.append(f"pid {process.pid} is the process from before")
    if execution.after is not None and process.identity != execution.after.identity:
        doubts.append(f"pid {process.pid} is not pid {execution.after.pid}, which was started for this")
    if seen.listener is None or seen.listener.relation not in {"main", "descendant"}:
        who = "nobody" if seen.listener is None else seen.listener.relation
        doubts.append(f"who listens on the port is {who}, not the service's process")
    for setting in settings:
        knob = next(knob for knob in parts.knobs if knob.name == setting.knob)
        names = {setting.spelling, *spellings(knob, None)}
        server = snapshot.server
        shown = server.environ.get(knob.name) if knob.kind == "env" else argument(server, names)
        if in_force(knob, shown) != in_force(knob, setting.new):
            doubts.append(f"{setting.spelling} is {shown!r} in the process, not {setting.new!r}")
    detail = "; ".join(doubts) or f"pid {process.pid} is new, listens, and has the intended argv and environment"
    return _fact("identity_proven", phase, 0.0 if doubts else 1.0, "/proc of the worker", detail)


def _effective(
    snapshot: Snapshot,
    settings: tuple[Setting, ...],
    wanted: Mapping[str, str],
    before: Mapping[str, str],
    phase: Phase,
    parts: Parts,
) -> Reading:
    """What was meant is in force, and nothing moved that was neither meant nor coupled with it."""
    changed = {setting.knob for setting in settings}
    drifts = compare(wanted, snapshot.in_force, before, knobs=parts.knobs, changed=changed)
    against = [drift for drift in drifts if drift.kind != "moved" or drift.side_effect_of is None]
    beyond = _beyond(snapshot, before, parts) if phase == "candidate" else []
    told = " ".join([*(drift.says for drift in drifts), *beyond])
    values = ", ".join(f"{name} {snapshot.in_force.get(name, '?')}" for name in wanted)
    detail = told or f"in force: {values or 'as before'}"
    return _fact("effective_matches", phase, 0.0 if against or beyond else 1.0, parts.worker.effective_source, detail)


def _beyond(snapshot: Snapshot, before: Mapping[str, str], parts: Parts) -> list[str]:
    """What came to lie outside of the policy's bounds, whatever setting moved it there."""
    found = []
    for name, bound in parts.policy.limits.knobs.items():
        value = snapshot.in_force.get(name)
        with suppress(ValueError):
            if value is not None and value != before.get(name) and bound.refuses(float(value)):
                found.append(f"{name} is {value} in force, and the policy allows {bound.says()}.")
    return found


def argument(process: Process, names: set[str]) -> str | None:
    """A flag's value in a process's argv: None where it is absent, empty for a switch; the last one counts."""
    found = None
    for index, word in enumerate(process.argv):
        name, joined, value = word.partition("=")
        if name not in names:
            continue
        following = process.argv[index + 1] if index + 1 < len(process.argv) else "--"
        found = value if joined else ("" if following.startswith("--") else following)
    return found


def _fact(metric: str, phase: Phase, value: float, source: str, detail: str) -> Reading:
    return Reading(metric=metric, phase=phase, value=value, unit="", n=1, source=source, detail=detail)


def _silence(phase: Phase, why: str) -> tuple[Reading, ...]:
    metrics = ("identity_proven", "effective_matches", "free_after_capture_gb", "entry_answers")
    return tuple(Reading(metric=metric, phase=phase, value=None, unit="", no_data=why) for metric in metrics)


def _last_words(execution: Execution, says: str, log_before: str, parts: Parts) -> str:
    """Why a start failed, with the line of the log that says so where there is one."""
    facts = parts.worker.facts(after=log_before)
    learn_start(execution.transaction, facts, None, parts)
    fatal = [failure for failure in facts.failures if failure.fatal] if facts else []
    return f"{says}; the log says: {fatal[0].line[:300]}" if fatal else says


LOG_MARK = "log_mark"
"""Where the log ended before a restart, kept as a reading so that whoever resumes knows which start is which."""


def note_log_mark(run: str, phase: Phase, parts: Parts) -> Reading:
    """Write down where the log ends, before the host is asked for a restart."""
    mark = parts.worker.log.mark()
    reading = Reading(
        metric=LOG_MARK,
        phase=phase,
        value=None if mark is None else 1.0,
        unit="",
        no_data=None if mark is not None else "the log cannot be read",
        source=parts.settings.log,
        detail=mark or "",
    )
    parts.store.keep_readings(run, [reading])
    return reading


def log_mark(run: str, phase: Phase, parts: Parts) -> str:
    """Where the log ended before a restart; empty where nobody wrote it down."""
    kept = [r.detail for r in parts.store.readings(run, phase) if r.metric == LOG_MARK and r.value is not None]
    return kept[-1] if kept else ""
