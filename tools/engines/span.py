"""A low and a high end, and arithmetic with them."""

from __future__ import annotations

import math
from typing import NamedTuple

from agent.domain import Interval


class Span(NamedTuple):
    """A low and a high end, in the unit of the context."""

    low: float
    """Low end."""
    high: float
    """High end."""


def outward(span: Span) -> Span:
    """Rounded to 0.01 so that nothing falls out of it."""
    return Span(math.floor(span.low * 100 + 1e-6) / 100, math.ceil(span.high * 100 - 1e-6) / 100)


def interval(span: Span, unit: str, basis: str) -> Interval:
    """The span as an interval, rounded outward."""
    low, high = outward(span)
    return Interval(low=low, high=high, unit=unit, basis=basis)


def times(span: Span, count: int) -> Span:
    """So many times the span; the ends change places below zero."""
    low, high = sorted((span.low * count, span.high * count))
    return Span(low, high)


def summed(*spans: Span) -> Span:
    """The sum of spans."""
    return Span(sum(span.low for span in spans), sum(span.high for span in spans))
