"""What a launch file says: which servers it starts, with which arguments and variables, and where each is written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from tools.serve_script.refusals import RefusalKind
from tools.serve_script.secrets import mask_argv
from tools.serve_script.text import OPAQUE, Layer, Runs, Unknown, is_plain, outward, plain, unknown_of

Kind = Literal["bash", "systemd", "supervisord", "compose", "k8s", "envfile", "config"]
"""What sort of launch file it is; `config` is a YAML file of flags that a launch reads with `--config`."""

Container = Literal["command", "array", "fields", "unit", "supervisord", "sequence", "json", "config"]
"""What a word stands in, which decides how it is taken out and how another is put beside it."""


_LEVEL = re.compile(r"-O[0-9]\Z")
"""vLLM reads `-O3` as `-O 3`."""


class Word(NamedTuple):
    """One argument, or a stand-in for arguments that are not known before the script runs."""

    runs: Runs
    site: tuple[int, int]
    """Extent in the file of the word as written, quotes included; (-1, -1): not in this file."""
    layers: tuple[Layer, ...]
    """How a word is written there."""
    container: Container
    owner: int
    """Which container: words of one container have the same number."""

    @property
    def text(self) -> str:
        """Its characters, with `OPAQUE` for what is not known."""
        return plain(self.runs)

    @property
    def unknown(self) -> Unknown | None:
        """Why a part of it is not known; None where it is."""
        return unknown_of(self.runs)

    @property
    def many(self) -> bool:
        """Whether it may become any number of words."""
        return any(run.unknown and run.unknown.many for run in self.runs)

    @property
    def conditional(self) -> bool:
        """Whether only some executions have it."""
        return any(run.conditional for run in self.runs)


class Flag(NamedTuple):
    """A flag of a launch, with its values."""

    name: str
    """As it is spelled, dashes included."""
    word: int
    """Index of its word in the launch."""
    values: tuple[Runs, ...]
    """Its values; the first is the part behind `=` where it has one."""
    joined: bool
    """Whether it is written `--flag=value`."""
    line: int
    """1-based line."""
    conditional: bool

    @property
    def last(self) -> int:
        """Index of the last word that belongs to it."""
        return self.word + len(self.values) - (1 if self.joined else 0)


class Variable(NamedTuple):
    """An environment variable of a launch."""

    name: str
    runs: Runs
    line: int
    """1-based line of the assignment; 0: not in this file."""
    site: tuple[int, int]
    """Extent of the assignment, or of the option and its assignment."""
    form: Literal["export", "prefix", "env", "docker", "unit", "supervisord", "map", "list", "entry", "line"]
    """How it is written."""
    statement: tuple[int, int] = (-1, -1)
    """Extent of the statement that holds it."""
    alone: bool = False
    """Whether the statement holds nothing else."""

    @property
    def text(self) -> str:
        """Its value, with `OPAQUE` for what is not known."""
        return plain(self.runs)


class Blocked(NamedTuple):
    """Why nothing of a launch can be edited."""

    kind: RefusalKind
    sentence: str
    remedy: str


class Dead(NamedTuple):
    """A flag that looks like part of a command and is not."""

    name: str
    line: int
    why: str


class EnvPlace(NamedTuple):
    """Where a variable can be added for one launch alone."""

    at: int
    """Offset of the insertion; -1: nowhere."""
    template: str
    """What to insert, with `{name}` and `{value}`."""
    layers: tuple[Layer, ...]
    """How the value is written there."""
    quoted: str = ""
    """Another template, for a value that cannot be written so."""
    quoted_layers: tuple[Layer, ...] = ()


class Launch(NamedTuple):
    """One server that the file starts."""

    engine: Literal["sglang", "vllm", "router"]
    words: tuple[Word, ...]
    """Its arguments, the program first, as far as they are known."""
    first: int
    """Index of the first word that the engine reads."""
    env: tuple[Variable, ...]
    """What the file puts into its environment."""
    line: int
    """1-based line of the command."""
    site: tuple[int, int]
    """Extent of the command in the file."""
    names: tuple[str, ...] = ()
    """What it goes by, the nearest first: function, case arm, service, container, program, log file."""
    arms: tuple[tuple[int, int], ...] = ()
    """Branches that it stands in: two launches in different arms of one branch never run together."""
    repeated: bool = False
    """Whether a loop starts it any number of times."""
    blocked: Blocked | None = None
    dead: tuple[Dead, ...] = ()
    env_place: EnvPlace = EnvPlace(-1, "", ())
    notes: tuple[str, ...] = ()
    """What a reader should know, as sentences."""
    command: tuple[Word, ...] = ()
    """The whole command with its wrappers, where a service manager and not a shell runs it."""

    @property
    def argv(self) -> tuple[str, ...]:
        """Its arguments as text, with an ellipsis for what is not known; they may hold secrets."""
        return tuple(outward(word.text).replace(OPAQUE, "…") for word in self.words)

    @property
    def shown(self) -> str:
        """Its command line for people and models, secrets masked."""
        return " ".join(mask_argv(self.argv))

    def flags(self, line_of: LineOf) -> Iterator[Flag]:
        """Yield each flag in the order of the command line."""
        at = self.first
        while at < len(self.words):
            word = self.words[at]
            text = word.text
            if not looks_like_flag(text):
                at += 1
                continue
            name, joined, _ = text.partition("=")
            values: list[Runs] = []
            if _LEVEL.match(text):
                name, joined = "-O", "="
                values.append(_tail(word.runs, 2))
            elif joined:
                values.append(_tail(word.runs, len(name) + 1))
            start = at
            at += 1
            while at < len(self.words) and not looks_like_flag(self.words[at].text) and not self.words[at].many:
                if joined:
                    break
                values.append(self.words[at].runs)
                at += 1
            yield Flag(name, start, tuple(values), bool(joined), line_of(word), word.conditional)


class LineOf:
    """Line numbers of offsets."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __call__(self, word: Word) -> int:
        """1-based line of a word; 0: it is not in this file."""
        start = word.site[0]
        if start < 0:
            start = next((run.start for run in word.runs if run.start >= 0), -1)
        return self.at(start)

    def at(self, offset: int) -> int:
        """1-based line of an offset; 0 for a negative one."""
        return 0 if offset < 0 else self._content.count(b"\n", 0, offset) + 1


