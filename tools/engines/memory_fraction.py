"""The memory fraction that SGLang chooses by itself, and how it moves with the other settings."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from tools.engines.sglang_configuration import Configuration
from tools.engines.size_lists import prefill_list
from tools.engines.span import Span

_DEFAULT_RESERVED_MIB: Final = 10240.0
"""GPUs above 60 GiB keep at least this much out of the memory fraction (0.5.14 server_args.py:3276-3320)."""
_CONTEXT_GB: Final = (0.5, 2.0)
"""GB that CUDA and the process groups hold before the weights; recorded 1.27 on one H200."""


def fraction_after(
    before: Configuration, after: Configuration, *, free_before_weights_gb: float | None, stated: Collection[str] | None
) -> Span | None:
    """The memory fraction after a change, which moves by itself where the launch does not state it.

    Args:
        before: The configuration now.
        after: The configuration after the change.
        free_before_weights_gb: Free GPU memory before the weights.
        stated: Names of the knobs that the launch states; None: not known, which makes an interval of both cases.
    """
    if before.memory_fraction is None:
        return None
    if after.memory_fraction is None:
        return None if free_before_weights_gb is None else default_fraction(after, free_before_weights_gb)
    if after.memory_fraction != before.memory_fraction:
        return Span(after.memory_fraction, after.memory_fraction)
    as_is = Span(before.memory_fraction, before.memory_fraction)
    if free_before_weights_gb is None or (stated is not None and "mem-fraction-static" in stated):
        return as_is
    total_mib = (free_before_weights_gb + 1.0) * 1024
    moved = reserved_mib(after) - reserved_mib(before)
    if moved == 0 or (total_mib > 60 * 1024 and max(reserved_mib(before), reserved_mib(after)) < _DEFAULT_RESERVED_MIB):
        return as_is
    if stated is None and not looks_default(before, free_before_weights_gb):
        return as_is
    share = -moved / total_mib
    low, high = (round(before.memory_fraction + off + share, 3) for off in (-0.0005, 0.0005))
    if stated is None:
        low, high = min(low, as_is.low), max(high, as_is.high)
    return Span(max(low, 0.0), min(high, 1.0))


def default_fraction(configuration: Configuration, free_before_weights_gb: float) -> Span:
    """The memory fraction that the engine chooses where the launch states none; between GPUs of about that memory."""
    ends = []
    for held in _CONTEXT_GB:
        total_mib = (free_before_weights_gb + held) * 1024
        least = _DEFAULT_RESERVED_MIB if total_mib > 60 * 1024 else 0.0
        ends.append(1 - max(reserved_mib(configuration), least) / total_mib)
    return Span(max(0.0, round(min(ends) - 0.0005, 3)), min(1.0, round(max(ends) + 0.0005, 3)))


def reserved_mib(configuration: Configuration) -> float:
    """MiB that the default memory fraction leaves free (0.5.14 server_args.py:3276-3320, whose figures these are)."""
    chunk = configuration.chunk if configuration.chunk is not None and configuration.chunk > 0 else 16384
    largest = (max(configuration.explicit_sizes) if configuration.explicit_sizes else configuration.max_bs) or 0
    reserved = 512 + max(chunk, 2048) * 1.5 + largest * 2
    reserved += configuration.tensor_parallel * configuration.stages / 8 * 1024
    reserved += largest * configuration.attention_groups * (4.5 if largest > 300 else 3.0)
    if configuration.prefill_captured:
        sizes = prefill_list(configuration.prefill_max or configuration.prefill_tokens or 0)
        reserved += 1536 if configuration.latent else len(sizes) * 8
    return reserved


def looks_default(configuration: Configuration, free_gb: float) -> bool:
    """Whether the fraction in force is what the default formula gives for a GPU of about this size."""
    assert configuration.memory_fraction is not None
    if configuration.memory_fraction >= 1:
        return False
    reserved = max(reserved_mib(configuration), _DEFAULT_RESERVED_MIB if free_gb > 60 else 0.0)
    implied_gb = reserved / (1 - configuration.memory_fraction) / 1024
    return free_gb - 0.02 * free_gb <= implied_gb <= free_gb * 1.05 + 1
