"""The read-only tools that a reasoner may use, and the facts that every change is weighed with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent.domain import Change, Evidence, Execution, Knob
from agent.errors import CannotProve, HostError, Refused, RunInFlight, WorkerDown
from agent.nodes.notebook import Notebook
from agent.reasoning.reasoner import Tool
from agent.state import Parts
from tools.engines.catalogue import in_force
from tools.engines.facts import StartupFacts
from tools.worker import Snapshot

_KNOBS = {
    "type": "object",
    "properties": {
        "knobs": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Canonical names; empty: all that are set.",
        }
    },
}
_NOTHING = {"type": "object", "properties": {}}


def tools_for(parts: Parts, notebook: Notebook) -> tuple[Tool, ...]:
    """The tools; what they find goes into the notebook, so that an answer can cite it."""

    def guarded(
        look: Callable[[Mapping[str, Any]], Sequence[Evidence]],
    ) -> Callable[[Mapping[str, Any]], Sequence[Evidence]]:
        def ask(arguments: Mapping[str, Any]) -> Sequence[Evidence]:
            try:
                return look(arguments)
            except (Refused, HostError) as problem:
                return [notebook.note(f"could not be read: {problem}", parts.worker.host.name)]

        return ask

    def effective_values(arguments: Mapping[str, Any]) -> Sequence[Evidence]:
        return _values(parts.worker.snapshot(), parts, notebook, _wanted(arguments, parts.knobs))

    def serve_script(arguments: Mapping[str, Any]) -> Sequence[Evidence]:
        script = parts.worker.script()
        return _written(script, None, parts, notebook, _wanted(arguments, parts.knobs))

    def history(_: Mapping[str, Any]) -> Sequence[Evidence]:
        return [
            notebook.note(
                f"run {record.run} on {record.at:%Y-%m-%d}: "
                f"{record.change.summary if record.change else record.request.text}: {record.verdict.decision}, "
                f"worker {record.verdict.state}",
                f"record {record.seq}",
                tainted=True,
            )
            for record in parts.store.records(worker=parts.name, limit=10)
        ] + [
            notebook.note(
                f"imported from {record.origin.sources[0]}, unproven: "
                f"{record.change.summary if record.change else record.request.text}, "
                f"{f'on {record.when:%Y-%m-%d}' if record.when else 'nobody knows when'}",
                f"record {record.seq}",
                tainted=True,
            )
            for record in parts.store.records(worker=parts.name, limit=10, imported=True)
            if record.origin is not None
        ]

    def startup_log(_: Mapping[str, Any]) -> Sequence[Evidence]:
        return started(parts.worker.facts(), parts, notebook)

    return (
        Tool("effective_values", "Values in force on the live worker.", _KNOBS, guarded(effective_values)),
        Tool("serve_script", "Values that stand in the worker's launch script.", _KNOBS, guarded(serve_script)),
        Tool("history", "What Prudent changed on this worker before.", _NOTHING, guarded(history)),
        Tool("startup_log", "What the worker's last start said about its memory.", _NOTHING, guarded(startup_log)),
    )


def looked_at(parts: Parts) -> Snapshot:
    """The worker as it is before anything is planned.

    Raises:
        RunInFlight: it does not answer, and another run is at work on it, which is why.
        WorkerDown: it does not answer.
        UnreadableScript: the launch file cannot be read.
    """
    try:
        return parts.worker.snapshot()
    except WorkerDown:
        seen = parts.worker.observe()
        _free(seen.execution, seen.holder, seen.who, parts)
        raise


def ready_for_a_change(snapshot: Snapshot, parts: Parts) -> None:
    """See that the worker is free and that a start of it could be proven.

    Raises:
        RunInFlight: another run holds the worker, or one was never settled.
        CannotProve: a start of this worker could not be proven from here.
    """
    _free(snapshot.execution, snapshot.holder, snapshot.who, parts)
    _provable(snapshot, parts)


def _free(held: Execution | None, holder: str | None, who: str | None, parts: Parts) -> None:
    """See that nobody else is at work on the worker, and that nothing was left unsettled there."""
    if held is not None and held.state == "undo_failed" and not _abandoned(held):
        raise RunInFlight(
            f"The change of run {held.transaction} on worker {parts.name} could not be taken back.",
            f"Put the worker right by hand, then say so with: prudent settle {held.transaction} --reason WHAT-YOU-DID",
        )
    if held is not None and held.state == "open":
        whose = held.journal[0].detail.get("who") or "an agent elsewhere"
        row = parts.store.run(held.transaction)
        if row is None:
            at_work = "is at work" if holder == held.transaction else "is not settled"
            raise RunInFlight(
                f"Run {held.transaction}, carried by {whose}, {at_work} on worker {parts.name}.",
                "Wait for it, or for the host, which takes it back by itself once it hears nothing more of it.",
            )
        way = f"prudent settle {held.transaction} --reason WHY" if row.ended else f"prudent resume {held.transaction}"
        raise RunInFlight(
            f"Run {held.transaction} is not settled on worker {parts.name}.", f"Settle it first with: {way}"
        )
    if holder is not None:
        carried = f", carried by {who}," if who else ""
        raise RunInFlight(
            f"Run {holder}{carried} is at work on worker {parts.name}.",
            "Wait for it; prudent history shows it where it was asked.",
        )


def observe(snapshot: Snapshot, change: Change, parts: Parts, notebook: Notebook) -> None:
    """Write down what a change is weighed with: engine, values that it touches or is coupled with, last start."""
    notebook.note(f"engine version {snapshot.version}", parts.worker.effective_source)
    notebook.note(f"main process {snapshot.process.pid}", parts.worker.host.name)
    touched = {setting.knob for setting in change.settings}
    coupled = {name for knob in parts.knobs if knob.name in touched for name in knob.couples}
    near = [knob for knob in parts.knobs if knob.name in touched | coupled and knob.name in snapshot.in_force]
    _values(snapshot, parts, notebook, near)
    started(snapshot.facts, parts, notebook)


def _provable(snapshot: Snapshot, parts: Parts) -> None:
    """What is needed to prove a start has to be at hand before one is made."""
    nothing = "Nothing was touched."
    if snapshot.served_by in {"foreign", "nobody"}:
        whose = {"foreign": "a process that is not the service's", "nobody": "nobody that this user may see"}
        raise CannotProve(
            f"Who listens on {parts.settings.control} is {whose[snapshot.served_by]}, so no start could be proven.",
            f"Run Prudent as the worker's user or as root, or correct `control` or `service.pid`. {nothing}",
        )
    if snapshot.facts is None or snapshot.facts.log_seconds is None:
        raise CannotProve(
            f"The log {parts.settings.log} holds no whole start of this worker, so a new one could not be judged.",
            f"Correct `log`, or restart the worker once so that it holds one. {nothing}",
        )


def _abandoned(execution: Execution) -> bool:
    """Whether a person has settled a transaction whose undo failed."""
    return any(entry.event == "abandoned" for entry in execution.journal)


def started(facts: StartupFacts | None, parts: Parts, notebook: Notebook) -> list[Evidence]:
    """The last start's memory figures as evidence."""
    if facts is None:
        return [notebook.note("the log holds no start that can be read", parts.settings.log)]
    found = []
    decode = facts.decode_capture
    if decode is not None and decode.gb is not None and decode.seconds is not None:
        found.append(
            f"decode graphs took {decode.gb:g} GB and {decode.seconds:g} s for {len(decode.sizes)} sizes "
            f"up to {max(decode.sizes, default=0)}"
        )
    if facts.free_after_capture_gb is not None:
        found.append(f"{facts.free_after_capture_gb:g} GB of GPU memory stayed free after capture")
    if facts.max_total_tokens is not None:
        found.append(f"the KV pool holds {facts.max_total_tokens} tokens")
    if facts.weights_gb is not None:
        found.append(f"weights took {facts.weights_gb:g} GB")
    return [notebook.note(what, parts.settings.log, tainted=True) for what in found]


