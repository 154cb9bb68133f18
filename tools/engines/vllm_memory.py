"""The last start of a vLLM worker + a change -> what the next start will take and leave.

Unlike SGLang, vLLM estimates its graphs before it captures them and takes the estimate out of the KV pool. Larger
graphs therefore cost KV tokens; what stays free is what `gpu-memory-utilization` leaves, corrected by how far the
estimate was off. All GB are GiB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from agent.domain import Forecast, ForecastRow, Interval
from tools.engines.catalogue import knob_named
from tools.engines.facts import Capture, StartupFacts
from tools.engines.forecast_rows import headroom
from tools.engines.model_shape import ModelShape
from tools.engines.queue_outlook import between
from tools.engines.restart_time import restart_seconds
from tools.engines.sglang_capture import DecodeCost, comparable, decode_cost
from tools.engines.size_lists import sizes_in
from tools.engines.span import Span, outward
from tools.engines.vllm_sizes import sizes_after
from tools.engines.vllm_start import DEFAULT_SHARE

_OFF_GB: Final = 0.3
"""GB by which the profiled peaks differ between two starts, and by which an estimate of the graphs misses."""
_SAMPLER_BYTES: Final = (0, 12)
"""Bytes that the profiled peak may grow by for each further request and each word of the vocabulary: logits in fp32 and
two copies, while the sampler is warmed up with as many requests as may run (0.24.0 gpu_model_runner.py)."""
_VOCABULARY: Final = 262_144
"""Words of a large vocabulary, where the model's own is not known."""
_NO_MEMORY: Final = frozenset({"scheduler overlap", "health", "reporting", "parsing"})
_MODELLED: Final = frozenset(
    {"max-cudagraph-capture-size", "cudagraph-capture-sizes", "max-num-seqs", "gpu-memory-utilization", "enforce-eager",
     "scheduling-policy", "max-model-len"}
)  # fmt: skip


def forecast(
    *,
    facts: StartupFacts,
    history: Sequence[StartupFacts] = (),
    change: Mapping[str, str | None],
    floor_gb: float,
    start_seconds: Sequence[float] = (),
    shape: ModelShape | None = None,
) -> Forecast:
    """Forecast the next start after a change; see `sglang_memory.forecast`, whose promise this keeps for vLLM."""
    last = facts.decode_capture
    if facts.gpu_total_gb is None:
        known = next((start.gpu_total_gb for start in history if start.gpu_total_gb is not None), None)
        facts = facts.model_copy(update={"gpu_total_gb": known})
    sizes = sizes_after(facts, change)
    unknown = [name for name in change if not _is_modelled(name)]
    cost = decode_cost(
        sizes,
        last=last,
        others=[
            capture for start in history if comparable(facts, start) and (capture := start.decode_capture) is not None
        ],
        low_per_size_gb=None if shape is None or shape.vocabulary is None else shape.vocabulary * 8 / 2**30,
    )
    pool, tokens = _pool(facts, change, cost, _sampler_growth(facts, change, shape))
    free_now, free = _free(facts, change, cost)
    if unknown:
        free = None
    restart = restart_seconds(facts, start_seconds, [cost.seconds] if sizes else [])
    rows = _rows(facts, last, sizes, pool, cost, free_now, free, restart, floor_gb)
    fits, why = _judge(free, floor_gb, pool, unknown)
    refused = None if unknown else _refused_at_start(facts, change, tokens)
    if refused is not None:
        fits, why = "does not fit", refused
    return Forecast(
        rows=rows,
        free_after_capture=free,
        restart_seconds=restart,
        fits=fits,
        why=why,
        queue=_queue(facts, change, tokens, sizes),
    )


def _is_modelled(name: str) -> bool:
    knob = knob_named("vllm", name)
    return name in _MODELLED or (knob is not None and knob.subsystem in _NO_MEMORY)


def _share_move(facts: StartupFacts, change: Mapping[str, str | None]) -> float:
    """GB by which the memory that vLLM may take grows."""
    if "gpu-memory-utilization" not in change or facts.gpu_total_gb is None:
        return 0.0
    now, then = _share(facts.settings.get("gpu_memory_utilization")), _share(change["gpu-memory-utilization"])
    return (then - now) * facts.gpu_total_gb


