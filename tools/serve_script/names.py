"""When are two spellings of a flag the same flag? The names themselves are data that is handed in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Grammar(NamedTuple):
    """What is known of an engine's options besides the one in question."""

    options: frozenset[str] = frozenset()
    """Every option of the engine, normalised; with it an abbreviation can be told from another option."""
    lists: frozenset[str] = frozenset()
    """Options that take several values."""
    switches: frozenset[str] = frozenset()
    """Options that take no value."""


def normal(name: str) -> str:
    """A spelling with its underscores as dashes, which both engines read alike in long options."""
    return name.replace("_", "-") if name.startswith("--") else name


def same(found: str, names: Iterable[str]) -> bool:
    """Whether a flag of a script is one of these spellings."""
    return normal(found) in {normal(name) for name in names}


def negates(found: str, names: Iterable[str]) -> bool:
    """Whether a flag of a script is the `--no-` twin of one of these spellings."""
    wanted = {normal(name) for name in names}
    found = normal(found)
    return (found.startswith("--no-") and "--" + found[5:] in wanted) or any(
        name.startswith("--no-") and found == "--" + name[5:] for name in wanted
    )


def abbreviates(found: str, names: Sequence[str], grammar: Grammar) -> bool | None:
    """Whether argparse would take `found` for one of these names; None: it may, and nothing here can tell.

    argparse takes an unambiguous beginning of an option for the option, unless it is an option itself.
    """
    found = normal(found)
    wanted = {normal(name) for name in names}
    if not found.startswith("--") or found in wanted or found in grammar.options:
        return False
    if not any(name.startswith(found) for name in wanted):
        return False
    meant = {option for option in grammar.options if option.startswith(found)}
    if meant <= wanted and meant:
        return True
    return False if meant and not meant & wanted else None
