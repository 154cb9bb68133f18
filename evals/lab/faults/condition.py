"""When a fault is there: how the worker was started, and conditions on it in words such as `captured>64&overlap=1`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Conditions(NamedTuple):
    """How the worker was started, as far as a fault may depend on it."""

    engine: str = "sglang"
    """`sglang` or `vllm`."""
    version: str = "0.5.14"
    """The engine's version."""
    boot: int = 1
    """Which start of the worker this is, from 1."""
    overlap: bool = True
    """The next batch is prepared while the present one runs."""
    captured: int = 0
    """Largest batch that decode captured; 0: none."""
    tp: int = 1
    """Cards that share the model."""
    running: int = 1
    """Requests that may run at once."""
    fraction: float = 0.0
    """Share of a card's memory for weights and KV pool."""
    chunk: int = 0
    """New prompt tokens of one prefill batch."""
    arguments: Mapping[str, Any] = {}
    """Every server argument that is in force, by the engine's own name."""
    asked: Mapping[str, Any] = {}
    """The same as the operator gave them, before the engine filled in the rest."""
    environ: Mapping[str, str] = {}
    """The environment that is in force."""


class Rule(NamedTuple):
    """A condition that has been read."""

    holds: Callable[[Conditions], bool]
    """Whether it holds for a start."""
    arguments: frozenset[str]
    """Names in it that can only be arguments of an engine."""


_CLAUSE = re.compile(r"(?P<name>(?:env\.|asked\.)?\w+)(?P<sign><=|>=|!=|=|<|>|~)(?P<value>[^&]*)")
_TRUE = {"1", "true", "yes", "on", "y", "t"}
_FALSE = {"0", "false", "no", "off", "n", "f"}


def rule(text: str) -> Rule:
    """Read a condition.

    Args:
        text: Clauses joined by `&`, each NAME SIGN VALUE without blanks. A name is a field of `Conditions`, one of the
            engine's arguments, `asked.ARGUMENT` or `env.VARIABLE`; the signs are = != < > <= >= and ~ for "has in
            it"; what is not set equals `unset`. Nothing at all always holds.

    Raises:
        ValueError: it cannot be read.
    """
    clauses = []
    for clause in filter(None, text.split("&")):
        found = _CLAUSE.fullmatch(clause)
        if found is None:
            raise ValueError(f"{clause!r} is no condition; one reads like captured>64 or env.NAME=0")
        clauses.append((found["name"], found["sign"], found["value"]))
    bare = {name.removeprefix("asked.") for name, _, _ in clauses if not name.startswith("env.")}
    return Rule(
        lambda conditions: all(_holds(_value(name, conditions), sign, value) for name, sign, value in clauses),
        frozenset(bare - set(Conditions._fields)),
    )


def switch(value: object) -> str:
    """A value as conditions compare it: switches as true and false, numbers and texts as they are."""
    text = "unset" if value is None else str(value).strip().lower()
    return "true" if text in _TRUE else "false" if text in _FALSE else text


def _value(name: str, conditions: Conditions) -> object:
    place, _, rest = name.rpartition(".")
    if place == "env":
        return conditions.environ.get(rest)
    if place == "asked":
        return conditions.asked.get(rest)
    if name in Conditions._fields:
        return getattr(conditions, name)
    return conditions.arguments.get(name)


def _holds(value: object, sign: str, wanted: str) -> bool:
    if sign == "~":
        return wanted.lower() in str(value).lower()
    if sign in {"=", "!="}:
        return _same(value, wanted) is (sign == "=")
    left, right = _order(value), _order(wanted)
    if left is None or right is None:
        return False
    return {"<": left < right, ">": left > right, "<=": left <= right, ">=": left >= right}[sign]


def _same(value: object, wanted: str) -> bool:
    number = _number(value)
    if number is not None and number == _number(wanted):
        return True
    return str(value).lower() == wanted.lower() or switch(value) == switch(wanted)


def _number(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None


def _order(value: object) -> tuple[float, ...] | None:
    """What < and > compare: a number, or the numbers of a version."""
    number = _number(value)
    if number is not None:
        return (number,)
    parts = re.findall(r"\d+", str(value))
    return tuple(float(part) for part in parts) if re.match(r"v?\d+\.\d+", str(value)) else None
