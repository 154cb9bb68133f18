"""Log lines -> how much was decoded at which batch sizes, with its uncertainty.

SGLang prints a line every so many decode steps, so a line stands for tokens in proportion to its batch; vLLM prints one
every few seconds, so a line stands for tokens in proportion to its rate (engine-facts: `decode_log_interval`, 10 s).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from agent.domain import Noun

SURE = 1.6448536269514722
"""Normal quantile of a one-sided bound at 95 %."""
FEWEST_LINES = 8
"""Fewer lines are no sample."""

_SGLANG = re.compile(rb"Decode batch.*?#running-req: (\d{1,6})\b")
_VLLM = re.compile(rb"generation throughput: (\d{1,9}(?:\.\d+)?) tokens/s, Running: (\d{1,6}) reqs")


class Sizes(NamedTuple):
    """What one log line stands for."""

    batch: int
    """Requests that decoded at once."""
    weight: float
    """Tokens, up to a factor that is the same for all lines."""


class Exposure(Noun):
    """The part of the decoded tokens that came from a range of batch sizes."""

    share: float
    """The estimate, 0 to 1."""
    low: float
    """The lower end at 95 %, one-sided."""
    lines: int
    """How many lines it rests on."""


def sizes(lines: Iterable[bytes]) -> list[Sizes]:
    """The batch sizes of a log's decode lines, of either engine; lines without a batch are left out."""
    found = []
    for line in lines:
        if decode := _SGLANG.search(line):
            found.append(Sizes(int(decode[1]), float(decode[1])))
        elif stats := _VLLM.search(line):
            found.append(Sizes(int(stats[2]), float(stats[1])))
    return [one for one in found if one.batch and one.weight]


def exposure(seen: Iterable[Sizes], above: int, up_to: int) -> Exposure | None:
    """How much was decoded above one batch size and up to another; None: too few lines to say.

    The lower end treats lines as draws: with the weights' effective number n = (sum w)^2 / sum w^2, the share has a
    standard error of sqrt(p (1-p) / n) (Kish, Survey Sampling, 1965), and of 1/n where every line says the same.
    """
    lines = list(seen)
    if len(lines) < FEWEST_LINES:
        return None
    total = math.fsum(one.weight for one in lines)
    share = math.fsum(one.weight for one in lines if above < one.batch <= up_to) / total
    effective = total**2 / math.fsum(one.weight**2 for one in lines)
    error = max(math.sqrt(share * (1 - share) / effective), 1 / effective if share else 0.0)
    return Exposure(share=share, low=max(0.0, share - SURE * error), lines=len(lines))
