"""Where the memory of one card goes, by the engine's arithmetic.

The formulas are those of engine facts, sections 1.1, 1.5 and 4; the recordings agree with them. Figures in GiB.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from evals.lab.specimen import Specimen

GIB = 2**30


class Allocation(NamedTuple):
    """Memory of one card at each station of the start."""

    weights: float
    """What the weights take."""
    after_weights: float
    """Free once they are loaded."""
    pool: float
    """What the KV pool takes."""
    tokens: int
    """Tokens that the KV pool holds."""
    requests: int
    """Requests that may run at once."""
    after_pool: float
    """Free once the KV pool and the request pool stand."""
    before_capture: float
    """Free once the eager runner is warm."""
    prefill_graphs: float
    """What prefill graphs take after that."""


def captured_sizes(top: int, *, padded: bool = True) -> list[int]:
    """Batch sizes that decode captures up to `top`, smallest first."""
    if not padded:
        return list(range(1, top + 1))
    steps = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, top + 1, 32)]
    sizes = [size for size in steps if size <= top]
    return sizes if sizes and sizes[-1] == top else [*sizes, top]


def prefill_sizes(top: int) -> list[int]:
    """Token counts that prefill would capture up to `top`, smallest first."""
    steps = [
        *range(4, 33, 4),
        *range(48, 257, 16),
        *range(288, 513, 32),
        *range(576, 1025, 64),
        *range(1280, 4097, 256),
        *range(4608, top + 1, 512),
    ]
    return [size for size in steps if size <= top]


def prefill_plan(arguments: Mapping[str, Any]) -> list[int]:
    """Token counts that prefill captures, smallest first; empty: it runs without graphs."""
    plan = arguments["cuda_graph_config"]["prefill"]
    return [] if plan["backend"] == "disabled" else list(plan["bs"])


def truncated(sizes: Sequence[int], requests: int) -> list[int]:
    """The capture list cut to the request pool: larger sizes go, the pool's own size comes in as the last."""
    if not sizes or sizes[-1] <= requests:
        return list(sizes)
    return sorted({size for size in sizes if size <= requests} | {requests})


def weights(specimen: Specimen, tp: int) -> float:
    """GiB of weights on one of `tp` cards."""
    return specimen.weights_fixed + specimen.weights_shared / tp


def context_length(arguments: Mapping[str, Any], specimen: Specimen) -> int:
    """Longest sequence that this server takes, in tokens."""
    return int(arguments["context_length"] or specimen.context)


def token_bytes(specimen: Specimen, dtype: str, tp: int) -> float:
    """KV bytes that one token takes on one of `tp` cards: half of sixteen-bit numbers' for eight-bit ones.

    DeepSeek-V4's pool is of eight bits in any case; its figure in the specimen says so. Heads are shared out over the
    cards, latent vectors are not (engine facts, section 4).
    """
    held = specimen.bytes_per_token / (tp if specimen.pool == "mha" else 1)
    return held / (2 if dtype.startswith("fp8") and specimen.pool != "dsv4" else 1)


def allocate(arguments: Mapping[str, Any], specimen: Specimen) -> Allocation:
    """Lay out one card up to the moment before capture.

    Raises:
        ValueError: the weights leave nothing for the KV pool, in the engine's words.
        RuntimeError: the KV pool would hold no token, in the engine's words.
    """
    share = arguments["mem_fraction_static"]
    taken = weights(specimen, arguments["tp_size"])
    free = specimen.cards.free
    rest = free - taken - free * (1 - share)
    if rest <= 0:
        least = taken / free
        raise ValueError(
            f"Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static={share}. Raise"
            f" --mem-fraction-static above {math.ceil(least * 1000) / 1000} (minimum viable = 1 - available/pre ="
            f" {least:.4f}). If using speculative decoding, draft weights are now counted."
        )
    cell = token_bytes(specimen, str(arguments["kv_cache_dtype"]), arguments["tp_size"])
    page = int(arguments["page_size"])
    tokens = int(rest * GIB / cell) // page * page
    if arguments["max_total_tokens"]:
        tokens = min(tokens, int(arguments["max_total_tokens"]) // page * page)
    if tokens <= 0:
        raise RuntimeError(
            f"Not enough memory. Please try to increase --mem-fraction-static."
            f" Current value: mem_fraction_static={share}"
        )
    wanted = arguments["max_running_requests"]
    # Without a wish the engine allows 512 times as many as would fit at full length, within 2048 and 4096.
    open_end = min(max(int(tokens / context_length(arguments, specimen) * 512), 2048), 4096)
    requests = min(open_end if wanted is None else wanted // arguments["dp_size"], tokens // 2)
    pool = tokens * cell / GIB
    request_pool = (requests + 1) * (context_length(arguments, specimen) + 4) * 4 / GIB
    after_pool = free - taken - pool - request_pool - specimen.cards.rounding
    return Allocation(
        weights=taken,
        after_weights=free - taken,
        pool=pool,
        tokens=tokens,
        requests=requests,
        after_pool=after_pool,
        before_capture=after_pool - specimen.eager_buffers,
        prefill_graphs=len(prefill_plan(arguments)) * specimen.prefill_graph_each,
    )


def static_buffers(top: int, specimen: Specimen) -> float:
    """Decode's input buffers: a row of fp32 logits over the whole vocabulary for each request of the largest batch."""
    return top * specimen.vocabulary * 4 / GIB


def first_graph(top: int, arguments: Mapping[str, Any], specimen: Specimen, environ: Mapping[str, str]) -> float:
    """What the first and largest captured graph takes; the smaller ones reuse its blocks.

    Args:
        top: Its batch size.
        arguments: The server's arguments.
        specimen: Model and cards.
        environ: The server's environment; it picks the indexer's path.
    """
    tp: int = arguments["tp_size"]
    logits = top * specimen.vocabulary * 2 * (1 + 1 / tp) / GIB
    quarter = (context_length(arguments, specimen) + 4) / 4
    fused = environ.get("SGLANG_OPT_USE_TILELANG_INDEXER", "0").lower() in {"1", "true", "yes", "y"}
    indexer = top * quarter * (4 if fused else specimen.indexer_bytes) / GIB if specimen.indexer_bytes else 0.0
    return specimen.graph_first + logits + indexer
