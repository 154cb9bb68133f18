"""Text that knows where each of its characters is written in a file, and how it is quoted there.

A launch file nests languages: a word of a unit is a shell command, a string of the shell is a list of flags. Every
reader of this room turns the text of one level into the text of the next without losing the way back, so that an edit
is a splice of the file's own bytes however deep the value lies. Bytes are handled as Latin-1 characters, one a byte:
whatever the encoding of a file, what is not edited comes out as it went in.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

OPAQUE = "\x01"
"""Stands in a text for what is not known before the script runs."""

Layer = Literal[
    "bare",  # an unquoted word of the shell
    "single",  # between single quotes of the shell
    "double",  # between double quotes of the shell
    "ansi",  # between $' and '
    "fields",  # text that the shell splits into words later; nothing can be quoted there
    "heredoc",  # the body of a here-document whose delimiter is not quoted
    "default",  # the default within ${NAME:-default}
    "unit",  # an unquoted item of a systemd unit
    "unit-quoted",  # an item of a systemd unit between double quotes
    "unit-single",  # an item of a systemd unit between single quotes
    "percent",  # a file where a percent sign is doubled
    "compose",  # a compose file, where a dollar sign is doubled
    "plain",  # a plain YAML scalar
    "yaml-double",  # a YAML scalar between double quotes
    "yaml-single",  # a YAML scalar between single quotes
    "block",  # a line of a YAML block scalar
    "line",  # a line of a file without any quoting
    "env",  # an unquoted value of an env file
    "env-double",  # between the double quotes of an env file
    "env-single",  # between the single quotes of an env file
    "ini",  # an unquoted item of a supervisord environment
    "kube",  # a Kubernetes value, where $(NAME) is expanded
    "string",  # a plain YAML scalar that has to stay a string
    "flow",  # a plain YAML scalar, a string, between brackets
    "uncommented",  # a line where a semicolon or a number sign behind a blank starts a comment
]


class CannotWrite(Exception):
    """The text cannot be written in that place."""


class Via(NamedTuple):
    """A variable through which a text came to where it is used."""

    name: str
    """The variable."""
    start: int
    """Offset in the file of the expansion; -1: not in this file."""
    end: int
    """Offset of its end."""
    layers: tuple[Layer, ...]
    """How the expansion is written: what a literal in its stead would have to obey."""
    size: int
    """Characters that the whole expansion became; -1: several words, which no literal can stand for."""


class Unknown(NamedTuple):
    """Why a part of a text is not known before the script runs."""

    kind: Literal["computed", "several-values", "from-arguments", "loop-table", "not-in-file", "template"]
    """The kind of refusal that asking for its value earns."""
    what: str
    """The reason, as a clause."""
    many: bool = False
    """True where it may become any number of words."""


class Run(NamedTuple):
    """A stretch of text from one place."""

    text: str
    start: int
    """Offset in the file of the first character; -1: not in this file."""
    end: int
    """Offset behind the last; where it is not `start + len(text)`, the stretch is one escaped character."""
    layers: tuple[Layer, ...]
    """How it is written, innermost first."""
    outer: tuple[int, int]
    """Extent with the quotes around it."""
    via: tuple[Via, ...] = ()
    unknown: Unknown | None = None
    conditional: bool = False
    """True where only some executions have it."""
    overridable: str = ""
    """The variable of the caller's environment, or the argument, that would win over this default."""

    def __repr__(self) -> str:
        """Where it stands; not what it says, which may be a secret."""
        return f"Run({len(self.text)} characters at {self.start})"

    @property
    def linear(self) -> bool:
        """Whether each character is one byte of the file."""
        return self.start >= 0 and self.end - self.start == len(self.text)


Runs = tuple[Run, ...]


def inward(text: str) -> str:
    """A text as its UTF-8 bytes, one character a byte, as this room handles files."""
    return text.encode("utf-8", "surrogateescape").decode("latin-1")


def outward(text: str) -> str:
    """A text of this room as people write it; bytes that are not UTF-8 become surrogates."""
    return text.encode("latin-1").decode("utf-8", "surrogateescape")


def shown(text: str) -> str:
    """A text of this room for people to read: an ellipsis for what is not known, odd bytes escaped."""
    return text.encode("latin-1").decode("utf-8", "backslashreplace").replace(OPAQUE, "…")


def is_plain(run: Run) -> bool:
    """Whether it stands in a plain YAML scalar, whose extent its `outer` keeps."""
    return run.layers[-1:] in (("plain",), ("string",), ("flow",))


