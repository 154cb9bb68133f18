"""The last start of an SGLang worker + a change -> what the next start will take and leave.

Anchored on the worker's own last start: every row is a measured figure plus the part of it that the change moves. What
cannot be derived from a measurement carries a prior and says so. All GB are GiB.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from agent.domain import Forecast, Interval
from tools.engines.catalogue import knob_named
from tools.engines.dsv4_indexer import indexer_growth
from tools.engines.facts import StartupFacts
from tools.engines.forecast_rows import forecast_rows, judge_fit
from tools.engines.graph_contents import inside_graphs
from tools.engines.memory_fraction import fraction_after
from tools.engines.model_shape import ModelShape
from tools.engines.prefill_graphs import REPEAT_GB, prefill_graphs, prefill_seconds
from tools.engines.prefill_need import prefill_need
from tools.engines.queue_outlook import queue_outlook
from tools.engines.restart_time import restart_seconds
from tools.engines.sglang_capture import DecodeCost, comparable, decode_cost
from tools.engines.sglang_configuration import Configuration, changed, of_start
from tools.engines.size_lists import capture_list
from tools.engines.span import Span, outward

__all__ = ["capture_list", "forecast"]

_STREAMS_GB: Final = 3.5
"""GB by which decode graphs have been seen to differ between capture with and without side streams: the seed worker
printed 3.91 GB up to size 32 under earlier capture settings and 0.57 GB up to size 96 without side streams."""
_NO_MEMORY: Final = frozenset({"scheduler overlap", "admission", "health", "reporting", "parsing"})
"""Subsystems whose knobs leave GPU memory alone, the running limit excepted, which is modelled."""
_MODELLED: Final = frozenset(
    {
        "cuda-graph-max-bs",
        "cuda-graph-bs",
        "disable-cuda-graph",
        "disable-decode-cuda-graph",
        "cuda-graph-backend-prefill",
        "cuda-graph-max-bs-prefill",
        "disable-cuda-graph-padding",
        "mem-fraction-static",
        "max-running-requests",
        "max-total-tokens",
        "max-prefill-tokens",
        "chunked-prefill-size",
        "context-length",
        "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP",
        "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK",
        "disaggregation-decode-extra-slots",
        "enable-mixed-chunk",
        "disable-radix-cache",
        "schedule-policy",
        "num-reserved-decode-tokens",
        "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT",
        "SGLANG_DISAGGREGATION_WAITING_TIMEOUT",
    }
)
"""Knobs of the other subsystems whose effect on GPU memory is worked out here, or is none."""


class _Pools(NamedTuple):
    """KV pool and what is left after it."""

    kv_gb: Interval | None
    kv_tokens: Span | None
    shrink: Span
    """GB by which free memory after the pools shrinks."""


def forecast(
    *,
    facts: StartupFacts,
    history: Sequence[StartupFacts] = (),
    change: Mapping[str, str | None],
    floor_gb: float,
    start_seconds: Sequence[float] = (),
    stated: Collection[str] | None = None,
    variables: Mapping[str, str] | None = None,
    shape: ModelShape | None = None,
) -> Forecast:
    """Forecast the next start after a change.

    Args:
        facts: The last start, which the forecast is anchored on.
        history: Earlier starts of this worker, failed ones included, in any order.
        change: By canonical knob name the text that will stand in the script; None: removed; empty: a switch flag.
        floor_gb: Free memory that has to be left after capture, GB.
        start_seconds: Wall seconds of this worker's restarts, from stop to ready, as measured.
        stated: Names of the knobs that the launch states; None: not known. A memory fraction that is not stated moves
            with the largest graph.
        variables: The worker's environment as its process has it, for what the log does not show; None: not known.
        shape: The model's sizes: its vocabulary sets the least that each unit of size costs, its widths what a prefill
            takes; None: not known, and priors stand in.

    Returns:
        Rows in the order of the start. `fits` compares the low end of free memory with the floor and with what the
        first full prefill may need.
    """
    before = of_start(facts)
    gpu_gb = facts.gpu_total_gb or (None if facts.free_before_weights_gb is None else facts.free_before_weights_gb + 1)
    after = changed(before, change, kv_tokens=facts.kv_tokens, gpu_gb=gpu_gb)
    peers = [start for start in history if comparable(facts, start)]
    unknown = [name for name in change if not _is_modelled(name)]
    cost = decode_cost(
        after.sizes,
        last=facts.decode_capture,
        others=[capture for start in peers if (capture := start.decode_capture) is not None],
        low_per_size_gb=None if shape is None or shape.vocabulary is None else shape.vocabulary * 8 / 2**30,
        plain_context=before.context if before.plain_rows and after.plain_rows else None,
    )
    streams = _side_streams(facts, change)
    indexer = indexer_growth(facts, before, after, variables)
    index = _index_growth(before, after)
    prefill_now, prefill_then = prefill_graphs(facts, peers, before, after, shape)
    pools = _pools(facts, before, after, stated)
    hidden = pools is None
    if pools is None or unknown:
        pools = _Pools(None, None, Span(0.0, 0.0))
    need = prefill_need(facts, history, after, shape)
    free = None if unknown or hidden else _free(facts, pools, prefill_now, prefill_then, cost, streams, indexer, index)
    restart = restart_seconds(facts, start_seconds, [prefill_seconds(facts, after), cost.seconds])
    rows = forecast_rows(
        facts,
        before,
        after,
        kv_pool=pools.kv_gb,
        prefill_graphs=prefill_then,
        cost=cost,
        extra=Span(streams.low + indexer.low + index.low, streams.high + indexer.high + index.high),
        free=free,
        need=need,
        restart=restart,
        floor_gb=floor_gb,
        inside=inside_graphs(after, cost.gb, shape),
    )
    fits, why = judge_fit(free, floor_gb, need=need, caveats=_caveats(cost, streams, indexer), unknown=unknown)
    return Forecast(
        rows=rows,
        free_after_capture=free,
        restart_seconds=restart,
        fits=fits,
        why=why,
        queue=queue_outlook(before, after, facts, pools.kv_tokens),
    )


def _is_modelled(name: str) -> bool:
    knob = knob_named("sglang", name)
    return name in _MODELLED or (knob is not None and knob.subsystem in _NO_MEMORY)


def _profiled(facts: StartupFacts, before: Configuration) -> tuple[float | None, str]:
    """GB of the pool that memory allows as it is now, and what that rests on; None: a limit hides it.

    Where max-total-tokens keeps the pool smaller, memory is what the weights left, less the share that is kept free.
    """
    assert facts.kv_gb is not None
    limit = before.max_total_tokens
    if limit is None or facts.kv_tokens is None or facts.kv_tokens < 0.98 * limit:
        return facts.kv_gb, f"{facts.kv_gb:.2f} GB measured at the last start"
    at_first, left, fraction = facts.free_before_weights_gb, facts.free_after_weights_gb, before.memory_fraction
    if at_first is None or left is None or fraction is None:
        return None, ""
    allowed = left - at_first * (1 - fraction)
    return allowed, f"{allowed:.2f} GB that the weights left inside of the memory fraction, which max-total-tokens cut"


def _pools(
    facts: StartupFacts, before: Configuration, after: Configuration, stated: Collection[str] | None
) -> _Pools | None:
    table_now, table_then = before.request_table_gb, after.request_table_gb
    shrink_table = 0.0 if table_now is None or table_then is None else table_then - table_now
    if facts.kv_gb is None:
        return _Pools(None, None, Span(shrink_table, shrink_table))
    fraction = fraction_after(before, after, free_before_weights_gb=facts.free_before_weights_gb, stated=stated)
    base, basis = _profiled(facts, before)
    removed = before.memory_fraction is not None and after.memory_fraction is None
    if base is None or (fraction is None and removed):
        return None
    if fraction is None or facts.free_before_weights_gb is None or before.memory_fraction is None:
        grown = Span(0.0, 0.0)
        basis += "; the memory fraction is not known"
    else:
        step = facts.free_before_weights_gb
        grown = Span((fraction.low - before.memory_fraction) * step, (fraction.high - before.memory_fraction) * step)
        if grown != Span(0.0, 0.0):
            basis += (
                f", {grown.low:+.2f} to {grown.high:+.2f} GB by the move of the memory fraction "
                f"(x {step:.2f} GB free before the weights)"
            )
    per_token = facts.kv_gb / facts.kv_tokens if facts.kv_tokens else None
    pool = Span(max(0.0, base + grown.low), max(0.0, base + grown.high))
    if after.max_total_tokens is not None and per_token is not None:
        limit = after.max_total_tokens * per_token
        pool = Span(min(pool.low, limit), min(pool.high, limit))
        basis += f", at most {after.max_total_tokens:,} tokens as max-total-tokens says"
    moved = REPEAT_GB if grown != Span(0.0, 0.0) or base != facts.kv_gb else 0.0
    low, high = outward(Span(max(0.0, pool.low - moved), pool.high + moved))
    tokens = None if per_token is None or per_token <= 0 else Span(pool.low / per_token, pool.high / per_token)
    return _Pools(
        Interval(low=low, high=high, unit="GB", basis=basis),
        tokens,
        Span(pool.low - facts.kv_gb + shrink_table, pool.high - facts.kv_gb + shrink_table),
    )


def _side_streams(facts: StartupFacts, change: Mapping[str, str | None]) -> Span:
    """GB that free memory may shrink by because side streams enter or leave the graphs."""
    name = "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP"
    capture = facts.decode_capture
    if name not in change or not (facts.model_type or "").startswith("DeepseekV4") or capture is None:
        return Span(0.0, 0.0)
    if (change[name] or "1").strip().lower() in ("0", "false", "no", "off"):
        return Span(-min(capture.gb or 0.0, _STREAMS_GB), 0.0)
    return Span(0.0, _STREAMS_GB)


def _index_growth(before: Configuration, after: Configuration) -> Span:
    """GB by which attention's static indices may grow with the context: up to 16 bytes for each token of a row."""
    if before.context is None or after.context is None or not after.sizes:
        return Span(0.0, 0.0)
    grown = max(after.sizes) * (after.context - before.context) * 16 / 2**30
    return Span(min(0.0, grown), max(0.0, grown))


