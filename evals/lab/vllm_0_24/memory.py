"""Where the memory of one card goes under vLLM: graphs and activations are set aside before the KV pool is made.

The accounting is that of engine facts, sections 4 and 5; what weights, graphs and passes cost is the specimen's, the
same as under SGLang. Figures in GiB.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from evals.lab.memory import GIB, first_graph, static_buffers, token_bytes, weights
from evals.lab.specimen import Specimen
from evals.lab.vllm_0_24.arguments import Launch

_LEAST_GRAPH = 1 / 1024
"""The engine counts each further graph with a MiB at least."""


class Allocation(NamedTuple):
    """Memory of one card, from what was free to what is."""

    free: float
    """Free when the process began."""
    wanted: float
    """The share that the process may take."""
    weights: float
    """What the weights take."""
    outside: float
    """What libraries take beside PyTorch."""
    peak: float
    """Activations of the largest pass, as profiled."""
    estimate: float
    """Graphs, as estimated before the pool was made."""
    pool: float
    """What is there for the KV pool."""
    blocks: int
    """Blocks of the KV pool."""
    tokens: int
    """Tokens of the KV pool."""
    before_capture: float
    """Free once the pool stands."""


def check_share(launch: Launch, specimen: Specimen) -> None:
    """See whether the share that was asked for is free.

    Raises:
        ValueError: it is not, in the engine's words.
    """
    share = launch.values["gpu_memory_utilization"]
    free = _free(specimen)
    if launch.values["kv_cache_memory_bytes"] is None and specimen.cards.total * share > free:
        raise ValueError(
            f"Free memory on device cuda:0 ({free:.2f}/{specimen.cards.total:.2f} GiB) on startup is less than desired"
            f" GPU memory utilization ({share}, {specimen.cards.total * share:.2f} GiB)."
            " Decrease GPU memory utilization or reduce GPU memory used by other processes."
        )


def allocate(launch: Launch, specimen: Specimen, environ: Mapping[str, str]) -> Allocation:
    """Lay out one card up to the moment before capture.

    Raises:
        ValueError: nothing is left for the KV pool, or not enough for one request, in the engine's words.
    """
    values = launch.values
    taken = weights(specimen, values["tensor_parallel_size"])
    outside = specimen.cards.communication
    peak = activations(launch, specimen)
    estimate = estimated_graphs(launch, specimen) if estimates(environ) else 0.0
    wanted = specimen.cards.total * values["gpu_memory_utilization"]
    pool = wanted - taken - outside - peak - estimate
    if values["kv_cache_memory_bytes"] is not None:
        pool = values["kv_cache_memory_bytes"] / GIB
    if pool <= 0:
        raise ValueError(
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the"
            " engine. See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
        )
    a_block = token_bytes(specimen, str(values["kv_cache_dtype"]), values["tensor_parallel_size"]) * launch.block
    blocks = int(pool * GIB / a_block)
    if values["num_gpu_blocks_override"]:
        blocks = int(values["num_gpu_blocks_override"])
    needed = math.ceil(launch.context / launch.block) * a_block / GIB
    if blocks * a_block / GIB < needed:
        raise ValueError(
            f"To serve at least one request with the model's max seq len ({launch.context}), ({needed:.2f} GiB KV cache"
            f" is needed, which is larger than the available KV cache memory ({pool:.2f} GiB). Based on the available"
            f" memory, the estimated maximum model length is {blocks * launch.block}. Try increasing"
            " `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine. See"
            " https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
        )
    held = blocks * a_block / GIB
    return Allocation(
        free=_free(specimen),
        wanted=wanted,
        weights=taken,
        outside=outside,
        peak=peak,
        estimate=estimate,
        pool=pool,
        blocks=blocks,
        tokens=blocks * launch.block,
        before_capture=_free(specimen) - taken - outside - held,
    )


def estimates(environ: Mapping[str, str]) -> bool:
    """Whether graphs are taken out of the pool in advance."""
    return environ.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", "1") not in ("0", "false", "False")


def activations(launch: Launch, specimen: Specimen) -> float:
    """The largest pass: a step full of prompt tokens, or the sampler with a row of logits for each request."""
    rows = launch.seqs * specimen.vocabulary * 4 * 2 / GIB
    return max(launch.batched * specimen.prefill_per_token, launch.seqs * specimen.decode_per_request) + rows


def estimated_graphs(launch: Launch, specimen: Specimen) -> float:
    """What the engine sets aside: for the worse mode, its first graph and as much as the second for each other."""
    each = max(specimen.graph_each, _LEAST_GRAPH)
    modes = [sizes for sizes in (launch.capture.piecewise, launch.capture.full) if sizes]
    return max((_first(sizes[-1], launch, specimen) + (len(sizes) - 1) * each for sizes in modes), default=0.0)


def graph_costs(launch: Launch, specimen: Specimen) -> list[tuple[str, int, float]]:
    """Mode, size and cost of each graph in the order of capture: the largest first, all in one pool."""
    plan = [("mixed prefill-decode, PIECEWISE", size) for size in reversed(launch.capture.piecewise)]
    plan += [("decode, FULL", size) for size in reversed(launch.capture.full)]
    costs = []
    for number, (mode, size) in enumerate(plan):
        cost = _first(size, launch, specimen) if number == 0 else specimen.graph_each
        costs.append((mode, size, cost))
    return costs


# The fallback path of the sparse indexer is SGLang's; here the kernels are always fused.
_FUSED = {"SGLANG_OPT_USE_TILELANG_INDEXER": "1"}


def _first(size: int, launch: Launch, specimen: Specimen) -> float:
    shape = {"tp_size": launch.values["tensor_parallel_size"], "context_length": launch.context}
    return first_graph(size, shape, specimen, _FUSED) + static_buffers(size, specimen)


def _free(specimen: Specimen) -> float:
    """Free when the process begins: before the process group takes its part."""
    return specimen.cards.free + specimen.cards.communication
