"""Published incidents as data: what happened to others, how it shows again, and what keeps it away."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from agent.domain import CheckName, Noun
from agent.errors import BadSettings

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The same loader in C where PyYAML was built with it, ten times as quick."""
SHIPPED = Path(__file__).with_name("incidents")
"""The folder of the incidents that come with Prudent."""

Metric = Literal[
    "start_seconds",
    "start_failed",
    "identity_proven",
    "effective_matches",
    "free_after_capture_gb",
    "entry_answers",
    "corrupted_sessions",
    "failed_requests",
    "throughput_tokens_per_second",
    "wedged_storms",
]
"""The metrics that readings have."""


class Condition(Noun):
    """A test on one setting of the worker; exactly one of the tests is given."""

    knob: str
    """Canonical name of the knob."""
    enabled: bool | None = None
    """For a switch: it must be on (a flag that is there, a variable of 1), or off."""
    above: float | None = None
    """For a number: it must be greater."""
    below: float | None = None
    """For a number: it must be smaller."""
    one_of: tuple[str, ...] = ()
    """For a text: it must be one of these."""
    default: str | None = None
    """What the engine does when nothing is set, as a value; None: off for a switch, not known for others."""
    guard: bool = False
    """True where making this test fail is the known fix or way around: a change that makes it hold again undoes it."""
    says: str
    """The guard in words where it is one, else the condition."""

    @model_validator(mode="after")
    def _one_test(self) -> Self:
        given = [self.enabled is not None, self.above is not None, self.below is not None, bool(self.one_of)]
        if sum(given) != 1:
            raise ValueError("give exactly one of enabled, above, below, one_of")
        return self

    def holds(self, settings: Mapping[str, str | None]) -> bool | None:
        """Whether it holds with these settings.

        Args:
            settings: Values by knob name; a switch flag that is there reads as an empty text, None means absent.

        Returns:
            True or False; None: the value is not known, or is not a number where one is compared.
        """
        value = settings.get(self.knob)
        value = self.default if value is None else value
        if self.enabled is not None:
            return is_on(value) == self.enabled
        if value is None:
            return None
        if self.one_of:
            return value in self.one_of
        number = number_in(value)
        if number is None:
            return None
        return number > self.above if self.above is not None else self.below is not None and number < self.below


class Verified(Noun):
    """How far a fix has been proven."""

    knob: str
    """The knob whose range it was proven in."""
    up_to: float
    """The largest value that it was proven at."""
    again: str
    """What has to be proven again beyond that value, as an order."""


class Incident(Noun):
    """Something that happened to people who run an engine."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    """A name that reads, also the file's stem."""
    title: str
    """What the operator saw, in one line."""
    engine: Literal["sglang", "vllm", "any"]
    """Whose workers it concerns."""
    since: str | None = None
    """First version that is known to have it; None: not known."""
    until: str | None = None
    """First version that no longer has it; None: not known to be gone."""
    knobs: tuple[str, ...]
    """Canonical names of the knobs whose change can bring it on, or bears on it."""
    subsystem: str
    """The part of the engine, in the words of the knob catalogue."""
    conditions: tuple[Condition, ...] = ()
    """Other settings that all have to hold for it to be live."""
    happened: str
    """What happened, with its numbers."""
    outcome: Literal["harmed", "helped", "false alarm"]
    """Whether the change did harm, did good, or was blamed for nothing."""
    signature: tuple[Metric, ...] = ()
    """Metrics whose breach is this happening again."""
    lesson: str
    """What to do because of it."""
    demands: tuple[CheckName, ...] = ()
    """Checks that it demands of a change of its knobs."""
    verified: Verified | None = None
    """How far its fix has been proven."""
    reopen_when: str | None = None
    """The condition under which a change that was deferred for it may be tried again."""
    fixed_by: str | None = None
    """What makes it go away."""
    certainty: Literal["confirmed", "suspected", "unknown"]
    """How sure the cause is."""
    at: str | None = None
    """When it happened, as far as known."""
    reference: str | None = None
    """Where it can be read."""
    source: str
    """What we read of it."""
    tainted: bool = False
    """True for a team's own incidents, whose text is data and never instructions; set by the loader."""


def incidents(team: Path | None = None) -> tuple[Incident, ...]:
    """Load the shipped incidents, and a team's own.

    Args:
        team: A folder of the team's own incidents, one YAML file each; it need not exist.

    Returns:
        The incidents in the order of their ids; the team's are marked as text from outside.

    Raises:
        BadSettings: a file is not an incident, or an id is there twice; the sentence names file and line.
    """
    found: dict[str, Incident] = {}
    for folder, tainted in ((SHIPPED, False), (team, True)):
        for path in sorted(folder.glob("*.yaml")) if folder is not None else ():
            incident = _read(path).model_copy(update={"tainted": tainted})
            if incident.id in found:
                raise BadSettings(f"{path}: an incident {incident.id!r} is there already.", "Give it an id of its own.")
            found[incident.id] = incident
    return tuple(found[key] for key in sorted(found))


def schema() -> str:
    """The JSON schema of an incident file, for an editor that completes and checks."""
    return json.dumps(Incident.model_json_schema(), indent=2, ensure_ascii=False) + "\n"


def is_on(value: str | None) -> bool:
    """Whether a switch with this value is on: a flag that is there has an empty value, an absent one has None."""
    return value is not None and value.strip().lower() not in {"0", "false", "off", "no", "none"}


def number_in(value: str) -> float | None:
    """The number that a value is; None: it is none."""
    try:
        return float(value)
    except ValueError:
        return None


def _read(path: Path) -> Incident:
    try:
        text = path.read_text(encoding="utf-8")
        incident = Incident.model_validate(yaml.load(text, Loader=_LOADER))  # noqa: S506 -- both are safe loaders
    except (OSError, UnicodeDecodeError) as error:
        raise BadSettings(f"{path} cannot be read: {error}.", "Check the file.") from error
    except yaml.YAMLError as error:
        raise BadSettings(f"{path} is not YAML: {' '.join(str(error).split())}.", "Correct the line.") from error
    except ValidationError as error:
        first = error.errors()[0]
        line = _line_of(text, first["loc"])
        where = ".".join(map(str, first["loc"])) or "the file"
        raise BadSettings(f"{path}, line {line}: {where}: {first['msg']}.", "Correct the field.") from error
    if incident.id != path.stem:
        raise BadSettings(f"{path} has the id {incident.id!r}.", f"Name the file {incident.id}.yaml.")
    return incident


def _line_of(text: str, place: tuple[int | str, ...]) -> int:
    """The line of the deepest node on the way to a place in a YAML text, from 1."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    line = 1
    for step in place:
        found = next((child for key, child in _children(node) if key == step), None)
        if found is None:
            break
        node, line = found, found.start_mark.line + 1
    return line


def _children(node: yaml.Node | None) -> Iterator[tuple[int | str, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        yield from ((key.value, child) for key, child in node.value)
    elif isinstance(node, yaml.SequenceNode):
        yield from enumerate(node.value)


if __name__ == "__main__":
    sys.stdout.write(schema())
