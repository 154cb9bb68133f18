"""What every arrow has in common: refusals and a silent world end in a named verdict, never in a stack trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langgraph.runtime import Runtime
from langgraph.types import Command

from agent.domain import Verdict
from agent.errors import HostError, NoAnswer, Refused, Superseded, kind_of
from agent.state import Parts, RunState, Tell, tell_of

Arrow = Callable[[RunState, Parts, Tell], Command[Any]]


def carried(arrow: Arrow, state: RunState, runtime: Runtime[Parts]) -> Command[Any]:
    """Carry out an arrow that comes before the first write: whatever stops it leaves the worker untouched."""
    tell = tell_of(runtime.stream_writer)
    tell({"kind": "node", "text": arrow.__name__.strip("_")})
    if runtime.context.stop.asked.is_set():
        return Command(update={"verdict": stopped(runtime.context)}, goto="record")
    try:
        return arrow(state, runtime.context, tell)
    except Refused as refusal:
        return Command(update={"verdict": refused(refusal)}, goto="record")
    except HostError as error:
        return Command(update={"verdict": silent(error)}, goto="record")


def still_ours(run: str, parts: Parts) -> None:
    """See that this process still owns the run: one that slept may not take back what its successor is at work on.

    Raises:
        Superseded: it was taken over.
    """
    row = parts.store.run(run)
    if row is not None and row.owner != parts.owner:
        raise Superseded(f"Run {run} is carried by process {row.owner.pid} on {row.owner.host} now.")


def refused(refusal: Refused) -> Verdict:
    """A refusal before the first write, as a verdict."""
    return Verdict(
        decision="refused",
        state="untouched",
        why=refusal.sentence,
        remedy=refusal.remedy,
        refusal=kind_of(refusal),
    )


def silent(error: HostError) -> Verdict:
    """A host that did not do what it was asked before the first write, as a verdict."""
    kind = "gave no answer" if isinstance(error, NoAnswer) else "failed"
    return Verdict(
        decision="needs_human",
        state="untouched",
        why=f"A question to the host {kind}: {error}",
        remedy="Look at the host, then ask again; nothing was written.",
    )


def stopped(parts: Parts) -> Verdict:
    """A run that was ended early before the first write, as a verdict."""
    return Verdict(
        decision="deferred",
        state="untouched",
        why=f"The run was {parts.stop.why} before anything was written.",
        remedy="Ask again when it suits.",
    )
