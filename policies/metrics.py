"""What can be measured, and how each measurement is to be read."""

from __future__ import annotations

from typing import Literal, NamedTuple

from agent.domain import CheckName, Criterion


class Metric(NamedTuple):
    """A measurement that criteria can speak of."""

    name: str
    """What readings and criteria call it."""
    title: str
    """What people call it."""
    kind: Literal["fact", "amount", "share", "rate"]
    """`fact`: 0 or 1; `amount`: one number; `share`: bad ones among n; `rate`: the mean of n runs, never negative."""
    unit: str = ""
    """Unit of an amount or a rate."""
    checks: tuple[CheckName, ...] = ()
    """The checks that measure it; empty: it is read at the start of the worker, without load."""
    pooled: bool = False
    """For shares: the counts of all concurrencies add up. Corruption does not pool: clean sessions in small batches
    prove nothing about large ones."""
    things: str = "samples"
    """For shares: what is counted."""
    went: str = "bad"
    """For shares: what happened to the bad ones."""
    yes: str = ""
    """For facts: what 1 means."""
    no: str = ""
    """For facts: what 0 means."""


METRICS: tuple[Metric, ...] = (
    Metric("start_failed", "start", "fact", yes="the worker did not come up", no="the worker came up"),
    Metric("start_seconds", "time to start", "amount", unit="s"),
    Metric(
        "identity_proven",
        "new process",
        "fact",
        yes="the process that serves is a new one",
        no="the process that serves is not proven to be a new one",
    ),
    Metric(
        "effective_matches",
        "values in force",
        "fact",
        yes="the values in force are the planned ones",
        no="the values in force are not the planned ones",
    ),
    Metric("free_after_capture_gb", "free GPU memory after capture", "amount", unit="GB"),
    Metric(
        "entry_answers",
        "traffic entry",
        "fact",
        yes="a request through the traffic entry was answered",
        no="a request through the traffic entry was not answered",
    ),
    Metric(
        "corrupted_sessions",
        "corruption",
        "share",
        checks=("sessions",),
        things="sessions",
        went="corrupted",
    ),
    Metric(
        "failed_requests",
        "failed requests",
        "share",
        checks=("sessions", "throughput", "soak"),
        pooled=True,
        things="requests",
        went="failed",
    ),
    Metric("throughput_tokens_per_second", "throughput", "rate", unit="tokens/s", checks=("throughput",)),
    Metric(
        "wedged_storms",
        "abort storms",
        "share",
        checks=("aborts",),
        pooled=True,
        things="abort storms",
        went="wedged the worker",
    ),
    Metric(
        "lingering_storms",
        "abort storms",
        "share",
        checks=("aborts",),
        pooled=True,
        things="abort storms",
        went="left the worker worse",
    ),
    Metric("kv_leak_per_storm", "KV pool lost with each storm", "amount", unit="of the pool", checks=("aborts",)),
    Metric(
        "stuck_overloads",
        "overloads",
        "share",
        checks=("overload",),
        pooled=True,
        things="overloads",
        went="left the worker worse",
    ),
    Metric(
        "corrupted_in_soak",
        "corruption over the soak",
        "share",
        checks=("soak",),
        pooled=True,
        things="sessions",
        went="corrupted",
    ),
    Metric("stalled_seconds", "longest time without a token", "amount", unit="s", checks=("soak",)),
    Metric("memory_growth_gb_per_hour", "growth of memory", "amount", unit="GB/h", checks=("soak",)),
    Metric("card_growth_gb_per_hour", "growth of GPU memory", "amount", unit="GB/h", checks=("soak",)),
    Metric("rate_decay", "loss of throughput over the soak", "amount", unit="of the rate", checks=("soak",)),
)
"""Every metric, in the order in which a run comes to know them."""

_BY_NAME = {metric.name: metric for metric in METRICS}


def known(name: str) -> Metric | None:
    """The metric of that name; None where there is none."""
    return _BY_NAME.get(name)


def metric_of(criterion: Criterion) -> Metric:
    """The metric that a criterion looks at; for a name that nobody knows, one that fits the criterion's own fields."""
    metric = _BY_NAME.get(criterion.metric)
    if metric is not None:
        return metric
    counted = criterion.hard_count is not None or (criterion.of == "absolute" and criterion.confidence is not None)
    if counted:
        return Metric(criterion.metric, criterion.metric, "share")
    noisy = criterion.of == "baseline" and criterion.confidence is not None
    return Metric(criterion.metric, criterion.metric, "rate" if noisy else "amount")
