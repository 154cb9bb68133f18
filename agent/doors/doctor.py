"""`prudent doctor`: what a change of a worker needs, and what of it is missing; nothing is changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Table

from agent.assemble import Assembly, assemble
from agent.doors.looks import load_settings
from agent.doors.terminal import console, print_json, shown
from agent.errors import CannotProve, HostError, Refused
from agent.nodes.looking import ready_for_a_change

MISSING = 13
"""Exit code where something is missing: a person is needed."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


class Look(NamedTuple):
    """One thing that was looked at."""

    name: str
    """What."""
    ok: bool | None
    """Whether it is there; None: a change is possible without it, less well."""
    says: str
    """What was found."""
    remedy: str = ""
    """What to do about it."""


def doctor(
    worker: Annotated[str | None, typer.Argument(help="The worker; left out where there is one only.")] = None,
    as_json: Json = False,
) -> None:
    """Find out whether a worker could be changed and proven from here, and what is missing; nothing is changed."""
    settings = load_settings()
    name, chosen = settings.worker(worker)
    found = [Look("settings", True, f"worker {name} on {chosen.host}, {chosen.engine}, policy {chosen.policy}")]
    try:
        with assemble(settings, name, environ=os.environ) as parts:
            found += _looks(parts)
    except Refused as refusal:
        found.append(Look("way in", False, refusal.sentence, refusal.remedy))
    missing = [one for one in found if one.ok is False]
    if as_json:
        print_json({"worker": name, "fit": not missing, "found": [one._asdict() for one in found]})
    else:
        _print(name, found, len(missing))
    raise typer.Exit(MISSING if missing else 0)


def _looks(parts: Assembly) -> Iterator[Look]:
    worker, settings = parts.parts.worker, parts.parts.settings
    yield Look("way in", True, f"{worker.host.name}, files of Prudent in {worker.host.directory}")
    yield from _asked("helper", lambda: [Look(*ability) for ability in worker.writer.doctor(log=settings.log)])
    yield from _asked("script", lambda: _script(parts))
    yield from _asked("engine", lambda: _engine(parts))
    yield from _asked("entry", lambda: _entry(parts))
    yield from _asked("proof", lambda: _proof(parts))
    yield from _asked("live requests", lambda: _live(parts))


def _asked(name: str, look: Callable[[], list[Look]]) -> list[Look]:
    """What a look found, or why it could not be had."""
    try:
        return look()
    except Refused as refusal:
        return [Look(name, False, refusal.sentence, refusal.remedy)]
    except HostError as problem:
        return [Look(name, False, str(problem), "Look at the host, then ask again.")]


def _script(parts: Assembly) -> list[Look]:
    worker = parts.parts.worker
    script = worker.script()
    launches = worker.launches(script)
    said = worker.launch(script, parts.parts.settings.version)
    return [Look("launch", True, f"{len(launches)} launch(es) in the script, {len(said)} known settings in ours")]


def _engine(parts: Assembly) -> list[Look]:
    snapshot = parts.parts.worker.snapshot()
    values = len(snapshot.in_force)
    return [
        Look("engine", True, f"{parts.parts.settings.engine} {snapshot.version}, {values} values in force are known")
    ]


def _entry(parts: Assembly) -> list[Look]:
    reading = parts.parts.worker.through_entry("baseline", parts.parts.policy.times.entry_seconds)
    answered = reading.value == 1.0
    remedy = "" if answered else "See that `entry` is where users send their requests, and that it serves."
    return [Look("entry", answered, reading.detail or reading.no_data or "no answer", remedy)]


def _proof(parts: Assembly) -> list[Look]:
    try:
        ready_for_a_change(parts.parts.worker.snapshot(), parts.parts)
    except CannotProve as refusal:
        return [Look("proof", False, refusal.sentence, refusal.remedy)]
    except Refused as refusal:
        return [Look("free", None, refusal.sentence, refusal.remedy)]
    return [Look("proof", True, "a start of this worker can be proven from here, and nothing else is under way")]


def _live(parts: Assembly) -> list[Look]:
    live = parts.parts.worker.live_requests()
    if live is None:
        return [
            Look("live requests", False, "they could not be counted", "Let the engine serve /metrics or /v1/loads.")
        ]
    return [Look("live requests", True, f"{live} in flight now")]


def _print(name: str, found: list[Look], missing: int) -> None:
    marks: dict[Any, tuple[str, str]] = {True: ("ok", "green"), False: ("missing", "red"), None: ("note", "yellow")}
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for one in found:
        mark, style = marks[one.ok]
        says = one.says if not one.remedy else f"{one.says} {one.remedy}"
        table.add_row(shown(mark, style=style), shown(one.name), shown(says))
    out = console()
    out.print(table)
    verdict = (
        "can be changed and proven from here" if not missing else f"cannot be changed from here: {missing} missing"
    )
    out.print(shown(f"Worker {name} {verdict}."))
