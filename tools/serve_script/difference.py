"""Is the difference between two launches exactly the intended one?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tools.serve_script.intents import Intent
from tools.serve_script.launches import looks_like_flag
from tools.serve_script.names import normal, same


def as_intended(
    before: Sequence[str],
    after: Sequence[str],
    before_env: Mapping[str, str],
    after_env: Mapping[str, str],
    intent: Intent,
) -> bool:
    """Whether the second launch is the first with the intent carried out, and nothing else."""
    if intent.kind == "env":
        return list(before) == list(after) and _variables(before_env, after_env, intent)
    if any(
        before_env.get(k) != after_env.get(k) for k in before_env.keys() | after_env.keys() if k not in intent.carriers
    ):
        return False
    if intent.operation == "set":
        return _set(list(before), list(after), intent)
    if intent.operation == "add":
        return _added(list(before), list(after), intent)
    return _removed(list(before), list(after), intent)


def all_as_intended(
    before: Sequence[str],
    after: Sequence[str],
    before_env: Mapping[str, str],
    after_env: Mapping[str, str],
    intents: Sequence[Intent],
) -> bool:
    """Whether the second launch is the first with every intent carried out, and nothing else.

    What is set is set in the first, what is added is taken out of the second; a removal may have taken any number of
    values along, and each number is tried.
    """
    if len(intents) == 1:
        return as_intended(before, after, before_env, after_env, intents[0])
    old_env, new_env = dict(before_env), dict(after_env)
    candidates = [list(before)]
    rest = list(after)
    for intent in intents:
        name = intent.names[0]
        if intent.kind == "env":
            old_env.pop(name, None)
            if intent.operation != "unset":
                old_env[name] = intent.values[0]
        elif intent.operation == "set":
            candidates = [changed for words in candidates if (changed := _with(words, intent)) is not None]
        elif intent.operation == "unset":
            candidates = [changed for words in candidates for changed in _without(words, intent)]
        else:
            at = _last(rest, intent)
            size = 1 if at >= 0 and "=" in rest[at] else 1 + len(intent.values)
            if at < 0 or [*rest[at].split("=", 1), *rest[at + 1 : at + size]][1:] != list(intent.values):
                return False
            del rest[at : at + size]
    carried = {carrier for intent in intents for carrier in intent.carriers}
    same_env = all(old_env.get(k) == new_env.get(k) for k in old_env.keys() | new_env.keys() if k not in carried)
    return same_env and rest in candidates


def _with(words: list[str], intent: Intent) -> list[str] | None:
    """The arguments with a flag set; None: it is not there."""
    at = _last(words, intent)
    if at < 0:
        return None
    name, joined, _ = words[at].partition("=")
    if joined:
        return [*words[:at], f"{name}={intent.values[0]}", *words[at + 1 :]]
    return [*words[:at], name, *intent.values, *words[at + 1 + len(intent.old or intent.values) :]]


def _without(words: list[str], intent: Intent) -> list[list[str]]:
    """The arguments without a flag, with each number of values that may have gone along."""
    at = _last(words, intent)
    if at < 0:
        return [words]
    out: list[list[str]] = []
    end = at + 1
    while True:
        out += _without([*words[:at], *words[end:]], intent)
        if "=" in words[at] or end >= len(words) or looks_like_flag(words[end]):
            return out
        end += 1


def _variables(before: Mapping[str, str], after: Mapping[str, str], intent: Intent) -> bool:
    name = intent.names[0]
    rest = {key: value for key, value in before.items() if key != name}
    if rest != {key: value for key, value in after.items() if key != name}:
        return False
    return name not in after if intent.operation == "unset" else after.get(name) == intent.values[0]


def _ours(word: str, intent: Intent) -> bool:
    name = "-O" if re.fullmatch(r"-O[0-9]", word) else word.partition("=")[0]
    return looks_like_flag(word) and (same(name, intent.names) or normal(name) == normal(intent.spelling))


def _last(words: list[str], intent: Intent) -> int:
    return max((i for i, word in enumerate(words) if _ours(word, intent)), default=-1)


def _set(before: list[str], after: list[str], intent: Intent) -> bool:
    at = _last(before, intent)
    if at < 0 or _last(after, intent) != at or before[:at] != after[:at]:
        return False
    name, joined, _ = before[at].partition("=")
    if re.fullmatch(r"-O[0-9]", name):
        return after[at:] == [f"-O{intent.values[0]}", *before[at + 1 :]]
    if joined:
        return after[at:] == [f"{name}={intent.values[0]}", *before[at + 1 :]]
    size = len(intent.old or intent.values)
    return after[at:] == [name, *intent.values, *before[at + 1 + size :]]


def _added(before: list[str], after: list[str], intent: Intent) -> bool:
    name = intent.spelling
    for item in ([name, *intent.values], [f"{name}={intent.values[0]}"] if len(intent.values) == 1 else []):
        if not item:
            continue
        size = len(item)
        for at in range(len(after) - size + 1):
            if after[at : at + size] == item and after[:at] + after[at + size :] == before:
                return True
    twins = [i for i, word in enumerate(before) if word in intent.names and word != name]
    return any([*before[:i], name, *before[i + 1 :]] == after for i in twins)


def _removed(before: list[str], after: list[str], intent: Intent) -> bool:
    if any(_ours(word, intent) for word in after):
        return False
    rest = list(after)
    i = 0
    while i < len(before):
        if _ours(before[i], intent):
            i += 1
            while i < len(before) and not looks_like_flag(before[i]) and (not rest or before[i] != rest[0]):
                i += 1
            continue
        if not rest or rest[0] != before[i]:
            return False
        rest.pop(0)
        i += 1
    return not rest