def plain(runs: Iterable[Run]) -> str:
    """The characters, with `OPAQUE` for what is not known."""
    return "".join([run.text for run in runs])


def unknown_of(runs: Iterable[Run]) -> Unknown | None:
    """The first reason why the text is not known; None where it is."""
    return next((run.unknown for run in runs if run.unknown), None)


def cut(runs: Runs, start: int, end: int) -> Runs:
    """Characters `start` to `end`; an empty run keeps its place only where everything was asked for."""
    if start == 0 and sum(len(run.text) for run in runs) == end:
        return runs
    out: list[Run] = []
    at = 0
    for run in runs:
        size = len(run.text)
        low, high = max(start, at), min(end, at + size)
        if low < high:
            if low == at and high == at + size:
                out.append(run)
            elif run.linear:
                first = run.start + low - at
                out.append(run._replace(text=run.text[low - at : high - at], start=first, end=first + high - low))
            else:
                out.append(run._replace(text=run.text[low - at : high - at]))
        at += size
        if at >= end:
            break
    return tuple(out)


def place_of(runs: Iterable[Run]) -> tuple[int, int] | None:
    """The one contiguous stretch of the file in which the text is written; None: there is no such stretch."""
    start = end = -1
    for run in runs:
        if run.start < 0 or run.unknown:
            return None
        if start < 0:
            start = run.start
        elif run.start != end:
            return None
        end = run.end
    return None if start < 0 else (start, end)


