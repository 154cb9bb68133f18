"""The lines of one SGLang start as they come in -> its facts."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from tools.engines.facts import Capture, CaptureStep, DecodeBatch, Failure, Serving, StartupFacts
from tools.engines.failure_line import KEPT_FAILURES, SHOWN, kind_in_phase, read_failure
from tools.engines.figures import greater, lesser, number, seconds_between, text, whole
from tools.engines.settings_text import read_settings
from tools.engines.sglang_lines import PATTERNS, STAMPED

LAST_BATCHES: Final = 256
"""Decode lines that are kept; at 40 steps a line that is minutes of serving."""


class Message(NamedTuple):
    """A line of the log, taken apart."""

    at: str | None
    """Its timestamp; None: it has none."""
    rank: bytes
    """Which rank wrote it; empty where none is named."""
    number: int
    """Its number in what was read, from 1."""
    says: bytes
    """The message."""


def parted(line: bytes, number: int) -> Message:
    """Take a line apart."""
    stamped = STAMPED.match(line)
    if stamped is None:
        return Message(None, b"", number, line)
    return Message(text(stamped["at"]), stamped["ranks"].strip(), number, stamped["says"])


class Start:
    """What one start has said so far."""

    def __init__(self) -> None:
        self.settings: bytes | None = None
        self.is_ready = False
        self.over = False
        self._asked_to_stop = False
        self._capturing: str | None = None
        self._captures: dict[str, _CaptureSoFar] = {}
        self._deprecated: list[str] = []
        self._failures: list[Failure] = []
        self._figures: dict[str, Any] = {}
        self._ranks: set[bytes] = set()
        self._batches: deque[bytes] = deque(maxlen=LAST_BATCHES)
        self._captured_lines = 0
        self._eager_lines = 0
        self._seen: set[tuple[bytes, bool]] = set()
        self._prefills = {"largest_prefill_tokens": 0, "prefill_batches": 0, "retractions": 0}
        self._limited = False

    def decode(self, line: bytes) -> None:
        """Take a progress line of decoding, of which most is left for later."""
        captured = b"cuda graph: True" in line
        if captured:
            self._captured_lines += 1
        else:
            self._eager_lines += 1
        at = line.find(b"#running-req: ", 20) + 14
        size = line[at : line.find(b",", at)] if at > 13 else b""
        if (size, captured) not in self._seen and size.isdigit() and len(size) <= 5:
            self._seen.add((size, captured))
        self._batches.append(line)

    def take(self, kind: str, found: re.Match[bytes], message: Message) -> None:  # noqa: C901, PLR0912 - one branch a kind of line
        """Take a line that was understood."""
        if message.at is not None:
            self._figures.setdefault("begun_at", message.at)
        if kind not in ("decode", "prefill"):
            self._ranks.add(message.rank)
        match kind:
            case "settings":
                self.settings = found["text"]
            case "deprecated":
                self._deprecated.append(text(found["flag"]))
            case "weights begin":
                self._least("free_before_weights_gb", found["free"])
            case "weights end":
                self._figures["model_type"] = text(found["model"])
                if found["quant"]:
                    self._figures["quantization"] = text(found["quant"])
                self._least("free_after_weights_gb", found["free"])
                self._most("weights_gb", found["gb"])
                self._most("weights_seconds", found["seconds"])
            case "kv pool" | "dsv4 pool" | "swa pool" | "late pool":
                self._pool(kind, found)
            case "pool end":
                self._least("free_after_pool_gb", found["free"])
            case "capture begin" | "capture end" | "capture list" | "capture step":
                self._capture(kind, found)
            case "prefill off":
                self._figures["prefill_capture_off"] = text(found["why"])[:SHOWN]
            case "limits":
                self._limits(found)
            case "port open":
                self._figures["port_open"] = True
            case "ready":
                self.is_ready = True
                self._figures.setdefault("ready_at", message.at)
            case "prefill":
                self._prefills["prefill_batches"] += 1
                tokens = whole(found["tokens"]) or 0
                self._prefills["largest_prefill_tokens"] = max(self._prefills["largest_prefill_tokens"], tokens)
            case "retract":
                self._prefills["retractions"] += 1
            case "stop":
                self._asked_to_stop = True
                self.over = True

    def failed(self, kind: str, fatal: bool, message: Message) -> None:
        """Take a failure, of the kind that its sign names."""
        if self._asked_to_stop and kind in ("scheduler_died", "nccl", "exception"):
            return
        if self.is_ready and kind in ("bad_value", "exception") and b"hit an exception" not in message.says:
            kind, fatal = "exception", False
        kind = kind_in_phase(kind, capturing=bool(self._capturing), serving=self.is_ready or self._limited)
        self.over = self.over or fatal
        if len(self._failures) >= KEPT_FAILURES:
            return
        failure, total = read_failure(kind, fatal=fatal, says=message.says, number=message.number, at=message.at)
        if total is not None:
            self._figures["gpu_total_gb"] = total
        self._failures.append(failure)

    def facts(self, version: str | None) -> StartupFacts:
        """All that it said."""
        figures = dict(self._figures)
        figures.setdefault("port_open", False)
        settings = read_settings(text(self.settings)) if self.settings else {}
        if figures.get("free_after_capture_gb") is None:
            ended = [capture.free_after for capture in self._captures.values() if capture.free_after is not None]
            figures["free_after_capture_gb"] = ended[-1] if ended else None
        return StartupFacts(
            engine="sglang",
            version=version,
            wording=_wording(self.settings),
            settings=settings,
            deprecated=tuple(dict.fromkeys(self._deprecated)),
            ranks=len(self._ranks - {b""}) or (1 if self._ranks else 0),
            captures=tuple(capture.noun() for capture in self._captures.values()),
            ready=self.is_ready,
            log_seconds=seconds_between(figures.get("begun_at"), figures.get("ready_at")),
            serving=Serving(
                captured_lines=self._captured_lines,
                eager_lines=self._eager_lines,
                largest_captured=max((int(size) for size, captured in self._seen if captured), default=0),
                largest_batch=max((int(size) for size, _ in self._seen), default=0),
                last=tuple(_batches(self._batches)),
                **self._prefills,
            ),
            asked_to_stop=self._asked_to_stop,
            failures=tuple(self._failures),
            **figures,
        )

    def _pool(self, kind: str, found: re.Match[bytes]) -> None:
        groups = found.groupdict()
        if groups.get("dtype"):
            self._figures["kv_dtype"] = text(groups["dtype"])
        sizes = [number(groups[name]) for name in ("gb", "k", "v") if groups.get(name)]
        gigabytes = sum(size for size in sizes if size is not None)
        if kind == "late pool" or self._figures.get("kv_gb") is None or gigabytes >= self._figures["kv_gb"]:
            self._figures["kv_gb"] = round(gigabytes, 4)
            self._figures["kv_tokens"] = whole(groups["tokens"])

    def _limits(self, found: re.Match[bytes]) -> None:
        self._limited = True
        self._capturing = None
        for field, group in (
            ("max_total_tokens", "tokens"),
            ("chunked_prefill_size", "chunk"),
            ("max_prefill_tokens", "prefill"),
            ("max_running_requests", "running"),
            ("context_length", "context"),
        ):
            limit = whole(found[group])
            if limit is not None:
                self._figures[field] = min(limit, self._figures.get(field, limit))
        self._least("free_after_capture_gb", found["free"])

    def _capture(self, kind: str, found: re.Match[bytes]) -> None:
        groups = found.groupdict()
        if kind == "capture step":
            if self._capturing in self._captures:
                capture = self._captures[self._capturing]
                capture.step(whole(groups["size"]), number(groups["free"]))
                capture.bar(whole(groups["done"]), whole(groups["of"]))
            return
        phase = _phase(text(groups["name"]))
        capture = self._captures.setdefault(phase, _CaptureSoFar(phase))
        if groups.get("sizes"):
            capture.sizes = tuple(sorted({int(size) for size in re.findall(rb"\d{1,9}", groups["sizes"])}))
        if kind == "capture list":
            return
        if kind == "capture begin":
            self._capturing = phase
            if groups.get("backend"):
                capture.backend = text(groups["backend"])
            capture.free_before = lesser(capture.free_before, number(groups["free"]))
        else:
            self._capturing = None
            capture.gb = greater(capture.gb, number(groups["gb"]))
            capture.seconds = greater(capture.seconds, number(groups["seconds"]))
            capture.free_after = lesser(capture.free_after, number(groups["free"]))

    def _least(self, field: str, text: bytes | None) -> None:
        self._figures[field] = lesser(self._figures.get(field), number(text))

    def _most(self, field: str, text: bytes | None) -> None:
        self._figures[field] = greater(self._figures.get(field), number(text))


class _CaptureSoFar:
    """One capture while its lines come in."""

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self.backend: str | None = None
        self.sizes: tuple[int, ...] = ()
        self.gb: float | None = None
        self.seconds: float | None = None
        self.free_before: float | None = None
        self.free_after: float | None = None
        self._steps: dict[int, float] = {}
        self._done = self._of = 0

    def step(self, size: int | None, free: float | None) -> None:
        if size is not None and free is not None and len(self._steps) < 4096:
            self._steps.setdefault(size, free)

    def bar(self, done: int | None, of: int | None) -> None:
        if done is not None and of is not None and done <= of:
            self._done, self._of = max(self._done, done), of

    def noun(self) -> Capture:
        return Capture(
            phase=self.phase,
            backend=self.backend,
            sizes=self.sizes,
            gb=self.gb,
            seconds=self.seconds,
            free_before_gb=self.free_before,
            free_after_gb=self.free_after,
            steps=tuple(CaptureStep(size=size, free_gb=free) for size, free in self._steps.items()),
            done=self._done,
            of=self._of,
        )


def _phase(name: str) -> str:
    """The phase that a capture is named by: older versions say `piecewise` for prefill, and nothing for decode."""
    words = name.lower().split()
    if "prefill" in words or "piecewise" in words:
        return "draft prefill" if "draft" in words else "prefill"
    rest = " ".join(word for word in words if word != "target")
    return {"": "decode", "draft": "draft decode"}.get(rest, rest)


def _batches(lines: Iterable[bytes]) -> Iterator[DecodeBatch]:
    for line in lines:
        message = parted(line, 0)
        found = PATTERNS["decode"].match(message.says)
        if found is None:
            continue
        usages = [number(usage) for usage in re.findall(rb"usage: (\d+(?:\.\d+)?)", found["pools"])]
        running, queued, rate = whole(found["running"]), whole(found["queued"]), number(found["rate"])
        if running is None or queued is None or rate is None:
            continue
        yield DecodeBatch(
            at=message.at,
            running=running,
            queued=queued,
            usage=max((usage for usage in usages if usage is not None), default=0.0),
            captured=found["graph"] == b"True",
            tokens_per_second=rate,
        )


def _wording(settings: bytes | None) -> str | None:
    """Which versions write like this; see the module's patterns for the differences."""
    if settings is None:
        return None
    if settings.startswith(b"{"):
        return "0.5.19 or newer"
    if b"cuda_graph_config=" in settings:
        return "0.5.14 to 0.5.18"
    return "0.5.13 or older" if b"cuda_graph_max_bs=" in settings else None
