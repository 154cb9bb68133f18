"""What the loop tells about itself: the promise, and how SGLang keeps it in its log and its metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from evals.lab.ask import Ask
from evals.lab.clock import Clock
from evals.lab.log import Log
from evals.lab.metrics import Metrics
from evals.lab.pair import Queues
from evals.lab.specimen import Specimen


class Load(NamedTuple):
    """How busy the loop is."""

    running: int
    """Requests in the batch."""
    waiting: int
    """Requests in the queue."""
    used: int
    """Tokens in the KV pool."""


class Reports(Protocol):
    """Hears what the loop does; each engine words it in its own way."""

    throughput: float
    """Generated tokens a second of the wall, as of the last refresh."""

    def prefilled(self, batch: Sequence[Ask], fresh: int, cached: int, before: int, load: Load) -> None:
        """A prefill batch is through.

        Args:
            batch: Its requests.
            fresh: Prompt tokens that were computed.
            cached: Prompt tokens that were found in the pool.
            before: Requests that ran before it.
            load: How busy the loop is with it.
        """

    def decoded(self, batch: int, seconds: float, *, captured: bool, load: Load) -> None:
        """A decode step of so many requests is through, after so many seconds of life."""

    def emitted(self, tokens: int) -> None:
        """So many tokens left the loop."""

    def rested(self, load: Load) -> None:
        """The loop has had nothing to do for 30 seconds of life."""

    def aborted(self) -> None:
        """A request was taken back."""

    def ended(self, ask: Ask) -> None:
        """A request's books are closed."""

    def retracted(self, requests: int, tokens: int) -> None:
        """The pool overflowed: so many requests with so many tokens went back to the queue."""

    def flushed(self, load: Load, *, done: bool) -> None:
        """Somebody wanted cached prompts forgotten."""


