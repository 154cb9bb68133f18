"""Read the launches of a systemd unit and its drop-ins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from tools.serve_script.bash import read_command
from tools.serve_script.bash_walk import Context
from tools.serve_script.env_file import read_variables
from tools.serve_script.launches import EnvPlace, Launch, LineOf, Variable, Word
from tools.serve_script.refusals import ScriptUnreadable
from tools.serve_script.split import atom, split_line, substitute, within
from tools.serve_script.text import Layer, Run, Runs, Source, Unknown, Via, plain

_SPECIFIER = re.compile(r"%(.)")
_REFERENCE = re.compile(r"\$\$|\$\{([A-Za-z_]\w*)\}")
_WHOLE = re.compile(r"\$([A-Za-z_]\w*)\Z")


class _Line(NamedTuple):
    """A logical line: a setting of the unit."""

    section: str
    key: str
    value: Source
    start: int
    """Offset in the text of the line's beginning."""
    end: int


def read_unit(
    runs: Runs, *, content: bytes, files: Mapping[str, bytes], line_of: LineOf | None = None
) -> tuple[Launch, ...]:
    """The launches of a unit.

    Args:
        runs: The unit's text, with the way back to the file.
        content: The file, for line numbers.
        files: Drop-ins (`*.conf`) and environment files, by name.
        line_of: Line numbers, where they are at hand.

    Raises:
        ScriptUnreadable: it is no unit.
    """
    source = Source(runs)
    line_of = line_of or LineOf(content)
    settings = [(source, line) for line in _lines(source)]
    for name in sorted(files):
        if name.endswith(".conf"):
            text = files[name].decode("latin-1")
            drop_in = Source((Run(text, -1, -1, ("line",), (-1, -1), (Via(name, -1, -1, (), -1),)),))
            settings += [(drop_in, line) for line in _lines(drop_in)]
    env: dict[str, Variable] = {}
    starts: list[tuple[Source, _Line]] = []
    for origin, line in settings:
        if line.section != "Service":
            continue
        if line.key == "Environment":
            if not line.value.text.strip():
                env = {}
            for variable in _environment(origin, line, line_of):
                env[variable.name] = variable
        elif line.key == "EnvironmentFile":
            path = line.value.text.strip().lstrip("-").rsplit("/", 1)[-1]
            held = next((c for n, c in files.items() if n.rsplit("/", 1)[-1] == path), None)
            if held is not None:
                text = held.decode("latin-1")
                env |= read_variables(
                    Source((Run(text, -1, -1, ("line",), (-1, -1), (Via(path, -1, -1, (), -1),)),)), "systemd", line_of
                )
        elif line.key == "ExecStart":
            starts = [*starts, (origin, line)] if line.value.text.strip() else []
    out: list[Launch] = []
    for origin, line in starts:
        out += _launches(origin, line, env, content, files)
    return tuple(out)


def _lines(source: Source) -> list[_Line]:
    """Logical lines: a backslash joins the next, and comments between joined lines do not count."""
    out: list[_Line] = []
    section = ""
    parts: Runs = ()
    begin = -1
    text = source.text
    at = 0
    while at < len(text):
        stop = text.find("\n", at)
        stop = len(text) if stop < 0 else stop
        line_end = stop
        if text[at:line_end].endswith("\r"):
            line_end -= 1
        line = text[at:line_end]
        bare = line.lstrip()
        following = stop + 1
        if bare[:1] in ("#", ";") or (begin < 0 and not bare):
            at = following
            continue
        goes_on = line.endswith("\\")
        if begin < 0:
            begin = at
        parts += source.take(at, line_end - 1 if goes_on else line_end, None)
        if goes_on:
            parts += (Run(" ", -1, -1, (), (-1, -1)),)
            at = following
            if at < len(text):
                continue
        whole = Source(parts)
        stripped = whole.text.strip()
        if stripped.startswith("["):
            if not stripped.endswith("]"):
                raise ScriptUnreadable(
                    "does-not-parse", f"{stripped!r} is no section of a unit.", "Repair the unit first."
                )
            section = stripped[1:-1]
        else:
            key, equals, _ = whole.text.partition("=")
            if not equals:
                raise ScriptUnreadable(
                    "does-not-parse", "A line of the unit is neither a section nor a setting.", "Repair the unit first."
                )
            value = Source(
                tuple(run for run in whole.take(len(key) + 1, len(whole.text), None))
                if len(whole.text) > len(key) + 1
                else ()
            )
            out.append(_Line(section, key.strip(), value, begin, stop))
        parts, begin, at = (), -1, following
    return out


def _percent(runs: Runs) -> Runs:
    """Specifiers of systemd: `%%` is a percent sign, the others are known when the unit starts."""

    def replace(match: re.Match[str], found: Runs) -> Runs:
        if match[1] == "%":
            return (atom("%", found),)
        reason = Unknown("template", f"systemd fills in {match[0]} when the unit starts")
        return (found[0]._replace(text="\x01", unknown=reason),)

    return within(substitute(runs, _SPECIFIER, replace), "percent")


