"""Launch files by many hands: each is edited at one place and nowhere else, or refused for the right reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.errors import Refused
from evals.serve_scripts import edited

CASES: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[2] / "data" / "serve-corpus" / "siblings.yaml").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("case", CASES, ids=[case["says"].replace(" ", "-") for case in CASES])
def test_a_file_is_edited_at_one_place_or_refused_for_the_right_reason(case: dict[str, Any]) -> None:
    """The edited bytes are exactly the expected ones and execution proves them, or the refusal names its kind."""
    before = case["script"].encode()
    ask = {"op": "set_flag", "kind": case.get("kind", "bash"), "value": None, **case["ask"]}

    if case.get("refuses") == "unproven":
        assert not edited(before, ask)[1].proven
        return
    if "refuses" in case:
        with pytest.raises(Refused) as refusal:
            edited(before, ask)
        assert getattr(refusal.value, "kind", None) == case["refuses"], str(refusal.value)
        assert refusal.value.remedy
        return

    expected = case["script"]
    for old, new in case["edit"]:
        assert expected.count(old) == 1, f"{old!r} is not there once"
        expected = expected.replace(old, new)

    edit, proof = edited(before, ask)

    assert expected == edit.content.decode()
    assert proof.proven or proof.outcome == "no-sandbox", proof