def _share(written: str | None) -> float:
    try:
        return float(written) if written else DEFAULT_SHARE
    except ValueError:
        return DEFAULT_SHARE


def _sampler_growth(facts: StartupFacts, change: Mapping[str, str | None], shape: ModelShape | None) -> Span:
    """GB by which warming up the sampler may raise the profiled peak, which comes out of the pool."""
    wanted, now = sizes_in(change.get("max-num-seqs") or ""), facts.max_running_requests
    if not wanted or now is None:
        return Span(0.0, 0.0)
    words = shape.vocabulary if shape is not None and shape.vocabulary is not None else _VOCABULARY
    ends = [(wanted[0] - now) * words * each / 2**30 for each in _SAMPLER_BYTES]
    return Span(min(ends), max(ends))


def _refused_at_start(facts: StartupFacts, change: Mapping[str, str | None], tokens: Span | None) -> str | None:
    """Why the engine itself would refuse to start, which it checks before it serves; None: it would not."""
    longest = sizes_in(change.get("max-model-len") or "") or ((facts.context_length,) if facts.context_length else ())
    if longest and tokens is not None and tokens.high < longest[0]:
        return (
            f"One request of max-model-len {longest[0]:,} tokens does not fit into a KV pool of at most "
            f"{int(tokens.high):,}: the engine refuses to start."
        )
    total, at_first = facts.gpu_total_gb, facts.free_before_weights_gb
    share = _share(change.get("gpu-memory-utilization") or facts.settings.get("gpu_memory_utilization"))
    if total is not None and at_first is not None and share * total > at_first + _OFF_GB:
        return (
            f"gpu-memory-utilization {share:g} of {total:.1f} GB is {share * total:.1f} GB, and only {at_first:.1f} GB "
            "were free when the last start began: the engine refuses to start."
        )
    return None


def _pool(
    facts: StartupFacts, change: Mapping[str, str | None], cost: DecodeCost, sampler: Span
) -> tuple[Interval | None, Span | None]:
    if facts.kv_gb is None or ("gpu-memory-utilization" in change and facts.gpu_total_gb is None):
        return None, None
    moved = _share_move(facts, change)
    growth, last, estimate = cost.growth, facts.decode_capture, facts.graph_estimate_gb
    off = _OFF_GB if moved or growth != Span(0.0, 0.0) else 0.05
    if last is not None and last.gb is not None and estimate is not None and growth != Span(0.0, 0.0):
        # The pool pays for the estimate, and not for what the graphs then take.
        nothing = cost.gb.high == 0.0
        growth = Span(-estimate, -estimate) if nothing else growth
        off += 0.0 if nothing else abs(last.gb - estimate)
    span = Span(
        max(0.0, facts.kv_gb + moved - growth.high - sampler.high - off),
        max(0.0, facts.kv_gb + moved - growth.low - sampler.low + off),
    )
    low, high = outward(span)
    basis = (
        f"{facts.kv_gb:.2f} GB measured at the last start, {moved:+.2f} by the memory share, less the growth of the "
        "estimate of the graphs"
    )
    if sampler != Span(0.0, 0.0):
        basis += f" and {sampler.low:+.2f} to {sampler.high:+.2f} GB for the sampler's warm-up"
    per_token = facts.kv_gb / facts.kv_tokens if facts.kv_tokens else None
    tokens = Span(span.low / per_token, span.high / per_token) if per_token else None
    return Interval(low=low, high=high, unit="GB", basis=basis), tokens


