"""The tables that an engine's log is read by: what a message begins with, signs of failure, reasons to ignore a line.

Both engines log through Python, start with argparse and die of PyTorch and NCCL in the same words; those rows are here.
"""

# ruff: noqa: E501 - a pattern and its reason read best on one line

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

Pattern = re.Pattern[bytes]
NUMBER: Final = rb"-?\d+(?:\.\d+)?"
"""What `NUMBER` stands for in a table."""


class Sign(NamedTuple):
    """How a failure shows."""

    kind: str
    """Its kind, one of `facts.FailureKind`; `oom` stands for the three of them, which the phase tells apart."""
    fatal: bool
    """Whether the worker cannot go on."""
    mark: bytes
    """What the line has to contain at least; looked for first, because that is quick."""
    pattern: Pattern
    """What the message says from its beginning."""


SignRow = tuple[str, bool, bytes, bytes]
"""Kind, fatal, mark and pattern of a sign."""


def patterns(table: Mapping[str, bytes]) -> Mapping[str, Pattern]:
    """What a message begins with -> the facts in it."""
    return {name: re.compile(pattern.replace(b"NUMBER", NUMBER)) for name, pattern in table.items()}


class Signs:
    """Signs of failure, the more telling first: the first that fits a message names its kind.

    Args:
        rows: The signs in their order.
    """

    def __init__(self, rows: Iterable[SignRow]) -> None:
        self._signs = tuple(Sign(kind, fatal, mark, re.compile(pattern)) for kind, fatal, mark, pattern in rows)
        self.marks = frozenset(sign.mark for sign in self._signs)
        """Parts of which every message that shows a failure has one."""

    def of(self, says: bytes) -> Sign | None:
        """The first sign that a message shows; None: it shows none."""
        for sign in self._signs:
            _, _, mark, pattern = sign
            if mark in says and pattern.match(says):
                return sign
        return None


def any_of(marks: Collection[bytes]) -> Pattern:
    """What finds any of the marks in a line, in a fifth of the time that asking for one after the other takes."""
    kept: list[bytes] = []
    for mark in sorted(marks, key=lambda mark: (len(mark), mark)):
        if not any(other in mark for other in kept):
            kept.append(mark)
    return re.compile(b"|".join(map(re.escape, kept)))


def reasons(rows: Iterable[tuple[bytes, str]]) -> Sequence[tuple[Pattern, str]]:
    """Lines that say nothing about memory, speed, identity or failure, each with the reason why not."""
    return tuple((re.compile(pattern), reason) for pattern, reason in rows)


def explained(
    says: bytes,
    *,
    known: Mapping[str, Pattern],
    failures: Signs,
    ignorable: Sequence[tuple[Pattern, str]],
    passing: bool,
) -> str | None:
    """What a message is: the name of its pattern, `failure: KIND` or `ignorable: REASON`; None: nobody thought of it.

    Args:
        says: The message.
        known: Patterns that hold facts.
        failures: Signs of failure.
        ignorable: Messages that may be passed over.
        passing: Whether it came from the engine's own logger, so that it may be a remark in passing: that is asked only
            of a message without a memory figure and without an error.
    """
    for name, pattern in known.items():
        if pattern.match(says):
            return name
    sign = failures.of(says)
    if sign is not None:
        return f"failure: {sign.kind}"
    for pattern, reason in ignorable:
        if pattern.match(says):
            return f"ignorable: {reason}"
    if passing and b" GB" not in says and b"GiB" not in says and b"rror" not in says:
        for remark, reason in REMARKS:
            if remark.search(says):
                return f"ignorable: {reason}"
    return None


# fmt: off
PARSER: Final[Sequence[SignRow]] = (
    ("unknown_flag", True, b"unrecognized arguments", rb".*: error: unrecognized arguments: "),
    ("ambiguous_flag", True, b"ambiguous option", rb".*: error: ambiguous option: "),
    ("bad_value", True, b": error: ", rb".*: error: (?:argument |the following arguments|invalid )"),
)
"""What argparse says before it ends the process."""

NEIGHBOURS: Final[Sequence[SignRow]] = (
    ("port_in_use", True, b"[Errno 98]", rb""),
    ("port_in_use", True, b"ddress already in use", rb""),
    ("port_in_use", True, b"already in use", rb".*[Pp]ort \d+ (?:is )?already in use"),
)
"""Somebody else on the port."""