def _environment(origin: Source, line: _Line, line_of: LineOf) -> list[Variable]:
    out = []
    items = split_line(line.value, "systemd")
    statement = origin.extent(line.start, line.end)
    for item in items:
        runs = _percent(item.runs)
        name, equals, value = plain(runs).partition("=")
        if not equals:
            raise ScriptUnreadable(
                "does-not-parse", "An Environment setting has no equals sign.", "Repair the unit first."
            )
        site = line.value.extent(item.start, item.end)
        value_runs = Source(runs).take(len(name) + 1, len(name) + 1 + len(value), None) if value else runs[-1:]
        if not value and runs[-1].start >= 0:
            last = runs[-1]
            value_runs = (last._replace(text="", start=last.end, outer=(last.end, last.end)),)
        out.append(Variable(name, value_runs, line_of.at(site[0]), site, "unit", statement, alone=len(items) == 1))
    return out


def _launches(
    origin: Source, line: _Line, env: dict[str, Variable], content: bytes, files: Mapping[str, bytes]
) -> tuple[Launch, ...]:
    line_of = LineOf(content)
    owner = origin.extent(line.start, line.start)[0]
    layer: tuple[Layer, ...] = ("compose", "percent")
    words: list[Word] = []
    for number, item in enumerate(split_line(line.value, "systemd")):
        runs = item.runs
        if not number:
            text = plain(runs)
            prefix = len(text) - len(text.lstrip("@-:+!|"))
            if prefix:
                runs = Source(runs).take(prefix, len(text), None)
        runs = _percent(runs)
        site = line.value.extent(item.start, item.end)
        whole = _WHOLE.match(plain(runs))
        if whole:
            words += _fields(whole[1], env, runs, site, owner)
            continue
        runs = within(substitute(runs, _REFERENCE, lambda m, found: _reference(m, found, env)), "compose")
        word_layers: tuple[Layer, ...] = (*layer, "unit", *origin.layers_at(line.start))
        words.append(Word(runs, site, word_layers, "unit", owner))
    begin = origin.extent(line.start, line.start)[0]
    newline = "\r\n" if b"\r\n" in content else "\n"
    tail = origin.layers_at(line.start)
    place = EnvPlace(
        begin,
        "Environment={name}={value}" + newline,
        ("percent", "unit", *tail),
        'Environment="{name}={value}"' + newline,
        ("percent", "unit-quoted", *tail),
    )
    if begin < 0:
        place = EnvPlace(-1, "", ())
    site = origin.extent(line.start, line.end)
    launches = read_command(
        words, content=content, files=files, env=tuple(env.values()), context=Context(), site=site, place=place
    )
    return tuple(
        launch._replace(
            env_place=place if launch.env_place.at < 0 or _plain_command(launch) else launch.env_place,
            line=launch.line or line_of.at(site[0]),
        )
        for launch in launches
    )


def _plain_command(launch: Launch) -> bool:
    return bool(launch.words) and launch.words[0].container == "unit"


def _reference(match: re.Match[str], found: Runs, env: Mapping[str, Variable]) -> Runs:
    if match[0] == "$$":
        return (atom("$", found),)
    variable = env.get(match[1])
    if variable is None:
        reason = Unknown("not-in-file", f"{match[1]} comes from the environment of the unit")
        return (found[0]._replace(text="\x01", unknown=reason),)
    via = Via(match[1], found[0].start, found[-1].end, found[0].layers, len(plain(variable.runs)))
    return tuple([run._replace(via=(*run.via, via)) for run in variable.runs])


def _fields(name: str, env: Mapping[str, Variable], runs: Runs, site: tuple[int, int], owner: int) -> list[Word]:
    """`$NAME` as an item of its own is split at blanks."""
    variable = env.get(name)
    layers: tuple[Layer, ...] = ("compose", "percent", "unit")
    if variable is None:
        reason = Unknown("not-in-file", f"{name} comes from the environment of the unit", True)
        return [Word((runs[0]._replace(text="\x01", unknown=reason),), site, layers, "unit", owner)]
    source = Source(variable.runs)
    parts = list(re.finditer(r"\S+", source.text))
    out: list[Word] = []
    for match in parts:
        alone = len(parts) == 1 and not match[0].startswith("-")
        via = Via(name, site[0] if alone else -1, site[1] if alone else -1, layers, len(match[0]) if alone else -1)
        pieces = tuple([run._replace(via=(*run.via, via)) for run in source.take(match.start(), match.end(), "fields")])
        inner = source.extent(match.start(), match.end())
        if alone:
            out.append(Word(pieces, site, layers, "unit", owner))
        else:
            out.append(Word(pieces, inner, pieces[0].layers, "fields", variable.site[0]))
    return out
