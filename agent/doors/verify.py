"""`prudent verify`: whether the records are what was written, and whether their verdicts follow from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import typer
from pydantic import ValidationError
from rich.text import Text as RichText

from agent.assemble import open_store
from agent.domain import Record
from agent.doors.looks import load_settings
from agent.doors.terminal import console, print_json, shown
from agent.errors import UnknownRun
from memory.chain import Break, Link, plan_differs
from memory.store import Store
from policies.again import judged_again

BROKEN = 13
"""Exit code where something does not hold: a person has to look, as after `needs_human`."""
_AT_ONCE = 200
"""Records that are in memory at once."""


class Checked(NamedTuple):
    """What one record says of itself."""

    run: str
    """The run; empty: the text does not even say that."""
    seq: int
    """Place in the chain."""
    judged: bool
    """Whether there were readings to judge again."""
    differs: tuple[str, ...]
    """What does not hold, each in one sentence."""


class Found(NamedTuple):
    """What verifying found."""

    records: int
    """How many records were ever appended."""
    breaks: tuple[Break, ...]
    """Where the chain does not hold."""
    looked_at: int
    """Records that were judged again, or could have been."""
    judged: int
    """Those of them that hold readings to judge."""
    wrong: tuple[Checked, ...]
    """Those of them in which something does not hold."""


def verify_command(
    run: Annotated[str | None, typer.Argument(help="Judge this run's record again; left out: the chain alone.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Judge every record again.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Verify the chain of records offline, and judge one record, or all of them, again from its own readings."""
    with open_store(load_settings()) as store:
        link = None if run is None else store.link(run)
        if run is not None and link is None:
            raise UnknownRun(f"There is no record of run {run!r}.", "See prudent history.")
        breaks = tuple(store.breaks())
        chosen = _each(store) if every else iter(() if link is None else (link,))
        # Only what does not hold is kept in memory, because a history can be long.
        looked_at = judged = 0
        wrong: list[Checked] = []
        for one in map(checked, chosen):
            looked_at, judged = looked_at + 1, judged + one.judged
            wrong += [one] if one.differs else []
        found = Found(store.appended(), breaks, looked_at, judged, tuple(wrong))
    if as_json:
        print_json(_document(found))
    else:
        for line in _lines(found):
            console().print(line)
    if breaks or wrong:
        raise typer.Exit(BROKEN)


def checked(link: Link) -> Checked:
    """Compare a record's plan with what was approved, and its verdict with what its readings say."""
    try:
        record = Record.model_validate_json(link.document)
    except ValidationError as error:
        said = f"the record cannot be read: {error.error_count()} fields do not fit"
        return Checked("", link.seq, False, (said,))
    again = judged_again(record)
    plan = plan_differs(link)
    return Checked(record.run, link.seq, again.computed, (*((plan,) if plan else ()), *again.differs))


def _each(store: Store) -> Iterator[Link]:
    """Every record, a few at a time."""
    after = 0
    while links := store.links(after=after, limit=_AT_ONCE):
        yield from links
        after = links[-1].seq


def _lines(found: Found) -> Iterator[RichText]:
    for one in found.breaks:
        yield shown(f"record {one.seq}  {one.kind}: {one.says}", style="bold red")
    for record in found.wrong:
        for differs in record.differs:
            yield shown(f"record {record.seq}  run {record.run or 'not readable'}: {differs}", style="bold red")
    if found.breaks:
        yield shown(f"The chain of {found.records} records does not hold from record {found.breaks[0].seq} on.")
    else:
        yield shown(f"The chain of {found.records} records holds.")
    if found.looked_at:
        yield shown(
            f"{found.looked_at} looked into, {found.judged} with readings that were judged again,"
            f" {len(found.wrong)} in which something does not hold."
        )


def _document(found: Found) -> dict[str, Any]:
    return {
        "holds": not found.breaks and not found.wrong,
        "records": found.records,
        "breaks": [one._asdict() for one in found.breaks],
        "looked_at": found.looked_at,
        "judged": found.judged,
        "wrong": [one._asdict() for one in found.wrong],
    }
