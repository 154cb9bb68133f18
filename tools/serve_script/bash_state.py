"""What a shell knows at one point of a script."""

from __future__ import annotations

from typing import NamedTuple

from tools.serve_script.launches import Word
from tools.serve_script.text import Runs, Unknown, plain, unknown_of

UNKNOWN_HERE = Unknown("not-in-file", "it comes from the environment of whoever runs the file", True)


class Held(NamedTuple):
    """What a variable of the shell holds."""

    options: tuple[Runs, ...] = ()
    """The texts that it may hold; more than one where branches assign it differently."""
    array: tuple[Word, ...] | None = None
    """Its elements, for an array."""
    exported: bool = False
    site: tuple[int, int] = (-1, -1)
    """Extent of the last assignment."""
    statement: tuple[int, int] = (-1, -1)
    """Extent of the statement with that assignment."""
    alone: bool = False
    """Whether the statement assigns nothing else."""

    @property
    def text(self) -> str | None:
        """Its text where there is one and it is known."""
        if self.array is not None or len(self.options) != 1 or unknown_of(self.options[0]):
            return None
        return plain(self.options[0])


class State:
    """Variables, arguments and functions; copied for a branch, merged behind it."""

    def __init__(self) -> None:
        self.held: dict[str, Held] = {}
        self.touched: set[str] = set()
        self.arguments: tuple[Word, ...] | None = None
        self.auto_export = False
        self.sourced: tuple[str, ...] = ()
        self.ended = False

    def put(self, name: str, held: Held | None) -> None:
        """Let a variable hold something; None: forget it."""
        if held is None:
            self.held.pop(name, None)
        else:
            self.held[name] = held
        self.touched.add(name)

    def branch(self) -> State:
        """A copy that can go its own way."""
        other = State()
        other.held = dict(self.held)
        other.arguments = self.arguments
        other.auto_export = self.auto_export
        other.sourced = self.sourced
        return other

    def child(self) -> State:
        """What a child process starts with."""
        other = State()
        other.held = {name: held for name, held in self.held.items() if held.exported}
        return other

    def take(self, other: State) -> None:
        """Go on from another state."""
        self.held = other.held
        self.touched |= other.touched
        self.auto_export = other.auto_export
        self.sourced = other.sourced
        self.ended = other.ended

    def merge(self, branches: list[State], *, exhaustive: bool) -> None:
        """Go on behind branches, one of which ran, or none where they are not exhaustive."""
        alive = [branch for branch in branches if not branch.ended]
        if not alive:
            self.ended = exhaustive
            return
        if exhaustive and len(alive) == 1:
            self.take(alive[0])
            return
        before = self.held
        changed = {name for branch in alive for name in branch.touched if branch.held.get(name) is not before.get(name)}
        self.touched |= changed
        if not changed:
            self._settle(alive)
            return
        merged = dict(before)
        for name in changed:
            merged[name] = _merge(before.get(name), [branch.held.get(name) for branch in alive], exhaustive=exhaustive)
        self.held = merged
        self._settle(alive)

    def _settle(self, alive: list[State]) -> None:
        self.auto_export = any(branch.auto_export for branch in alive)
        self.sourced = tuple(dict.fromkeys(item for branch in [self, *alive] for item in branch.sourced))


def _maybe(runs: Runs) -> Runs:
    return tuple([run._replace(conditional=True) for run in runs])


def _maybe_word(word: Word) -> Word:
    return word._replace(runs=_maybe(word.runs))


def _merge(before: Held | None, after: list[Held | None], *, exhaustive: bool) -> Held:
    values = [held for held in after if held is not None]
    if not values:
        return Held(options=((),))
    last = values[-1]
    exported = any(held.exported for held in values)
    if any(held.array is not None for held in values) or (before and before.array is not None):
        base = before.array or () if before else ()
        grown: list[Word] = list(base)
        for held in values:
            items = held.array or ()
            if items[: len(base)] == base:
                grown += [_maybe_word(word) for word in items[len(base) :]]
            else:
                grown += [_maybe_word(word) for word in items]
        return last._replace(array=tuple(grown), options=(), exported=exported)
    options: list[Runs] = []
    prior = before.options if before else ()
    grown_from = prior[0] if len(prior) == 1 else None
    if grown_from is not None and any(run.text for run in grown_from):
        tails: Runs = ()
        for held in values:
            if len(held.options) != 1 or not _extends(held.options[0], grown_from):
                break
            tails += _maybe(held.options[0][len(grown_from) :])
        else:
            return last._replace(options=(grown_from + tails,), exported=exported)
    for option in [
        *([] if exhaustive and len(values) == len(after) else prior),
        *[o for held in values for o in held.options],
    ]:
        if option not in options:
            options.append(option)
    if len(options) == 1 and (len(values) < len(after) or not exhaustive) and not prior:
        options[0] = _maybe(options[0])
    return last._replace(options=tuple(options), exported=exported)


def _extends(runs: Runs, base: Runs) -> bool:
    """Whether a text is another one with something behind it, however it came there."""
    return len(runs) >= len(base) and all(
        (a.text, a.start, a.unknown) == (b.text, b.start, b.unknown) for a, b in zip(runs, base, strict=False)
    )
