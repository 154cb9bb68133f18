"""Request -> Change: what was meant, resolved against the catalogue, the script and the live worker; or an answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from langgraph.runtime import Runtime
from langgraph.types import Command

from agent.domain import Change, Decision, Knob, Setting, Verdict
from agent.errors import EngineRefuses, HostError, ModelSlip, NotAllowed, NotUnderstood, OutOfBounds, Refused
from agent.nodes.carried import carried
from agent.nodes.looking import looked_at, observe, ready_for_a_change, tools_for
from agent.nodes.notebook import Notebook
from agent.nodes.startup import argument
from agent.reasoning.grounding import check_understanding
from agent.reasoning.phrases import mentions
from agent.reasoning.reasoner import Understanding, Wish
from agent.state import Parts, RunState, Tell
from tools.engines.catalogue import bounds, check_value, in_force
from tools.worker import Snapshot, Written

Exits = Command[Literal["consult_history", "record"]]


def understand(state: RunState, runtime: Runtime[Parts]) -> Exits:
    """Say what the request means; a question is answered here, and what is not clear is asked."""
    return carried(_understand, state, runtime)


def _understand(state: RunState, parts: Parts, tell: Tell) -> Exits:
    request = state["request"]
    notebook = Notebook(state.get("evidence", ()), parts.clock)
    meant, notes = _meaning(state, parts, notebook)
    update: dict[str, Any] = {"notes": notes}
    if meant.kind == "question":
        tell({"kind": "answer", "text": meant.answer or ""})
        return _end(update, notebook, "answered", _with_sources(meant, notebook))
    if meant.kind == "unclear":
        return _end(
            update,
            notebook,
            "needs_human",
            meant.says,
            remedy="Ask again in one of these ways.",
            choices=_with_values(meant.choices, parts),
        )
    if meant.kind == "foreign":
        raise NotUnderstood(
            f"{meant.says or 'The request asks for nothing that Prudent does.'} The worker was not touched.",
            f"I change settings of {request.worker}, such as: bump cuda graphs to 96; or ask what one is.",
        )
    snapshot = looked_at(parts)
    ready_for_a_change(snapshot, parts)
    for claim in meant.claims:
        notebook.note(f"claimed: {claim}", f"request by {request.by}", tainted=True, claimed=True)
    taking_back = meant.kind == "roll_back"
    resolved = _taking_back(parts, snapshot) if taking_back else _resolve(meant, parts, snapshot)
    if resolved.verdict is not None:
        return _end(update, notebook, resolved.verdict, resolved.why, remedy=resolved.remedy, choices=resolved.choices)
    assert resolved.change is not None
    change = resolved.change.model_copy(update={"unless_unsafe": meant.unless_unsafe})
    _within_policy(change, parts)
    observe(snapshot, change, parts, notebook)
    _keep_contract(change, snapshot, parts, notebook)
    tell({"kind": "change", "text": change.summary})
    return Command(update={**update, "change": change, "evidence": tuple(notebook.new)}, goto="consult_history")


class _Resolved(NamedTuple):
    """A change, or why there is none."""

    change: Change | None = None
    verdict: Decision | None = None
    why: str = ""
    remedy: str | None = None
    choices: tuple[str, ...] = ()


def _meaning(state: RunState, parts: Parts, notebook: Notebook) -> tuple[Understanding, tuple[str, ...]]:
    """Ask the reasoner; what does not stand the checks is replaced by what the rules say."""
    request = state["request"]
    tools = tools_for(parts, notebook)
    meant = parts.reasoner.understand(request, parts.knobs, tools)
    try:
        check_understanding(meant, request, parts.knobs, notebook.all)
    except ModelSlip as slip:
        if meant.by == parts.rules.name:
            return meant.model_copy(update={"kind": "unclear", "says": str(slip)}), ()
        instead = parts.rules.understand(request, parts.knobs, tools)
        meant = instead.model_copy(update={"instead_of": f"{meant.by}: {slip}"})
    notes = (f"The rules read the request instead of {meant.instead_of}",) if meant.instead_of else ()
    condition = parts.rules.understand(request, parts.knobs, ()).unless_unsafe if meant.kind == "change" else False
    return meant.model_copy(update={"unless_unsafe": meant.unless_unsafe or condition}), notes


def _resolve(meant: Understanding, parts: Parts, snapshot: Snapshot) -> _Resolved:
    """A wish -> a setting from the value that stands in the script to the one that is wanted."""
    wish = meant.wishes[0]
    knob = next(knob for knob in parts.knobs if knob.name == wish.knob)
    found = parts.worker.value_in(snapshot.script, knob, snapshot.version)
    started = _started_with(snapshot, knob, found)
    live = snapshot.in_force.get(knob.name, in_force(knob, started))
    now = live if live is not None else in_force(knob, found.value)
    target = _target(wish, knob, now)
    if isinstance(target, _Resolved):
        return target
    if target is not None:
        wrong = check_value(knob, target)
        if wrong is not None:
            raise OutOfBounds(wrong, f"It takes {bounds(knob) or knob.default or 'another value'}; now it is {now}.")
    wanted = in_force(knob, target)
    written = in_force(knob, found.value)
    if found.value == target or (written is not None and written == wanted):
        if live == wanted or (wanted is None and started is None):
            return _Resolved(verdict="unchanged", why=f"{knob.name} is {now} already, in the script and in force.")
        return _Resolved(
            verdict="needs_human",
            why=f"The script says {written} for {knob.name} already, but {live} is in force on the worker.",
            remedy="Find out who edited the script without a restart, or why the value did not take.",
        )
    setting = Setting(knob=knob.name, kind=knob.kind, spelling=found.spelling, old=found.value, new=target)
    was = "not set" if found.value is None else (found.value or "set")
    becomes = "not set" if target is None else (target or "set")
    note = f" ({knob.words[0]} {'off' if target is not None else 'on'})" if knob.inverted and knob.words else ""
    summary = f"{knob.name} {was} -> {becomes}{note}"
    return _Resolved(Change(worker=parts.name, operation="set", settings=(setting,), summary=summary))


def _started_with(snapshot: Snapshot, knob: Knob, found: Written) -> str | None:
    """The text with which the running process was started; None: without the knob."""
    if knob.kind == "env":
        return snapshot.server.environ.get(knob.name)
    return argument(snapshot.server, {found.spelling, *(spelling.text for spelling in knob.spellings)})


def _target(wish: Wish, knob: Knob, now: str | None) -> str | _Resolved | None:
    """The text to write, None to remove, or what has to be asked first."""
    if knob.value == "switch":
        on = (
            wish.verb in {"turn_on", "set"}
            if wish.verb in {"set", "unset"} or not knob.inverted
            else wish.verb == "turn_off"
        )
        if knob.kind == "env":
            return None if wish.verb == "unset" else ("1" if on else "0")
        return "" if on else None
    if wish.verb == "unset":
        return None
    assert wish.value is not None
    number = _number(now)
    if wish.was is not None and number is not None and wish.was != number:
        return _Resolved(
            verdict="needs_human",
            why=f"The request says that {knob.name} is {wish.was:g}; it is {now}.",
            remedy="Ask again from what it really is, or leave the old value out.",
            choices=(f"set {knob.name} to {wish.value:g}",),
        )
    value = wish.value
    if wish.verb in {"raise_by", "lower_by"}:
        if number is None:
            return _Resolved(
                verdict="needs_human",
                why=f"Nobody knows what {knob.name} is now, so it cannot be changed by {value:g}.",
                remedy="Say the value that it should have.",
                choices=(f"set {knob.name} to N",),
            )
        value = number + value if wish.verb == "raise_by" else number - value
    opposite = number is not None and (
        (wish.verb == "raise" and value < number) or (wish.verb == "lower" and value > number)
    )
    if opposite:
        return _Resolved(
            verdict="needs_human",
            why=f"The request says {wish.verb}, but {knob.name} is {now} and {value:g} is the other way.",
            remedy="Say which it should be.",
            choices=(f"set {knob.name} to {value:g}",),
        )
    return f"{value:.10g}"


def _within_policy(change: Change, parts: Parts) -> None:
    """See that the policy lets this be changed at all, and to this value.

    Raises:
        NotAllowed: it does not.
        OutOfBounds: the value lies outside what the team allows.
    """
    limits = parts.policy.limits
    if limits.autonomy == "watch":
        raise NotAllowed(
            f"The policy {parts.policy.name} only watches worker {parts.name}: no change of it is planned.",
            "Set limits.autonomy to propose or ask in the policy, if that is wanted.",
        )
    for setting in change.settings:
        bound = limits.knobs.get(setting.knob)
        knob = next(knob for knob in parts.knobs if knob.name == setting.knob)
        if bound is None or knob.value not in {"integer", "fraction", "list"}:
            continue
        values = _numbers(setting.new if setting.new is not None else knob.default)
        chosen = f"; without the setting the engine takes: {knob.default or 'what it chooses'}"
        if not values or any(bound.refuses(value) for value in values):
            raise OutOfBounds(
                f"The policy {parts.policy.name} allows {bound.says()} for {setting.knob}: {bound.because}"
                + (chosen if setting.new is None else ""),
                "Choose a value within it, or change the policy first; nothing was touched.",
            )


def _keep_contract(change: Change, snapshot: Snapshot, parts: Parts, notebook: Notebook) -> None:
    """Ask what this engine version would make of the launch; what it only warns about becomes evidence.

    Raises:
        EngineRefuses: it would not start, or the value would be clamped, cut or ignored.
    """
    about = {setting.knob for setting in change.settings}
    for remark in parts.worker.contract(snapshot, change):
        futile = remark.kind in {"clamped", "truncated", "ignored", "not_read"} and remark.knob in about
        if remark.refuse or futile:
            raise EngineRefuses(
                f"{parts.settings.engine} {snapshot.version or ''} would not do that: {remark.says}",
                "Choose another value, or change what it is bound to first; nothing was touched.",
            )
        notebook.note(remark.says, f"contract of {parts.settings.engine} {snapshot.version}")


def _taking_back(parts: Parts, snapshot: Snapshot) -> _Resolved:
    """The last change that was kept, the other way round."""
    last = parts.store.last_kept(parts.name)
    undone = last is not None and bool(parts.store.taken_back_by([last.run]))
    if last is None or last.change is None or last.change.operation == "roll_back" or undone:
        return _Resolved(
            verdict="needs_human",
            why="There is no kept change of mine to take back on this worker.",
            remedy="Say which setting should have which value; prudent history shows what was done.",
        )
    settings = []
    for setting in last.change.settings:
        knob = next(knob for knob in parts.knobs if knob.name == setting.knob)
        found = parts.worker.value_in(snapshot.script, knob, snapshot.version)
        if found.value != setting.new:
            return _Resolved(
                verdict="needs_human",
                why=f"Run {last.run} set {setting.knob} to {setting.new}, but the script now says {found.value}.",
                remedy="Somebody changed it since; say which value it should have.",
                choices=(f"set {setting.knob} to {setting.old}",),
            )
        settings.append(setting.model_copy(update={"old": setting.new, "new": setting.old, "spelling": found.spelling}))
    told = ", ".join(f"{s.knob} {_said(s.old)} -> {_said(s.new)}" for s in settings)
    return _Resolved(
        Change(
            worker=parts.name,
            operation="roll_back",
            settings=tuple(settings),
            summary=f"take back run {last.run}: {told}",
            undoes=last.run,
        )
    )


def _said(value: str | None) -> str:
    return "not set" if value is None else (value or "set")


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _numbers(text: str | None) -> list[float]:
    """Every number of a value, or of a list of them; none where a part of it is no number."""
    numbers = [_number(word) for word in re.split(r"[\s,\[\]]+", text or "") if word]
    known = [number for number in numbers if number is not None]
    return known if len(known) == len(numbers) else []


def _with_values(choices: tuple[str, ...], parts: Parts) -> tuple[str, ...]:
    """Put values where a choice says N: two, three and four times the one in force, where the knob takes them."""
    told: list[str] = []
    for choice in choices:
        named = mentions(choice.lower(), parts.knobs)
        if not choice.endswith(" to N") or not named:
            told.append(choice)
            continue
        knob = named[0].knob
        try:
            now = _number(parts.worker.snapshot().in_force.get(knob.name))
        except (Refused, HostError):
            now = None
        values = [f"{now * factor:g}" for factor in (2, 3, 4)] if now is not None and knob.value == "integer" else []
        fitting = [f"{choice[:-1]}{value}" for value in values if check_value(knob, value) is None]
        told += fitting or [f"{choice}, where N is {bounds(knob)}"]
    return tuple(told)


def _with_sources(meant: Understanding, notebook: Notebook) -> str:
    cited: Mapping[str, str] = {fact.id: fact.source for fact in notebook.all}
    sources = ", ".join(dict.fromkeys(cited[one] for one in meant.cites if one in cited))
    return f"{meant.answer}  (sources: {sources})" if sources else str(meant.answer)


def _end(
    update: dict[str, Any],
    notebook: Notebook,
    decision: Decision,
    why: str,
    *,
    remedy: str | None = None,
    choices: tuple[str, ...] = (),
) -> Exits:
    verdict = Verdict(decision=decision, state="untouched", why=why, remedy=remedy, choices=choices)
    return Command(update={**update, "evidence": tuple(notebook.new), "verdict": verdict}, goto="record")
