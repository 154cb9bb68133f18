"""What `/v1/loads` says about the loop at this very moment, as JSON or for Prometheus (engine facts, section 3)."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from evals.lab.scheduler import Scheduler

SECTIONS = ("core", "memory", "spec", "lora", "disagg", "queues")
"""What may be asked for; `all` is everything."""


def wanted(text: str) -> set[str]:
    """The sections that a query names.

    Raises:
        ValueError: one that there is not.
    """
    names = {name.strip() for name in text.split(",") if name.strip()}
    unknown = names - {*SECTIONS, "all"}
    if unknown:
        raise ValueError(f"Invalid include sections: {sorted(unknown)}. Valid: {['all', *SECTIONS]}")
    return set(SECTIONS) if "all" in names else {"core", *names}


def load_of(
    scheduler: Scheduler, memory: Mapping[str, Any], requests: int, sections: Collection[str], mode: str
) -> dict[str, Any]:
    """The loop's load.

    Args:
        scheduler: The loop.
        memory: What memory went where.
        requests: Requests that may run at once.
        sections: What is asked for.
        mode: The side of a disaggregated pair that this is, or `null`.
    """
    used, total = scheduler.used, memory["token_capacity"]
    waiting = sum(ask.conversation.length for ask in scheduler.waiting)
    load: dict[str, Any] = {
        "dp_rank": 0,
        "num_running_reqs": len(scheduler.running),
        "num_waiting_reqs": len(scheduler.waiting),
        "num_waiting_uncached_tokens": waiting,
        "num_used_tokens": used,
        "num_total_tokens": used + waiting,
        "max_total_num_tokens": total,
        "token_usage": round(used / total, 4),
        "gen_throughput": round(scheduler.reports.throughput, 2),
        "max_running_requests": requests,
    }
    if "memory" in sections:
        load["memory"] = {
            "weight_gb": memory["weight"],
            "kv_cache_gb": memory["kvcache"],
            "graph_gb": memory["graph"],
            "token_capacity": total,
        }
    if "queues" in sections:
        paused = len(scheduler.running) if scheduler.paused else 0
        load["queues"] = {"waiting": len(scheduler.waiting), "grammar": 0, "paused": paused, "retracted": 0}
    if "disagg" in sections:
        load["disaggregation"] = {"mode": mode}
    return load


def document(load: Mapping[str, Any], version: str) -> dict[str, Any]:
    """The answer as JSON."""
    return {
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        "version": version,
        "dp_rank_count": 1,
        "loads": [load],
    }


def exposition(load: Mapping[str, Any]) -> str:
    """The answer for Prometheus."""
    lines = []
    for name, value in load.items():
        if name != "dp_rank" and isinstance(value, int | float):
            lines += [f"# TYPE sglang:{name} gauge", f'sglang:{name}{{dp_rank="{load["dp_rank"]}"}} {float(value)!r}']
    return "\n".join(lines) + "\n"
