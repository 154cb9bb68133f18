"""What a ground really is, from script, process and the host's journal alone, against what a record says of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agent.assemble import open_store
from agent.domain import Record
from agent.settings import load
from evals.campaigns.ground import Ground, Identity
from evals.campaigns.real import RealGround

EXPECTED: Mapping[str, tuple[bytes, bytes]] = {
    "bump": (b"--cuda-graph-max-bs 32 ", b"--cuda-graph-max-bs 96 "),
    "overlap": (b"    --disable-overlap-schedule \\\n", b""),
}
"""What each story replaces in the script, and by what."""


class Before(NamedTuple):
    """A ground before anything was asked."""

    script: bytes
    """The script."""
    process: Identity | None
    """The main process."""


class Truth(NamedTuple):
    """A ground as it is."""

    script: str
    """`old`, `new` or `other`: the script's bytes."""
    process: str
    """`first` (the process from before), `old` or `new` (a later one with that configuration), `other`, or `none`."""
    journal: str
    """How the newest transaction ended: `none`, `open`, `undoing`, `committed`, `undone`, `undo_failed`."""
    writes: int
    """Steps that were begun."""
    litter: tuple[str, ...]
    """Files of ours beside the script; what a helper that was killed leaves in Prudent's own folder harms nobody."""


def before(ground: Ground | RealGround) -> Before:
    """Remember a ground."""
    return Before(ground.script.read_bytes(), ground.main())


def truth(ground: Ground | RealGround, was: Before, story: str) -> Truth:
    """Look at a ground, without asking anything of the product."""
    old, new = EXPECTED[story]
    changed = was.script.replace(old, new)
    held = ground.script.read_bytes()
    script = "old" if held == was.script else "new" if held == changed else "other"
    main = ground.main()
    if main is None:
        process = "none"
    elif main == was.process:
        process = "first"
    else:
        process = _configuration(ground.argv(), story)
    entries = journal(ground)
    ends = {"opened": "open", "undo_begun": "undoing"}
    state = "none"
    for entry in entries:
        event = entry["event"]
        if event in {"opened", "undo_begun", "committed", "undone", "undo_failed", "abandoned"}:
            state = ends.get(event, event)
    begun = sum(entry["event"] == "begun" for entry in entries)
    beside = tuple(sorted(path.name for path in ground.script.resolve().parent.glob(".serve*")))
    return Truth(script, process, state, begun, beside)


def _configuration(argv: Sequence[str], story: str) -> str:
    if "sglang.launch_server" not in argv:
        return "other"
    if story == "bump":
        return {"32": "old", "96": "new"}.get(argv[argv.index("--cuda-graph-max-bs") + 1], "other")
    return "old" if "--disable-overlap-schedule" in argv else "new"


def journal(ground: Ground | RealGround) -> list[dict[str, Any]]:
    """The host's journal, whole lines only."""
    path = ground.host_directory / "workers" / "decode" / "journal"
    if not path.exists():
        return []
    whole = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line.partition(b" ")[2]) for line in whole]


def stored(ground: Ground | RealGround, run: str) -> tuple[Record | None, str | None]:
    """The record of a run, and what is wrong with the store's books about it."""
    with open_store(load(ground.settings, {})) as store:
        row, record, broken = store.run(run), store.record(run), store.broken_at()
    if broken is not None:
        return record, f"the chain of records breaks at {broken}"
    if row is None:
        return record, None if record is None else "there is a record of a run that nobody opened"
    if row.ended is None:
        return record, f"the run has not ended, its state is {row.state!r}"
    return record, None if record is not None else "the run has ended without a record"


class End(NamedTuple):
    """What came of a run, its record and the ground agreeing."""

    decision: str
    """The verdict's decision; `none` without a record."""
    state: str
    """The verdict's state."""
    why: str
    """The verdict's reason."""
    real: Truth
    """The ground."""


def end_of(ground: Ground | RealGround, was: Before, story: str, run: str) -> End | str:
    """What came of a run; a text says what is wrong with its books, or where its record is not true."""
    record, books = stored(ground, run)
    if books is not None:
        return books
    real = truth(ground, was, story)
    wrong = contradiction(record, real)
    if wrong is not None:
        return wrong
    if record is None:
        return End("none", "untouched", "", real)
    return End(record.verdict.decision, record.verdict.state, record.verdict.why, real)


FITTING: Mapping[str, tuple[Truth, ...]] = {
    "new": (Truth("new", "new", "committed", 0, ()),),
    "restored": (Truth("old", "first", "undone", 0, ()), Truth("old", "old", "undone", 0, ())),
    "untouched": (Truth("old", "first", "none", 0, ()), Truth("old", "first", "undone", 0, ())),
}
"""What a proven state may look like; `writes` is compared for `untouched` only."""


def contradiction(record: Record | None, real: Truth) -> str | None:
    """Why a record is not true; None where it is. Without a record nothing may have been touched."""
    state = record.verdict.state if record is not None else "untouched"
    if state == "unknown":
        return None
    fitting = FITTING[state]
    if state != "untouched":
        real = real._replace(writes=0)
    if real in fitting:
        return None
    said = f"{record.verdict.decision}, {state}" if record is not None else "no record"
    return f"the record says {said}; really: {real}"
