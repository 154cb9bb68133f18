from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest


class Action(NamedTuple):
    """One durable action, as the helper lists it."""

    name: str
    path: Path


def actions_of(site, verb: str) -> list[Action]:
    """The durable actions of one verb of a whole transaction."""
    token = site.writer.lease("r-1", 60).token
    calls = {
        "open": lambda: site.open(token),
        "edit": lambda: site.writer.step(token, "r-1", "edit"),
        "restart": lambda: site.writer.step(token, "r-1", "restart"),
        "undo": lambda: site.writer.undo(token, "r-1"),
    }
    trace = site.folder / "trace"
    for name, call in calls.items():
        if name != verb:
            call()
            continue
        with site.seams(TRACE=str(trace)):
            call()
        break
    lines = (line.split(maxsplit=2)[1:] for line in trace.read_text().splitlines())
    return [Action(name, Path(*rest)) for name, *rest in lines]


@pytest.mark.parametrize("verb", ["open", "edit", "restart", "undo"])
def test_whatever_is_written_is_synced_before_anything_rests_on_it(site, verb) -> None:
    """Bytes are synced before their file gets its name, and names before the next act: a power cut loses no step."""
    actions = actions_of(site, verb)
    dirty: set[Path] = set()
    for action in actions:
        if action.name == "write":
            dirty.add(action.path)
        elif action.name == "sync":
            dirty.discard(action.path)
        else:
            assert not dirty, f"{action} while {dirty} may be lost"
        if action.name in ("rename", "link", "mkdir", "exchange", "unlink"):
            dirty.add(action.path.parent)
    assert not dirty
    assert actions[-1].name == "answer"


def order(actions: list[Action], *names: str) -> list[int]:
    """Where the first action of each name stands; a name may say its file's name after a colon."""
    found = []
    for wanted in names:
        name, _, file = wanted.partition(":")
        after = found[-1] + 1 if found else 0
        matching = (n for n, action in enumerate(actions) if n >= after and action.name == name)
        found.append(next(n for n in matching if not file or actions[n].path.name == file))
    return found


def test_the_undo_lies_on_the_disk_before_the_step(site) -> None:
    """An edit is begun in the journal, then exchanged, then done in the journal; each is synced before the next."""
    actions = actions_of(site, "edit")
    assert order(actions, "sync:journal", "exchange:serve.sh", "sync", "write:journal", "sync:journal", "answer")


def test_a_backup_lies_on_the_disk_before_its_transaction_is_open(site) -> None:
    """Approval spent, old and new bytes saved, the watchdog armed, and only then the first line of the journal."""
    actions = actions_of(site, "open")
    assert order(actions, "link", "rename:old", "rename:new", "rename:deadline", "arm", "write:journal", "answer")


def test_a_command_is_known_on_the_disk_before_it_runs(site) -> None:
    """Begun in the journal, spawned behind its gate, its identity synced, and only then let through."""
    actions = actions_of(site, "restart")
    assert order(actions, "sync:journal", "spawn", "rename:restart", "sync", "command", "write:journal", "answer")
