"""Commands that only look: knobs, what one is on a worker, a forecast, the launch file and an edit not made."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, cast

import typer

from agent.assemble import Assembly, assemble
from agent.domain import Change, Knob, Setting
from agent.doors.chronicle import came, chronicle, day
from agent.doors.terminal import console, forecast_table, print_json, shown
from agent.errors import BadSettings, HostError, NotUnderstood, OutOfBounds, Refused
from agent.nodes.estimate_memory import forecast_of
from agent.settings import Settings, find, load
from tools.engines.catalogue import bounds, check_value, knob_named, knobs, plain
from tools.engines.explain import knob_lines, memory_bar
from tools.engines.help_text import Installed

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
WorkerArgument = Annotated[str | None, typer.Argument(help="The worker; left out where there is one only.")]
Wanted = Annotated[list[str], typer.Option("--set", help="KNOB=VALUE; a switch flag takes on or off.")]


def knobs_command(
    engine: Annotated[
        str | None, typer.Option(help="sglang or vllm; left out: the one of the workers in the settings, or sglang.")
    ] = None,
    search: Annotated[str, typer.Argument(help="Only those whose name or meaning holds this.")] = "",
    as_json: Json = False,
) -> None:
    """List the settings that Prudent knows of an engine."""
    engine = engine or _engine_here()
    if engine not in {"sglang", "vllm"}:
        raise OutOfBounds(f"There is no engine {engine!r}.", "It is sglang or vllm.")
    known = knobs(cast("Literal['sglang', 'vllm']", engine))
    chosen = [knob for knob in known if search.lower() in f"{knob.name} {knob.meaning} {' '.join(knob.words)}".lower()]
    if as_json:
        print_json([knob.model_dump(mode="json") for knob in chosen])
        return
    if not chosen:
        raise NotUnderstood(f"No setting of {engine} has {search!r} in its name or meaning.", nearest(search, known))
    for knob in chosen:
        console().print(shown(f"{knob.name}  [{knob.kind}, {knob.subsystem}, risk {knob.risk}]  {knob.meaning}"))


def explain_command(
    knob: Annotated[str, typer.Argument(help="A setting, as operators or the engine call it.")],
    worker: Annotated[str | None, typer.Option("--worker", "-w", help="The worker, where there are several.")] = None,
    as_json: Json = False,
) -> None:
    """Say what a setting is, what it is on the worker now, how it couples, and what happened to it before."""
    settings = load_settings()
    name, chosen = settings.worker(worker)
    found = knob_named(chosen.engine, knob) or _called(knob, knobs(chosen.engine))
    if found is None:
        raise NotUnderstood(f"No setting of {chosen.engine} is called {knob!r}.", nearest(knob, knobs(chosen.engine)))
    with assemble(settings, name, environ=os.environ) as parts:
        version, values, written, installed, remarks = _on_worker(parts, found)
        earlier = [
            f"{day(record)} run {record.run}: {record.change.summary}: {came(record)}"
            for record in chronicle(parts.store, worker=name, limit=200)
            if record.change and any(setting.knob == found.name for setting in record.change.settings)
        ]
    if as_json:
        print_json(
            {
                "knob": found.model_dump(mode="json"),
                "in_force": None if values is None else values.get(found.name),
                "in_script": written,
                "remarks": remarks,
                "installed": None if installed is None else installed.model_dump(mode="json", exclude={"flags"}),
                "history": earlier,
            }
        )
        return
    for line in (
        *knob_lines(found, version, written=written, values=values, installed=installed),
        *(f"  here         {remark}" for remark in remarks),
        *(f"  before       {e}" for e in earlier),
    ):
        console().print(shown(line))


def forecast_command(wanted: Wanted, worker: WorkerArgument = None, as_json: Json = False) -> None:
    """Forecast what a change would do to the GPU's memory and to the start; nothing is changed."""
    settings = load_settings()
    name, _ = settings.worker(worker)
    with assemble(settings, name, environ=os.environ) as parts:
        change = change_of(parts, wanted)
        floor = parts.parts.policy.floor_gb
        forecast = forecast_of(change, parts.parts.worker.snapshot(), parts.parts)
    if as_json:
        print_json(forecast.model_dump(mode="json"))
        return
    console().print(shown(change.summary))
    console().print(forecast_table(forecast, whole=True))
    console().print(shown("\n" + memory_bar(forecast, floor or 0.0)))


script = typer.Typer(help="The worker's launch file: what it starts, and what an edit would be.", no_args_is_help=True)


@script.command("show")
def script_show(worker: WorkerArgument = None, as_json: Json = False) -> None:
    """Show what the launch file sets, with the line that each value comes from."""
    settings = load_settings()
    name, _ = settings.worker(worker)
    with assemble(settings, name, environ=os.environ) as parts:
        content = parts.parts.worker.script()
        launches = parts.parts.worker.launches(content)
    if as_json:
        print_json(launches)
        return
    for launch in launches:
        console().print(shown(f"line {launch['line']}: {launch['engine']} {launch['name']}".rstrip()))
        for flag in launch["flags"]:
            console().print(shown(f"  {flag['line']:>5}  {flag['text']}"))
        for variable in launch["environment"]:
            console().print(shown(f"  {variable['line'] or '':>5}  {variable['text']}"))


