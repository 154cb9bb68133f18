"""How strongly an incident or a record bears on a change, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from agent.domain import Change, Knob, Record, Setting
from memory.incidents import Condition, Incident, is_on, number_in
from memory.told import breached_metrics, version_of
from memory.traces import Path, Trace, from_value, is_imported, is_silent, names_of, speaks_of, to_values, told_of
from memory.versions import within

UNDOES = 200
"""The change would undo a fix: outranks everything that is not this very change."""
SAME_CHANGE = 120
"""The very same change was tried here."""
GOES_LIVE = 90
"""The change makes an incident's conditions hold."""
SAME_KNOB = 60
BEYOND_PROOF = 40
"""The change goes beyond the values at which a fix was proven."""
SAME_SUBSYSTEM = 30
SIGNATURE = 25
COUPLED = 20
LIVE = 15
"""Its conditions hold already."""
HERE = 10
"""It was this very worker."""
SPOKEN = 12
"""Its text speaks of a knob of the change, and nothing closer ties it."""
VERSION = 5
UNPROVEN = 15
"""What an imported record weighs less than one of ours with the same tie: of one knob, what was proven comes first
even where the other was of this very worker."""
IN_FORCE = "the fix is in force"
"""How the reason begins where an incident's fix holds."""


class Bearing(NamedTuple):
    """The weight of the reasons, and the reasons in words."""

    weight: int
    """Sum of the weights above; 0: it does not bear on the change at all."""
    reasons: tuple[str, ...] = ()
    """The reasons, the strongest first."""
    demanding: bool = False
    """Whether it is close enough, and possible enough here, that its checks are demanded and its condition for
    trying again counts."""
    undoing: bool = False
    """Whether the change would undo a fix."""


class Scene(NamedTuple):
    """The change, and what is known around it."""

    change: Change
    """The change."""
    knobs: Mapping[str, Knob]
    """The catalogue by canonical name."""
    before: Mapping[str, str | None]
    """Settings in force by knob name."""
    after: Mapping[str, str | None]
    """The same with the change made."""
    engine: str
    """`sglang` or `vllm`."""
    version: str | None
    """Version of the engine; None: not known."""

    @property
    def changed(self) -> frozenset[str]:
        """Names of the knobs that the change sets."""
        return frozenset(setting.knob for setting in self.change.settings)

    @property
    def phrases(self) -> tuple[str, ...]:
        """Words by which a text speaks of the knobs that the change sets."""
        return tuple(phrase for name in sorted(self.changed & set(self.knobs)) for phrase in names_of(self.knobs[name]))

    def kin(self) -> Iterator[tuple[int, str]]:
        """Every knob that is tied to the change, with the weight of its tie: itself, its subsystem, its couplings."""
        for name in sorted({*self.knobs, *self.changed}):
            tie = self.kinship([name])
            if tie is not None:
                yield tie[0], name

    def kinship(self, knobs: Collection[str], subsystem: str | None = None) -> tuple[int, str] | None:
        """The closest tie between the change and other knobs: the same one, one subsystem, or a coupling."""
        same = sorted(self.changed & set(knobs))
        if same:
            return SAME_KNOB, f"same knob: {', '.join(same)}"
        mine = {self.knobs[knob].subsystem for knob in self.changed if knob in self.knobs}
        theirs = {self.knobs[knob].subsystem for knob in knobs if knob in self.knobs} | {subsystem}
        shared = sorted(filter(None, mine & theirs))
        if shared:
            return SAME_SUBSYSTEM, f"same subsystem: {', '.join(shared)}"
        for ours in sorted(self.changed):
            for other in knobs:
                if self._coupled(ours, other):
                    return COUPLED, f"coupled knob: {ours} and {other} bear on each other"
        return None

    def alike(self, knob: str, one: str | None, other: str | None) -> bool:
        """Whether two values of a knob are the same to the engine."""
        if knob in self.knobs and self.knobs[knob].value == "switch":
            return is_on(one) == is_on(other)
        if one is None or other is None:
            return one == other
        numbers = number_in(one), number_in(other)
        return one.strip() == other.strip() if None in numbers else numbers[0] == numbers[1]

    def _coupled(self, one: str, other: str) -> bool:
        return any(b in self.knobs[a].couples for a, b in ((one, other), (other, one)) if a in self.knobs)