class SglangReports:
    """SGLang's lines and gauges.

    Args:
        tokens: Tokens of the KV pool.
        interval: Decode iterations from one line and gauge refresh to the next.
        ratio: Share of the tokens a request may still generate that admission reserves.
        specimen: Model and cards.
        clock: Serving clock.
        log: Where lines go.
        metrics: Where figures go.
        numbered: Lines carry the number of the pass (`SGLANG_LOG_FORWARD_ITERS`).
        queues: What waits before the loop of a decode side; None: lines do not say.
    """

    def __init__(
        self,
        tokens: int,
        interval: int,
        ratio: float,
        specimen: Specimen,
        clock: Clock,
        log: Log,
        metrics: Metrics,
        *,
        numbered: bool = False,
        queues: Callable[[], Queues | None] = lambda: None,
    ) -> None:
        self.throughput = 0.0
        self._tokens = tokens
        self._interval = interval
        self._ratio = ratio
        self._specimen = specimen
        self._clock = clock
        self._log = log
        self._metrics = metrics
        self._numbered = numbered
        self._queues = queues
        self._passes = 0
        self._iterations = 0
        self._since = 0
        self._since_time = clock.now()
        self._last_prefill = clock.now()

    def prefilled(self, batch: Sequence[Ask], fresh: int, cached: int, before: int, load: Load) -> None:
        """The line of each prefill batch, and a refresh of the gauges."""
        now = self._clock.now()
        self._passes += 1
        self._log.rank(
            f"Prefill batch{self._number()}, #new-seq: {len(batch)}, #new-token: {fresh}, #cached-token: {cached},"
            f" {self._usage(load, counts=False)}, #running-req: {before}, #queue-req: {load.waiting},"
            f" #pending-token: 0, cuda graph: False, input throughput (token/s):"
            f" {fresh / max(self._clock.wall(now - self._last_prefill), 1e-6):.2f}"
        )
        self._last_prefill = now
        self._metrics.add("cuda_graph_passes_total", mode="prefill_none")
        self._metrics.add("realtime_tokens_total", fresh, mode="prefill_compute")
        if cached:
            self._metrics.add("realtime_tokens_total", cached, mode="prefill_cache")
        self._metrics.set("cache_hit_rate", cached / (cached + fresh) if cached + fresh else 0.0)
        for ask in batch:
            self._metrics.observe("queue_time_seconds", self._clock.wall(ask.admitted - ask.arrived))
        self._gauges(load)

    def decoded(self, batch: int, seconds: float, *, captured: bool, load: Load) -> None:
        """Counters of each step; every so many steps the line, and the refresh that comes with it."""
        self._metrics.add("cuda_graph_passes_total", mode="decode_cuda_graph" if captured else "decode_none")
        self._metrics.observe("inter_token_latency_seconds", self._clock.wall(seconds), batch)
        self._passes += 1
        self._iterations += 1
        if self._iterations % self._interval:
            return
        took = self._clock.wall(self._clock.now() - self._since_time)
        self.throughput = self._since / max(took, 1e-6)
        self._metrics.add("realtime_tokens_total", self._since, mode="decode")
        self._since, self._since_time = 0, self._clock.now()
        self._log.rank(
            f"Decode batch{self._number()}, #running-req: {batch}, {self._usage(load, counts=True)},{self._before()}"
            f" cuda graph: {captured}, gen throughput (token/s): {self.throughput:.2f}, #queue-req: {load.waiting}"
        )
        self._gauges(load)

    def _before(self) -> str:
        """What a decode side's line says beside that."""
        queues = self._queues()
        if queues is None:
            return ""
        return (
            f" pre-allocated usage: {queues.tokens / self._tokens:.2f}, #prealloc-req: {queues.asking},"
            f" #transfer-req: {queues.waiting}, #retracted-req: 0,"
        )

    def emitted(self, tokens: int) -> None:
        """Count towards the next line."""
        self._since += tokens

    def rested(self, load: Load) -> None:
        """Idle gauges."""
        self._gauges(load)

    def aborted(self) -> None:
        """Count it."""
        self._metrics.add("num_aborted_requests_total")

    def ended(self, ask: Ask) -> None:
        """Count what it cost and how long it took."""
        count = len(ask.produced)
        now = self._clock.now()
        self._metrics.add("num_requests_total")
        self._metrics.add("prompt_tokens_total", ask.conversation.length)
        self._metrics.add("generation_tokens_total", count)
        self._metrics.observe("e2e_request_latency_seconds", self._clock.wall(now - ask.arrived))
        self._metrics.observe("prompt_tokens_histogram", ask.conversation.length)
        self._metrics.observe("uncached_prompt_tokens_histogram", ask.conversation.length - ask.cached)
        self._metrics.observe("generation_tokens_histogram", count)
        if ask.first:
            self._metrics.observe("time_to_first_token_seconds", self._clock.wall(ask.first - ask.arrived))

    def retracted(self, requests: int, tokens: int) -> None:
        """The warning, and the gauge that stays until the next one."""
        self._metrics.set("num_retracted_reqs", requests)
        self._log.rank(
            f"KV cache pool is full. Retract requests. #retracted_reqs: {requests}, #new_tokens_gained: {tokens},"
            f" #new_token_ratio: {self._ratio:.4f} -> 0.9999"
        )

    def flushed(self, load: Load, *, done: bool) -> None:
        """Whether it was done."""
        if done:
            self._log.rank("Cache flushed successfully!")
            return
        self._log.rank(
            "Cache not flushed because there are pending requests."
            f" #queue-req: {load.waiting}, #running-req: {load.running}"
        )

    def _number(self) -> str:
        return f" [{self._passes}]" if self._numbered else ""

    def _usage(self, load: Load, *, counts: bool) -> str:
        """How full the pools are: two for a hybrid model, whose lines say both, else one."""
        full = load.used / self._tokens
        if not self._specimen.swa_ratio:
            return f"#token: {load.used}, token usage: {full:.2f}" if counts else f"token usage: {full:.2f}"
        window = min(load.used, 128 * load.running)
        swa = window / max(self._tokens * self._specimen.swa_ratio, 1)
        if counts:
            return (
                f"#full token: {load.used}, full token usage: {full:.2f},"
                f" #swa token: {window}, swa token usage: {swa:.2f}"
            )
        return f"full token usage: {full:.2f}, swa token usage: {swa:.2f}"

    def _gauges(self, load: Load) -> None:
        """Refresh the gauges; between refreshes they show what was."""
        show = self._metrics.set
        if load.running == 0:
            self.throughput = 0.0
        show("num_running_reqs", load.running)
        show("num_queue_reqs", load.waiting)
        show("gen_throughput", self.throughput)
        show("decode_sum_seq_lens", load.used)
        show("num_used_tokens", load.used)
        show("kv_used_tokens", load.used)
        show("kv_available_tokens", self._tokens - load.used)
        show("token_usage", round(load.used / self._tokens, 2))
        show("full_token_usage", load.used / self._tokens)