@script.command("diff")
def script_diff(wanted: Wanted, worker: WorkerArgument = None, as_json: Json = False) -> None:
    """Show and prove the edit that a change would make; nothing is written."""
    settings = load_settings()
    name, _ = settings.worker(worker)
    with assemble(settings, name, environ=os.environ) as parts:
        content = parts.parts.worker.script()
        edited = parts.parts.worker.edit(content, change_of(parts, wanted, live=False))
        proof = parts.parts.worker.prove(content, edited)
    if as_json:
        print_json(
            {
                "diff": edited.diff,
                "explanation": edited.explanation,
                "proven": proof.proven,
                "proof": proof.how,
                "sha256": edited.sha256,
                "by_hand": edited.handover.commands if edited.handover else None,
            }
        )
        return
    console().print(shown(edited.explanation))
    console().print(shown(edited.diff))
    console().print(shown(proof.how if proof.proven else f"UNPROVEN: {proof.how}"))
    if edited.handover is not None:
        console().print(shown("\n".join((edited.handover.sentence, *edited.handover.commands))))


def _engine_here() -> str:
    """The engine of the workers here, where there are settings and they agree."""
    try:
        engines = {worker.engine for worker in load_settings().workers.values()}
    except BadSettings:
        return "sglang"
    return engines.pop() if len(engines) == 1 else "sglang"


def load_settings() -> Settings:
    """The settings that hold here."""
    return load(find(Path.cwd(), os.environ), os.environ)


def change_of(parts: Assembly, wanted: list[str], *, live: bool = True) -> Change:
    """`KNOB=VALUE` -> a change of the worker.

    Raises:
        NotUnderstood: it is not of that form, or no knob is called so.
        OutOfBounds: the knob does not take the value.
    """
    worker, settings = parts.parts.worker, []
    content = worker.script()
    version = worker.snapshot().version if live else parts.parts.settings.version
    for pair in wanted:
        name, joined, value = pair.partition("=")
        spelled = knob_named(parts.parts.settings.engine, name)
        knob = spelled or _called(name, parts.parts.knobs)
        if not joined or knob is None:
            near = nearest(name, parts.parts.knobs)
            raise NotUnderstood(f"{pair!r} is not KNOB=VALUE with a setting that I know.", near)
        text = _text(knob, value, opposite=spelled is None and knob.inverted)
        wrong = check_value(knob, text) if text is not None else None
        if wrong is not None:
            raise OutOfBounds(wrong, f"It takes {bounds(knob) or 'another value'}.")
        written = worker.value_in(content, knob, version)
        settings.append(Setting(knob=knob.name, kind=knob.kind, spelling=written.spelling, old=written.value, new=text))
    told = ", ".join(f"{s.knob} {_said(s.old)} -> {_said(s.new)}" for s in settings)
    return Change(worker=parts.parts.name, operation="set", settings=tuple(settings), summary=told)


def _text(knob: Knob, value: str, *, opposite: bool) -> str | None:
    """The text to write; `opposite` where the knob is named by what its flag switches off."""
    if knob.value != "switch":
        return value
    on = {"on": True, "true": True, "1": True, "": True, "off": False, "false": False, "0": False}.get(value.lower())
    if on is None:
        raise OutOfBounds(f"{value!r} is neither on nor off.", f"Say {knob.name}=on or {knob.name}=off.")
    if knob.kind == "env":
        return "1" if on != opposite else "0"
    return "" if on != opposite else None


def _said(value: str | None) -> str:
    return "not set" if value is None else (value or "set")


def nearest(words: str, known: tuple[Knob, ...]) -> str:
    """The remedy for a name that nobody has: those that hold it, else those that look like it."""
    asked = plain(words)
    names = [knob.name for knob in known]
    held = [knob.name for knob in known if asked and any(asked in plain(w) for w in (knob.name, *knob.words))]
    near = held or difflib.get_close_matches(asked, names, n=3, cutoff=0.6)
    return f"Did you mean {', '.join(near[:4])}? See prudent knobs." if near else "See prudent knobs."


def _called(words: str, known: tuple[Knob, ...]) -> Knob | None:
    return next((knob for knob in known if words.lower() in knob.words), None)


class _OnWorker(NamedTuple):
    """What a worker says about a knob; None where it is down."""

    version: str | None
    in_force: Mapping[str, str] | None
    written: str | None
    installed: Installed | None
    remarks: tuple[str, ...]


def _on_worker(parts: Assembly, knob: Knob) -> _OnWorker:
    """Version, values in force, the text in the script, what is installed, and what the launch does to the knob."""
    worker = parts.parts.worker
    try:
        snapshot = worker.snapshot()
    except (Refused, HostError):
        return _OnWorker(parts.parts.settings.version, None, None, None, ())
    written = worker.value_in(snapshot.script, knob, snapshot.version)
    as_it_is = Change(worker=worker.name, operation="set", summary="as it is")
    installed = worker.installed(snapshot)
    remarks = tuple(
        remark.says
        for remark in worker.contract(snapshot, as_it_is, installed)
        if remark.knob == knob.name or knob.name in remark.says
    )
    return _OnWorker(snapshot.version, snapshot.in_force, written.value, installed, remarks)