def of_incident(incident: Incident, scene: Scene, failed: Mapping[str, str]) -> Bearing:
    """Weigh an incident.

    Args:
        incident: The incident.
        scene: The change and what is around it.
        failed: Metrics that were breached here, with the run.
    """
    if incident.engine not in {scene.engine, "any"}:
        return Bearing(0)
    tie = scene.kinship(incident.knobs, incident.subsystem)
    was = [condition for condition in incident.conditions if condition.holds(scene.before) is False]
    missing = [condition for condition in incident.conditions if condition.holds(scene.after) is False]
    woken = [condition for condition in was if not missing]
    if tie is None and not woken:
        return Bearing(0)
    if scene.version is not None and not within(scene.version, incident.since, incident.until):
        return _of_other_version(incident, tie, scene.version)
    reasons: list[tuple[int, str]] = [] if tie is None else [tie]
    for condition in woken:
        if condition.guard:
            reasons.append((UNDOES, f"fix that this would undo: {condition.says}"))
        else:
            reasons.append((GOES_LIVE, f"this change makes it live: {condition.says}"))
    reasons += [*_standing(incident, scene, was, missing), *_proof(incident, scene)]
    again = [f"{failed[metric]} ({metric})" for metric in incident.signature if metric in failed]
    if again:
        reasons.append((SIGNATURE, f"same failure signature as {', '.join(again)}"))
    if scene.version is not None and (incident.since or incident.until):
        reasons.append((VERSION, f"same engine version range: {_range(incident)}"))
    close = bool(woken) or (tie is not None and tie[0] > COUPLED)
    within_reach = all(condition.guard for condition in missing) and not (missing and not was)
    return _ranked(reasons, demanding=close and within_reach)


def woken_guards(incidents: Iterable[Incident], scene: Scene) -> frozenset[str]:
    """Knobs by which the change would undo the fix of some incident."""
    return frozenset(
        condition.knob
        for incident in incidents
        if of_incident(incident, scene, {}).undoing
        for condition in incident.conditions
        if condition.guard and condition.knob in scene.changed
    )


def of_record(record: Record, scene: Scene, signature: Collection[str], guards: Collection[str]) -> Bearing:
    """Weigh a record of our own.

    Args:
        record: The record.
        scene: The change and what is around it.
        signature: Metrics of the incidents that bear on the change.
        guards: Knobs by which the change would undo a fix.
    """
    change = record.change
    if is_silent(record):
        return Bearing(0)
    reasons: list[tuple[int, str]] = []
    tie = scene.kinship([setting.knob for setting in change.settings]) if change is not None else None
    if tie is not None:
        reasons.append(tie)
    if change is not None:
        reasons += _repeated(record, change, scene, guards)
    again = [metric for metric in breached_metrics(record) if metric in signature]
    if again:
        reasons.append((SIGNATURE, f"same failure signature: {', '.join(again)}"))
    if not reasons and speaks_of(record, scene.phrases):
        reasons.append((SPOKEN, f"speaks of {', '.join(sorted(scene.changed))}"))
    if not reasons:
        return Bearing(0)
    if record.worker == scene.change.worker:
        reasons.append((HERE, "this worker"))
    else:
        reasons.append((0, f"on worker {record.worker}"))
    then = version_of(record)
    if then is not None and scene.version is not None:
        reasons.append((0, f"same engine version: {then}" if then == scene.version else f"with engine version {then}"))
    if is_imported(record):
        reasons.append((-UNPROVEN if tie is not None else 0, "imported, unproven"))
    return _ranked(reasons, demanding=tie is not None and tie[0] > COUPLED)


def paths_to(scene: Scene, signature: Collection[str], guards: Collection[str]) -> tuple[Path, ...]:
    """Where the records lie that bear most on a change, with the weight that `of_record` would give them.

    There is a path for every combination of reasons, so that of the records with one weight the newest are found,
    however many records of lesser weight lie around them.

    Args:
        scene: The change and what is around it.
        signature: Metrics of the incidents that bear on the change.
        guards: Knobs by which the change would undo a fix.
    """
    found: list[tuple[int, Trace]] = [(weight, Trace(knob=name)) for weight, name in scene.kin()]
    for setting in scene.change.settings:
        knob = scene.knobs.get(setting.knob)
        back = UNDOES if setting.knob in guards else SAME_KNOB
        found.append((SAME_KNOB + back, Trace(knob=setting.knob, aim=from_value(knob, setting.new))))
    found.append((SAME_KNOB + SAME_CHANGE, Trace(aim=to_values(scene.change, scene.knobs))))
    found += [
        (weight - UNPROVEN, trace._replace(aim=told_of(trace.aim)))
        for weight, trace in found
        if trace.aim == "" or trace.aim.startswith("to:")
    ]
    broken = [
        (weight + SIGNATURE, trace._replace(metric=m))
        for weight, trace in [*found, (0, Trace()), (0, Trace(aim=told_of("")))]
        for m in signature
    ]
    worker = scene.change.worker
    paths = [Path(weight, trace) for weight, trace in [*found, *broken]]
    paths += [Path(SPOKEN, phrase=phrase) for phrase in scene.phrases]
    return (*paths, *(path._replace(weight=path.weight + HERE, worker=worker) for path in paths))


