"""The incidents as data: what is shipped holds together, and a mistake in a file is located."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent.errors import BadSettings
from memory.incidents import SHIPPED, Condition, incidents, schema

OWN = """\
id: our-own
title: It broke
engine: sglang
knobs: [cuda-graph-max-bs]
subsystem: decode graph capture
conditions:
  - knob: tp-size
    above: 1
    says: more than one rank
happened: It broke on a Friday.
outcome: harmed
signature: [failed_requests]
lesson: Not on a Friday.
certainty: unknown
source: our pager
"""


def test_the_shipped_incidents_hold_together() -> None:
    """Each shipped incident is valid, has a source, is not marked as foreign text, and is named by its file."""
    shipped = incidents()
    assert len(shipped) >= 26
    assert {path.stem for path in SHIPPED.glob("*.yaml")} == {incident.id for incident in shipped}
    assert all(incident.lesson and incident.source and not incident.tainted for incident in shipped)


def test_the_schema_beside_the_incidents_is_fresh() -> None:
    """The schema that editors read is the one that the model gives."""
    assert (SHIPPED / "incident.schema.json").read_text(encoding="utf-8") == schema()


def test_a_teams_own_incidents_are_text_from_outside(tmp_path: Path) -> None:
    """A team's incident comes with the shipped ones and is marked as tainted, whatever its file says of that."""
    (tmp_path / "our-own.yaml").write_text(OWN + "tainted: false\n")
    found = {incident.id: incident for incident in incidents(tmp_path)}
    assert found["our-own"].tainted
    assert len(found) == len(incidents()) + 1
    assert incidents(tmp_path / "nowhere") == incidents()


MISTAKES = [
    ("an unknown field", OWN + "severity: 11\n", "line 1[67].*severity"),
    ("a check that does not exist", OWN + "demands: [sessions, prayers]\n", r"line 16.*demands\.1"),
    ("a condition without a test", OWN.replace("    above: 1\n", ""), "line 7.*exactly one of"),
    ("a metric that nobody reads", OWN.replace("failed_requests", "vibes"), "line 12.*signature"),
    ("no YAML at all", OWN + "a: [\n", "line 17"),
    ("a list", "- 1\n", "line 1"),
    ("the name of another file", OWN.replace("our-own", "their-own"), "has the id 'their-own'"),
    ("bytes that are no text", None, "cannot be read"),
]


@pytest.mark.parametrize(("text", "said"), [case[1:] for case in MISTAKES], ids=[case[0] for case in MISTAKES])
def test_a_mistake_in_an_incident_is_located(tmp_path: Path, text: str | None, said: str) -> None:
    """A file with a mistake is refused with its name, the line and the field."""
    (tmp_path / "our-own.yaml").write_bytes(b"\xff\xfe\x00" if text is None else text.encode())
    with pytest.raises(BadSettings, match=r"our-own\.yaml") as refusal:
        incidents(tmp_path)
    assert re.search(said, refusal.value.sentence), refusal.value.sentence


def test_an_id_is_given_once(tmp_path: Path) -> None:
    """A team cannot put a second story under the id of a shipped one."""
    name = "multi-stream-race-under-capture"
    (tmp_path / f"{name}.yaml").write_text(OWN.replace("our-own", name))
    with pytest.raises(BadSettings, match="there already"):
        incidents(tmp_path)


CONDITIONS = [
    ({"enabled": True}, {}, False),
    ({"enabled": False}, {}, True),
    ({"enabled": True}, {"k": ""}, True),
    ({"enabled": True}, {"k": None}, False),
    ({"enabled": True}, {"k": "False"}, False),
    ({"enabled": True}, {"k": "1"}, True),
    ({"enabled": True, "default": "1"}, {}, True),
    ({"enabled": True, "default": "1"}, {"k": "0"}, False),
    ({"above": 32}, {"k": "33"}, True),
    ({"above": 32}, {"k": "32"}, False),
    ({"above": 32}, {"k": "many"}, None),
    ({"above": 32}, {}, None),
    ({"above": 1, "default": "1"}, {}, False),
    ({"below": 0.5}, {"k": "0.4"}, True),
    ({"below": 0.5}, {"k": "0.5"}, False),
    ({"one_of": ["a", "b"]}, {"k": "b"}, True),
    ({"one_of": ["a", "b"]}, {"k": "c"}, False),
    ({"one_of": ["a", "b"]}, {}, None),
]


@pytest.mark.parametrize(("test", "settings", "holds"), CONDITIONS)
def test_a_condition_holds_or_not_or_nobody_knows(
    test: dict[str, object], settings: dict[str, str | None], holds: bool | None
) -> None:
    """A condition reads a switch, a number or a text, takes the default for what is not set, and can be unsure."""
    assert Condition.model_validate({"knob": "k", "says": ""} | test).holds(settings) is holds