def _free(
    facts: StartupFacts, change: Mapping[str, str | None], cost: DecodeCost
) -> tuple[float | None, Interval | None]:
    total = facts.gpu_total_gb
    if total is None:
        return None, None
    share = _share(facts.settings.get("gpu_memory_utilization"))
    last = facts.decode_capture
    missed = 0.0
    if last is not None and last.gb is not None and facts.graph_estimate_gb is not None:
        missed = last.gb - facts.graph_estimate_gb
    others = 0.0 if facts.free_before_weights_gb is None else max(0.0, total - facts.free_before_weights_gb)
    now = total * (1 - share) - missed - others
    then = now - _share_move(facts, change)
    off = _OFF_GB + 0.15 * max(abs(cost.growth.low), abs(cost.growth.high))
    low, high = outward(Span(then - off, then + off))
    basis = (
        f"{total:.1f} GB x (1 - memory share) less {missed:+.2f} by which graphs exceeded their estimate and "
        f"{others:.2f} held by others; graphs come out of the KV pool"
    )
    return round(now, 2), Interval(low=low, high=high, unit="GB", basis=basis)


def _rows(
    facts: StartupFacts,
    last: Capture | None,
    sizes: Sequence[int],
    pool: Interval | None,
    cost: DecodeCost,
    free_now: float | None,
    free: Interval | None,
    restart: Interval | None,
    floor_gb: float,
) -> tuple[ForecastRow, ...]:
    rows: list[ForecastRow] = []
    if facts.weights_gb is not None:
        then = Interval(low=facts.weights_gb, high=facts.weights_gb, unit="GB", basis="measured and not touched")
        rows.append(ForecastRow(name="weights", now=facts.weights_gb, then=then))
    if pool is not None:
        rows.append(ForecastRow(name="KV pool", now=facts.kv_gb, then=pool))
    basis = f"the engine's list up to {max(sizes)}" if sizes else "none"
    count = Interval(low=len(sizes), high=len(sizes), unit="graphs", basis=basis)
    rows.append(ForecastRow(name="captured sizes", now=None if last is None else len(last.sizes), then=count))
    rows.append(ForecastRow(name="decode graphs", now=None if last is None else last.gb, then=cost.gb))
    if free is not None:
        rows.append(ForecastRow(name="free after capture", now=free_now, then=free))
        rows.append(headroom(free, floor_gb, free_now))
    rows.append(ForecastRow(name="capture seconds", now=None if last is None else last.seconds, then=cost.seconds))
    if restart is not None:
        rows.append(ForecastRow(name="restart seconds", now=None, then=restart))
    return tuple(rows)


def _judge(
    free: Interval | None, floor_gb: float, pool: Interval | None, unknown: Sequence[str]
) -> tuple[Literal["fits", "does not fit", "unsure"], str]:
    if unknown:
        return "unsure", f"What {', '.join(unknown)} does to GPU memory is not worked out."
    if pool is not None and pool.high <= 0:
        return "does not fit", "Nothing is left for the KV pool, and the engine refuses to start."
    if free is None:
        return "unsure", "The log does not say how much memory the GPU has, so what stays free is not known."
    said = f"{free.low:.2f} to {free.high:.2f} GB stay free after capture"
    if free.high < floor_gb:
        return "does not fit", f"Only {said}, below the floor of {floor_gb:g} GB."
    if free.low < floor_gb:
        return "unsure", f"{said[0].upper()}{said[1:]}, and the floor is {floor_gb:g} GB."
    return "fits", f"{said}, at least {free.low - floor_gb:.2f} GB above the floor of {floor_gb:g} GB."


def _queue(
    facts: StartupFacts, change: Mapping[str, str | None], tokens: Span | None, sizes: Sequence[int]
) -> tuple[str, ...]:
    said = []
    written = sizes_in(change.get("max-num-seqs") or "")
    running = written[0] if written else facts.max_running_requests
    if running is not None:
        said.append(f"At most {running} requests run in one step; vLLM's queue has no limit of its own.")
    if sizes and running is not None and running > max(sizes):
        said.append(f"Steps of up to {max(sizes)} tokens run captured; larger ones run eager.")
    if tokens is not None and running:
        said.append(
            f"The KV pool goes from {facts.kv_tokens or 0:,} to {between(tokens)} tokens: "
            f"{int(tokens.low) // running:,} for each of {running}. Past that they are preempted and computed again."
        )
    return tuple(said)