def _repeated(record: Record, change: Change, scene: Scene, guards: Collection[str]) -> list[tuple[int, str]]:
    """Whether a record is of this very change, or of one that this change would take back."""
    decision = record.verdict.decision
    if _same_change(change, scene):
        came = "and nobody here knows what came of it" if is_imported(record) else f"{decision.replace('_', ' ')} then"
        return [(SAME_CHANGE, f"the same change, {came}")]
    if decision != "kept":
        return []
    taken = [setting.knob for setting in scene.change.settings if _takes_back(setting, change, scene)]
    if set(taken) & set(guards):
        return [(UNDOES, f"fix that this would undo: {record.run} set it")]
    return [(SAME_KNOB, f"this would take back what {record.run} set")] if taken else []


def _standing(
    incident: Incident, scene: Scene, was: Sequence[Condition], missing: Sequence[Condition]
) -> list[tuple[int, str]]:
    """What can be said of an incident's conditions, other than that the change wakes it."""
    said: list[tuple[int, str]] = []
    unsure = [condition.says for condition in incident.conditions if condition.holds(scene.after) is None]
    guards = [condition.says for condition in incident.conditions if condition.guard]
    held_back = [condition.says for condition in missing if condition.guard]
    absent = [condition.says for condition in missing if not condition.guard]
    if missing and not was:
        said.append((0, f"this change takes it out of play: {'; '.join(held_back or absent)}"))
    elif held_back:
        said.append((0, f"{IN_FORCE} ({'; '.join(held_back)})"))
    if absent and was:
        said.append((-LIVE, f"not live here: it needs that {'; '.join(absent)}"))
    if unsure:
        said.append((0, f"not known here: {'; '.join(unsure)}"))
    elif incident.conditions and not missing and not was:
        said.append(
            (LIVE, f"it can happen now, the fix is not in force ({'; '.join(guards)})" if guards else "live now")
        )
    return said


def _proof(incident: Incident, scene: Scene) -> list[tuple[int, str]]:
    """How the change stands to the values at which the incident's fix was proven."""
    verified = incident.verified
    goal = scene.after.get(verified.knob) if verified is not None and verified.knob in scene.changed else None
    value = number_in(goal) if goal is not None else None
    if verified is None or value is None:
        return []
    if value <= verified.up_to:
        return [(0, f"the fix was proven up to {verified.up_to:g}")]
    beyond = f"{verified.again}, {verified.up_to + 1:g} to {value:g}"
    return [(BEYOND_PROOF, f"the fix was proven up to {verified.up_to:g} only: {beyond}")]


def _of_other_version(incident: Incident, tie: tuple[int, str] | None, version: str) -> Bearing:
    """An incident of other versions is worth a line where it is the same knob, and demands nothing."""
    if tie is None or tie[0] < SAME_KNOB:
        return Bearing(0)
    return Bearing(COUPLED, (tie[1], f"known {_range(incident)}, and this worker runs {version}"))


def _range(incident: Incident) -> str:
    ends = [f"from {incident.since} on" if incident.since else "", f"before {incident.until}" if incident.until else ""]
    return ", ".join(filter(None, ends))


def _ranked(reasons: list[tuple[int, str]], *, demanding: bool) -> Bearing:
    ordered = sorted(reasons, key=lambda reason: -reason[0])
    return Bearing(
        weight=max(1, sum(weight for weight, _ in ordered)),
        reasons=tuple(text for _, text in ordered),
        demanding=demanding,
        undoing=any(weight == UNDOES for weight, _ in ordered),
    )


def _same_change(change: Change, scene: Scene) -> bool:
    then = {setting.knob: setting.new for setting in change.settings}
    return set(then) == scene.changed and all(
        scene.alike(setting.knob, setting.new, then[setting.knob]) for setting in scene.change.settings
    )


def _takes_back(setting: Setting, earlier: Change, scene: Scene) -> bool:
    return any(
        then.knob == setting.knob
        and scene.alike(setting.knob, setting.new, then.old)
        and not scene.alike(setting.knob, then.old, then.new)
        for then in earlier.settings
    )
