"""Numbers as people read them at three in the morning."""

from __future__ import annotations

import math

from agent.domain import Criterion

_WORDS = ("no", "one", "two", "three", "four", "five", "six")


def number(value: float) -> str:
    """Four significant digits at most, without trailing zeros: `15.26`, `6`, `0.03`."""
    return f"{value:,.0f}" if 10_000 <= abs(value) < 1e12 else f"{value:.4g}"


def share(value: float) -> str:
    """A share as a percentage, such as `3 %`."""
    return f"{number(value * 100)} %"


def under(value: float) -> str:
    """An upper bound on a share as a percentage, rounded up to two digits so that the claim stays true: `3 %`."""
    percent = value * 100
    if not 0 < percent < 100:
        return "100 %" if percent >= 100 else "0 %"
    step = 10.0 ** (math.floor(math.log10(percent)) - 1)
    return f"{number(math.ceil(percent / step - 1e-9) * step)} %"


def over(value: float) -> str:
    """A lower bound on a share as a percentage, rounded down to two digits: `9.5 %`."""
    percent = value * 100
    if percent <= 0:
        return "0 %"
    step = 10.0 ** (math.floor(math.log10(percent)) - 1)
    return f"{number(math.floor(percent / step + 1e-9) * step)} %"


def gain(logarithm: float) -> str:
    """The logarithm of a ratio as a signed percentage: `+8.2 %`, `-5.0 %`."""
    if logarithm > 50:
        return "more than a billion-fold"
    percent = math.expm1(logarithm) * 100
    return f"{percent:+.1f} %" if abs(percent) >= 0.05 else "±0.0 %"


def interval(low: float, high: float, confidence: float) -> str:
    """Bounds on the logarithm of a ratio, each at the one-sided confidence: `+1.1 to +15.8 % at 95 %`."""
    if high > 50 or low < -50:
        return f"nothing known at {share(confidence)}"
    return f"{math.expm1(low) * 100:+.1f} to {math.expm1(high) * 100:+.1f} % at {share(confidence)}"


def count(value: int) -> str:
    """A small count as a word: `two`, `12`."""
    return _WORDS[value] if 0 <= value < len(_WORDS) else str(value)


def at(concurrency: int | None) -> str:
    """` at 96 in flight`, or nothing where the concurrency does not matter."""
    return "" if concurrency is None else f" at {concurrency} in flight"


def line(text: str, longest: int = 200) -> str:
    """Text from outside as one short line that a terminal can take: no control characters."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= longest else flat[: longest - 1] + "…"


def bound(criterion: Criterion) -> str:
    """What the criterion asks for: `at most 3 times the baseline`, `at least 6`."""
    side = "at most" if criterion.comparison == "at_most" else "at least"
    if criterion.of == "baseline":
        return f"{side} {number(criterion.bound)} times the baseline"
    return f"{side} {number(criterion.bound)}"