def _values(snapshot: Snapshot, parts: Parts, notebook: Notebook, knobs: Sequence[Knob]) -> list[Evidence]:
    found = []
    for knob in knobs:
        value = snapshot.in_force.get(knob.name)
        called = f"{knob.name} ({knob.words[0]})" if knob.words else knob.name
        server = parts.worker.effective_source
        source = f"environment of pid {snapshot.server.pid}" if knob.kind == "env" else server
        if value is None:
            found.append(notebook.note(f"{called} is not reported by the engine", source))
            continue
        meaning = value if value == "1" else f"{value} {knob.unit}".strip()
        if knob.inverted and knob.words:
            meaning = f"{value}, so the {knob.words[0]} is {'off' if value == 'on' else 'on'}"
        found.append(notebook.note(f"{called} is {meaning}, in force now", source))
    return found


def _written(
    script: bytes, version: str | None, parts: Parts, notebook: Notebook, knobs: Sequence[Knob]
) -> list[Evidence]:
    found = []
    for knob in knobs:
        written = parts.worker.value_in(script, knob, version)
        value = in_force(knob, written.value)
        says = (
            f"{knob.name} is {value} in the script"
            if written.value is not None
            else f"{knob.name} is not in the script"
        )
        found.append(notebook.note(says, written.place or parts.settings.script, tainted=True))
    return found


def _wanted(arguments: Mapping[str, Any], knobs: Sequence[Knob]) -> tuple[Knob, ...]:
    names = arguments.get("knobs")
    if not isinstance(names, list) or not names:
        return tuple(knob for knob in knobs if knob.words)[:8]
    return tuple(knob for knob in knobs if knob.name in names)
