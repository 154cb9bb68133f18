"""Two versions of a launch file -> what was set differently, by knob and never by text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from agent.domain import Knob, Setting
from agent.errors import UnreadableScript
from tools.engines.catalogue import Engine, canonical, knob_named, plain
from tools.past.change import clean
from tools.serve_script.launches import Launch, LineOf, Target
from tools.serve_script.read import read_launches
from tools.serve_script.secrets import STARS, is_secret_name, mask_argv
from tools.serve_script.select import choose
from tools.serve_script.text import OPAQUE, outward
from tools.serve_script.text import plain as text_of

UNKNOWN = "…"
"""Stands for what is only known when the file runs."""


class Stated(NamedTuple):
    """What a launch says of one setting."""

    kind: Literal["flag", "env"]
    spelling: str
    value: str
    """Its text, secrets masked; empty: a switch flag."""
    same_as: str
    """Equal for values that are the same to the engine."""
    conditional: bool = False
    """Whether only some executions have it."""


class Launched(NamedTuple):
    """What one version of a file starts the worker with."""

    settings: Mapping[str, Stated]
    """By knob name; what no catalogue knows goes by its own name."""
    unsure: tuple[str, ...]
    """What is not known of it."""


class Differs(NamedTuple):
    """How two versions differ."""

    settings: tuple[Setting, ...]
    unsure: tuple[str, ...]


def launched(content: bytes, *, path: str, engine: Engine, launch: str | None) -> Launched:
    """Read what one version of a file sets.

    Args:
        content: The file.
        path: Its name without what a backup adds to it, which says what kind of file it is.
        engine: The worker's engine.
        launch: Which launch is meant, where it starts several, as in the settings.

    Raises:
        UnreadableScript: it is no launch file of this engine.
        Refused: it does not say which launch is meant, or that is worked out when it runs.
    """
    launches = read_launches(content, path=path)
    chosen = [launches[index] for index in choose(launches, Target.parse(launch))]
    mine = [one for one in chosen if one.engine == engine]
    if not mine:
        raise UnreadableScript(f"It starts {chosen[0].engine}, not {engine}.", "Import it for a worker of that engine.")
    unsure = []
    if len(mine) > 1:
        unsure.append("The file starts the worker in several branches; the first is taken.")
    if any(word.many for word in mine[0].words):
        unsure.append("Some arguments are only known when the file runs.")
    return Launched({**_flags(mine[0], LineOf(content), engine), **_variables(mine[0], engine)}, tuple(unsure))


def difference(before: Launched, after: Launched) -> Differs:
    """What the later version sets differently."""
    settings, unsure = [], []
    for name in sorted({*before.settings, *after.settings}):
        old, new = before.settings.get(name), after.settings.get(name)
        if old is not None and new is not None and (old.same_as, old.conditional) == (new.same_as, new.conditional):
            continue
        one = new or old
        assert one is not None
        if old is not None and new is not None and old.same_as == new.same_as:
            unsure.append(f"{name} stands under a condition in one of the versions only.")
            continue
        if any(UNKNOWN in end.value for end in (old, new) if end is not None):
            unsure.append(f"The value of {name} is only known when the file runs.")
        if any(end.conditional for end in (old, new) if end is not None):
            unsure.append(f"{name} stands under a condition: not every start has it.")
        settings.append(
            Setting(
                knob=name,
                kind=one.kind,
                spelling=one.spelling,
                old=None if old is None else old.value,
                new=None if new is None else new.value,
            )
        )
    if settings:
        unsure += dict.fromkeys((*before.unsure, *after.unsure))
    if len(settings) > 1:
        unsure.append(f"{len(settings)} settings were changed at once: what each of them did cannot be told apart.")
    return Differs(tuple(settings), tuple(unsure))


def _flags(launch: Launch, line_of: LineOf, engine: Engine) -> dict[str, Stated]:
    """The flags of a launch by knob name; of one that stands there twice the last, as the engines take it."""
    found: dict[str, Stated] = {}
    for flag in launch.flags(line_of):
        knob = knob_named(engine, flag.name)
        switch = knob is not None and knob.value == "switch" and not flag.joined
        texts = () if switch else tuple(_readable(text_of(runs)) for runs in flag.values)
        value = " ".join(mask_argv((flag.name, *texts))[1:])
        name = knob.name if knob is not None else plain(flag.name)
        found[name] = Stated("flag", flag.name, value, _same_as(knob, value), flag.conditional)
    return found


def _variables(launch: Launch, engine: Engine) -> dict[str, Stated]:
    found: dict[str, Stated] = {}
    for variable in launch.env:
        if is_secret_name(variable.name):
            continue
        knob = knob_named(engine, variable.name)
        value = mask_argv((f"{variable.name}={_readable(variable.text)}",))[0].partition("=")[2]
        if value == STARS:
            continue
        name = knob.name if knob is not None else variable.name
        found[name] = Stated("env", variable.name, value, _same_as(knob, value))
    return found


def _readable(text: str) -> str:
    return clean(outward(text)).replace(OPAQUE, UNKNOWN)


def _same_as(knob: Knob | None, value: str) -> str:
    return value if knob is None or value == "" else canonical(knob, value)
