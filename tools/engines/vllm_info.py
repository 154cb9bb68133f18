"""vLLM's answers about itself and the settings that its log prints -> values in force.

A production vLLM has no endpoint for its settings. /metrics tells of the KV cache, /v1/models of the longest request,
and the log of everything that differs from the parser's defaults: what it does not name there is at its default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

from agent.domain import Knob
from tools.engines.asking import Answers
from tools.engines.catalogue import canonical, check_value, release
from tools.engines.facts import StartupFacts

_CACHE: Final = re.compile(rb"^vllm:cache_config_info\{(?P<labels>[^}\n]{0,8000})\}", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_SWITCHES: Final = {"True": "on", "False": "off"}


def account(answers: Answers) -> Mapping[str, object] | None:
    """Put the answers together.

    Args:
        answers: Of the questions `version`, `metrics` and `models`.

    Returns:
        `version`, and what is in force right now by the engine's own field names; None where /version is no answer of
        vLLM's.
    """
    version_said = _document(answers.get("version"))
    if not isinstance(version_said.get("version"), str):
        return None
    found: dict[str, object] = {"version": version_said["version"]}
    cache = _CACHE.search(answers.get("metrics", b""))
    if cache is not None:
        labels = _LABEL.findall(cache["labels"].decode("utf-8", "replace"))
        found |= {name: value for name, value in labels if value not in ("", "None")}
    models = _document(answers.get("models")).get("data")
    if isinstance(models, list) and models and isinstance(models[0], dict):
        longest = models[0].get("max_model_len")
        if isinstance(longest, int):
            found["max_model_len"] = longest
    return found


def version(account: Mapping[str, object]) -> str | None:
    """The version that the engine reports; None where it does not."""
    found = account.get("version")
    return found if isinstance(found, str) and release(found) else None


def effective(
    facts: StartupFacts | None,
    knobs: Sequence[Knob],
    *,
    account: Mapping[str, object] | None = None,
    argv: Sequence[str] = (),
) -> dict[str, str]:
    """Values in force by knob name, in the form of `catalogue.canonical`.

    Args:
        facts: The last start, whose settings are those of `non-default args` and of the engine's configuration.
        knobs: The knobs to look for.
        account: What the live engine says; it goes before the log.
        argv: The words of its process, which stand in where the log of its start is gone.

    Returns:
        Only what is known: from the live engine, else from the log, else the parser's default where the log names
        all that differs from it.
    """
    live = account or {}
    logged = facts.settings if facts is not None else {}
    values: dict[str, str] = {}
    for knob in knobs:
        if knob.kind != "flag":
            continue
        found = next(
            (str(source[path]) for path in knob.effective for source in (live, logged) if path in source), None
        )
        if found is None and not logged:
            found = _in_argv(knob, argv)
        if found is None and facts is not None and facts.stated is not None:
            found = _default(knob)
        if found is not None:
            values[knob.name] = canonical(knob, _SWITCHES.get(found, found) if knob.value == "switch" else found)
    if values.get("enforce-eager") == "on":
        for name in ("max-cudagraph-capture-size", "cudagraph-capture-sizes"):
            values.pop(name, None)
    for knob in knobs:
        positive = values.get(knob.name.removeprefix("no-"))
        if knob.name.startswith("no-") and positive is not None:
            values[knob.name] = {"on": "off", "off": "on"}.get(positive, positive)
    return values


def _default(knob: Knob) -> str | None:
    """The default where it is a value and no rule that the engine works out."""
    text = knob.default or ""
    if knob.value == "switch":
        return text if text in ("on", "off") else None
    plain = knob.value in ("integer", "fraction") and knob.effective and check_value(knob, text) is None
    return text if plain else None


def _in_argv(knob: Knob, argv: Sequence[str]) -> str | None:
    """What the process was started with; the last one counts."""
    found = None
    names = {spelling.text for spelling in knob.spellings}
    for index, word in enumerate(argv):
        name, joined, value = word.partition("=")
        if name not in names:
            continue
        following = argv[index + 1] if index + 1 < len(argv) else "--"
        found = "on" if knob.value == "switch" else value if joined else following
    return found


def _document(body: bytes | None) -> Mapping[str, object]:
    try:
        document = json.loads(body or b"")
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
