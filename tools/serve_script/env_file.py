"""Read an env file as its reader does: the same bytes mean different things to bash, systemd, compose and docker."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tools.serve_script.bash import read_shell
from tools.serve_script.bash_walk import Context
from tools.serve_script.launches import EnvPlace, Launch, LineOf, Variable
from tools.serve_script.text import Layer, Run, Runs, Source


def read_variables(source: Source, reader: str, line_of: LineOf) -> dict[str, Variable]:
    """The variables of a file that systemd, docker compose or docker reads, by name; the last assignment wins.

    Args:
        source: The file.
        reader: `systemd`, `compose` or `docker`.
        line_of: Line numbers.
    """
    out: dict[str, Variable] = {}
    for match in re.finditer(r"[^\n]+", source.text):
        line = match[0].rstrip("\r")
        begin = match.start()
        bare = line.strip()
        if not bare or bare[0] in "#;" or "=" not in line:
            continue
        name_at = len(line) - len(line.lstrip())
        head = re.match(r"export\s+", line[name_at:]) if reader == "compose" else None
        if head:
            name_at += head.end()
        equals = line.index("=", name_at)
        name = line[name_at:equals].strip()
        runs = _value(source, line, begin, equals + 1, reader)
        site = source.extent(begin, begin + len(line))
        out[name] = Variable(name, runs, line_of.at(site[0]), site, "line", site, alone=True)
    return out


def _value(source: Source, line: str, begin: int, at: int, reader: str) -> Runs:
    end = len(line)
    if reader == "docker":
        return source.take(begin + at, begin + end, "line")
    while at < end and line[at] in " \t":
        at += 1
    while end > at and line[end - 1] in " \t":
        end -= 1
    mark = line[at : at + 1]
    close = line.find(mark, at + 1) if mark and mark in "\"'" else -1
    if reader == "systemd" and mark == '"':
        found = re.compile(r'"((?:[^"\\]|\\.)*)"').match(line, at)
        close = found.end() - 1 if found else -1
    if close > at and (reader == "compose" or close == end - 1):
        layer: Layer = "env-double" if mark == '"' else "env-single"
        outer = (begin + at, begin + close + 1)
        return source.take(begin + at + 1, begin + close, layer, outer)
    if reader == "compose":
        comment = re.compile(r"\s#").search(line, at)
        if comment and comment.start() < end:
            end = comment.start()
    return source.take(begin + at, begin + end, "env")


def read_env_file(content: bytes, *, reader: str, starts: str, files: Mapping[str, bytes]) -> tuple[Launch, ...]:
    """What an env file makes of a launch.

    Args:
        content: The file.
        reader: Who reads it.
        starts: The command line that is run with it, as shell text; empty: only its variables are asked about.
        files: Other files that the command reads.
    """
    text = content.decode("latin-1")
    whole: Runs = (Run(text, 0, len(text), (), (0, len(text))),)
    line_of = LineOf(content)
    end = len(text)
    newline = "\r\n" if "\r\n" in text else "\n"
    lead = newline if text and not text.endswith("\n") else ""
    final = "" if text and not text.endswith("\n") else newline
    layer: Layer = {"bash": "bare", "docker": "line"}.get(reader, "env")  # type: ignore[assignment]
    quoted = "" if reader == "docker" else f'{lead}{{name}}="{{value}}"{final}'
    place = EnvPlace(
        end, f"{lead}{{name}}={{value}}{final}", (layer,), quoted, ("double" if reader == "bash" else "env-double",)
    )
    if reader == "bash":
        command = f"\n{starts}\n" if starts else "\nvllm serve\n"
        runs: Runs = (
            Run("set -a\n", -1, -1, ("line",), (-1, -1)),
            *whole,
            Run("\nset +a", -1, -1, ("line",), (-1, -1)),
            Run(command, -1, -1, ("line",), (-1, -1)),
        )
        launches = read_shell(runs, content=content, files=files)
    else:
        variables = read_variables(Source(whole), reader, line_of)
        runs = (Run(starts or "vllm serve", -1, -1, ("line",), (-1, -1)),)
        found = read_shell(
            runs, content=content, files=files, variables={n: v.runs for n, v in variables.items()}, context=Context()
        )
        launches = tuple(
            launch._replace(
                env=tuple(variables[v.name] if v.name in variables and v.form == "export" else v for v in launch.env)
            )
            for launch in found
        )
    return tuple(launch._replace(env_place=place, line=launch.line or 1) for launch in launches)
