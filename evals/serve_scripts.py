"""Edit one launch script as a corpus case asks, for `check_corpus.py`.

    python evals/serve_scripts.py SCRIPT CASE_YAML

prints the edited file and exits 0, or prints a reason on standard error and exits 3. An edit counts only when executing
it showed exactly the intended difference; on a machine without a sandbox it counts unproven, and says so.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml

from agent.errors import Refused
from tools.serve_script.edit import Edit, Operation, plan_edits
from tools.serve_script.launches import Target
from tools.serve_script.options import grammar, spellings
from tools.serve_script.prove import Proof, prove
from tools.serve_script.read import Reading, read_launches
from tools.serve_script.sandbox import Circumstances

REFUSED = 3
_WORK: dict[str, tuple[Literal["flag", "env"], Operation]] = {
    "set_flag": ("flag", "replace"),
    "add_flag": ("flag", "add"),
    "unset_flag": ("flag", "unset"),
    "set_env": ("env", "set"),
    "add_env": ("env", "add"),
    "unset_env": ("env", "unset"),
}
_NAMES = {
    "bash": "serve.sh",
    "systemd": "serve.service",
    "supervisord": "supervisord.conf",
    "compose": "compose.yaml",
    "k8s": "manifest.yaml",
    "envfile": "serve.env",
}


def main() -> int:
    """Carry the case out; the exit status says what came of it."""
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    content = Path(sys.argv[1]).read_bytes()
    case: dict[str, Any] = yaml.safe_load(Path(sys.argv[2]).read_text(encoding="utf-8"))
    try:
        edit, proof = edited(content, case)
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        return REFUSED
    print(f"{edit.explanation} {proof.how}", file=sys.stderr)
    if not proof.proven and proof.outcome != "no-sandbox":
        return REFUSED
    sys.stdout.buffer.write(edit.content)
    return 0


def edited(content: bytes, case: Mapping[str, Any]) -> tuple[Edit, Proof]:
    """The first edit that execution proves, or the first of all with what speaks against it.

    Args:
        content: The script.
        case: The case: kind, op, target, name, value, run.

    Raises:
        Refused: no edit is safe.
    """
    run: dict[str, Any] = case.get("run") or {}
    environ = {str(name): str(value) for name, value in (run.get("env") or {}).items()}
    reading = Reading(
        kind=case["kind"],
        files={str(name): str(text).encode() for name, text in (run.get("files") or {}).items()},
        env_reader=run.get("reader", "docker"),
        starts=str(run.get("launch", "")),
        entrypoints={name: tuple(words) for name, words in (run.get("image_entrypoint") or {}).items()},
        environ=environ,
    )
    path = _NAMES[case["kind"]]
    servers = [
        launch.engine for launch in read_launches(content, path=path, reading=reading) if launch.engine != "router"
    ]
    engine: Literal["sglang", "vllm"] = "sglang" if servers[:1] == ["sglang"] else "vllm"
    kind, operation = _WORK[case["op"]]
    value = case.get("value")
    edits = plan_edits(
        content,
        path=path,
        kind=kind,
        names=spellings(engine, case["name"]) if kind == "flag" else (case["name"],),
        operation=operation,
        value=[str(item) for item in value] if isinstance(value, list) else None if value is None else str(value),
        target=Target.parse(case.get("target")),
        reading=reading._replace(grammar=grammar(engine)),
    )
    circumstances = Circumstances(
        arguments=tuple(str(item) for item in run.get("args") or ()),
        environ=environ,
        seconds=float(run.get("timeout", 20)),
        most=int(run.get("max_records", 0)) or 40,
    )
    proofs = []
    for edit in edits:
        proof = prove(
            content, edit.content, path=path, intended=edit.intent, reading=reading, circumstances=circumstances
        )
        if proof.proven:
            return edit, proof
        proofs.append(proof)
    return edits[0], proofs[0]


if __name__ == "__main__":
    sys.exit(main())
