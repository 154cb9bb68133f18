"""A vLLM log -> the facts of its last start, its failures, and how it served.

The log has no year and does not say what stays free after capture: the KV pool takes what the memory share leaves.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, cast

from tools.engines.facts import Capture, DecodeBatch, Failure, FailureKind, Log, Serving, StartupFacts
from tools.engines.figures import allocation, greater, lesser, number, seconds_between, text, whole
from tools.engines.log_lines import fragments
from tools.engines.settings_text import read_settings
from tools.engines.vllm_lines import FAILURES, LOGGED, MARKS, PATTERNS, SPOKEN

_LAST: Final = 256
_KEPT_FAILURES: Final = 64
_SHOWN: Final = 600
_YEAR: Final = "2000"
"""Stands in for the year that the log does not say; a leap year, so that every date exists."""
_MARKS: Final = (
    b"GiB", b"GB", b"Engine 0", b"Engine ", b"tokens", b"args: ", b"Initializing", b"Capturing", b"took", b"Starting",
    b"startup complete", b"rror", b"died", b"unrecognized", b"ambiguous", b"NCCL", b"collective", b"out of memory",
    b"EngineCore", b"usage: ", b"version", b"already in use", b"SIGTERM", b"signal 15", b"shutdown", b"Shutting",
)  # fmt: skip
"""Parts of lines that are worth a close look."""


def read_log(lines: Iterable[bytes], *, version: str | None = None, earlier: int = 0) -> Log:
    """Read a log to its end; see `sglang_log.read_log`, whose promise this keeps for vLLM."""
    start: _Start | None = None
    before: deque[_Start] = deque(maxlen=earlier)
    starts = count = 0
    for count, line in enumerate(lines, 1):
        if (line[-6:] == b"200 OK" and b"INFO: " in line[:40]) or not any(mark in line for mark in _MARKS):
            continue
        for fragment in fragments(line):
            at, says = _parted(fragment)
            for name, mark in MARKS.items():
                found = PATTERNS[name].match(says) if mark in says else None
                if found is None:
                    continue
                if _begins(name, start):
                    if start is not None:
                        before.append(start)
                    start = _Start()
                    starts += 1
                start = start or _Start()
                start.take(name, found, at)
                break
            else:
                for sign in FAILURES:
                    if sign.mark in says and sign.pattern.match(says):
                        start = start or _Start()
                        start.failed(sign.kind, sign.fatal, says, at, count)
                        break
    return Log(
        starts=starts,
        lines=count,
        facts=None if start is None else start.facts(version),
        earlier=tuple(start.facts(version) for start in before),
    )


def _begins(name: str, start: _Start | None) -> bool:
    if name not in ("banner", "arguments", "configuration", "usage"):
        return False
    return start is None or start.over or start.is_ready or name in start.named


class _Start:
    """What one start has said so far."""

    def __init__(self) -> None:
        self.is_ready = False
        self.over = False
        self.named: set[str] = set()
        self._asked_to_stop = False
        self._capturing = False
        self._settings: dict[str, str] = {}
        self._figures: dict[str, Any] = {}
        self._graphs: dict[str, float | None] = {}
        self._steps: dict[str, int] = {}
        self._failures: list[Failure] = []
        self._batches: deque[DecodeBatch] = deque(maxlen=_LAST)
        self._largest = 0
        self._preempted = 0

    def take(self, name: str, found: re.Match[bytes], at: str | None) -> None:  # noqa: C901, PLR0912 - one branch a kind of line
        if at is not None:
            self._figures.setdefault("begun_at", at)
        groups = found.groupdict()
        self.named.add(name)
        match name:
            case "banner":
                self._figures["version"] = text(groups["version"])
            case "arguments":
                self._settings |= read_settings(text(groups["text"]))
            case "configuration":
                self._figures["version"] = text(groups["version"])
                self._settings = read_settings(f"({text(groups['text'])})") | self._settings
            case "memory":
                self._least("free_before_weights_gb", groups["free"])
                self._figures["gpu_total_gb"] = number(groups["total"])
            case "weights":
                self._figures["weights_gb"] = greater(self._figures.get("weights_gb"), number(groups["gb"]))
                self._figures["weights_seconds"] = greater(
                    self._figures.get("weights_seconds"), number(groups["seconds"])
                )
            case "estimate":
                self._figures["graph_estimate_gb"] = number(groups["gb"])
            case "kv pool":
                self._least("kv_gb", groups["gb"])
            case "kv tokens":
                self._figures["kv_tokens"] = self._figures["max_total_tokens"] = whole(groups["tokens"])
            case "concurrency":
                self._figures["context_length"] = whole(groups["context"])
            case "capture step":
                self._capturing = True
                self._steps[text(groups["what"] or b"graphs")] = whole(groups["of"]) or 0
            case "capture end":
                self._capturing = False
                self._graphs["gb"] = greater(self._graphs.get("gb"), number(groups["gb"]))
                self._graphs["seconds"] = greater(self._graphs.get("seconds"), number(groups["seconds"]))
            case "port open":
                self._figures["port_open"] = True
            case "ready":
                self.is_ready = True
                self._figures["port_open"] = True
                self._figures["ready_at"] = at or self._figures.get("last_at")
            case "serving":
                self._serving(groups, at)
            case "stop":
                self._asked_to_stop = self.over = True
        if at is not None:
            self._figures["last_at"] = at

    def failed(self, kind: str, fatal: bool, says: bytes, at: str | None, count: int) -> None:
        if self._asked_to_stop and kind in ("scheduler_died", "nccl", "exception"):
            return
        if self.is_ready and kind in ("bad_value", "exception"):
            kind, fatal = "exception", False
        if kind == "oom":
            kind = "oom_at_run_time" if self.is_ready else "oom_at_capture" if self._capturing else "oom_while_starting"
        self.over = self.over or fatal
        if len(self._failures) >= _KEPT_FAILURES:
            return
        line = text(says)
        memory = allocation(line)
        if memory.total is not None:
            self._figures["gpu_total_gb"] = memory.total
        self._failures.append(
            Failure(
                kind=cast(FailureKind, kind),
                fatal=fatal,
                line=line[:_SHOWN],
                number=count,
                at=at,
                tried_gb=memory.tried,
                free_gb=memory.free,
            )
        )

    def facts(self, version: str | None) -> StartupFacts:
        figures = dict(self._figures)
        figures.pop("last_at", None)
        found = figures.pop("version", None)
        settings = self._settings
        sizes = tuple(
            sorted(
                int(size)
                for size in re.findall(
                    r"\d{1,6}",
                    settings.get("compilation_config.cudagraph_capture_sizes")
                    or settings.get("cudagraph_capture_sizes", ""),
                )
            )
        )
        captures: tuple[Capture, ...] = ()
        if self._graphs or self._steps:
            captures = (
                Capture(
                    phase="graphs",
                    backend="+".join(self._steps) or None,
                    sizes=sizes,
                    gb=self._graphs.get("gb"),
                    seconds=self._graphs.get("seconds"),
                ),
            )
        running = settings.get("max_num_seqs", "")
        figures.setdefault("max_running_requests", int(running) if re.fullmatch(r"\d{1,9}", running) else None)
        model = settings.get("architecture") or settings.get("model")
        return StartupFacts(
            engine="vllm",
            version=found or version,
            settings=settings,
            model_type=model,
            quantization=settings.get("quantization"),
            ranks=1,
            captures=captures,
            ready=self.is_ready,
            log_seconds=_seconds(figures.get("begun_at"), figures.get("ready_at")),
            serving=Serving(largest_batch=self._largest, retractions=self._preempted, last=tuple(self._batches)),
            asked_to_stop=self._asked_to_stop,
            failures=tuple(self._failures),
            **figures,
        )

    def _serving(self, groups: dict[str, Any], at: str | None) -> None:
        running, queued = whole(groups["running"]), whole(groups["queued"])
        rate, usage = number(groups["rate"]), number(groups["usage"])
        if running is None or queued is None or rate is None or usage is None:
            return
        self._largest = max(self._largest, running)
        self._preempted += whole(groups["preempted"]) or 0
        self._batches.append(
            DecodeBatch(at=at, running=running, queued=queued, usage=usage / 100, captured=None, tokens_per_second=rate)
        )

    def _least(self, field: str, digits: bytes | None) -> None:
        self._figures[field] = lesser(self._figures.get(field), number(digits))


def _parted(line: bytes) -> tuple[str | None, bytes]:
    logged = LOGGED.match(line)
    if logged is not None:
        month, day, clock = text(logged["month"]), text(logged["day"]), text(logged["clock"])
        return f"{_YEAR}-{month}-{day} {clock}", logged["says"]
    spoken = SPOKEN.match(line)
    return None, spoken["says"] if spoken else line


def _seconds(begin: str | None, end: str | None) -> float | None:
    seconds = seconds_between(begin, end)
    if seconds is None and begin is not None and end is not None:
        return seconds_between(begin, end.replace(_YEAR, "2001", 1))
    return seconds
