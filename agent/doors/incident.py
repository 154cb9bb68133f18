"""`prudent incident`: what happened to the team itself, as a lesson that later changes are held against."""

from __future__ import annotations

import re
from typing import Annotated, Literal, get_args

import typer
from pydantic import ValidationError
from rich.table import Table

from agent.assemble import open_store
from agent.domain import CheckName, Knob, Record
from agent.doors.looks import load_settings, nearest
from agent.doors.terminal import console, print_json, shown
from agent.errors import BadSettings, NotUnderstood, OutOfBounds, UnknownRun
from agent.settings import Settings
from memory.incidents import Incident, Metric, incidents
from memory.told import CHECK_OF, breached_metrics, told, version_of
from tools.engines.catalogue import knob_named, knobs

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Outcome = Literal["harmed", "helped", "false alarm"]
Certainty = Literal["confirmed", "suspected", "unknown"]

incident = typer.Typer(help="Incidents: the team's own, made from a run, and those that come with Prudent.")


@incident.command("add")
def add_incident(
    run: Annotated[str, typer.Argument(help="The run in which it was seen.")],
    title: Annotated[str, typer.Option(help="What was seen, in one line.")] = "",
    lesson: Annotated[str, typer.Option(help="What to do because of it.")] = "",
    knob: Annotated[list[str] | None, typer.Option(help="A setting that it bears on, besides those changed.")] = None,
    check: Annotated[list[str] | None, typer.Option(help="A check to demand, besides those that failed.")] = None,
    versions: Annotated[
        str, typer.Option(help="FROM..UNTIL; UNTIL is the first without it, either may be left out.")
    ] = "",
    outcome: Annotated[str, typer.Option(help="harmed, helped or 'false alarm'; left out: by the verdict.")] = "",
    certainty: Annotated[str, typer.Option(help="How sure the cause is: confirmed, suspected or unknown.")] = "",
    reopen_when: Annotated[str, typer.Option(help="When a change deferred for it may be tried again.")] = "",
    fixed_by: Annotated[str, typer.Option(help="What makes it go away.")] = "",
    name: Annotated[str, typer.Option("--id", help="Its name; left out: made from settings and run.")] = "",
    as_json: Json = False,
) -> None:
    """Make an incident of a run's record; from then on it is a precedent for its settings."""
    settings = load_settings()
    with open_store(settings) as store:
        record, row, link = store.record(run), store.run(run), store.link(run)
        if record is None or link is None:
            if row is not None:
                raise UnknownRun(f"Run {run} has no record yet; it is {row.state}.", "Wait until it has ended.")
            raise UnknownRun(f"There is no run {run!r}.", "See prudent history.")
        engine = _engine(settings, record)
        touched = _knobs(record, knob or [], engine)
        since, until = _versions(versions, version_of(record))
        metrics = [metric for metric in breached_metrics(record) if metric in get_args(Metric)]
        demanded = _checks(metrics, check or [])
        harmed = _outcome(record, outcome, run)
        summary = record.change.summary if record.change is not None else record.request.text
        broke = f" broke {', '.join(m.replace('_', ' ') for m in metrics)}" if metrics else ""
        known = {one.name: one for one in knobs(engine)}
        made = _made(
            {
                "id": name or _slug(f"{touched[0]} {metrics[0] if metrics else record.verdict.decision} {run}"),
                "title": title or f"{summary}{broke or f' was {record.verdict.decision}'} on {record.worker}",
                "engine": engine,
                "since": since,
                "until": until,
                "knobs": touched,
                "subsystem": next((known[one].subsystem for one in touched if one in known), "not known"),
                "happened": told(record),
                "outcome": harmed,
                "signature": metrics,
                "lesson": lesson or _lesson(summary, broke, demanded),
                "demands": demanded,
                "reopen_when": reopen_when or record.verdict.reopen_when,
                "fixed_by": fixed_by or None,
                "certainty": certainty or ("unknown" if record.origin is not None else "suspected"),
                "at": None if record.when is None else record.when.date().isoformat(),
                "reference": f"prudent show {run}",
                "source": f"run {run}, record {record.seq}, {link.hash[:16]}",
                "tainted": True,
            }
        )
        if made.id in {one.id for one in incidents()} or not store.add_incident(made):
            raise BadSettings(f"There is another incident {made.id!r} already.", "Give this one a name with --id.")
    if as_json:
        print_json(made.model_dump(mode="json"))
    else:
        console().print(shown(f"Kept as {made.id}: {made.title}"))
        asks = f"demands {', '.join(made.demands)}" if made.demands else "demands no check; name one with --check"
        console().print(shown(f"It is told with every change of {', '.join(made.knobs)}, and {asks}."))


