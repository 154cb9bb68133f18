"""Which launch is meant?"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from tools.serve_script.launches import Launch, Target, looks_like_flag
from tools.serve_script.refusals import LaunchAmbiguous, ScriptRefused, ScriptUnreadable
from tools.serve_script.text import OPAQUE

_KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}


def choose(launches: Sequence[Launch], target: Target | None) -> tuple[int, ...]:
    """Indices of the launches that an edit for `target` has to reach, nearly always one.

    Several come back only where they stand in different branches, so that no execution starts two of them.

    Raises:
        ScriptUnreadable: the file starts no server.
        LaunchAmbiguous: several fit.
        ScriptRefused: none fits.
    """
    servers = [i for i, launch in enumerate(launches) if launch.engine != "router"]
    if not launches or (not servers and target is None):
        raise ScriptUnreadable(
            "no-launch",
            "Nothing in the file starts an SGLang or vLLM server.",
            "Name the file that holds the launch command.",
        )
    if target is None:
        return _together(launches, servers, "The file starts {count} servers, on lines {lines}.")
    for fits in _ways(target):
        found = [i for i, launch in enumerate(launches) if fits(launch)]
        preferred = [i for i in found if launches[i].engine != "router"] or found
        if preferred:
            sentence = f"{target} fits {{count}} launches, on lines {{lines}}."
            return _together(launches, preferred, sentence)
    lines = ", ".join(str(launches[i].line) for i in servers)
    if target.port is not None and any(_port(launch) is None or OPAQUE in (_port(launch) or "") for launch in launches):
        raise ScriptRefused(
            "shared-by-launches",
            f"No launch is written with {target}: the port is decided when the file runs.",
            "Edit by hand, or name the launch otherwise.",
        )
    if len(servers) == 1 and launches[servers[0]].repeated:
        raise ScriptRefused(
            "shared-by-launches",
            f"One command on line {lines} starts every server in a loop; none of them is {target} alone.",
            "Change the table that the loop reads, by hand.",
            line=launches[servers[0]].line,
        )
    raise ScriptRefused(
        "no-such-launch",
        f"No launch of the file is {target}; there are launches on lines {lines}.",
        "Name one of them.",
    )


def _together(launches: Sequence[Launch], found: Sequence[int], sentence: str) -> tuple[int, ...]:
    if len(found) == 1 or all(_apart(launches[a], launches[b]) for a in found for b in found if a < b):
        return tuple(found)
    lines = ", ".join(str(launches[i].line) for i in found)
    raise LaunchAmbiguous(
        sentence.format(count=len(found), lines=lines),
        "Say which one is meant, by role, port, function or service.",
        line=launches[found[0]].line,
    )


def _apart(one: Launch, other: Launch) -> bool:
    """Whether no execution starts both."""
    arms = dict(one.arms)
    return any(node in arms and arms[node] != arm for node, arm in other.arms)


def _value(launch: Launch, *names: str) -> str | None:
    found: str | None = None
    words = launch.words
    for i in range(launch.first, len(words)):
        name, equals, rest = words[i].text.partition("=")
        if name.replace("_", "-") in names:
            found = rest if equals else words[i + 1].text if i + 1 < len(words) else ""
    return found


def _port(launch: Launch) -> str | None:
    return _value(launch, "--port", "-p")


def _ways(target: Target) -> list[Callable[[Launch], bool]]:
    """Ways of being meant, the surest first."""
    if target.port is not None:
        port = str(target.port)
        return [lambda launch: _port(launch) == port]
    name = target.name or ""
    lower = name.lower()

    def role(launch: Launch) -> bool:
        if _value(launch, "--disaggregation-mode") == lower:
            return True
        config = _value(launch, "--kv-transfer-config") or ""
        if lower in _KV_ROLES and _KV_ROLES[lower] in config:
            return True
        return lower == "router" and launch.engine == "router"

    def named(launch: Launch) -> bool:
        return name in launch.names or _value(launch, "--served-model-name") == name

    def worded(launch: Launch) -> bool:
        return any(lower in _parts(text) for text in launch.names)

    def modelled(launch: Launch) -> bool:
        paths = [_value(launch, "--model-path", "--model") or ""]
        if len(launch.words) > launch.first and not looks_like_flag(launch.words[launch.first].text):
            paths.append(launch.words[launch.first].text)
        served = _value(launch, "--served-model-name") or ""
        return any(lower in _parts(path) for path in [*paths, served])

    def told(launch: Launch) -> bool:
        return any(lower in _parts(variable.text) for variable in launch.env)

    return [role, named, worded, modelled, told]


def _parts(text: str) -> set[str]:
    if text.startswith("{"):
        try:
            return {str(value).lower() for value in json.loads(text).values()}
        except (ValueError, AttributeError):
            return set()
    lowered = text.lower()
    return {lowered, *re.split(r"[^a-z0-9]+", lowered)}