def looks_like_flag(text: str) -> bool:
    """Whether a word is a flag: one or two dashes and a letter."""
    body = text[2:] if text.startswith("--") else text[1:] if text.startswith("-") else ""
    return body[:1].isalpha() and body[:1].isascii()


def _tail(runs: Runs, start: int) -> Runs:
    """What is behind the first `start` characters, an empty run with its place included."""
    out = []
    at = 0
    for run in runs:
        size = len(run.text)
        if at >= start:
            out.append(run)
        elif at + size > start:
            rest = run.text[start - at :]
            if run.linear:
                first = run.start + start - at
                outer = run.outer if is_plain(run) or run.outer != (run.start, run.end) else (first, run.end)
                out.append(run._replace(text=rest, start=first, outer=outer))
            else:
                out.append(run._replace(text=rest, start=-1))
        at += size
    if not out and runs:
        last = runs[-1]
        out.append(last._replace(text="", start=last.end, outer=(last.end, last.end)) if last.start >= 0 else last)
    return tuple(out)


class Target(NamedTuple):
    """Which launch is meant."""

    name: str | None = None
    """A role such as `decode`, or a function, service, container, program or served model name."""
    port: int | None = None
    """The port that it listens on."""

    @classmethod
    def parse(cls, text: str | None) -> Target | None:
        """Read `port:8002` or a name; None stays None."""
        if not text:
            return None
        head, colon, tail = text.partition(":")
        if colon and head == "port" and tail.isdigit():
            return cls(port=int(tail))
        return cls(name=text)

    def __str__(self) -> str:
        return f"port {self.port}" if self.port is not None else str(self.name)
