"""Settings that bear on each other: what would contradict, be clamped, be cut, or do nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from tools.engines.catalogue import Engine, canonical, knob_named
from tools.engines.facts import StartupFacts
from tools.engines.size_lists import sizes_in

Launch = Mapping[str, str | None]
"""By canonical knob name the text as it stands in the script; None or missing: absent."""


class Coupled(NamedTuple):
    """One effect of a coupling."""

    kind: Literal["contradicts", "clamped", "truncated", "ignored", "not_read"]
    """What would happen."""
    knob: str
    """The knob that it happens to."""
    says: str
    """In one sentence."""


def coupled_remarks(engine: Engine, launch: Launch, facts: StartupFacts | None) -> Iterable[Coupled]:
    """What this launch's settings do to each other.

    Args:
        engine: Which engine.
        launch: The settings as they would be written.
        facts: The last start of this worker, for its model, its pool and its start time; None: not known.
    """
    if engine == "vllm":
        yield from _vllm(launch)
        return
    yield from _capture(launch, facts)
    yield from _limits(launch, facts)
    yield from _caches(launch)
    yield from _scheduling(launch, facts)


def _has(launch: Launch, name: str) -> bool:
    return launch.get(name) is not None


def _whole(launch: Launch, name: str, default: int | None = None) -> int | None:
    written = (launch.get(name) or "").strip()
    return int(written) if re.fullmatch(r"\d{1,15}", written, flags=re.ASCII) else default


def _capture(launch: Launch, facts: StartupFacts | None) -> Iterable[Coupled]:
    if not _has(launch, "cuda-graph-max-bs"):
        return
    name, asked = "cuda-graph-max-bs", _whole(launch, "cuda-graph-max-bs")
    for switch in ("disable-cuda-graph", "disable-decode-cuda-graph"):
        if _has(launch, switch):
            yield Coupled("ignored", name, f"cuda-graph-max-bs does nothing beside {switch}.")
    if launch.get("cuda-graph-backend-decode") == "disabled":
        yield Coupled("ignored", name, "cuda-graph-max-bs does nothing while cuda-graph-backend-decode is disabled.")
    if launch.get("disaggregation-mode") == "prefill":
        yield Coupled("ignored", name, "The prefill side of a disaggregated pair captures no decode graphs.")
    listed = sizes_in(launch.get("cuda-graph-bs") or "")
    if listed and max(listed) != asked:
        yield Coupled(
            "ignored", name, f"cuda-graph-bs lists sizes up to {max(listed)}, and cuda-graph-max-bs gives way."
        )
    decode = _decode_config(launch.get("cuda-graph-config"))
    if decode:
        yield Coupled("ignored", name, f"cuda-graph-config sets {', '.join(decode)} of decode and wins over the flag.")
    running = _running(launch, facts)
    if asked is not None and running is not None and running < asked:
        yield Coupled(
            "truncated",
            name,
            f"The capture list ends at {running}: max-running-requests lets no more than that run in a worker, so "
            f"cuda-graph-max-bs {asked} is not reached.",
        )


def _running(launch: Launch, facts: StartupFacts | None) -> int | None:
    """Running requests of one worker: as written, else as the last start resolved them."""
    asked = _whole(launch, "max-running-requests")
    if asked is None:
        return facts.max_running_requests if facts is not None else None
    running = max(1, asked // (_whole(launch, "dp-size", 1) or 1))
    if facts is not None and facts.kv_tokens:
        running = min(running, facts.kv_tokens // 2)
    return running


def _decode_config(text: str | None) -> list[str]:
    try:
        document = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return []
    decode = document.get("decode") if isinstance(document, dict) else None
    return sorted(map(str, decode)) if isinstance(decode, dict) else []


def _limits(launch: Launch, facts: StartupFacts | None) -> Iterable[Coupled]:
    asked, workers = _whole(launch, "max-running-requests"), _whole(launch, "dp-size", 1) or 1
    if asked is not None and workers > 1:
        yield Coupled(
            "clamped",
            "max-running-requests",
            f"{asked} running requests over {workers} workers are {asked // workers} each.",
        )
    if asked is not None and facts is not None and facts.kv_tokens and asked // workers > facts.kv_tokens // 2:
        yield Coupled(
            "clamped",
            "max-running-requests",
            f"The KV pool of {facts.kv_tokens:,} tokens lowers max-running-requests to {facts.kv_tokens // 2:,}.",
        )
    tokens = _whole(launch, "max-total-tokens")
    if tokens is not None and facts is not None and facts.kv_tokens and tokens > facts.kv_tokens:
        yield Coupled(
            "ignored", "max-total-tokens", f"Memory allows {facts.kv_tokens:,} tokens, fewer than max-total-tokens."
        )
    per_rank = _whole(launch, "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK", 128) or 128
    if launch.get("moe-a2a-backend") == "deepep" and asked is not None:
        drafts = _whole(launch, "speculative-num-draft-tokens", 1) or 1
        if asked // workers * drafts > per_rank:
            yield Coupled(
                "contradicts",
                "max-running-requests",
                f"{asked // workers} running requests x {drafts} draft tokens exceed the {per_rank} of "
                "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK; raise both together.",
            )
    if _has(launch, "max-queued-requests") and launch.get("disaggregation-mode") in ("prefill", "decode"):
        yield Coupled("ignored", "max-queued-requests", "max-queued-requests is ignored under disaggregation-mode.")
    context, chunk = _whole(launch, "context-length"), _whole(launch, "max-prefill-tokens")
    if context is not None and chunk is not None and launch.get("chunked-prefill-size") == "-1" and chunk < context:
        yield Coupled(
            "clamped", "max-prefill-tokens", f"Without chunks, prompts above {chunk:,} of {context:,} tokens run alone."
        )


def _caches(launch: Launch) -> Iterable[Coupled]:
    if _has(launch, "enable-hierarchical-cache"):
        if _has(launch, "disable-radix-cache"):
            yield Coupled(
                "contradicts",
                "enable-hierarchical-cache",
                "enable-hierarchical-cache and disable-radix-cache exclude each other: the engine refuses to start.",
            )
        elif launch.get("disaggregation-mode") == "decode":
            yield Coupled(
                "contradicts",
                "enable-hierarchical-cache",
                "disaggregation-mode decode turns the radix cache off, which enable-hierarchical-cache needs.",
            )
    else:
        for name in ("hicache-ratio", "hicache-size", "hicache-write-policy"):
            if _has(launch, name):
                yield Coupled("ignored", name, f"{name} does nothing without enable-hierarchical-cache.")
    if _has(launch, "hicache-ratio") and (_whole(launch, "hicache-size") or 0) > 0:
        yield Coupled("ignored", "hicache-ratio", "hicache-size is above 0 and wins over hicache-ratio.")


def _scheduling(launch: Launch, facts: StartupFacts | None) -> Iterable[Coupled]:
    if (_whole(launch, "pp-size", 1) or 1) > 1 and not _has(launch, "disable-overlap-schedule"):
        yield Coupled(
            "ignored",
            "disable-overlap-schedule",
            "pp-size above 1 turns the overlap scheduler off whatever is written.",
        )
    watchdog = _seconds(launch.get("watchdog-timeout"))
    soft = _seconds(launch.get("soft-watchdog-timeout"))
    if watchdog is not None and soft is not None and soft >= watchdog:
        yield Coupled(
            "ignored",
            "soft-watchdog-timeout",
            "soft-watchdog-timeout is not below watchdog-timeout, which kills first.",
        )
    slowest = max((capture.seconds or 0.0 for capture in facts.captures), default=0.0) if facts is not None else 0.0
    if watchdog is not None and 0 < watchdog <= 2 * slowest:
        yield Coupled(
            "contradicts",
            "watchdog-timeout",
            f"watchdog-timeout {watchdog:g} s also counts while graphs are captured, which took {slowest:.0f} s here; "
            "leave at least twice that.",
        )
    knob = knob_named("sglang", "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP")
    written = launch.get("SGLANG_OPT_USE_MULTI_STREAM_OVERLAP")
    model = facts.model_type if facts is not None else None
    if knob is not None and written is not None and model is not None and not model.startswith("DeepseekV4"):
        yield Coupled("not_read", knob.name, f"{model} does not read {knob.name}; only DeepSeek-V4 does.")
    elif (
        knob is not None
        and written is not None
        and canonical(knob, written) == "on"
        and (_has(launch, "disable-cuda-graph") or launch.get("cuda-graph-backend-decode") == "disabled")
    ):
        yield Coupled("ignored", knob.name, f"{knob.name} acts inside captured graphs only, and none are captured.")


def _seconds(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _vllm(launch: Launch) -> Iterable[Coupled]:
    largest, listed = (
        _whole(launch, "max-cudagraph-capture-size"),
        sizes_in(launch.get("cudagraph-capture-sizes") or ""),
    )
    if largest is not None and listed and max(listed) != largest:
        yield Coupled(
            "contradicts",
            "max-cudagraph-capture-size",
            f"max-cudagraph-capture-size {largest} and the largest of cudagraph-capture-sizes, {max(listed)}, differ: "
            "the engine refuses to start; change both.",
        )
    for name in ("max-cudagraph-capture-size", "cudagraph-capture-sizes"):
        if _has(launch, name) and _has(launch, "enforce-eager"):
            yield Coupled("ignored", name, f"{name} does nothing beside enforce-eager.")
    budget = _whole(launch, "max-num-batched-tokens")
    if largest is not None and budget is not None and largest > budget:
        yield Coupled(
            "clamped",
            "max-cudagraph-capture-size",
            f"max-num-batched-tokens {budget} bounds the captured size {largest}.",
        )
    running = _whole(launch, "max-num-seqs")
    if budget is not None and running is not None and budget < running:
        yield Coupled(
            "contradicts",
            "max-num-batched-tokens",
            f"A step of {budget} tokens cannot hold max-num-seqs {running} requests.",
        )
    if _has(launch, "kv-cache-memory-bytes") and _has(launch, "gpu-memory-utilization"):
        yield Coupled(
            "ignored", "gpu-memory-utilization", "kv-cache-memory-bytes is given and wins over gpu-memory-utilization."
        )
    for name in ("enable-prefix-caching", "async-scheduling"):
        if _has(launch, name) and _has(launch, f"no-{name}"):
            says = f"{name} and no-{name} are both written, and the later one counts: take no-{name} out instead."
            yield Coupled("ignored", name, says)
    if _has(launch, "VLLM_ATTENTION_BACKEND") and _has(launch, "attention-backend"):
        yield Coupled("ignored", "VLLM_ATTENTION_BACKEND", "attention-backend is given and wins over the variable.")
    if _has(launch, "enable-auto-tool-choice") and not _has(launch, "tool-call-parser"):
        yield Coupled(
            "contradicts",
            "enable-auto-tool-choice",
            "enable-auto-tool-choice needs tool-call-parser, or the server refuses to start.",
        )
    elif _has(launch, "tool-call-parser") and not _has(launch, "enable-auto-tool-choice"):
        yield Coupled(
            "ignored",
            "tool-call-parser",
            "tool-call-parser does nothing for automatic calls without enable-auto-tool-choice.",
        )
