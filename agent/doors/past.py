"""`prudent history`: what was asked and what came of it; and the time before us, as far as files tell of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from agent.assemble import open_store, owner_lives
from agent.domain import Change, Knob, Record
from agent.doors.chronicle import came, chronicle, day
from agent.doors.looks import load_settings
from agent.doors.terminal import console, print_json, shown
from agent.doors.who import login
from agent.errors import BadSettings
from agent.settings import JOURNAL, LOCAL, WorkerSettings
from memory.store import Store
from memory.traces import Path as Way
from memory.traces import Trace, to_values, told_of
from tools.engines.catalogue import knobs
from tools.past.change import PastChange, record_of, run_of
from tools.past.once import known_as, told_once
from tools.past.source import read_sources
from tools.past.versions import Subject

BRIEFLY = 160
"""Characters of what is said of a change that the table shows; --json and the record have more."""
LOOKED_AT = 50
"""Records of the very same values that are compared with what is read, the newest first."""
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
WorkerName = Annotated[str | None, typer.Option("--worker", "-w", help="The worker, where there are several.")]

past = typer.Typer(help="What was asked and what came of it, the newest first.", invoke_without_command=True)


@past.callback()
def history(context: typer.Context, worker: WorkerName = None, limit: int = 20, as_json: Json = False) -> None:
    """List what was asked and what came of it, the newest first."""
    if context.invoked_subcommand is not None:
        return
    settings = load_settings()
    if worker is not None:
        settings.worker(worker)
    with open_store(settings) as store:
        records = chronicle(store, worker=worker, limit=limit)
        links = {record.run: store.link(record.run) for record in records} if as_json else {}
        broken = store.broken_at(newest=limit)
        waiting = store.runs(worker=worker, open_only=True)
        lives = {row.request.run: owner_lives(row.owner) for row in waiting}
    if as_json:
        print_json(
            {
                "records": [
                    {"hash": link.hash if (link := links[r.run]) else r.hash, **r.model_dump(mode="json")}
                    for r in records
                ],
                "open": [
                    {
                        "run": r.request.run,
                        "state": r.state,
                        "text": r.request.text,
                        "owner_lives": lives[r.request.run],
                    }
                    for r in waiting
                ],
                "chain_broken_at": broken,
            }
        )
        return
    table = _table("run", "when", "worker", "what", "verdict", "worker is")
    for row in waiting:
        alive = "" if lives[row.request.run] else ", owner gone: prudent resume"
        table.add_row(
            row.request.run,
            f"{row.request.at:%Y-%m-%d %H:%M}",
            row.request.worker,
            shown(row.request.text),
            row.state + alive,
            "",
        )
    for record in records:
        what = record.change.summary if record.change else record.request.text
        when = f"{record.at:%Y-%m-%d %H:%M}" if record.origin is None else day(record)
        state = record.verdict.state if record.origin is None else "not known"
        table.add_row(record.run, when, record.worker, shown(what), came(record), state)
    out = console()
    out.print(table if table.row_count else "Nothing has been asked yet.")
    if broken is not None:
        out.print(shown(f"The chain of records does not hold from record {broken} on.", style="bold red"))


@past.command("import")
def import_past(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Plan documents, folders of script backups, git repositories, scripts, engine logs; left out: what the"
            " worker's settings name.",
            show_default=False,
        ),
    ] = None,
    worker: WorkerName = None,
    script: Annotated[
        str | None, typer.Option(help="The script's file name there, where it is not the one of the settings.")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Keep them; without it they are only shown.")] = False,
    as_json: Json = False,
) -> None:
    """Learn from files what was changed before Prudent came; it is marked as imported and proves nothing."""
    settings = load_settings()
    name, chosen = settings.worker(worker)
    subject = Subject(script=script or Path(chosen.script).name, engine=chosen.engine, launch=chosen.launch)
    read = read_sources(paths or _named(chosen), subject, given=bool(paths))
    changes = told_once(read.changes)
    now = datetime.now(UTC)
    with open_store(settings) as store:
        known = _known(store, name, changes, {knob.name: knob for knob in knobs(chosen.engine)})
        new = [one for one in changes if one.key not in known]
        records = [record_of(one, worker=name, imported_by=login(), now=now) for one in new]
        kept = store.append_all(records) if write else ()
    if as_json:
        print_json(
            {
                "worker": name,
                "written": [record.run for record in kept],
                "changes": [{"run": record.run, **_document(one)} for one, record in zip(new, records, strict=True)],
                "known": [{"run": known[one.key], **_document(one)} for one in changes if one.key in known],
                "left_out": read.left_out,
            }
        )
        return
    out = console()
    if new:
        table = _table("when", "what", "from", "said of it", "not sure")
        doubts = list(dict.fromkeys(doubt for one in new for doubt in one.origin.unsure))
        for one in new:
            origin = one.origin
            table.add_row(
                "not known" if origin.at is None else f"{origin.at:%Y-%m-%d}",
                shown(one.summary),
                shown("; ".join(origin.sources)),
                shown(" ".join((origin.outcome or "").split())[:BRIEFLY]),
                " ".join(str(doubts.index(doubt) + 1) for doubt in origin.unsure),
            )
        out.print(table)
        out.print("\nnot sure:")
        for number, doubt in enumerate(doubts, start=1):
            out.print(shown(f"{number:>4}  {doubt}"))
    for sentence in read.left_out:
        out.print(shown(f"left out: {sentence}"))
    for one in changes:
        if one.key in known:
            out.print(shown(f"known already as {known[one.key]}: {one.summary}"))
    if not new:
        out.print("There is nothing that is not known already.")
    elif write:
        out.print(f"{len(kept)} kept for worker {name}, as imported and unproven; see prudent history.")
    else:
        out.print(f"{len(new)} found for worker {name}, nothing kept yet; keep them with --write.")


def _known(store: Store, worker: str, changes: Sequence[PastChange], catalogue: Mapping[str, Knob]) -> dict[str, str]:
    """The changes that a record tells of already, with the run."""
    told = {change.key: record for change in changes if (record := store.record(run_of(change, worker))) is not None}
    alike: dict[str, Record] = {record.run: record for record in told.values()}
    for change in changes:
        if change.settings:
            aim = to_values(Change(worker=worker, operation="set", settings=change.settings, summary=""), catalogue)
            for record in store.akin([Way(1, Trace(aim=one), worker) for one in (aim, told_of(aim))], LOOKED_AT):
                alike[record.run] = record
    return known_as(changes, tuple(alike.values()), worker)


def _named(chosen: WorkerSettings) -> list[Path]:
    """What the settings of a worker name, as far as it lies on this machine."""
    found = [Path(chosen.plan)] if chosen.plan is not None else []
    if chosen.host == LOCAL:
        found += [Path(chosen.script), *([Path(chosen.log)] if chosen.log != JOURNAL else [])]
    elif not found:
        raise BadSettings(
            f"The script and the log of this worker lie on {chosen.host}.",
            "Copy them here, with their backups, and name the copies: prudent history import PATH",
        )
    here = [path for path in found if path.exists()]
    if not here:
        raise BadSettings(
            f"Nothing that the settings name of this worker is there: {', '.join(map(str, found))}.",
            "Name what there is: prudent history import PATH",
        )
    return here


def _document(one: PastChange) -> dict[str, object]:
    return {
        "what": one.summary,
        "settings": [setting.model_dump(mode="json") for setting in one.settings],
        "words": one.words,
        "names": one.names,
        "reopen_when": one.reopen_when,
        **one.origin.model_dump(mode="json"),
    }


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
