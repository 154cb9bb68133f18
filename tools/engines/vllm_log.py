"""A vLLM log -> the facts of its last start, its failures, and how it served.

The log has no year and does not say what stays free after capture: the KV pool takes what the memory share leaves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from tools.engines.facts import Log
from tools.engines.figures import text
from tools.engines.line_tables import any_of
from tools.engines.log_lines import fragments, uncarried
from tools.engines.vllm_lines import FAILURES, LOGGED, MARKS, PATTERNS, SPOKEN
from tools.engines.vllm_start import YEAR, Start

_TRACES: Final = any_of({*MARKS.values(), *FAILURES.marks})
"""Finds what a line has that is worth a close look."""
_TABLE: Final = tuple((name, MARKS[name], PATTERNS[name]) for name in sorted(MARKS, key=lambda name: name != "serving"))
"""The patterns; the one that a worker writes all day comes first."""


def read_log(lines: Iterable[bytes], *, version: str | None = None, earlier: int = 0) -> Log:
    """Read a log to its end; see `sglang_log.read_log`, whose promise this keeps for vLLM."""
    start: Start | None = None
    before: deque[Start] = deque(maxlen=earlier)
    starts = count = 0
    for count, line in enumerate(lines, 1):
        if (line[-6:] == b"200 OK" and line.find(b"INFO: ", 0, 110) >= 0) or _TRACES.search(line) is None:
            continue
        for fragment in fragments(line):
            at, says = _parted(fragment)
            for name, mark, pattern in _TABLE:
                found = pattern.match(says) if mark in says else None
                if found is None:
                    continue
                if _begins(name, start):
                    if start is not None:
                        before.append(start)
                    start = Start()
                    starts += 1
                start = start or Start()
                start.take(name, found, at)
                break
            else:
                sign = FAILURES.of(says)
                if sign is not None:
                    start = start or Start()
                    start.failed(sign, says, at, count)
    return Log(
        starts=starts,
        lines=count,
        facts=None if start is None else start.facts(version),
        earlier=tuple(start.facts(version) for start in before),
    )


def _begins(name: str, start: Start | None) -> bool:
    if name not in ("banner", "arguments", "configuration", "usage"):
        return False
    return start is None or start.over or start.is_ready or name in start.named


def _parted(line: bytes) -> tuple[str | None, bytes]:
    logged = LOGGED.match(line)
    if logged is None:
        line = uncarried(line)
        logged = LOGGED.match(line)
    if logged is not None:
        month, day, clock = text(logged["month"]), text(logged["day"]), text(logged["clock"])
        return f"{YEAR}-{month}-{day} {clock}", logged["says"]
    spoken = SPOKEN.match(line)
    return None, spoken["says"] if spoken else line
