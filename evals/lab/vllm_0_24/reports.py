"""How vLLM 0.24 tells what its loop does: a line every ten seconds, and figures that are never stale."""

from __future__ import annotations

from collections.abc import Sequence

from evals.lab.ask import Ask
from evals.lab.clock import Clock
from evals.lab.metrics import Metrics
from evals.lab.reports import Load
from evals.lab.vllm_0_24.log import VllmLog

INTERVAL = 10.0
"""Seconds of life from one line to the next (`VLLM_LOG_STATS_INTERVAL`)."""
_FINISH = {"tool_calls": "stop"}


class VllmReports:
    """vLLM's line and figures.

    Args:
        tokens: Tokens of the KV pool.
        clock: Serving clock.
        log: Where the line goes.
        metrics: Where figures go.
        quiet: No line at all (`--disable-log-stats`).
    """

    def __init__(self, tokens: int, clock: Clock, log: VllmLog, metrics: Metrics, *, quiet: bool) -> None:
        self.throughput = 0.0
        self._tokens = tokens
        self._clock = clock
        self._log = log
        self._metrics = metrics
        self._quiet = quiet
        self._since = clock.now()
        self._prompt = 0
        self._generated = 0
        self._preempted = 0
        self._queries = 0
        self._hits = 0
        self._spoke = False
        self._running = 0

    def prefilled(self, batch: Sequence[Ask], fresh: int, cached: int, before: int, load: Load) -> None:
        """Prompt tokens, from where they came, and how long their requests had waited."""
        self._prompt += fresh
        self._queries += fresh + cached
        self._hits += cached
        add = self._metrics.add
        add("prefix_cache_queries_total", fresh + cached)
        add("prefix_cache_hits_total", cached)
        add("prompt_tokens_total", fresh + cached)
        add("prompt_tokens_cached_total", cached)
        add("prompt_tokens_by_source_total", fresh, source="local_compute")
        add("prompt_tokens_by_source_total", cached, source="local_cache_hit")
        for ask in batch:
            self._metrics.observe("request_queue_time_seconds", self._clock.wall(ask.admitted - ask.arrived))
        self._metrics.observe("iteration_tokens_total", fresh)
        self._show(load)

    def decoded(self, batch: int, seconds: float, *, captured: bool, load: Load) -> None:
        """A step of so many tokens."""
        self._metrics.observe("inter_token_latency_seconds", self._clock.wall(seconds), batch)
        self._metrics.observe("iteration_tokens_total", batch)
        self._show(load)

    def emitted(self, tokens: int) -> None:
        """Count them."""
        self._generated += tokens
        self._metrics.add("generation_tokens_total", tokens)

    def rested(self, load: Load) -> None:
        """Nothing runs."""
        self._show(load)

    def aborted(self) -> None:
        """It is counted when its books are closed."""

    def ended(self, ask: Ask) -> None:
        """Count how it ended and how long each phase took."""
        now, wall = self._clock.now(), self._clock.wall
        count = len(ask.produced)
        see = self._metrics.observe
        # The engine's last step already counts without what ended in it, so that an idle engine shows nothing running.
        self._running = max(0, self._running - 1)
        self._metrics.set("num_requests_running", self._running)
        finish = ask.finish or "abort"
        self._metrics.add("request_success_total", finished_reason=_FINISH.get(finish, finish))
        see("request_prompt_tokens", ask.conversation.length)
        see("request_generation_tokens", count)
        see("request_max_num_generation_tokens", count)
        see("request_params_n", 1)
        see("request_params_max_tokens", ask.most)
        see("e2e_request_latency_seconds", wall(now - ask.arrived))
        if not ask.first:
            return
        see("time_to_first_token_seconds", wall(ask.first - ask.arrived))
        see("request_prefill_time_seconds", wall(ask.first - ask.admitted))
        see("request_decode_time_seconds", wall(now - ask.first))
        see("request_inference_time_seconds", wall(now - ask.admitted))
        if count > 1:
            see("request_time_per_output_token_seconds", wall(now - ask.first) / (count - 1))

    def retracted(self, requests: int, tokens: int) -> None:
        """Preempted requests are computed again."""
        self._preempted += requests
        self._metrics.add("num_preemptions_total", requests)

    def flushed(self, load: Load, *, done: bool) -> None:
        """Somebody reset the prefix cache."""
        if done:
            self._log.engine("Successfully reset prefix cache", "block_pool.py:481")
        else:
            self._log.engine(
                f"Failed to reset prefix cache because some blocks ({load.used // 16}) are not freed yet",
                "block_pool.py:470",
                "WARNING",
            )

    def speak(self, load: Load) -> None:
        """Write the line, if anything has happened since the last or the one before it."""
        now = self._clock.now()
        wall = max(self._clock.wall(now - self._since), 1e-6)
        prompt, generated = self._prompt / wall, self._generated / wall
        self.throughput = generated
        busy = bool(self._prompt or self._generated)
        if (busy or self._spoke) and not self._quiet:
            preempted = f"Preemptions: {self._preempted}, " if self._preempted else ""
            self._log.server(
                f"Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s, Avg generation throughput: {generated:.1f}"
                f" tokens/s, Running: {load.running} reqs, Waiting: {load.waiting} reqs, {preempted}"
                f"GPU KV cache usage: {100 * load.used / self._tokens:.1f}%,"
                f" Prefix cache hit rate: {100 * self._hits / max(self._queries, 1):.1f}%",
                "loggers.py:271",
            )
        self._spoke = busy
        self._since, self._prompt, self._generated, self._preempted = now, 0, 0, 0

    def _show(self, load: Load) -> None:
        show = self._metrics.set
        self._running = load.running
        show("num_requests_running", load.running)
        show("num_requests_waiting", load.waiting)
        show("num_requests_waiting_by_reason", load.waiting, reason="capacity")
        show("kv_cache_usage_perc", load.used / self._tokens)
