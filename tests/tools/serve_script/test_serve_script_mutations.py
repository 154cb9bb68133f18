"""Launch files cut, spliced and sprinkled with syntax: each is planned or refused, never a traceback."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from agent.errors import Refused
from tools.serve_script.edit import Operation, plan_edits
from tools.serve_script.options import grammar
from tools.serve_script.read import EnvReader, Reading

CASES: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[2] / "data" / "serve-corpus" / "siblings.yaml").read_text(encoding="utf-8")
)
FRAGMENTS = [
    *"'\"$`(){}[]=#;&|:*%\n\t\r\xff",
    *("\\\n", "${", "<<EOF\n", "EOF\n", "--", "&&", "eval ", "if ", "fi\n", "&a ", "*a ", "- "),
]
OPERATIONS: dict[str, tuple[str, Operation]] = {
    "set_flag": ("flag", "set"),
    "add_flag": ("flag", "add"),
    "unset_flag": ("flag", "unset"),
    "set_env": ("env", "set"),
    "unset_env": ("env", "unset"),
}


def mutated(content: bytes, chance: Random) -> bytes:
    """A file with up to four accidents."""
    out = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(out))
        accident = chance.choice(["insert", "delete", "repeat"])
        if accident == "insert":
            out[at:at] = chance.choice(FRAGMENTS).encode("latin-1")
        elif accident == "delete":
            del out[at : at + chance.randint(1, 8)]
        else:
            start = chance.randint(0, len(out))
            out[at:at] = out[start : start + chance.randint(1, 40)]
    return bytes(out)


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_file_is_planned_or_refused(seed: int) -> None:
    """A thousand damaged files each: an edit or a refusal with a remedy."""
    chance = Random(seed)
    readers: tuple[EnvReader, ...] = ("bash", "systemd", "compose", "docker")
    for _ in range(1000):
        case = chance.choice(CASES)
        kind, operation = OPERATIONS[case["ask"].get("op", "set_flag")]
        content = mutated(case["script"].encode(), chance)
        reading = Reading(
            kind=case.get("kind", "bash"),
            env_reader=chance.choice(readers),
            starts="vllm serve $MODEL $VLLM_ARGS",
            grammar=grammar("vllm"),
        )
        with suppress(Refused):
            edits = plan_edits(
                content, path="x", kind=kind, names=[case["ask"]["name"]], operation=operation,  # type: ignore[arg-type]
                value=None if operation == "unset" else "96", reading=reading,
            )  # fmt: skip
            assert all(edit.content != content for edit in edits)
