"""The parts of an SGLang forecast -> its rows in the order of the start, and the word whether it fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from agent.domain import ForecastRow, Interval
from tools.engines.facts import StartupFacts
from tools.engines.graph_contents import Inside
from tools.engines.prefill_need import PrefillNeed
from tools.engines.sglang_capture import DecodeCost
from tools.engines.sglang_configuration import Configuration
from tools.engines.span import Span, outward


class Fit(NamedTuple):
    """Whether the next start fits."""

    fits: Literal["fits", "does not fit", "unsure"]
    """The word."""
    why: str
    """The reason, with the numbers."""


def forecast_rows(
    facts: StartupFacts,
    before: Configuration,
    after: Configuration,
    *,
    kv_pool: Interval | None,
    prefill_graphs: Interval,
    cost: DecodeCost,
    extra: Span,
    free: Interval | None,
    need: PrefillNeed | None,
    restart: Interval | None,
    floor_gb: float,
    inside: Inside | None = None,
) -> tuple[ForecastRow, ...]:
    """One row for each quantity that is known.

    Args:
        facts: The last start, for what was measured.
        before: The configuration now.
        after: The configuration after the change.
        kv_pool: GB of the KV pool.
        prefill_graphs: GB of the prefill graphs.
        cost: The decode capture.
        extra: GB of decode graphs beyond that: side streams, DeepSeek-V4's torch indexer, attention indices.
        free: GB that stay free after capture.
        need: What the first full prefill takes of it.
        restart: Seconds from stop to ready.
        floor_gb: What has to stay free.
        inside: What the graphs hold, where the model's sizes are known.
    """
    rows: list[ForecastRow] = []
    if facts.weights_gb is not None:
        then = Interval(
            low=facts.weights_gb, high=facts.weights_gb, unit="GB", basis="measured at the last start and not touched"
        )
        rows.append(ForecastRow(name="weights", now=facts.weights_gb, then=then))
    if kv_pool is not None:
        rows.append(ForecastRow(name="KV pool", now=facts.kv_gb, then=kv_pool))
    rows += _request_table(before, after)
    prefill, decode = facts.capture("prefill"), facts.decode_capture
    if before.prefill_captured or after.prefill_captured:
        now = None if prefill is None else prefill.gb
        rows.append(ForecastRow(name="prefill graphs", now=now, then=prefill_graphs))
    rows.append(_sizes(facts, after.sizes))
    rows.append(ForecastRow(name="decode graphs", now=None if decode is None else decode.gb, then=_graphs(cost, extra)))
    if inside is not None:
        rows.append(ForecastRow(name="of them logits", now=None, then=inside.logits))
        rows.append(ForecastRow(name="peak while capturing", now=None, then=inside.peak))
    if free is not None:
        rows.append(ForecastRow(name="free after capture", now=facts.free_after_capture_gb, then=free))
    if free is not None:
        rows.append(headroom(free, floor_gb, facts.free_after_capture_gb))
    if need is not None:
        rows.append(ForecastRow(name="first full prefill", now=None, then=need.gb))
    rows.append(ForecastRow(name="capture seconds", now=None if decode is None else decode.seconds, then=cost.seconds))
    if restart is not None:
        rows.append(ForecastRow(name="restart seconds", now=None, then=restart))
    return tuple(rows)


def headroom(free: Interval, floor_gb: float, now: float | None) -> ForecastRow:
    """What of the free memory lies above the floor; its low end is what is at risk.

    Args:
        free: GB that stay free after capture.
        floor_gb: What has to stay free.
        now: What is free now; None: not known.
    """
    low, high = outward(Span(free.low - floor_gb, free.high - floor_gb))
    then = Interval(low=low, high=high, unit="GB", basis=f"free after capture, less the floor of {floor_gb:g} GB")
    return ForecastRow(name="headroom", now=None if now is None else round(now - floor_gb, 2), then=then)


def judge_fit(
    free: Interval | None,
    floor_gb: float,
    *,
    need: PrefillNeed | None,
    caveats: Sequence[str],
    unknown: Sequence[str],
) -> Fit:
    """Hold the low end of free memory against the floor and against the first full prefill.

    Args:
        free: GB that stay free after capture; None: nothing to forecast it from.
        floor_gb: What has to stay free.
        need: What the first full prefill takes of it.
        caveats: Sentences to add.
        unknown: Knobs of the change whose effect on memory is not worked out.
    """
    if unknown:
        names = ", ".join(unknown)
        return Fit(
            "unsure",
            f"What {names} does to GPU memory is not worked out, and figures that were measured with another value do "
            "not carry over.",
        )
    if free is None:
        return Fit("unsure", "The last start did not say how much memory it left: there is nothing to forecast from.")
    said = f"{free.low:.2f} to {free.high:.2f} GB stay free after capture"
    if free.high < 0:
        said = f"It takes {-free.high:.2f} to {-free.low:.2f} GB more than the GPU has; the floor is {floor_gb:g} GB"
        return Fit("does not fit", f"{said}.{''.join(f' {caveat}' for caveat in caveats)}")
    notes = "".join(f" {caveat}" for caveat in caveats)
    first = ""
    if need is not None and free.low < need.gb.high:
        first = (
            f" The first full prefill of {need.tokens:,} tokens needs {need.gb.low:.2f} to {need.gb.high:.2f} GB of it "
            f"({need.gb.basis}); no start-up check tries that, and a worker with less dies of its first real batch."
        )
    if free.high < floor_gb:
        return Fit("does not fit", f"Only {said}, below the floor of {floor_gb:g} GB.{first}{notes}")
    if need is not None and free.high < need.gb.low:
        return Fit("does not fit", f"Only {said}, less than the first full prefill needs.{first}{notes}")
    if free.low < floor_gb or first:
        bound = f", and the floor is {floor_gb:g} GB" if free.low < floor_gb else ""
        return Fit("unsure", f"Only {said}{bound}.{first}{notes}")
    above = free.low - floor_gb
    return Fit("fits", f"{said}, at least {above:.2f} GB above the floor of {floor_gb:g} GB.{notes}")


def _request_table(before: Configuration, after: Configuration) -> list[ForecastRow]:
    now, table = before.request_table_gb, after.request_table_gb
    if table is None:
        return []
    low, high = outward(Span(table, table))
    basis = "(running limit + 1) x (context + 4 + draft tokens) x 4 bytes"
    then = Interval(low=low, high=high, unit="GB", basis=basis)
    return [ForecastRow(name="request table", now=None if now is None else round(now, 3), then=then)]


def _sizes(facts: StartupFacts, sizes: Sequence[int]) -> ForecastRow:
    basis = f"the engine's list up to {max(sizes)}" if sizes else "decode is not captured"
    count = Interval(low=len(sizes), high=len(sizes), unit="graphs", basis=basis)
    decode = facts.decode_capture
    return ForecastRow(name="captured sizes", now=None if decode is None else len(decode.sizes), then=count)


def _graphs(cost: DecodeCost, extra: Span) -> Interval:
    if extra == Span(0.0, 0.0):
        return cost.gb
    low, high = outward(Span(max(0.0, cost.gb.low + extra.low), max(0.0, cost.gb.high + extra.high)))
    basis = f"{cost.gb.basis}; {extra.low:+.2f} to {extra.high:+.2f} GB of other buffers inside the graphs"
    return Interval(low=low, high=high, unit="GB", basis=basis)
