"""An SGLang log -> the facts of its last start, its failures, and how it served.

The wording of 0.5.2 to 0.5.23 is understood. Nothing in a log can stop the reader: a line that does not fit is passed
over. It reads in constant memory and looks closely only at lines whose first four bytes promise something.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from tools.engines.facts import Log
from tools.engines.line_tables import Sign, any_of
from tools.engines.log_lines import fragments, uncarried
from tools.engines.sglang_lines import FAILURES, PATTERNS
from tools.engines.sglang_start import Message, Start, parted

_LONGEST: Final = 8192
"""Bytes of a message that are looked at, the settings excepted: a capture list of 1,024 sizes has about 5,000."""
_REPEATED: Final = 512
"""Bytes of a message up to which it is remembered: a worker in trouble says the same short thing over and over."""
_KINDS: Final[Mapping[bytes, tuple[str, ...]]] = {
    b"serv": ("settings",),
    b"Init": ("groups",),
    b"Load": ("weights begin", "weights end"),
    b"KV C": ("kv pool",),
    b"DSV4": ("dsv4 pool",),
    b"DSv4": ("dsv4 pool",),
    b"SWAK": ("swa pool",),
    b"Post": ("late pool",),
    b"Memo": ("pool end",),
    b"Capt": ("capture step", "capture begin", "capture end", "capture list"),
    b"Disa": ("prefill off",),
    b"max_": ("limits",),
    b"INFO": ("port open",),
    b"The ": ("ready",),
    b"Deco": ("decode",),
    b"Pref": ("prefill",),
    b"KV c": ("retract",),
    b"SIGT": ("stop",),
    b"Sign": ("stop",),
    b"Grac": ("stop",),
    b"skip": ("prelude",),
    b"Fail": ("prelude",),
    b"usag": ("usage",),
}
"""First four bytes of a message -> the patterns that it may fit."""
_PRELUDES: Final = (
    ("deprecated", b"is deprecated"),
    ("launched", b"UserWarning"),
    ("prelude", b"skip_tokenizer_init="),
    ("prelude", b"generation config"),
    ("usage", b"usage: "),
)
"""Patterns of lines that come before the settings, each with a part that they contain."""
_QUIET: Final = frozenset({b"Endp", b"Igno", b"Comp", b"Conf", b"Flas", b"flas", b"tile", b"Usin", b"Tree"})
"""First four bytes of frequent messages that are never a failure."""
_TRACES: Final = any_of({*FAILURES.marks, *(mark for _, mark in _PRELUDES)})
"""Parts of messages that are worth a close look whatever they begin with."""


def read_log(lines: Iterable[bytes], *, version: str | None = None, earlier: int = 0) -> Log:
    """Read a log to its end.

    Args:
        lines: Its lines without their ends, such as `log_lines.lines_of` gives; begin at an offset to see only the
            start that came after it.
        version: The engine's version where somebody knows it: the log of SGLang does not say it.
        earlier: How many starts before the last one are wanted too.
    """
    reader = _Reader(earlier)
    count = 0
    take = reader.take
    for count, line in enumerate(lines, 1):
        if line[-6:] == b"200 OK" and line.find(b"INFO: ", 0, 110) >= 0 and b" GB" not in line:
            continue
        if line.find(b"] Decode batch", 20, 64) > 0 and line.find(b"[20", 1) < 0 and line[:1] == b"[":
            reader.current().decode(line)
        else:
            take(line, count)
    start = reader.start
    return Log(
        starts=reader.starts,
        lines=count,
        facts=None if start is None else start.facts(version),
        earlier=tuple(start.facts(version) for start in reader.earlier),
    )


def _shown(says: bytes) -> str | Sign | None:
    """What a message of no known beginning shows: a pattern of the lines before the settings, or a failure."""
    for kind, mark in _PRELUDES:
        if mark in says and PATTERNS[kind].match(says):
            return kind
    return FAILURES.of(says)


_remembered = lru_cache(maxsize=256)(_shown)


class _Reader:
    """Walks the lines and keeps what belongs to the last start."""

    def __init__(self, earlier: int) -> None:
        self.start: Start | None = None
        self.earlier: deque[Start] = deque(maxlen=earlier)
        self.starts = 0

    def take(self, line: bytes, number: int) -> None:
        if line[:4].isdigit() or line[3:4] == b" ":
            line = uncarried(line)
        if line.find(b"[20", 1) >= 0 or b"\r" in line or b"\x1b" in line:
            for fragment in fragments(line):
                self._take(fragment, number)
        else:
            self._take(line, number)

    def _take(self, line: bytes, number: int, *, bare: bool = False) -> None:
        begin = line.find(b"] ", 20, 120) + 2 if line.startswith(b"[20") else 0
        key = line[begin : begin + 4]
        if key == b"INFO" and not line.startswith(b"Uvic", begin + 10):
            return
        if key == b"Deco" and line.startswith(b"Decode batch", begin):
            self.current().decode(line)
            return
        kinds = _KINDS.get(key)
        if kinds is None:
            if key in _QUIET or key[:1] == b" ":
                return
            rest = line if begin or bare else uncarried(line)
            if rest is not line:
                self._take(rest, number, bare=True)
                return
            if b"KV Cache is allocated" in line:
                kinds = ("kv pool",)
            elif _TRACES.search(line) is None:
                return
        self._look(parted(line, number), kinds or ())

    def _look(self, message: Message, kinds: Iterable[str]) -> None:
        if len(message.says) > _LONGEST and kinds != ("settings",):
            message = message._replace(says=message.says[:_LONGEST])
        for kind in kinds:
            if found := PATTERNS[kind].match(message.says):
                self._understood(kind, found, message)
                return
        says = message.says
        shown = _remembered(says) if len(says) <= _REPEATED else _shown(says)
        if isinstance(shown, Sign):
            self.current().failed(shown.kind, shown.fatal, message)
        elif shown is not None and (found := PATTERNS[shown].match(says)):
            self._understood(shown, found, message)

    def _understood(self, kind: str, found: re.Match[bytes], message: Message) -> None:
        start = self.start
        fresh = start is None or start.over or start.is_ready
        if kind in ("settings", "launched", "usage"):
            fresh = fresh or (start is not None and start.settings is not None)
        elif kind not in ("deprecated", "prelude"):
            fresh = False
        if fresh:
            if self.start is not None:
                self.earlier.append(self.start)
            self.start = Start()
            self.starts += 1
        self.current().take(kind, found, message)

    def current(self) -> Start:
        """The start that lines belong to now; one is opened where none has begun."""
        if self.start is None:
            self.start = Start()
        return self.start
