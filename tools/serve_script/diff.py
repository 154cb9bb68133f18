"""Show a change to people and models: a unified diff without the secrets."""

from __future__ import annotations

import difflib

from tools.serve_script.secrets import mask

_CONTEXT = 3
_AROUND = 6
"""Lines above and below that are masked together, for a secret may stand on the line behind its name."""


def _ends(old: list[bytes], new: list[bytes]) -> tuple[int, int]:
    """Lines that two files share at their beginning and at their end."""
    shorter = min(len(old), len(new))
    head = 0
    while head < shorter and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < shorter - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return head, tail


def changed_lines(before: bytes, after: bytes) -> tuple[int, ...]:
    """1-based lines of `before` that differ, or the one that an insertion follows."""
    old, new = before.split(b"\n"), after.split(b"\n")
    head, tail = _ends(old, new)
    return tuple(range(head + 1, len(old) - tail + 1)) or (max(1, head),)


def diff(before: bytes, after: bytes, path: str) -> str:
    """A unified diff, secrets masked; bytes that are not UTF-8 are shown escaped."""
    old, new = before.split(b"\n"), after.split(b"\n")
    head, tail = _ends(old, new)
    if head == len(old) == len(new):
        return ""
    first = max(0, head - _CONTEXT - _AROUND)
    shown_old = _shown(old[first : len(old) - max(0, tail - _CONTEXT - _AROUND)])
    shown_new = _shown(new[first : len(new) - max(0, tail - _CONTEXT - _AROUND)])
    if shown_old == shown_new:
        for at in range(head - first, max(head - first + 1, len(new) - tail - first)):
            shown_new[at] = shown_new[at].rstrip("\n") + "  [the secret changes]\n"
    name = path.lstrip("/")
    lines = list(difflib.unified_diff(shown_old, shown_new, f"a/{name}", f"b/{name}", n=_CONTEXT))
    return "".join(_moved(line, first) if line.startswith("@@") else line for line in lines)


def _shown(lines: list[bytes]) -> list[str]:
    text = mask(b"\n".join(lines).decode("utf-8", "backslashreplace"))
    return [line + "\n" for line in text.split("\n")]


def _moved(header: str, by: int) -> str:
    """A hunk's header with line numbers of the whole file."""

    def moved(part: str) -> str:
        start, comma, count = part[1:].partition(",")
        return f"{part[0]}{int(start) + by}{comma}{count}"

    _, old, new, _ = header.split(" ", 3)
    return f"@@ {moved(old)} {moved(new)} @@\n"
