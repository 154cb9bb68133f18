"""Figures in the text of logs: numbers that may be cut off or written over, times, and PyTorch's memory message."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final, NamedTuple

_TRIED: Final = re.compile(r"Tried to allocate (?P<size>[\d.]+) (?P<unit>[KMG]iB)")
_FREE: Final = re.compile(
    r"total capacity of (?P<total>[\d.]+) GiB of which (?P<size>[\d.]+) (?P<unit>[KMG]iB) is free"
)
_SHARE: Final = {"KiB": 1 / 1024**2, "MiB": 1 / 1024, "GiB": 1.0}


class Allocation(NamedTuple):
    """What PyTorch says when GPU memory runs out, in GB; None where the message does not say it."""

    tried: float | None
    """What was asked for."""
    free: float | None
    """What was free."""
    total: float | None
    """Memory of the GPU."""


def allocation(line: str) -> Allocation:
    """The figures of an out-of-memory message."""
    tried, free = _TRIED.search(line), _FREE.search(line)
    return Allocation(
        _sized(tried["size"], tried["unit"]) if tried else None,
        _sized(free["size"], free["unit"]) if free else None,
        number(free["total"]) if free else None,
    )


def text(raw: bytes) -> str:
    """Bytes as text; what is no UTF-8 becomes a question mark."""
    return raw.decode("utf-8", "replace")


def number(digits: bytes | str | None) -> float | None:
    """A decimal number; None where it is none, or absurdly long."""
    if digits is None or len(digits) > 24:
        return None
    try:
        return float(digits)
    except ValueError:
        return None


def whole(digits: bytes | None) -> int | None:
    """A whole number, thousands separated by commas or not; None where it is none, or absurdly long."""
    if digits is None or len(digits) > 24:
        return None
    try:
        return int(digits.replace(b",", b""))
    except ValueError:
        return None


def lesser(one: float | None, other: float | None) -> float | None:
    """The smaller of what is known."""
    return other if one is None else one if other is None else min(one, other)


def greater(one: float | None, other: float | None) -> float | None:
    """The greater of what is known."""
    return other if one is None else one if other is None else max(one, other)


def seconds_between(begin: str | None, end: str | None) -> float | None:
    """Seconds between two ISO times; None where one is missing, is none, or the clock went back."""
    if begin is None or end is None:
        return None
    try:
        seconds = (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()
    except (ValueError, TypeError):
        return None
    return seconds if seconds >= 0 else None


def _sized(digits: str, unit: str) -> float | None:
    size = number(digits)
    return None if size is None else round(size * _SHARE[unit], 4)
