"""Where a value can be changed so that it changes there and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from tools.serve_script.launches import Launch
from tools.serve_script.splice import Splice
from tools.serve_script.text import CannotWrite, Runs, as_scalar, is_plain, place_of, write


class Spot(NamedTuple):
    """One way of writing a new value."""

    splice: Splice
    start: int
    """Extent of what is replaced: all that is made of it is changed."""
    end: int
    through: str
    """The variable whose assignment it is; empty for a literal of the command."""


def spots(runs: Runs, value: str) -> Iterator[Spot]:
    """Yield the places of a value: its literal, then each variable use on the way to where it is read."""
    place = place_of(runs)
    if place is not None and len({run.layers for run in runs}) == 1:
        through = runs[0].via[0].name if runs[0].via else ""
        layers, outer = runs[0].layers, runs[0].outer
        quotes = 2 if layers[:1] == ("ansi",) else 1
        try:
            if is_plain(runs[0]) and outer == place:
                text = as_scalar(write(value, layers[:-1]), string=layers[-1] != "plain")
            else:
                text = write(value, layers)
            yield Spot(Splice(*place, text), *place, through)
        except CannotWrite:
            if layers == ("env",):
                with suppress(CannotWrite):
                    yield Spot(Splice(*place, f'"{write(value, ("env-double",))}"'), *place, through)
            if layers[:1] in (("single",), ("double",), ("ansi",)) and outer == (place[0] - quotes, place[1] + 1):
                with suppress(CannotWrite):
                    yield Spot(Splice(*outer, write(value, ("bare", *layers[1:]))), *outer, through)
    if not runs or any(run.start < 0 for run in runs):
        return  # the text lies in another file: forcing it here would only hide it
    size = sum(len(run.text) for run in runs)
    shared = [via for via in runs[0].via if all(via in run.via for run in runs)]
    for i, via in enumerate(shared):
        if via.start >= 0 and via.size == size:
            through = shared[i + 1].name if i + 1 < len(shared) else ""
            try:
                yield Spot(Splice(via.start, via.end, write(value, via.layers)), via.start, via.end, through)
            except CannotWrite:
                continue


def touches(runs: Runs, start: int, end: int) -> bool:
    """Whether any of these characters are made of the stretch of the file."""
    for run in runs:
        if run.start >= 0 and _overlap(run.start, run.end, start, end):
            return True
        if any(via.start >= 0 and _overlap(via.start, via.end, start, end) for via in run.via):
            return True
    return False


def _overlap(a: int, b: int, start: int, end: int) -> bool:
    if a == b or start == end:
        return start <= a <= end and start <= b <= end
    return a < end and b > start


def reached(launches: Sequence[Launch], start: int, end: int) -> tuple[set[tuple[int, int]], set[tuple[int, str]]]:
    """Which words (launch, index) and which variables (launch, name) are made of a stretch of the file."""
    words: set[tuple[int, int]] = set()
    variables: set[tuple[int, str]] = set()
    for i, launch in enumerate(launches):
        for j, word in enumerate(launch.words):
            if touches(word.runs, start, end):
                words.add((i, j))
        for variable in launch.env:
            if touches(variable.runs, start, end):
                variables.add((i, variable.name))
    return words, variables
