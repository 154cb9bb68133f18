"""The lines of one vLLM start as they come in -> its facts."""

from __future__ import annotations

import re
from collections import deque
from typing import Any, Final

from tools.engines.facts import Capture, DecodeBatch, Failure, Serving, StartupFacts
from tools.engines.failure_line import KEPT_FAILURES, kind_in_phase, read_failure
from tools.engines.figures import greater, lesser, number, seconds_between, text, whole
from tools.engines.line_tables import Sign
from tools.engines.settings_text import read_settings
from tools.engines.size_lists import sizes_in

_LAST: Final = 256
_KINDS_OF_GRAPHS: Final = 16
DEFAULT_SHARE: Final = 0.92
"""`gpu-memory-utilization` where nothing is said (0.24.0)."""
YEAR: Final = "2000"
"""Stands in for the year that the log does not say; a leap year, so that every date exists."""


class Start:
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
        self._bars: dict[str, tuple[int, int]] = {}
        self._stated: tuple[str, ...] | None = None
        self._failures: list[Failure] = []
        self._batches: deque[DecodeBatch] = deque(maxlen=_LAST)
        self._largest = 0
        self._preempted = 0
        self._shares: tuple[float, float] | None = None

    def take(self, name: str, found: re.Match[bytes], at: str | None) -> None:  # noqa: C901, PLR0912 - one branch a kind of line
        """Take a line that was understood."""
        if at is not None:
            self._figures.setdefault("begun_at", at)
        groups = found.groupdict()
        self.named.add(name)
        match name:
            case "banner":
                self._figures["version"] = text(groups["version"])
            case "arguments":
                stated = read_settings(text(groups["text"]))
                self._settings |= stated
                self._stated = tuple(stated)
            case "configuration":
                self._figures["version"] = text(groups["version"])
                self._settings = read_settings(f"({text(groups['text'])})") | self._settings
            case "memory":
                self._least("free_before_weights_gb", groups["free"])
                self._figures["gpu_total_gb"] = number(groups["total"])
            case "capture step":
                self._bar(groups)
            case "weights":
                self._figures["weights_gb"] = greater(self._figures.get("weights_gb"), number(groups["gb"]))
                self._figures["weights_seconds"] = greater(
                    self._figures.get("weights_seconds"), number(groups["seconds"])
                )
            case "estimate":
                self._figures["graph_estimate_gb"] = number(groups["gb"])
            case "share":
                self._share(number(groups["share"]), number(groups["without"]))
            case "kv pool":
                self._least("kv_gb", groups["gb"])
            case "kv tokens":
                self._figures["kv_tokens"] = self._figures["max_total_tokens"] = whole(groups["tokens"])
            case "concurrency":
                self._figures["context_length"] = whole(groups["context"])
            case "capture end":
                self._captured(number(groups["gb"]), number(groups["seconds"]))
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

    def failed(self, sign: Sign, says: bytes, at: str | None, count: int) -> None:
        """Take a failure that a line shows."""
        kind, fatal = sign.kind, sign.fatal
        if self._asked_to_stop and kind in ("scheduler_died", "nccl", "exception"):
            return
        if self.is_ready and kind in ("bad_value", "exception"):
            kind, fatal = "exception", False
        kind = kind_in_phase(kind, capturing=self._capturing, serving=self.is_ready)
        self.over = self.over or fatal
        if len(self._failures) >= KEPT_FAILURES:
            return
        failure, total = read_failure(kind, fatal=fatal, says=says, number=count, at=at)
        if total is not None:
            self._figures["gpu_total_gb"] = total
        self._failures.append(failure)

    def facts(self, version: str | None) -> StartupFacts:
        """All that it said."""
        figures = dict(self._figures)
        figures.pop("last_at", None)
        found = figures.pop("version", None)
        settings = self._settings
        listed = settings.get("compilation_config.cudagraph_capture_sizes") or settings.get("cudagraph_capture_sizes")
        sizes = sizes_in(listed or "")
        captures: tuple[Capture, ...] = ()
        if self._graphs or self._bars:
            captures = (
                Capture(
                    phase="graphs",
                    backend="+".join(self._bars) or None,
                    sizes=sizes,
                    gb=self._graphs.get("gb"),
                    seconds=self._graphs.get("seconds"),
                    done=sum(done for done, _ in self._bars.values()),
                    of=sum(of for _, of in self._bars.values()),
                ),
            )
        if figures.get("gpu_total_gb") is None:
            figures["gpu_total_gb"] = self._total(figures.get("graph_estimate_gb"))
        figures["free_after_capture_gb"] = self._free(figures) if captures or self.is_ready else None
        running = settings.get("max_num_seqs", "")
        figures.setdefault("max_running_requests", int(running) if re.fullmatch(r"\d{1,9}", running) else None)
        model = settings.get("architecture") or settings.get("model")
        return StartupFacts(
            engine="vllm",
            version=found or version,
            settings=settings,
            stated=self._stated,
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

    def _bar(self, groups: dict[str, Any]) -> None:
        self._capturing = True
        done, of = whole(groups["done"]) or 0, whole(groups["of"]) or 0
        if len(self._bars) < _KINDS_OF_GRAPHS and done <= of:
            self._bars[text(groups["what"] or b"graphs")] = (done, of)

    def _captured(self, gigabytes: float | None, seconds: float | None) -> None:
        self._capturing = False
        self._graphs["gb"] = greater(self._graphs.get("gb"), gigabytes)
        self._graphs["seconds"] = greater(self._graphs.get("seconds"), seconds)

    def _share(self, share: float | None, without: float | None) -> None:
        if share is not None and without is not None and share > without:
            self._shares = (share, without)

    def _total(self, estimate: float | None) -> float | None:
        """GB of the GPU, from the share that the estimate of the graphs is of it; None: not said.

        Both shares are rounded to 0.0001, so that the total may be off by some per cent; what is left outside of the
        memory share, a tenth of it, is then off by hundredths of a GB.
        """
        if self._shares is None or not estimate:
            return None
        return round(estimate / (self._shares[0] - self._shares[1]), 1)

    def _free(self, figures: dict[str, Any]) -> float | None:
        """GB outside of what the engine allows itself, less what its graphs took beyond their estimate.

        What the largest step needs for its activations is inside of the allowance, so this much stays free while
        serving. What others hold is taken off where the log says how much was free at first.
        """
        total: float | None = figures.get("gpu_total_gb")
        graphs = self._graphs.get("gb")
        share = self._shares[0] if self._shares is not None else number(self._settings.get("gpu_memory_utilization"))
        if total is None or (self._bars and graphs is None):
            return None
        estimate, at_first = figures.get("graph_estimate_gb"), figures.get("free_before_weights_gb")
        missed = graphs - estimate if graphs is not None and estimate is not None else 0.0
        others = max(0.0, total - at_first) if at_first is not None else 0.0
        return round(total * (1 - (DEFAULT_SHARE if share is None else share)) - missed - others, 2)

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


def _seconds(begin: str | None, end: str | None) -> float | None:
    seconds = seconds_between(begin, end)
    if seconds is None and begin is not None and end is not None:
        return seconds_between(begin, end.replace(YEAR, "2001", 1))
    return seconds
