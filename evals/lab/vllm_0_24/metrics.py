"""What `/metrics` of vLLM 0.24 shows: families and labels after engine facts, section 3, and its own `loggers.py`."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from evals.lab.metrics import Metrics
from evals.lab.vllm_0_24.arguments import Launch
from evals.lab.vllm_0_24.memory import Allocation

_REASONS = ("stop", "length", "abort", "error", "repetition")
_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")


def metrics(launch: Launch, allocation: Allocation, pid: int) -> Metrics:
    """Every family at its first value: the engine shows them all before the first request.

    Args:
        launch: The resolved arguments.
        allocation: Where memory went; the size of the KV pool is a label.
        pid: The process's id.
    """
    text = resources.files("evals.lab.vllm_0_24").joinpath("metrics.json").read_text(encoding="utf-8")
    families: dict[str, dict[str, Any]] = json.loads(text)
    values = launch.values
    labels = {
        "engine": {"engine": "0", "model_name": launch.names[0]},
        "cache": {
            "block_size": str(launch.block),
            "cache_dtype": values["kv_cache_dtype"],
            "calculate_kv_scales": str(values["calculate_kv_scales"]),
            "cpu_kvcache_space_bytes": "None",
            "enable_prefix_caching": str(launch.prefixes),
            "engine": "0",
            "gpu_memory_utilization": str(values["gpu_memory_utilization"]),
            "is_attention_free": "False",
            "kv_cache_memory_bytes": str(values["kv_cache_memory_bytes"]),
            "kv_cache_size_tokens": str(allocation.tokens),
            "kv_offloading_backend": values["kv_offloading_backend"],
            "kv_offloading_size": str(values["kv_offloading_size"]),
            "num_cpu_blocks": "None",
            "num_gpu_blocks": str(allocation.blocks),
            "num_gpu_blocks_override": str(values["num_gpu_blocks_override"]),
            "prefix_caching_hash_algo": values["prefix_caching_hash_algo"],
            "sliding_window": "None",
            "user_specified_block_size": str(values["block_size"] is not None),
        },
        "process": {},
    }
    made = Metrics(families, "vllm:", labels, pid)
    for name, family in families.items():
        short = name.removeprefix("vllm:")
        if family["scope"] != "engine":
            continue
        if family["type"] == "histogram":
            made.observe(short, 0.0, 0)
        elif short == "request_success_total":
            for reason in _REASONS:
                made.add(short, 0.0, finished_reason=reason)
        elif short == "prompt_tokens_by_source_total":
            for source in _SOURCES:
                made.add(short, 0.0, source=source)
        elif short == "num_requests_waiting_by_reason":
            made.set(short, 0.0, reason="capacity")
            made.set(short, 0.0, reason="deferred")
        elif short == "engine_sleep_state":
            for state in ("awake", "weights_offloaded", "discard_all"):
                made.set(short, float(state == "awake"), sleep_state=state)
        else:
            made.add(short, 0.0)
    made.set("cache_config_info", 1.0)
    return made
