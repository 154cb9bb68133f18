"""Words out of a line, as systemd or Python's shlex (supervisord, docker compose) take it apart."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, NamedTuple

from tools.serve_script.refusals import ScriptUnreadable
from tools.serve_script.text import Layer, Run, Runs, Source, cut, plain

_UNIT_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "s": " "}


class Item(NamedTuple):
    """A word of a line."""

    runs: Runs
    start: int
    """Offset in the line of the first character, quotes included."""
    end: int
    quoted: bool
    """Whether quotes stand anywhere in it."""


def split_line(source: Source, style: Literal["systemd", "posix"]) -> list[Item]:
    """Take a line apart into words.

    Args:
        source: The line.
        style: `systemd`: systemd.syntax(7), with C escapes; `posix`: as `shlex.split` does.

    Raises:
        ScriptUnreadable: a quote is not closed.
    """
    text = source.text
    bare: Layer = "unit" if style == "systemd" else "bare"
    out: list[Item] = []
    at, size = 0, len(text)
    while at < size:
        if text[at].isspace():
            at += 1
            continue
        begin, quoted = at, False
        runs: Runs = ()
        while at < size and not text[at].isspace():
            mark = text[at]
            if mark in "\"'":
                quoted = True
                close = _close(text, at, style)
                layer: Layer = "unit-quoted" if mark == '"' else "unit-single" if style == "systemd" else "single"
                runs += _inner(source, at + 1, close, layer, style, (at, close + 1))
                at = close + 1
                continue
            stop = at
            while stop < size and not text[stop].isspace() and text[stop] not in "\"'":
                stop += 2 if text[stop] == "\\" else 1
            stop = min(stop, size)
            runs += _inner(source, at, stop, bare, style, None)
            at = stop
        out.append(Item(runs, begin, at, quoted))
    return out


def _close(text: str, at: int, style: str) -> int:
    mark = text[at]
    i = at + 1
    while i < len(text) and text[i] != mark:
        i += 2 if text[i] == "\\" and (mark == '"' or style == "systemd") else 1
    if i >= len(text):
        raise ScriptUnreadable("does-not-parse", "A quote of the command is not closed.", "Close it.")
    return i


def _inner(source: Source, start: int, end: int, layer: Layer, style: str, outer: tuple[int, int] | None) -> Runs:
    text = source.text[start:end]
    if "\\" not in text or (style == "posix" and layer == "single"):
        return source.take(start, end, layer, outer)
    out: Runs = ()
    begin = at = 0
    while at < len(text):
        if (
            text[at] != "\\"
            or at + 1 >= len(text)
            or (style == "posix" and layer == "unit-quoted" and text[at + 1] not in '\\"')
        ):
            at += 1
            continue
        if at > begin:
            out += source.take(start + begin, start + at, layer, outer)
        letter = text[at + 1]
        width = 2
        if style == "systemd" and letter == "x" and re.match(r"[0-9a-fA-F]{2}", text[at + 2 : at + 4]):
            letter, width = chr(int(text[at + 2 : at + 4], 16)), 4
        elif style == "systemd":
            letter = _UNIT_ESCAPES.get(letter, letter)
        low, high = source.extent(start + at, start + at + width)
        wide = source.extent(*outer) if outer else (low, high)
        out += (Run(letter, low, high, (layer, *source.layers_at(start + at)), wide),)
        at += width
        begin = at
    if at > begin:
        out += source.take(start + begin, start + at, layer, outer)
    return out


def substitute(runs: Runs, pattern: re.Pattern[str], replace: Callable[[re.Match[str], Runs], Runs]) -> Runs:
    """Replace each match in a text; `replace` gets the match and its runs.

    The layer of what stays is for the caller to add.
    """
    text = plain(runs)
    out: Runs = ()
    at = 0
    for match in pattern.finditer(text):
        if match.start() > at:
            out += cut(runs, at, match.start())
        out += replace(match, cut(runs, match.start(), match.end()))
        at = match.end()
    if at == 0:
        return runs
    if at < len(text):
        out += cut(runs, at, len(text))
    return out


def atom(text: str, runs: Runs) -> Run:
    """One character that several of the file stand for, such as a percent sign for two."""
    first, last = runs[0], runs[-1]
    return first._replace(text=text, end=last.end if first.start >= 0 else first.end)


def within(runs: Runs, layer: Layer) -> Runs:
    """The same text, one language further in."""
    return tuple([run if run.unknown else run._replace(layers=(layer, *run.layers)) for run in runs])