COLLECTIVES: Final[Sequence[SignRow]] = (
    ("collective_timeout", True, b"collective operation timeout", rb"\[rank\d+\]:.*Watchdog caught "),
    ("collective_timeout", True, b"detected by watchdog", rb".*Exception \(either an error or timeout\) "),
    ("collective_timeout", True, b"Timed out waiting", rb".*Timed out waiting \S+ for (?:send|recv) operation"),
    ("nccl", True, b"c10::DistBackendError", rb""),
    ("nccl", True, b"NCCL error", rb""),
    ("nccl", True, b"nccl", rb".*nccl(?:System|Internal|UnhandledCuda|Remote)Error"),
    ("nccl", True, b"watchdog thread terminated with exception", rb""),
)
"""PyTorch's process groups."""

EXCEPTIONS: Final[Sequence[SignRow]] = (
    ("bad_value", True, b"Error: ", rb"(?:ValueError|AssertionError|TypeError|KeyError|pydantic_core\S*ValidationError): "),
    ("exception", True, b"Error: ", rb"(?:RuntimeError|NotImplementedError|ImportError|ModuleNotFoundError|OSError|FileNotFoundError|torch\.AcceleratorError): "),
)
"""The last line of a traceback, where nothing more telling is said."""
# fmt: on

LIBRARIES: Final[Sequence[tuple[bytes, str]]] = (
    (rb"\s*$", "empty"),
    (rb"\s+\S", "goes on with a traceback, a warning or a usage text whose first line is read"),
    (
        rb"Traceback \(most recent call last\)|During handling of the above exception|The above exception was",
        "frame of a traceback; its last line is read",
    ),
    (rb"\[rank\d+\]:\[W", "PyTorch's warning at the end of a process"),
    (
        rb"terminate called|.*what\(\):|Fatal Python error|Aborted|Killed|Segmentation fault",
        "last words of a process whose parent reports it",
    ),
    (rb".*(?:UserWarning|FutureWarning|DeprecationWarning|ResourceWarning):", "library's remark"),
)
"""Lines of Python and its libraries."""

REMARKS: Final = reasons(
    (
        (
            rb"\b(?:is|are|been|will be) (?:automatically |forcibly |also |now )?(?:disabled|enabled|set|overridden|adjusted|ignored|deprecated|turned|not supported|incompatible|downcast|supported)\b",
            "setting that the engine resolved, which the line of settings has too",
        ),
        (
            rb"\b(?:[Aa]uto|[Ff]all(?:ing|s)? ?back|[Dd]efaulting|[Oo]verrid|[Rr]eset|[Ss]witching|chang(?:e|ing) page_size|[Ee]nabl(?:e|ed|ing)|[Dd]isabl(?:e|ed|ing)|[Ii]gnor(?:e|ing)|has no effect|only supports?|does not support|not compatible)",
            "setting that the engine resolved, which the line of settings has too",
        ),
        (
            rb"\b(?:[Cc]heckpoint|[Ww]eights? |safetensors|[Qq]uantiz|[Ll]oad(?:ing|ed)|scaling factors|HF snapshot|local snapshot|model configs?)",
            "where weights and their formats come from; their size is read from the line that ends the load",
        ),
        (
            rb"\b(?:experimental|EXPERIMENTAL|not fully optimized|might cause|may (?:inflate|take|experience)|Caution|in case of|Please |To silence)",
            "advice, which is data and no instruction",
        ),
        (
            rb"\b(?:template|tokenizer|[Pp]rocessor|LoRA|adapter|mm_hashes|[Mm]ultimodal|Encoder)\b",
            "tokenizer, templates, adapters and media, not memory or speed",
        ),
        (
            rb"(?:\b[Rr]eq(?:uest)? |\brid\b|[Aa]bort|[Ss]ession|RPC|rpc|[Ss]treaming backlog|input \()",
            "fate of single requests",
        ),
        (
            rb"(?:all-reduce|AllReduce|TCPStore|IB devices|transfer (?:backend|engine)|TransferEngine|numa|NUMA|[Pp]ort|Launch DP|[Pp]re-warm|Registering|bound on)",
            "network, collectives and places, not memory or speed",
        ),
        (
            rb"^(?:Using |Use |Detected |Setup |Hybrid |Dual chunk|DSV4 |HiSparse |Mega|DeepEP|Found |Pulling )",
            "choice of kernels and shapes",
        ),
    )
)
"""What the engine's own logger remarks on in passing; only a line without a GB figure and without a failure is asked."""
