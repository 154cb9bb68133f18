"""The engine that is installed on a worker's host -> its version and flags, asked once for each version and binary."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from agent.domain import Process
from agent.errors import HostError
from tools.engines.engine import Engine
from tools.engines.help_text import Installed, command_of, read_help
from tools.host import Host

HELP_SECONDS = 90.0
"""For the help of an engine, which imports PyTorch first: some ten seconds with warm files, a minute without."""
_LOOK_SECONDS = 40.0
"""For the look at what is installed, the way there included."""


class HelpTexts:
    """Help texts that were asked before, by what they were asked of.

    Args:
        folder: Where they are kept between runs; None: for this process only.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._here: dict[str, str] = {}

    def find(self, key: str) -> str | None:
        """The text of that key; None: never asked, or not readable."""
        if key in self._here or self._folder is None:
            return self._here.get(key)
        try:
            return (self._folder / f"{key}.txt").read_text(encoding="utf-8")
        except (OSError, ValueError):
            return None

    def keep(self, key: str, text: str) -> None:
        """Keep a text. A folder that cannot be written costs the next run a question and nothing else."""
        self._here[key] = text
        if self._folder is None:
            return
        part = self._folder / f"{key}.{os.getpid()}.part"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            part.write_text(text, encoding="utf-8")
            part.replace(self._folder / f"{key}.txt")
        except OSError:
            part.unlink(missing_ok=True)


def installed_engine(
    host: Host, engine: Engine, server: Process, *, running: str | None, texts: HelpTexts, limit_seconds: float
) -> Installed:
    """Ask what the next start would run. Whatever goes wrong is said in `basis`, and never raised.

    Args:
        host: The worker's host.
        engine: Which engine.
        server: The worker's process, whose interpreter, environment and user are used.
        running: The version that runs.
        texts: Help texts that were asked before.
        limit_seconds: For the help text.
    """
    command = command_of(server.argv)
    if command is None:
        shown = " ".join(server.argv[:3])
        return Installed(basis=f"the installed engine could not be asked: {shown!r} does not say how it was started")
    order: dict[str, Any] = {
        "pid": server.pid,
        "start_ticks": server.start_ticks,
        "package": engine.name,
        "command": command,
        "seconds": limit_seconds,
        "ask": [],
    }
    look = _ask(host, order, _LOOK_SECONDS)
    if "origin" not in look:
        return Installed(basis=f"the installed engine could not be asked: {look.get('problem')}")
    version = look.get("version")
    key = hashlib.sha256(json.dumps([host.name, command, look], sort_keys=True).encode()).hexdigest()
    text, problem = texts.find(key), None
    if text is None:
        answer = _ask(host, {**order, "ask": engine.help_questions(command)}, limit_seconds + _LOOK_SECONDS)
        text, problem = answer.get("help"), answer.get("problem")
    found = read_help(text, problem, version=version, running=running, argv=server.argv)
    if found.flags is not None and text is not None:
        texts.keep(key, text)
    return found


def _ask(host: Host, order: Mapping[str, Any], timeout: float) -> Mapping[str, Any]:
    program = resources.files("tools.on_host").joinpath("engine_help.py").read_bytes()
    try:
        path = host.ship("engine_help.py", program)
        done = host.run([host.python, "-I", path], stdin=json.dumps(order).encode(), timeout=timeout)
    except HostError as error:
        return {"problem": str(error)}
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return {"problem": f"{host.name}: status {done.status}, {said[-1][:200] if said else 'no answer'}"}
    return answer
