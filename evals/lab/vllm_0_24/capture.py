"""Which batches vLLM 0.24 captures: its list of sizes, its modes, and what contradicts what.

Rules: engine facts, section 3, on capture sizes and flags of vLLM 0.24.0 (`config/vllm.py:1640-1800`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

MODES = {
    "NONE": "<CUDAGraphMode.NONE: 0>",
    "PIECEWISE": "<CUDAGraphMode.PIECEWISE: 1>",
    "FULL": "<CUDAGraphMode.FULL: 2>",
    "FULL_DECODE_ONLY": "<CUDAGraphMode.FULL_DECODE_ONLY: (2, 0)>",
    "FULL_AND_PIECEWISE": "<CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>",
}
"""Each mode as the log shows it."""
_BY_LEVEL = {"0": "NONE", "1": "PIECEWISE", "2": "FULL_AND_PIECEWISE", "3": "FULL_AND_PIECEWISE"}


class Capture(NamedTuple):
    """What is compiled and captured."""

    compiled: bool
    """The model is compiled."""
    mode: str
    """One of `MODES`."""
    sizes: list[int]
    """Batch sizes in tokens, smallest first; empty: nothing is captured."""
    largest: int | None
    """The largest; None: nothing is captured."""
    piecewise: list[int]
    """Sizes of mixed batches, captured between the attention layers."""
    full: list[int]
    """Sizes of decode batches, captured as a whole."""


def capture_sizes(largest: int) -> list[int]:
    """The engine's list up to a largest size."""
    return [
        size for size in (1, 2, 4, *range(8, min(largest + 1, 256), 8), *range(256, largest + 1, 16)) if size <= largest
    ]


def capture_plan(values: Mapping[str, Any], seqs: int, batched: int) -> Capture:
    """What these arguments capture.

    Args:
        values: The parsed arguments.
        seqs: Requests of one step.
        batched: Tokens of one step.

    Raises:
        ValueError: they contradict each other, or name no mode.
    """
    config = dict(values["compilation_config"] or {})
    level = str(values["optimization_level"])
    if level not in _BY_LEVEL:
        raise ValueError(f"{level!r} is not a valid OptimizationLevel")
    mode = str(config.get("cudagraph_mode", _BY_LEVEL[level])).upper()
    if mode not in MODES:
        raise ValueError(f"Invalid cudagraph_mode: {mode}. Valid modes are {', '.join(MODES)}.")
    sizes = _both(values, config, "cudagraph_capture_sizes")
    top = _both(values, config, "max_cudagraph_capture_size")
    if values["enforce_eager"] or mode == "NONE":
        return Capture(compiled=not values["enforce_eager"] and level != "0", mode="NONE", sizes=[], largest=None,
                       piecewise=[], full=[])  # fmt: skip
    drafts = int((values["speculative_config"] or {}).get("num_speculative_tokens", 0))
    if sizes is not None:
        chosen = sorted({int(size) for size in sizes})
        if top is not None and top != chosen[-1]:
            raise ValueError(
                f"customized max_cudagraph_capture_size(={top}) should be consistent with the max value of"
                f" cudagraph_capture_sizes(={chosen[-1]})"
            )
        chosen = [size for size in chosen if size <= batched]
    else:
        chosen = capture_sizes(min(top if top is not None else min(seqs * (1 + drafts) * 2, 512), batched))
    whole = [] if mode == "PIECEWISE" else [size for size in chosen if size <= seqs * (1 + drafts)]
    pieces = chosen if mode in ("PIECEWISE", "FULL_AND_PIECEWISE") else chosen if mode == "FULL" else []
    return Capture(
        compiled=True, mode=mode, sizes=chosen, largest=chosen[-1] if chosen else None, piecewise=pieces, full=whole
    )


def _both(values: Mapping[str, Any], config: Mapping[str, Any], name: str) -> Any:
    """A setting that is a flag and a key of the compilation configuration.

    Raises:
        ValueError: both are given.
    """
    if values[name] is not None and config.get(name) is not None:
        raise ValueError(f"{name} and compilation_config.{name} are mutually exclusive")
    return values[name] if values[name] is not None else config.get(name)