def _free(
    facts: StartupFacts,
    pools: _Pools,
    prefill_now: float,
    prefill_then: Interval,
    cost: DecodeCost,
    streams: Span,
    indexer: Span,
    index: Span,
) -> Interval | None:
    now = facts.free_after_capture_gb
    if now is None:
        return None
    prefill = Span(prefill_then.low - prefill_now, prefill_then.high - prefill_now)
    if prefill_then.high - prefill_then.low <= 2 * REPEAT_GB + 0.03:
        middle = (prefill_then.low + prefill_then.high) / 2 - prefill_now
        prefill = Span(middle, middle)
    parts = (pools.shrink, prefill, cost.growth, streams, indexer, index)
    repeat = REPEAT_GB + 0.01 * max(abs(end) for end in pools.shrink)
    low, high = outward(
        Span(now - sum(part.high for part in parts) - repeat, now - sum(part.low for part in parts) + repeat)
    )
    named = (
        ("pools", pools.shrink),
        ("prefill graphs", prefill),
        ("decode graphs", cost.growth),
        ("side streams", streams),
        ("torch indexer", indexer),
        ("attention indices", index),
    )
    moved = [
        f"{name} {part.low:+.2f}"
        if round(part.low, 2) == round(part.high, 2)
        else f"{name} {part.low:+.2f} to {part.high:+.2f}"
        for name, part in named
        if max(abs(part.low), abs(part.high)) >= 0.005
    ]
    basis = f"{now:.2f} GB measured at the last start"
    basis += f"; what is used changes by {', '.join(moved)} GB" if moved else "; nothing that takes GPU memory changes"
    return Interval(low=low, high=high, unit="GB", basis=f"{basis}; {repeat:.2f} GB either way between starts")


def _caveats(cost: DecodeCost, streams: Span, indexer: Span) -> list[str]:
    """What a reader has to know about the graphs besides their figures."""
    said = [cost.caveat] if cost.caveat else []
    if streams.high > 0:
        said.append(f"Side streams inside the graphs may take up to {streams.high:.1f} GB, as far as has been seen.")
    if indexer.high > 0:
        said.append(
            f"DeepSeek-V4's torch indexer, if it is on, takes up to {indexer.high:.1f} GB more, because it grows with "
            "batch x context; SGLANG_OPT_USE_TILELANG_INDEXER=1 leaves it out."
        )
    return said
