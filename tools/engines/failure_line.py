"""A line that shows a failure -> the failure, with its figures."""

from __future__ import annotations

from typing import Final, NamedTuple, cast

from tools.engines.facts import Failure, FailureKind
from tools.engines.figures import allocation, text
from tools.serve_script.secrets import mask

KEPT_FAILURES: Final = 64
"""Failures of one start that are kept; the first ones tell the cause."""
SHOWN: Final = 600
"""Characters of a line that are shown."""
READ: Final = 4096
"""Characters of a line that are looked into; secrets are taken out before it is cut, so that no half of one is left."""


class ReadFailure(NamedTuple):
    """A failure, and what its line says besides."""

    failure: Failure
    """The failure."""
    gpu_total_gb: float | None
    """Memory of the GPU; None: not said."""


def kind_in_phase(kind: str, *, capturing: bool, serving: bool) -> str:
    """The kind of a sign, where `oom` means another thing in each phase."""
    if kind != "oom":
        return kind
    return "oom_at_capture" if capturing else "oom_at_run_time" if serving else "oom_while_starting"


def read_failure(kind: str, *, fatal: bool, says: bytes, number: int, at: str | None) -> ReadFailure:
    """Make a failure of the line that shows it, without the secrets that a launch or a traceback repeats in it.

    Args:
        kind: One of `facts.FailureKind`, which pydantic checks.
        fatal: Whether the worker cannot go on.
        says: The message.
        number: Its line's number.
        at: Its timestamp.
    """
    line = text(says)
    memory = allocation(line)
    failure = Failure(
        kind=cast(FailureKind, kind),
        fatal=fatal,
        line=mask(line[:READ])[:SHOWN],
        number=number,
        at=at,
        tried_gb=memory.tried,
        free_gb=memory.free,
    )
    return ReadFailure(failure, memory.total)
