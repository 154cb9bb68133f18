"""The options of the engines, as `options.yaml` has them: aliases, switches, lists, and the rest."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal

import yaml

from tools.serve_script.names import Grammar, normal


@lru_cache(maxsize=2)
def _read(engine: Literal["sglang", "vllm"]) -> tuple[tuple[tuple[str, ...], ...], Grammar]:
    data = yaml.safe_load((Path(__file__).parent / "options.yaml").read_text(encoding="utf-8"))[engine]
    groups = tuple(tuple(str(group).split()) for group in data["aliases"])
    switches, lists = frozenset(data["switches"].split()), frozenset(data["lists"].split())
    every = {normal(name) for group in groups for name in group} | switches | lists | set(data["others"].split())
    return groups, Grammar(frozenset(every), lists, switches)


def grammar(engine: Literal["sglang", "vllm"]) -> Grammar:
    """What is known of an engine's options."""
    return _read(engine)[1]


def spellings(engine: Literal["sglang", "vllm"], name: str) -> tuple[str, ...]:
    """Every spelling of an option, the one asked for first."""
    group = next((group for group in _read(engine)[0] if normal(name) in {normal(item) for item in group}), ())
    return (name, *(item for item in group if normal(item) != normal(name)))
