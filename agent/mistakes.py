"""A mistake in `prudent.toml` -> one sentence with its line, and a remedy with the nearest right key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from agent.errors import BadSettings

_SECTION = re.compile(r"^\s*\[\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(r"^\s*([A-Za-z0-9_.\"'-]+)\s*=")
_ADDRESS = "an address like http://127.0.0.1:30000"
_LIKE = {
    "unit": "the name of a unit, like sglang-decode.service",
    "host": "`local`, a name of the section `hosts`, or a host that ssh knows, like operator@gpu7",
    "url": "the address of a database, like postgresql://prudent@db/prudent",
}


def explained(
    path: Path,
    text: str,
    error: ValidationError,
    model: type[BaseModel],
    variables: Mapping[tuple[str, ...], str],
) -> BadSettings:
    """Turn the first mistake into a sentence with its line, and a remedy with the nearest right key.

    Args:
        path: The settings file.
        text: What it holds.
        error: What the model says about it.
        model: What the file is read into.
        variables: The environment's variable for each setting that came from there.
    """
    first = min(error.errors(include_url=False), key=lambda one: one["type"] != "extra_forbidden")
    where, model_there = _resolved(model, [str(part) for part in first["loc"]])
    if first["type"].startswith("union_tag"):
        where.append("kind")
    line = line_of(text, where)
    at = f"{path}:{line}" if line else str(path)
    variable = variables.get(tuple(where))
    if variable is not None:
        at = f"the environment's {variable}"
    name = ".".join(where)
    if first["type"] == "extra_forbidden":
        keys = list(model_there.model_fields) if model_there is not None else []
        near = difflib.get_close_matches(where[-1], keys, n=1)
        remedy = f"Did you mean {near[0]!r}?" if near else f"Known here: {', '.join(sorted(keys))}."
        return BadSettings(f"{at}: unknown key {name!r}.", remedy)
    if first["type"] == "missing":
        return BadSettings(f"{at}: {name!r} is missing.", "Add it.")
    if first["type"] == "union_tag_not_found":
        return BadSettings(f"{at}: {name!r} is missing.", "Add it.")
    if first["type"] in {"literal_error", "union_tag_invalid"}:
        context = first.get("ctx", {})
        allowed = str(context.get("expected", context.get("expected_tags", "")))
        said = str(context.get("tag", first["input"]))
        near = difflib.get_close_matches(said, re.findall(r"'([^']+)'", allowed), n=1)
        remedy = f"Did you mean {near[0]!r}?" if near else f"It has to be {allowed}."
        return BadSettings(f"{at}: {name!r} is {said!r}.", remedy)
    if first["type"] == "string_pattern_mismatch":
        return BadSettings(f"{at}: {name!r} is {first['input']!r}.", f"It has to be {_LIKE.get(where[-1], _ADDRESS)}.")
    return BadSettings(f"{at}: {name!r}: {first['msg']}.", "Correct the value.")


def _resolved(model: type[BaseModel], loc: Sequence[str]) -> tuple[list[str], type[BaseModel] | None]:
    """A place as the file spells it, without the tags of unions, and the model that holds its last part.

    Args:
        model: What the file is read into.
        loc: The place as pydantic says it.
    """
    where: list[str] = []
    current: type[BaseModel] | None = model
    rest = list(loc)
    while len(rest) > 1 and current is not None:
        part = rest.pop(0)
        where.append(part)
        field = current.model_fields.get(part)
        if field is None:
            return [*where, *rest], None
        inside = _models_in(field.annotation)
        if len(inside) > 1:
            tagged = [one for one in inside if rest[0] in get_args(one.model_fields["kind"].annotation)]
            if tagged and len(rest) > 1:
                rest.pop(0)
            current = (tagged or inside)[0]
        elif inside:
            current = inside[0]
            if get_origin(field.annotation) is not None and "Mapping" in str(field.annotation):
                where.append(rest.pop(0))
        else:
            current = None
    return [*where, *rest], current


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


def line_of(text: str, where: Sequence[str]) -> int | None:
    """The line of a key, or of the section that should hold it, counted from 1."""
    section: list[str] = []
    best: int | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        header = _SECTION.match(line)
        key = _KEY.match(line)
        if header:
            section = _parts(header[1])
            if section == list(where):
                return number
            if section == list(where[: len(section)]):
                best = number
        elif key:
            full = section + _parts(key[1])
            if full == list(where):
                return number
            if full == list(where[: len(full)]):
                best = number
    return best


def _parts(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]
