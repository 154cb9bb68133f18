"""Bytes of a log -> its lines, whatever terminals, progress bars and crashed writers did to them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO

LONGEST = 1 << 16
"""Bytes of a line that are kept; SGLang's line of settings has about 12,000."""
_CHUNK = 1 << 20
_ESCAPE = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_STAMP = re.compile(rb"\[20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d")

_CARRIER = re.compile(
    rb"(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [^\s:\[]+(?:\[\d+\])?: "
    rb"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d) (?:std(?:out|err) [FP] )?)"
)
"""What journald, Docker and Kubernetes put before a line."""


def uncarried(line: bytes) -> bytes:
    """A line without what carriers put before it, at most three of them."""
    for _ in range(3):
        carried = _CARRIER.match(line)
        if carried is None:
            break
        line = line[carried.end() :]
    return line


def lines_of(stream: BinaryIO, *, after: int = 0) -> Iterator[bytes]:
    """Yield the lines of a log file in constant memory, cut at `LONGEST` bytes.

    Args:
        stream: The file, opened for reading bytes.
        after: Byte offset to begin at, such as the log's size before a restart. Where the file is shorter (somebody
            rotated or emptied it), reading begins at its start.

    Yields:
        Each line without its end; the last one also when it is only half written.
    """
    if after:
        size = stream.seek(0, 2)
        stream.seek(after if after <= size else 0)
    rest = b""
    overlong = False
    while chunk := stream.read(_CHUNK):
        parts = chunk.split(b"\n")
        if overlong and len(parts) == 1:
            continue
        parts[0] = rest if overlong else rest + parts[0]
        last = parts.pop()
        overlong = len(last) > LONGEST
        rest = last[:LONGEST]
        for part in parts:
            yield part if len(part) <= LONGEST else part[:LONGEST]
    if rest:
        yield rest


def fragments(line: bytes) -> Iterable[bytes]:
    """Take a line apart where a progress bar returned to its start or another process wrote into its middle.

    Colours and other terminal sequences are dropped.
    """
    if b"\x1b" in line:
        line = _ESCAPE.sub(b"", line)
    if b"\r" in line:
        pieces = [piece for piece in line.split(b"\r") if piece]
        if len(pieces) != 1:
            return [fragment for piece in pieces for fragment in _at_stamps(piece)]
        line = pieces[0]
    return _at_stamps(line)


def _at_stamps(line: bytes) -> Iterable[bytes]:
    if line.find(b"[20", 1) < 0:
        return (line,)
    cuts = [found.start() for found in _STAMP.finditer(line) if found.start()]
    if not cuts:
        return (line,)
    ends = [*cuts, len(line)]
    return [line[begin:end] for begin, end in zip([0, *cuts], ends, strict=True) if begin < end]
