"""Lists of sizes: which graphs SGLang captures, by its own rules, and those that somebody wrote down."""

from __future__ import annotations

import re
from typing import Final

LARGEST: Final = 1 << 16
"""Size beyond which nothing is listed: a figure in a damaged log must not fill our memory."""


def capture_list(
    max_bs: int, *, speculative: bool = False, padding_disabled: bool = False, max_running: int | None = None
) -> tuple[int, ...]:
    """Batch sizes that SGLang captures for decode, ascending.

    Args:
        max_bs: `cuda-graph-max-bs`; counted up to `LARGEST`.
        speculative: Whether any speculative decoding is on, which makes the list denser.
        padding_disabled: `disable-cuda-graph-padding`: every size.
        max_running: Running requests of one data-parallel worker; sizes above it are dropped and it becomes the last.

    The list is that of SGLang 0.5.10 to 0.5.23 (0.5.14 server_args.py:3331-3362, base_cuda_graph_runner.py:58-97).
    """
    if max_bs < 1:
        return ()
    max_bs = min(max_bs, LARGEST)
    if padding_disabled:
        sizes = list(range(1, max_bs + 1))
    elif speculative:
        sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, max_bs + 1, 16)]
    else:
        sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, max_bs + 1, 32)]
    chosen = {size for size in sizes if size <= max_bs} | {max_bs}
    if max_running is not None and max(chosen) > max_running:
        chosen = {size for size in chosen if size <= max_running} | {max_running}
    return tuple(sorted(size for size in chosen if size > 0))


def prefill_list(max_tokens: int) -> tuple[int, ...]:
    """Token counts that SGLang captures for prefill, ascending (0.5.14 server_args.py:3384)."""
    sizes = [
        *range(4, 33, 4),
        *range(48, 257, 16),
        *range(288, 513, 32),
        *range(576, 1025, 64),
        *range(1280, 4097, 256),
        *range(4608, min(max_tokens, 1 << 20) + 1, 512),
    ]
    return tuple(size for size in sizes if size <= max_tokens)


def sizes_in(text: str) -> tuple[int, ...]:
    """The numbers of a printed or written list, ascending."""
    return tuple(sorted({int(number) for number in re.findall(r"(?<![\d.-])\d{1,6}(?![\d.])", text)} - {0}))


def default_max_bs(gpu_gb: float, tensor_parallel: int) -> int:
    """The largest decode graph that SGLang 0.5.14 chooses where nothing is said (server_args.py:3149-3210)."""
    wide = tensor_parallel >= 4
    if gpu_gb < 20:
        return 8
    if gpu_gb < 35:
        return 80 if wide else 24
    if gpu_gb < 60:
        return 160 if wide else 32
    if gpu_gb < 160:
        return 512 if wide else 256
    return 512
