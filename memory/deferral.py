"""Change -> the deferral that it meets again, and whether its condition holds by now."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from agent.domain import Change, Knob, Record
from memory.bearing import IN_FORCE
from memory.incidents import Incident
from memory.precedents import History
from memory.told import version_of
from memory.traces import Path, Trace, to_values
from memory.versions import order

LOOKED_AT = 20
"""Records of the very same change that are looked at, the newest first; refusals and rejections lie between."""
_QUOTED = re.compile(r"\(incident ([a-z0-9-]+)\)\s*$")


class Standing(NamedTuple):
    """How the condition of a deferral stands now."""

    holds: bool | None
    """True: it has come true; False: nothing has changed since; None: it cannot be read from here."""
    says: str
    """Why, in one sentence."""


def earlier_deferral(change: Change, knobs: Sequence[Knob], history: History) -> Record | None:
    """The record that put this very change off on this worker, if that is how it stands.

    What was tried last decides; where it was never tried, the last time that it was put off. Refusals and rejections
    in between change nothing, and neither does "skip it if it is unsafe", which was the request's own condition.
    """
    if not change.settings:
        return None
    aim = to_values(change, {knob.name: knob for knob in knobs})
    same = history.akin([Path(1, Trace(aim=aim), change.worker)], LOOKED_AT)
    tried = [record for record in same if record.execution is not None]
    put_off = [r for r in same if _put_off(r) and not (r.change is not None and r.change.unless_unsafe)]
    last = next(iter(tried or put_off), None)
    return last if last is not None and _put_off(last) else None


def standing(
    record: Record,
    change: Change,
    *,
    incidents: Sequence[Incident],
    version: str | None,
    settings_in_force: Mapping[str, str],
) -> Standing:
    """Check whether the condition of a deferral holds now: by the engine's version, and by a fix that is in place.

    Args:
        record: The record that put the change off.
        change: The change as it is asked for now.
        incidents: What is known of others' and the team's incidents; the condition may be quoted from one.
        version: The engine's version now; None: not known.
        settings_in_force: Values by knob name as they are now.
    """
    quoted = _QUOTED.search(record.verdict.reopen_when or "")
    incident = next((one for one in incidents if quoted is not None and one.id == quoted[1]), None)
    if incident is not None and incident.until is not None and version is not None:
        if order(version) >= order(incident.until):
            return Standing(True, f"the worker runs {version}, and {incident.id} is gone from {incident.until} on")
        return Standing(False, f"the worker runs {version}, and {incident.id} is gone only from {incident.until} on")
    fixes = _fixes(incident, change, settings_in_force) if incident is not None else ()
    in_force_then = any(
        incident is not None and precedent.id == incident.id and IN_FORCE in precedent.why
        for precedent in record.precedents
    )
    if fixes and not in_force_then:
        return Standing(True, f"a fix is in force now: {'; '.join(fixes)}")
    then = version_of(record)
    if version is None or then is None:
        return Standing(None, "the engine's version is not known, so whether that holds cannot be read")
    if version != then:
        return Standing(None, f"the engine was {then} then and is {version} now; whether that holds cannot be read")
    return Standing(False, f"the engine is the one from then ({version}), and nothing here says that it holds")


def _put_off(record: Record) -> bool:
    return record.verdict.decision == "deferred" and record.verdict.reopen_when is not None


def _fixes(incident: Incident, change: Change, settings_in_force: Mapping[str, str]) -> tuple[str, ...]:
    """Guards of an incident that keep it away even once the change is made."""
    after: dict[str, str | None] = {**settings_in_force, **{setting.knob: setting.new for setting in change.settings}}
    return tuple(c.says for c in incident.conditions if c.guard and c.holds(after) is False)
