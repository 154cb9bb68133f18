"""Change -> precedents: what happened before that bears on a change, the most pressing first, each with its reason.

Nothing is learned or embedded: the knob catalogue says which knobs are one subsystem or coupled, incidents say which
settings make them live, and records say what was done here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from agent.domain import Change, Knob, Precedent, Record
from memory.bearing import Bearing, Scene, of_incident, of_record, paths_to, woken_guards
from memory.incidents import Incident
from memory.told import CHECK_OF, breached_metrics, told
from memory.traces import Path

MOST_RECORDS = 6
"""Records of our own that are brought up at most, so that a long history does not crowd the incidents out."""
MOST_INCIDENTS = 8
"""Incidents that are brought up at most: what an engineer reads before deciding."""


class History(Protocol):
    """What is asked of our own records; a store is one."""

    def akin(self, paths: Iterable[Path], most: int) -> Sequence[Record]:
        """The records on the heaviest paths, at most so many."""

    def taken_back_by(self, runs: Iterable[str]) -> Mapping[str, str]:
        """Of these runs those whose change was taken back, with the newest run that did it and was kept."""


def precedents_for(
    change: Change,
    *,
    knobs: Sequence[Knob],
    history: History,
    incidents: Sequence[Incident],
    engine: str,
    version: str | None,
    settings_in_force: Mapping[str, str],
) -> tuple[Precedent, ...]:
    """Find the records and incidents that bear on a change.

    Args:
        change: The change; one without settings has no precedents.
        knobs: The engine's knob catalogue.
        history: Our own records, this worker's and others'.
        incidents: What happened to others.
        engine: `sglang` or `vllm`.
        version: The engine's version; None: not known.
        settings_in_force: Values by knob name as they are now, variables included. What is absent is left out and
            counts as the engine's default; a switch flag that is there reads as an empty text or as `true`.

    Returns:
        The precedents, the most pressing first. Text of records and of a team's own incidents stays tainted.
    """
    before: dict[str, str | None] = {setting.knob: setting.old for setting in change.settings} | dict(settings_in_force)
    after = before | {setting.knob: setting.new for setting in change.settings}
    scene = Scene(change, {knob.name: knob for knob in knobs}, before, after, engine, version)
    signature = {
        metric for incident in incidents if of_incident(incident, scene, {}).demanding for metric in incident.signature
    }
    guards = woken_guards(incidents, scene)
    records = history.akin(paths_to(scene, signature, guards), MOST_RECORDS) if change.settings else ()
    own = [(of_record(record, scene, signature, guards), record) for record in records]
    own = sorted(
        ((bearing, record) for bearing, record in own if bearing.weight),
        key=lambda pair: (-pair[0].weight, -pair[1].seq),
    )
    failed = {metric: record.run for _, record in reversed(own) for metric in breached_metrics(record)}
    theirs = [(of_incident(incident, scene, failed), incident) for incident in incidents]
    theirs = sorted(
        ((bearing, incident) for bearing, incident in theirs if bearing.weight),
        key=lambda pair: (-pair[0].weight, pair[1].id),
    )[:MOST_INCIDENTS]
    undone_by = history.taken_back_by(record.run for _, record in own)
    found = [(b.weight, _from_record(record, b, undone_by.get(record.run))) for b, record in own]
    found += [(bearing.weight, _from_incident(incident, bearing)) for bearing, incident in theirs]
    return tuple(precedent for _, precedent in sorted(found, key=lambda pair: -pair[0]))


def reopening(precedents: Sequence[Precedent], breached_metrics: Collection[str]) -> str | None:
    """The condition for trying a deferred change again, quoted with the id of the datum that it stands in.

    Args:
        precedents: The precedents of the change, the most pressing first.
        breached_metrics: Metrics whose criteria were breached in this run.

    Returns:
        The sentence of the first incident, else of the first record, whose signature holds a breached metric;
        None where no datum says one.
    """
    for source in ("incident", "record"):
        for precedent in precedents:
            matches = set(precedent.signature) & set(breached_metrics)
            if precedent.source == source and precedent.reopen_when and matches:
                return f"{precedent.reopen_when} ({source} {precedent.id})"
    return None


def _from_record(record: Record, bearing: Bearing, undone_by: str | None) -> Precedent:
    metrics = breached_metrics(record)
    demanded = tuple(dict.fromkeys(CHECK_OF[metric] for metric in metrics if metric in CHECK_OF))
    lesson = None
    if record.verdict.reopen_when:
        lesson = f"It was put off until this holds: {record.verdict.reopen_when}"
    elif metrics:
        lesson = f"It failed by {', '.join(metrics)}: what is different now?"
    return Precedent(
        id=record.run,
        source="record",
        what=told(record, undone_by),
        why="; ".join(bearing.reasons),
        at=None if record.when is None else record.when.date().isoformat(),
        lesson=lesson,
        demands=demanded if bearing.demanding else (),
        signature=metrics,
        reopen_when=record.verdict.reopen_when,
        undoes_fix=bearing.undoing,
        reference=f"prudent show {record.run}",
        tainted=True,
    )


def _from_incident(incident: Incident, bearing: Bearing) -> Precedent:
    return Precedent(
        id=incident.id,
        source="incident",
        what=f"{incident.title}. {incident.happened}",
        why="; ".join(bearing.reasons),
        at=incident.at,
        lesson=incident.lesson,
        demands=incident.demands if bearing.demanding else (),
        signature=incident.signature,
        reopen_when=incident.reopen_when if bearing.demanding else None,
        undoes_fix=bearing.undoing,
        reference=incident.reference,
        tainted=incident.tainted,
    )