class Source:
    """A text to parse at one level, with the way back to the file."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.text = plain(runs)
        self._starts: list[int] = []
        at = 0
        for run in runs:
            self._starts.append(at)
            at += len(run.text)
        only = runs[0] if len(runs) == 1 else None
        self._shift = only.start if only and only.linear and not only.via and not only.conditional else None
        self._layers: tuple[Layer, ...] = only.layers if only else ()
        self._whole = only.outer if only and is_plain(only) else None

    @classmethod
    def of_file(cls, content: bytes) -> Source:
        """A whole file."""
        text = content.decode("latin-1")
        return cls((Run(text, 0, len(text), (), (0, len(text))),))

    def take(self, start: int, end: int, layer: Layer | None, outer: tuple[int, int] | None = None) -> Runs:
        """The characters `start` to `end` of this level as runs, written in `layer` on top of what holds here."""
        wide = self.extent(*outer) if outer else None
        if self._shift is not None:
            low, high = start + self._shift, end + self._shift
            layers = (layer, *self._layers) if layer else self._layers
            return (Run(self.text[start:end], low, high, layers, wide or self._whole or (low, high)),)
        if start == end:
            low, high = self.extent(start, end)
            return (
                Run("", low, high, (layer, *self.layers_at(start)) if layer else self.layers_at(start), (low, high)),
            )
        out = []
        for run in cut(self.runs, start, end):
            if run.unknown:
                out.append(run)
                continue
            layers = (layer, *run.layers) if layer else run.layers
            out.append(
                run._replace(layers=layers, outer=wide or (run.outer if is_plain(run) else (run.start, run.end)))
            )
        return tuple(out)

    def layers_at(self, at: int) -> tuple[Layer, ...]:
        """How the character at an offset of this level is written."""
        if self._shift is not None or not self.runs:
            return self._layers
        return self.runs[max(0, bisect_right(self._starts, at) - 1)].layers

    def extent(self, start: int, end: int) -> tuple[int, int]:
        """Offsets in the file of a stretch of this level; (-1, -1) where it is not one stretch of the file."""
        if self._shift is not None:
            return start + self._shift, end + self._shift
        if not self.runs:
            return -1, -1
        first = max(0, bisect_right(self._starts, start) - 1)
        last = max(first, bisect_right(self._starts, max(start, end - 1)) - 1)
        a, b = self.runs[first], self.runs[last]
        if a.start < 0 or b.start < 0 or a.unknown or b.unknown:
            return -1, -1
        low = a.start + (start - self._starts[first]) if a.linear else a.start
        high = b.start + (end - self._starts[last]) if b.linear else b.end
        return (low, high) if low <= high else (-1, -1)


# ------------------------------------------------------------------------------------------------- writing

_SAFE = re.compile(r"[A-Za-z0-9_./:,=+@%\x80-\xff-]+\Z")
_SPLITS = re.compile(r"[\s\x00-\x1f*?\[\]\\'\"$`{}()<>|&;!#~]")
_YAML_PLAIN = re.compile(r"(?!- |-$|---)[A-Za-z0-9_./$(+-][A-Za-z0-9_./:=+@%$()\"' -]*\Z")
_YAML_NUMBER = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?\Z")
_YAML_OTHER = re.compile(r"(?i)(?:true|false|yes|no|on|off|null|~|[-+]?[0-9][0-9_.:eE+-]*|[-+]?\.[0-9]+|0x[0-9a-f]+)\Z")


def _bare(text: str) -> str:
    if _SAFE.match(text):
        return text
    if "\x00" in text:
        raise CannotWrite
    return "'" + text.replace("'", "'\\''") + "'"


def _without(characters: str) -> Callable[[str], str]:
    """A writer for places where no escape exists: the text goes in as it is, or not at all."""

    def write(text: str) -> str:
        if any(character in text for character in characters):
            raise CannotWrite
        return text

    return write


def _fields(text: str) -> str:
    if not text or _SPLITS.search(text):
        raise CannotWrite
    return text


def _double(text: str) -> str:
    return re.sub(r'([\\"$`])', r"\\\1", text)


def _heredoc(text: str) -> str:
    return re.sub(r"([\\$`])", r"\\\1", text)


def _ansi(text: str) -> str:
    return re.sub(r"([\\'])", r"\\\1", text).replace("\n", "\\n").replace("\t", "\\t")


def _unit(text: str) -> str:
    if re.search(r"[\s\"'\\]", text) or not text:
        raise CannotWrite
    return text


def _env(text: str) -> str:
    if re.search(r"[\s\"'\\#;$`]", text):
        raise CannotWrite
    return text


def _escaped(pattern: str) -> Callable[[str], str]:
    """A writer that puts a backslash before what the pattern names, where a line end cannot stand."""

    def write(text: str) -> str:
        if "\n" in text:
            raise CannotWrite
        return re.sub(pattern, r"\\\1", text)

    return write


def _plain(text: str) -> str:
    """A part of a plain scalar; a whole one goes through `as_scalar`."""
    if re.search(r"[\n\t]|: | #|:$|^\s|\s$", text) or not text:
        raise CannotWrite
    return text


def _flow(text: str) -> str:
    if re.search(r"[,\[\]{}]", text):
        raise CannotWrite
    return _plain(text)


def _uncommented(text: str) -> str:
    if re.search(r"(?:^|\s)[;#]|\n", text):
        raise CannotWrite
    return text


_WRITERS: dict[Layer, Callable[[str], str]] = {
    "bare": _bare,
    "single": _without("'"),
    "double": _double,
    "ansi": _ansi,
    "fields": _fields,
    "heredoc": _heredoc,
    "default": _without("}'\"\\$`\n"),
    "unit": _unit,
    "unit-quoted": _escaped(r'(["\\])'),
    "unit-single": _escaped(r"(['\\])"),
    "percent": lambda text: text.replace("%", "%%"),
    "compose": lambda text: text.replace("$", "$$"),
    "plain": _plain,
    "yaml-double": _escaped(r'(["\\])'),
    "yaml-single": lambda text: _without("\n")(text).replace("'", "''"),
    "block": _without("\n"),
    "line": _without("\n\r"),
    "env": _env,
    "env-double": _escaped(r'(["\\`$])'),
    "env-single": _without("'\n"),
    "ini": _without("\n\"',;#\\ "),
    "string": _plain,
    "flow": _flow,
    "uncommented": _uncommented,
    "kube": lambda text: re.sub(r"\$\(", "$$(", text),
}


def write(text: str, layers: Iterable[Layer]) -> str:
    """The characters to put into the file so that `text` is read there.

    Raises:
        CannotWrite: there is no way to say it in that place.
    """
    for layer in layers:
        text = _WRITERS[layer](text)
    return text


def as_scalar(text: str, *, string: bool = True) -> str:
    """A whole YAML scalar.

    Args:
        text: What it says.
        string: It has to be read as a string; otherwise a number may be a number.

    Raises:
        CannotWrite: it has several lines.
    """
    if _YAML_PLAIN.match(text) and (not _YAML_OTHER.match(text) or (not string and _YAML_NUMBER.match(text))):
        try:
            return _plain(text)
        except CannotWrite:
            pass
    return '"' + _WRITERS["yaml-double"](text) + '"'
