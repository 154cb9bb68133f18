"""What a change does to the queue limit, to admission and to the KV pool, in sentences."""

from __future__ import annotations

from tools.engines.facts import StartupFacts
from tools.engines.sglang_configuration import Configuration
from tools.engines.span import Span


def queue_outlook(
    before: Configuration, after: Configuration, facts: StartupFacts, kv_tokens: Span | None
) -> tuple[str, ...]:
    """Say it, each thing in one sentence with its numbers.

    Args:
        before: The configuration now.
        after: The configuration after the change.
        facts: The last start.
        kv_tokens: Tokens of the KV pool after the change; None: not known.
    """
    sentences = [*_range(before, after), *_limit(before, after)]
    if kv_tokens is not None:
        sentences += _pool(after, facts, kv_tokens)
    sentences.append(_queue(before, after))
    return tuple(sentences)


def between(tokens: Span) -> str:
    """A number of tokens, or from where to where it lies."""
    low, high = int(tokens.low), int(tokens.high)
    return f"{low:,}" if high - low <= 0.001 * high else f"between {low:,} and {high:,}"


def _range(before: Configuration, after: Configuration) -> list[str]:
    now, then = before.sizes, after.sizes
    if not then:
        return ["Every decode batch runs eager, so the queue drains more slowly at every load."] if now else []
    top_now, top = max(now, default=0), max(then)
    running = after.max_running
    said = []
    if after.max_bs is not None and running is not None and running < after.max_bs and not after.explicit_sizes:
        said.append(
            f"The capture list ends at {top}, not at {after.max_bs}: max-running-requests lets only {running} run "
            "at once in a worker."
        )
    if running is not None and running > top:
        said.append(f"Batches of up to {top} run captured; {top + 1} to {running}, the running limit, run eager.")
    elif running is not None:
        said.append(f"Every batch of at most {running} running requests runs captured.")
    if top > top_now:
        said.append(
            f"Batches of {top_now + 1} to {top} get faster, so at the same arrivals the queue drains sooner and the "
            "KV pool fills and empties sooner."
        )
    elif top < top_now and (running is None or running > top):
        said.append(f"Batches of {top + 1} to {top_now} fall back to eager and get slower, so the queue drains later.")
    return said


def _limit(before: Configuration, after: Configuration) -> list[str]:
    if after.max_running == before.max_running:
        return [] if after.max_running is None else [f"At most {after.max_running} requests run at once, as before."]
    if after.max_running is None:
        return ["The running limit is then chosen by the engine, from the KV pool."]
    return [f"At most {after.max_running} requests run at once instead of {before.max_running or 'an unknown number'}."]


def _pool(after: Configuration, facts: StartupFacts, tokens: Span) -> list[str]:
    low = int(tokens.low)
    said = [
        f"The KV pool keeps about {facts.kv_tokens:,} tokens."
        if facts.kv_tokens is not None and abs(tokens.low - facts.kv_tokens) < 0.002 * facts.kv_tokens + 1
        else f"The KV pool goes from {facts.kv_tokens or 0:,} to {between(tokens)} tokens."
    ]
    levels = {size for size in (max(after.sizes, default=0), after.max_running or 0) if size}
    for level in sorted(levels):
        share = low // level
        held = (
            f"less than the context of {after.context:,}, so the pool, not the running limit, holds long ones back"
            if after.context is not None and share < after.context
            else "enough for the whole context"
        )
        said.append(f"With {level} running, each may hold {share:,} tokens of it: {held}.")
    return said


def _queue(before: Configuration, after: Configuration) -> str:
    if after.disaggregated:
        return "The queue has no limit of its own: under disaggregation max-queued-requests is ignored."
    if after.queue_limit is None:
        return "The queue has no limit (max-queued-requests is not set): requests wait, and none is refused for that."
    same = (
        " as before" if after.queue_limit == before.queue_limit else f" instead of {before.queue_limit or 'no limit'}"
    )
    running = "the running limit" if after.max_running is None else str(after.max_running)
    return (
        f"The queue takes {after.queue_limit} waiting requests{same} and refuses the next with 503; a burst above "
        f"{after.queue_limit} + {running} at once meets it."
    )
