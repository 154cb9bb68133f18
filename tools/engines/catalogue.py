"""The knobs of each engine, read from the YAML file beside this one."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import yaml

from agent.domain import Knob

Engine = Literal["sglang", "vllm"]
"""The engines that have a catalogue."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The same loader in C where PyYAML was built with it: ten times as quick, and every command reads this file."""
_SWITCH_WORDS = {"0": "0", "false": "0", "no": "0", "off": "0", "1": "1", "true": "1", "yes": "1", "on": "1"}


@functools.cache
def knobs(engine: Engine) -> tuple[Knob, ...]:
    """Every knob that we know of an engine, in the order of its file.

    Raises:
        ValidationError: the shipped file breaks its model, which is a bug of ours.
    """
    text = Path(__file__).with_name(f"{engine}.yaml").read_text(encoding="utf-8")
    entries = yaml.load(text, Loader=_LOADER)["knobs"]  # noqa: S506 -- both are safe loaders
    return tuple(Knob.model_validate({"engine": engine, **entry}) for entry in entries)


def knob_named(engine: Engine, text: str) -> Knob | None:
    """The knob of that name, in any spelling, with or without dashes and underscores; None where there is none."""
    return _by_name(engine).get(plain(text))


def plain(name: str) -> str:
    """A flag or variable name without leading dashes, in lower case, with dashes for underscores."""
    return name.strip().lower().lstrip("-_").replace("_", "-")


def spellings(knob: Knob, version: str | None) -> tuple[str, ...]:
    """The spellings that an engine version accepts, preferred first and deprecated ones last.

    Args:
        knob: The knob.
        version: Such as `0.5.14`; None where it is not known, which gives every spelling.
    """
    if version is None:
        return tuple(spelling.text for spelling in knob.spellings)
    at = release(version)
    accepted = [
        spelling
        for spelling in knob.spellings
        if (spelling.since is None or at >= release(spelling.since))
        and (spelling.until is None or at < release(spelling.until))
    ]
    accepted.sort(key=lambda spelling: spelling.deprecated is not None and at >= release(spelling.deprecated))
    return tuple(spelling.text for spelling in accepted)


def release(version: str) -> tuple[int, ...]:
    """A version's numbers, for comparing: `v0.5.14.post1` is (0, 5, 14)."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    return tuple(int(part) for part in found.group(1).split(".")) if found else ()


def check_value(knob: Knob, text: str) -> str | None:
    """Say what is wrong with a value as it would be written, in one sentence; None where it is fine."""
    if "\n" in text or "\r" in text or "\0" in text:
        return f"The value of {knob.name} holds a line break."
    text = text.strip()
    if knob.value == "switch":
        return _check_switch(knob, text)
    if not text:
        return f"{knob.name} needs a value."
    if knob.value == "integer":
        return _check_number(knob, text, whole=True)
    if knob.value == "fraction":
        return _check_number(knob, text, whole=False)
    if knob.value == "list":
        return _check_list(knob, text)
    if knob.value == "json":
        try:
            json.loads(text)
        except (ValueError, RecursionError) as problem:
            return f"{text[:200]!r} is no JSON, which {knob.name} takes: {problem}."
    return None


def in_force(knob: Knob, written: str | None) -> str | None:
    """What a value that stands in a script reads like once it is in force, in the form that engines' reports get.

    Args:
        knob: The knob.
        written: The text in the script; None: absent; an empty text: a switch flag without a value.

    Returns:
        `on` or `off` for switches, `96` or `0.9` for numbers; None where it is absent and the engine decides, as about
        a switch flag that is on by default.
    """
    if knob.value == "switch" and knob.kind == "flag":
        by_default = (knob.default or "").split(" ")[0]
        return "on" if written is not None else None if by_default == "on" else "off"
    return None if written is None else canonical(knob, written)


def canonical(knob: Knob, value: object) -> str:
    """One text for one value, however the engine or a script writes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    text = value if isinstance(value, str) else json.dumps(value)
    text = text.strip()
    if knob.value == "switch":
        word = _SWITCH_WORDS.get(text.lower())
        return text if word is None else ("on" if word == "1" else "off")
    if knob.value in ("integer", "fraction"):
        try:
            number = float(text)
        except ValueError:
            return text
        if not math.isfinite(number):
            return text
        return str(int(number)) if number.is_integer() else repr(number)
    if knob.value == "list":
        return ",".join(re.findall(r"[^\s,\[\]]+", text))
    return text


def bounds(knob: Knob) -> str:
    """The knob's bounds in words, such as `1..1024 requests`; empty where it has none."""
    if knob.low is None and knob.high is None:
        return ""
    low = "" if knob.low is None else f"{knob.low:g}"
    high = "" if knob.high is None else f"{knob.high:.10g}"
    return f"{low}..{high} {knob.unit}".strip()


@functools.cache
def _by_name(engine: Engine) -> dict[str, Knob]:
    names: dict[str, Knob] = {}
    for knob in knobs(engine):
        for name in _names(knob):
            names.setdefault(name, knob)
    return names


def _names(knob: Knob) -> Iterable[str]:
    yield plain(knob.name)
    for spelling in knob.spellings:
        yield plain(spelling.text)


def _check_switch(knob: Knob, text: str) -> str | None:
    if knob.kind == "flag":
        return None if not text else f"{knob.name} is a switch and takes no value, so {text!r} has no place there."
    return None if text.lower() in _SWITCH_WORDS else f"{text!r} is neither 0 nor 1, which is what {knob.name} takes."


def _check_number(knob: Knob, text: str, *, whole: bool) -> str | None:
    pattern = r"[+-]?\d{1,18}" if whole else r"[+-]?(\d{1,18}(\.\d*)?|\.\d+)([eE][+-]?\d{1,2})?"
    if not re.fullmatch(pattern, text, flags=re.ASCII):
        return f"{text!r} is not {'an integer' if whole else 'a number'}, which {knob.name} takes."
    number = float(text)
    if (knob.low is not None and number < knob.low) or (knob.high is not None and number > knob.high):
        return f"{text} lies outside {bounds(knob)} for {knob.name}."
    return None


def _check_list(knob: Knob, text: str) -> str | None:
    for item in re.split(r"[\s,]+", text.strip("[] ")):
        problem = _check_number(knob, item, whole=True)
        if problem is not None:
            return problem
    return None
