"""`prudent plan`: the options of the performance plan as they stand, and which one to try now."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.table import Table

from agent.assemble import Assembly, assemble
from agent.domain import Change, Record, Setting
from agent.doors.looks import load_settings
from agent.doors.terminal import console, print_json, shown
from agent.errors import BadSettings, HostError, Refused
from memory.deferral import earlier_deferral, standing
from tools.plan_options import PlanOption, options_in
from tools.worker import Snapshot

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
WorkerName = Annotated[str | None, typer.Argument(help="The worker; left out where there is one only.")]

plans = typer.Typer(help="The performance plan: its options, and which one to try now.", no_args_is_help=True)


class Weighed(NamedTuple):
    """An option, and whether it could be tried now."""

    option: PlanOption
    ready: bool
    """Nothing that is known keeps it."""
    why: str
    """What keeps it, or why it may be tried."""
    request: str
    """The words to ask for it with; empty: it names no value of a known setting."""


@plans.command("list")
def list_options(worker: WorkerName = None, as_json: Json = False) -> None:
    """List the options of the worker's plan document, with what they should bring and how they stand."""
    settings = load_settings()
    name, chosen = settings.worker(worker)
    with assemble(settings, name, environ=os.environ) as parts:
        found = _options(chosen.plan, parts)
    if as_json:
        print_json([option._asdict() for option in found])
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("id", "option", "expected", "state", "setting", "line"):
        table.add_column(column, overflow="fold")
    for option in found:
        knob = option.knobs[0] if option.knobs else ""
        state = option.state if option.said.lower() in {"", option.state} else f"{option.state} ({option.said})"
        table.add_row(
            *(shown(text) for text in (option.id, option.title, option.expected, state, knob)), str(option.line)
        )
    console().print(table if found else "The plan names no option that can be read.")


@plans.command("next")
def next_option(worker: WorkerName = None, as_json: Json = False) -> None:
    """Say which option to try now, and why the others wait."""
    settings = load_settings()
    name, chosen = settings.worker(worker)
    with assemble(settings, name, environ=os.environ) as parts:
        weighed = _weighed(_options(chosen.plan, parts), parts)
    first = next((one for one in weighed if one.ready and one.request), None)
    first = first or next((one for one in weighed if one.ready), None)
    if as_json:
        print_json(
            {
                "next": None if first is None else first._asdict() | {"option": first.option._asdict()},
                "others": [one._asdict() | {"option": one.option._asdict()} for one in weighed if one is not first],
            }
        )
        return
    out = console()
    if first is None:
        out.print("Nothing in the plan can be tried now.")
    else:
        gain = f" (expected: {first.option.expected})" if first.option.expected else ""
        out.print(shown(f"Next: {first.option.id}. {first.option.title}{gain}", style="bold"))
        out.print(shown(f"  {first.why}"))
        if first.request:
            out.print(shown(f'  prudent ask "{first.request}"'))
    for one in weighed:
        if one is not first:
            out.print(shown(f"{one.option.id}. {one.option.title}: {one.why}"))


def _options(path: str | None, parts: Assembly) -> tuple[PlanOption, ...]:
    if path is None:
        raise BadSettings(f"Worker {parts.parts.name} has no plan document.", "Name one with `plan` in the settings.")
    called = {
        knob.name: (knob.name, *(spelling.text for spelling in knob.spellings), *knob.words)
        for knob in parts.parts.knobs
    }
    return options_in(Path(path), called)


def _weighed(options: Sequence[PlanOption], parts: Assembly) -> list[Weighed]:
    try:
        snapshot: Snapshot | None = parts.parts.worker.snapshot()
    except (Refused, HostError):
        snapshot = None
    states = {option.id: option.state for option in options}
    return [_weigh(option, states, snapshot, parts) for option in options]


def _weigh(option: PlanOption, states: Mapping[str, str], snapshot: Snapshot | None, parts: Assembly) -> Weighed:
    request, change = _change(option, snapshot, parts)
    if option.state in {"kept", "rejected", "rolled back", "needs a human"}:
        said = "" if option.said.lower() in {"", option.state} else f" ({option.said})"
        return Weighed(option, False, f"{option.state}{said}", request)
    earlier = earlier_deferral(change, parts.parts.knobs, parts.store) if change is not None else None
    if earlier is not None and snapshot is not None and change is not None:
        return _put_off(option, earlier, change, snapshot, parts, request)
    if option.state == "deferred":
        why = f"deferred, and no record of ours says why; it waits for {option.waits}" if option.waits else "deferred"
        return Weighed(option, False, why, request)
    open_before = [
        number for number in re.findall(r"#(\d+)", option.waits) if states.get(number) in {"proposed", "in progress"}
    ]
    if open_before:
        return Weighed(option, False, f"waits for {', '.join(f'#{number}' for number in open_before)}", request)
    if change is not None and snapshot is not None and _in_force(change, snapshot):
        return Weighed(option, False, "in force already", request)
    ready = "nothing that is known keeps it" if option.knobs else "it names no setting that Prudent knows"
    return Weighed(option, True, ready, request)


def _put_off(
    option: PlanOption, earlier: Record, change: Change, snapshot: Snapshot, parts: Assembly, request: str
) -> Weighed:
    """A deferral of ours: its condition, and whether it holds now."""
    now = standing(
        earlier,
        change,
        incidents=parts.parts.incidents,
        version=snapshot.version,
        settings_in_force=snapshot.in_force,
    )
    until = f" until this holds: {earlier.verdict.reopen_when}" if earlier.verdict.reopen_when else ""
    why = f"run {earlier.run} of {earlier.at:%Y-%m-%d} deferred it{until}. Now: {now.says}"
    return Weighed(option, now.holds is True, why, request)


def _change(option: PlanOption, snapshot: Snapshot | None, parts: Assembly) -> tuple[str, Change | None]:
    """What to ask for, where an option names a setting and what it should become."""
    knob = next((knob for knob in parts.parts.knobs if option.knobs and knob.name == option.knobs[0]), None)
    if knob is None:
        return "", None
    text = f"{option.title} {option.about}"
    called = knob.words[0] if knob.words else knob.name
    if knob.value == "switch":
        # The title alone: "drop --disable-x" is a double negation, and titles name what is wanted.
        off = re.search(r"\b(off|disable|without|drop|remove)\b(?!-)", option.title, re.IGNORECASE) is not None
        on = (not off) if not knob.inverted else off
        new = ("1" if on else "0") if knob.kind == "env" else ("" if on else None)
        request = f"turn the {called} {'off' if off else 'on'}"
    else:
        number = re.search(r"(?:->|→|\bto\b)\s*(\d+(?:\.\d+)?)(?!\s*%)", text) or re.search(
            r"\b(\d{2,})\b(?!\s*%)", text
        )
        if number is None:
            return "", None
        new = number[1]
        request = f"set {called} to {new}"
    old = None if snapshot is None else snapshot.in_force.get(knob.name)
    setting = Setting(knob=knob.name, kind=knob.kind, spelling=knob.spellings[0].text, old=old, new=new)
    return request, Change(worker=parts.parts.name, operation="set", settings=(setting,), summary=option.title)


def _in_force(change: Change, snapshot: Snapshot) -> bool:
    return all(
        setting.new is not None and snapshot.in_force.get(setting.knob) == setting.new for setting in change.settings
    )
