"""How far a start has come, for whoever waits for it."""

from __future__ import annotations

from tools.engines.facts import StartupFacts


def how_far(facts: StartupFacts) -> str:
    """The last thing that a start has done, in a few words; a hang in the middle of a capture shows as no change."""
    if facts.ready:
        return "ready"
    open_capture = next((capture for capture in facts.captures if capture.gb is None), None)
    if open_capture is not None:
        of = open_capture.of or len(open_capture.sizes)
        phase = "" if open_capture.phase == "graphs" else f"{open_capture.phase} "
        return f"capturing {phase}graphs: {open_capture.done} of {of}"
    if facts.captures or facts.free_after_capture_gb is not None:
        return "captured, opening its port"
    if facts.kv_tokens is not None or facts.free_after_pool_gb is not None:
        return "KV pool allocated"
    if facts.free_after_weights_gb is not None or facts.weights_gb is not None:
        return "weights loaded"
    return "loading"
