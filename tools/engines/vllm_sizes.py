"""Which graphs vLLM captures, now and after a change."""

from __future__ import annotations

from collections.abc import Mapping

from tools.engines.facts import StartupFacts
from tools.engines.size_lists import LARGEST, sizes_in


def capture_list(largest: int) -> tuple[int, ...]:
    """Batch sizes that vLLM 0.24.0 captures up to a largest one, ascending (config/vllm.py:1640-1800)."""
    largest = min(largest, LARGEST)
    sizes = [1, 2, 4, *range(8, min(largest + 1, 256), 8), *range(256, largest + 1, 16)]
    return tuple(size for size in sizes if size <= largest)


def default_largest(max_num_seqs: int, *, drafts: int = 0, max_num_batched_tokens: int | None = None) -> int:
    """The largest captured size that vLLM 0.24.0 chooses where nothing is said."""
    largest = min(max_num_seqs * (1 + drafts) * 2, 512)
    return largest if max_num_batched_tokens is None else min(largest, max_num_batched_tokens)


def sizes_after(facts: StartupFacts, change: Mapping[str, str | None]) -> tuple[int, ...]:
    """The sizes that the next start captures; empty: it captures nothing."""
    settings = facts.settings
    eager = (
        change["enforce-eager"] is not None if "enforce-eager" in change else settings.get("enforce_eager") == "True"
    )
    if eager:
        return ()
    if change.get("cudagraph-capture-sizes"):
        return sizes_in(change["cudagraph-capture-sizes"] or "")
    largest = sizes_in(change.get("max-cudagraph-capture-size") or "")
    if largest:
        return capture_list(largest[0])
    last, by_default = facts.decode_capture, _default_sizes(facts, change)
    if "max-cudagraph-capture-size" in change or "cudagraph-capture-sizes" in change:
        return by_default
    if "cudagraph_capture_sizes" in settings:
        return sizes_in(settings["cudagraph_capture_sizes"])
    stated = sizes_in(settings.get("max_cudagraph_capture_size", ""))
    if stated:
        return capture_list(stated[0])
    return by_default if last is None or not last.sizes or "max-num-seqs" in change else last.sizes


def _default_sizes(facts: StartupFacts, change: Mapping[str, str | None]) -> tuple[int, ...]:
    """What is captured where nothing is said about it; empty where the running limit is not known."""
    running = sizes_in(change.get("max-num-seqs") or "") or ((facts.max_running_requests or 0),)
    budget = sizes_in(facts.settings.get("max_num_batched_tokens", ""))
    return capture_list(default_largest(running[0], max_num_batched_tokens=budget[0] if budget else None))
