"""Read the launches of a supervisord configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from tools.serve_script.bash import read_command
from tools.serve_script.bash_walk import Context
from tools.serve_script.launches import EnvPlace, Launch, LineOf, Variable, Word
from tools.serve_script.refusals import ScriptUnreadable
from tools.serve_script.split import atom, split_line, substitute, within
from tools.serve_script.text import Layer, Run, Runs, Source, Unknown, plain

_EXPANSION = re.compile(r"%%|%\(([^)]*)\)s")
_PAIR = re.compile(r"\s*,?\s*([A-Za-z_][\w]*)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|([^,\s\"']*))\s*", re.S)


class _Option(NamedTuple):
    section: str
    key: str
    value: Source
    start: int
    end: int


def read_programs(runs: Runs, *, content: bytes, files: Mapping[str, bytes]) -> tuple[Launch, ...]:
    """The launches of every `[program:...]`.

    Args:
        runs: The file's text.
        content: The file, for line numbers.
        files: Other files that the commands read.

    Raises:
        ScriptUnreadable: it is no such configuration.
    """
    source = Source(runs)
    options = _options(source)
    line_of = LineOf(content)
    newline = "\r\n" if b"\r\n" in content else "\n"
    out: list[Launch] = []
    for section in dict.fromkeys(option.section for option in options):
        if not section.startswith("program:"):
            continue
        own = {option.key: option for option in options if option.section == section}
        command = own.get("command")
        if command is None:
            continue
        env: list[Variable] = []
        given = own.get("environment")
        if given is not None:
            env = _environment(given, line_of)
            at = given.value.extent(0, len(given.value.text.rstrip()))[1]
            place = EnvPlace(at, ',{name}="{value}"', ("unit-quoted", "percent", "uncommented"))
        else:
            at = min(len(source.text), command.end + 1)
            lead = "" if source.text[:at].endswith("\n") else newline
            place = EnvPlace(
                at, f'{lead}environment={{name}}="{{value}}"{newline}', ("unit-quoted", "percent", "uncommented")
            )
        owner = source.extent(command.start, command.start)[0]
        words = []
        for item in split_line(command.value, "posix"):
            pieces = _expanded(item.runs)
            layers: tuple[Layer, ...] = ("bare", "percent", "uncommented")
            words.append(Word(pieces, command.value.extent(item.start, item.end), layers, "supervisord", owner))
        name = section.partition(":")[2]
        launches = read_command(
            words,
            content=content,
            files=files,
            env=tuple(env),
            context=Context(names=(name,)),
            site=source.extent(command.start, command.end),
            place=place,
        )
        out += [
            launch._replace(env_place=place)
            if launch.words[:1] and launch.words[0].container == "supervisord"
            else launch
            for launch in launches
        ]
    return tuple(out)


def _options(source: Source) -> list[_Option]:
    """Options with the lines that go on by indentation; a semicolon behind a blank starts a comment."""
    text = source.text
    out: list[_Option] = []
    section = ""
    key, start, end = "", -1, -1
    parts: Runs = ()

    def close() -> None:
        if key:
            out.append(_Option(section, key, Source(parts), start, end))

    at = 0
    while at < len(text):
        stop = text.find("\n", at)
        stop = len(text) if stop < 0 else stop
        line = text[at:stop].rstrip("\r")
        comment = re.search(r"(?:^|\s)[;#]", line)
        shown = line[: comment.start()] if comment else line
        if shown.strip():
            if line[0] in " \t" and key:
                bare = shown.rstrip()
                goes_on = bare.endswith("\\")
                body = bare[:-1].rstrip() if goes_on else bare
                parts += (Run(" ", -1, -1, (), (-1, -1)),)
                parts += source.take(at, at + len(body), "uncommented")
                end = stop
            elif shown.strip().startswith("["):
                close()
                key, parts = "", ()
                section = shown.strip().strip("[]")
            else:
                close()
                match = re.match(r"([^=:]+?)\s*[=:]\s*", shown)
                if match is None:
                    raise ScriptUnreadable(
                        "does-not-parse", f"A line under [{section}] is no setting.", "Repair the file first."
                    )
                key, start, end = match[1].strip(), at, stop
                value = shown.rstrip()
                value = value[:-1].rstrip() if value.endswith("\\") else value
                parts = (
                    source.take(at + match.end(), at + max(match.end(), len(value)), "uncommented")
                    if len(value) > match.end()
                    else ()
                )
        at = stop + 1
    close()
    return out


def _expanded(runs: Runs) -> Runs:
    def replace(match: re.Match[str], found: Runs) -> Runs:
        if match[0] == "%%":
            return (atom("%", found),)
        reason = Unknown("template", f"supervisord fills in {match[0]} when it starts")
        return (found[0]._replace(text="\x01", unknown=reason),)

    quoted = substitute(runs, _EXPANSION, replace)
    return tuple(
        [
            run if run.unknown or not run.layers else run._replace(layers=(run.layers[0], "percent", *run.layers[1:]))
            for run in quoted
        ]
    )


def _environment(option: _Option, line_of: LineOf) -> list[Variable]:
    out = []
    text = option.value.text
    at = 0
    while at < len(text.rstrip()):
        match = _PAIR.match(text, at)
        if match is None or match.end() == at:
            raise ScriptUnreadable(
                "does-not-parse", "The environment of a program cannot be read.", "Repair the file first."
            )
        group = next(i for i in (2, 3, 4) if match[i] is not None)
        layer: Layer = "unit-quoted" if group == 2 else "unit-single" if group == 3 else "ini"
        outer = (match.start(group) - 1, match.end(group) + 1) if group != 4 else None
        runs = _expanded(option.value.take(match.start(group), match.end(group), layer, outer))
        end = match.end(group) + (0 if group == 4 else 1)
        site = option.value.extent(match.start(1), end)
        statement = option.value.extent(0, len(text))
        out.append(Variable(match[1], runs, line_of.at(site[0]), site, "supervisord", statement))
        at = match.end()
    return out


__all__ = ["plain", "read_programs", "within"]
