"""Engine versions, ordered as far as engines write them: `0.5.14`, `v0.5.12.post1`, `0.26.1rc1`."""

from __future__ import annotations

import re


def order(version: str) -> tuple[tuple[int, ...], int, int]:
    """A key by which versions sort: numbers, then before or after the release, then its number.

    Args:
        version: The version as the engine says it; what follows a `+` or a space does not count.
    """
    text = re.split(r"[+\s]", version.strip().lower().removeprefix("v"))[0]
    numbers = re.match(r"\d+(?:\.\d+)*", text)
    release = tuple(int(part) for part in numbers.group().split(".")) if numbers else ()
    while release and release[-1] == 0:
        release = release[:-1]
    rest = text[numbers.end() :] if numbers else text
    suffix = re.search(r"([a-z]+)[._-]?(\d*)", rest)
    if suffix is None:
        return (release, 0, 0)
    return (release, 1 if suffix[1] == "post" else -1, int(suffix[2] or 0))


def within(version: str, since: str | None, until: str | None) -> bool:
    """Whether a version is at least `since` and before `until`; an end that is None is open."""
    return (since is None or order(version) >= order(since)) and (until is None or order(version) < order(until))
