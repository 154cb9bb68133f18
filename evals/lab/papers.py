"""What lies beside a ground's worker for those who operate it: serve scripts, Prudent's settings, the plan."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from evals.lab.keepers import SUPERVISOR
from evals.lab.posts import Layout, Post
from evals.lab.texts import filled

PLAN = "plan/DSV4_DECODE_PERF_PLAN.md"
"""Where the plan lies in a ground."""
_DECODE_SIDE = " \\\n    --disaggregation-mode decode \\\n    --disaggregation-transfer-backend nixl"


def write_script(layout: Layout, post: Post, *, version: str, capture: int, bootstrap: int) -> None:
    """Write the serve script of a post.

    Args:
        layout: What the ground is made of.
        post: Which one.
        version: The engine's version; one has dropped the spelling that the others still take.
        capture: Largest decode batch that is captured.
        bootstrap: Port of the prefill side's bootstrap server, where the ground is a pair.
    """
    ports = {other.name: other.port for other in layout.posts}
    if post.name == "router":
        text = filled("serve_router.sh", **ports, port=post.port, bootstrap=bootstrap)
    elif post.name == "prefill":
        text = filled("serve_prefill.sh", port=post.port, bootstrap=bootstrap)
    else:
        template = "serve_decode.sh" if layout.engine == "sglang" else f"serve_{layout.engine}.sh"
        more = _DECODE_SIDE if "prefill" in ports else ""
        flag = "--cuda-graph-max-bs-decode" if version == "0.5.20" else "--cuda-graph-max-bs"
        text = filled(template, port=post.port, graphs=f"{flag} {capture}", capture=capture, more=more)
    post.script.write_text(text, encoding="utf-8")
    post.script.chmod(0o755)


def write_settings(path: Path, layout: Layout) -> None:
    """Write `prudent.toml` for a ground on the machine that Prudent itself runs on."""
    decode = layout.decode
    peers = [post.url for post in layout.posts if post.name == "prefill"]
    text = filled(
        "prudent.toml",
        engine=layout.engine,
        log="journal" if layout.journal else str(decode.log.relative_to(decode.directory)),
        control=decode.url,
        entry=layout.entry.url,
        pair=f'role = "decode"\npeers = {json.dumps(peers)}\n' if peers else "",
        service=_service(layout),
    )
    path.write_text(text, encoding="utf-8")


def _service(layout: Layout) -> str:
    """The part of the settings that says who restarts the worker."""
    if layout.supervision != "supervisor":
        scope = layout.supervision.removeprefix("systemd-")
        return f'kind = "systemd"\nunit = "{layout.decode.unit}"\nscope = "{scope}"'
    command = [sys.executable, str(SUPERVISOR), "--directory", str(layout.decode.directory)]
    return "\n".join(['kind = "command"', *(f"{word} = {json.dumps([*command, word])}" for word in ("restart", "pid"))])


def write_plan(path: Path) -> None:
    """Write the plan and commit it, where there is git; a plan that is there stays."""
    if path.exists():
        return
    path.parent.mkdir(exist_ok=True)
    path.write_text(filled("plan.md"), encoding="utf-8")
    if shutil.which("git") is None:
        return
    git = ["git", "-c", "user.name=Decode on-call", "-c", "user.email=oncall@example.org", "-c", "commit.gpgsign=false"]
    environ = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    for words in (
        ["init", "--quiet", "--initial-branch=main"],
        ["config", "user.name", "Decode on-call"],
        ["config", "user.email", "oncall@example.org"],
        ["add", path.name],
        ["commit", "--quiet", "--message=Write down the plan and what happened so far"],
    ):
        subprocess.run([*git, *words], cwd=path.parent, env=environ, check=True, capture_output=True)