@incident.command("list")
def list_incidents(
    every: Annotated[bool, typer.Option("--all", help="Those that come with Prudent as well.")] = False,
    as_json: Json = False,
) -> None:
    """List the team's own incidents."""
    with open_store(load_settings()) as store:
        found = (*store.incidents(), *(incidents() if every else ()))
    if as_json:
        print_json([one.model_dump(mode="json") for one in found])
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("id", "when", "settings", "versions", "what was seen"):
        table.add_column(column, overflow="fold")
    for one in found:
        table.add_row(*(shown(text) for text in (one.id, one.at or "", ", ".join(one.knobs), _range(one), one.title)))
    console().print(table if found else "The team has added none; prudent incident add RUN makes one of a run.")


@incident.command("show")
def show_incident(name: Annotated[str, typer.Argument(help="Its id.")], as_json: Json = False) -> None:
    """Show an incident whole."""
    with open_store(load_settings()) as store:
        found = next((one for one in (*store.incidents(), *incidents()) if one.id == name), None)
    if found is None:
        raise UnknownRun(f"There is no incident {name!r}.", "See prudent incident list --all.")
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    out = console()
    out.print(shown(f"{found.id}: {found.title}", style="bold"))
    for label, text in (
        ("when", found.at),
        ("engine", f"{found.engine} {_range(found)}".strip()),
        ("settings", ", ".join(found.knobs)),
        ("subsystem", found.subsystem),
        ("what happened", found.happened),
        ("outcome", found.outcome),
        ("shows again as", ", ".join(found.signature)),
        ("lesson", found.lesson),
        ("demands", ", ".join(found.demands)),
        ("live when", "; ".join(condition.says for condition in found.conditions)),
        ("again when", found.reopen_when),
        ("fixed by", found.fixed_by),
        ("cause", found.certainty),
        ("read in", found.reference),
        ("source", found.source),
    ):
        if text:
            out.print(shown(f"  {label:<15} {text}"))


def _engine(settings: Settings, record: Record) -> Literal["sglang", "vllm"]:
    if record.worker not in settings.workers:
        raise BadSettings(
            f"The run was on worker {record.worker!r}, which the settings no longer know, so its engine is not known.",
            "Name the worker in the settings again.",
        )
    return settings.workers[record.worker].engine


def _knobs(record: Record, more: list[str], engine: Literal["sglang", "vllm"]) -> list[str]:
    found = [setting.knob for setting in record.change.settings] if record.change is not None else []
    for text in more:
        one: Knob | None = knob_named(engine, text)
        if one is None:
            raise NotUnderstood(f"No setting of {engine} is called {text!r}.", nearest(text, knobs(engine)))
        found.append(one.name)
    if not found:
        raise NotUnderstood(
            f"Run {record.run} changed no setting, so no later change would meet this.", "Name one with --knob."
        )
    return list(dict.fromkeys(found))


def _versions(said: str, seen: str | None) -> tuple[str | None, str | None]:
    """The range as it was said; else from the version on in which it was seen."""
    if not said:
        return seen, None
    since, dots, until = (part.strip() for part in said.partition(".."))
    if not all(re.fullmatch(r"v?\d[\w.+-]*", part) for part in (since, until) if part) or not (since or until):
        raise OutOfBounds(f"{said!r} is no range of versions.", "Write it as 0.5.12..0.5.15, 0.5.12.. or ..0.5.15.")
    return since or None, (until or None) if dots else None


def _checks(metrics: list[str], more: list[str]) -> list[str]:
    for text in more:
        if text not in get_args(CheckName):
            raise OutOfBounds(f"There is no check {text!r}.", f"It is one of {', '.join(get_args(CheckName))}.")
    return list(dict.fromkeys((*(CHECK_OF[metric] for metric in metrics if metric in CHECK_OF), *more)))


def _outcome(record: Record, said: str, run: str) -> str:
    if said:
        if said not in get_args(Outcome):
            raise OutOfBounds(f"{said!r} is no outcome.", f"It is one of {', '.join(get_args(Outcome))}.")
        return said
    if breached_metrics(record) or record.verdict.decision in {"rolled_back", "needs_human"}:
        return "harmed"
    if record.verdict.decision == "kept":
        return "helped"
    raise NotUnderstood(
        f"Run {run} was {record.verdict.decision.replace('_', ' ')} and broke nothing: what came of it is not known.",
        "Say it with --outcome harmed, helped or 'false alarm'.",
    )


def _lesson(summary: str, broke: str, checks: list[str]) -> str:
    if not broke:
        return f"See what the run says before doing it again: {summary}."
    return f"{summary}{broke}. Prove {', '.join(checks) or 'the opposite'} before it is kept."


def _made(fields: dict[str, object]) -> Incident:
    try:
        return Incident.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        hint = "Use small letters, digits and dashes." if where == "id" else "Correct that option."
        raise OutOfBounds(f"{where}: {first['msg']}, not {first['input']!r}.", hint) from error


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:80].strip("-")


def _range(one: Incident) -> str:
    ends = (f"from {one.since}" if one.since else "", f"before {one.until}" if one.until else "")
    return " ".join(filter(None, ends))
