"""Storms, overloads and soaks -> readings: does a worker come back to what it was, and stay what it is?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent.domain import Check, Phase, Reading
from tools.measured import Outcome, failed_requests, nothing
from tools.slopes import FEWEST, loss, rise

FEWEST_STORMS = 5
"""Storms from which a slope can be told."""
RATE_KEPT = 0.8
"""Share of its rate that a worker has to have again after a storm. The median of three short bursts strays by some 4 %
(bursts by 5.8 % on one H200), so that five looks fall below this by chance in one run of a thousand."""
KV_KEPT = 0.01
"""Share of the KV pool that may be in use at rest beyond what was before; at rest a sound worker uses next to none."""
LATENCY_KEPT = 3.0
"""As many times as long as before may a first token take at rest, and a fifth of a second more, which a busy machine
explains."""
LATENCY_SLACK_SECONDS = 0.2
WARM = 0.2
"""Share of a soak after which caches are filled and what still grows is growth."""


def after_storms(outcome: Outcome, check: Check, phase: Phase) -> tuple[Reading, ...]:
    """Whether the worker was at rest again after each storm, and what of the KV pool did not come back."""
    source = "probe: the worker at rest, before and after each abort storm"
    result, why_not = outcome
    rests: Sequence[Mapping[str, Any]] = [] if why_not is not None else result["rests"]
    if len(rests) < 2:
        why = why_not or str(result["stopped"] or "no storm was run")
        return (nothing("lingering_storms", phase, "share", why, source),)
    first, later = rests[0], rests[1:]
    blind = next(filter(None, (_incomparable(first), *map(_unseen, later))), None)
    if blind is not None:
        return nothing("lingering_storms", phase, "share", blind, source), *_leak(rests, check, phase, source)
    bad = [reason for rest in later if (reason := _lingers(first, rest))]
    lingering = Reading(
        metric="lingering_storms",
        phase=phase,
        value=len(bad) / len(later),
        unit="share",
        n=len(later),
        bad=len(bad),
        concurrency=max(check.concurrency),
        source=source,
        detail=f"after {len(bad)} of {len(later)} storms it was not what it was"
        + (f"; after the first of them {bad[0]}" if bad else ""),
    )
    return lingering, *_leak(rests, check, phase, source)


def _incomparable(first: Mapping[str, Any]) -> str | None:
    """Why the worker was not known well enough beforehand to tell whether it came back to what it was."""
    if first["settled_after"] is None:
        return "requests were in flight before the first, so that nobody knows the worker at rest"
    return _unseen(first) or (None if first["rate"] else "a small burst before the first failed")


def _unseen(rest: Mapping[str, Any]) -> str | None:
    """Why nobody knows whether the worker was at rest: no count is no count of nought."""
    if rest["running"] is None and rest["waiting"] is None:
        return "the worker does not say how many requests it has"
    return None


def _lingers(first: Mapping[str, Any], rest: Mapping[str, Any]) -> str | None:
    if rest["settled_after"] is None:
        running, waiting = rest["running"] or 0, rest["waiting"] or 0
        return f"{running:.0f} requests ran and {waiting:.0f} waited with nothing in flight"
    if rest["rate"] is None:
        return "a small burst failed"
    if first["rate"] and rest["rate"] < RATE_KEPT * first["rate"]:
        return f"a small burst ran at {rest['rate']:.0f} tokens/s where it ran at {first['rate']:.0f} before"
    if (rest["kv_now"] or 0.0) > (first["kv_now"] or 0.0) + KV_KEPT:
        return f"{rest['kv_now']:.1%} of the KV pool were in use at rest where {first['kv_now'] or 0.0:.1%} were before"
    if _late(first["first_token"], rest["first_token"]):
        return f"a first token took {rest['first_token']:.2f} s where it took {first['first_token']:.2f} s before"
    return None


def _late(first: float | None, rest: float | None) -> bool:
    return first is not None and rest is not None and rest > LATENCY_KEPT * first + LATENCY_SLACK_SECONDS


def _leak(rests: Sequence[Mapping[str, Any]], check: Check, phase: Phase, source: str) -> tuple[Reading, ...]:
    """The slope of what is in use at rest; nothing is said of it where the plan asks for too few storms to have one."""
    if check.storms < FEWEST_STORMS:
        return ()
    metric, unit = "kv_leak_per_storm", "of the pool"
    used = [(float(number), float(rest["kv"])) for number, rest in enumerate(rests) if rest["kv"] is not None]
    found = rise(used) if len(used) > FEWEST_STORMS else None
    if found is None:
        why = f"{len(used)} looks at the KV pool, and {FEWEST_STORMS + 1} are needed for a slope"
        return (nothing(metric, phase, unit, why, source),)
    slope, low = found
    detail = f"what is in use at rest rises by {slope:+.3%} of the pool with each storm, at least {low:+.3%} at 95 %"
    return (Reading(metric=metric, phase=phase, value=low, unit=unit, n=len(used), source=source, detail=detail),)


def overloads(outcome: Outcome, check: Check, phase: Phase) -> Reading:
    """Whether the worker came back from more than it runs."""
    source = "probe: overloads, each followed by a look at the worker at rest"
    widest = max(check.concurrency)
    result, why_not = outcome
    seen = [] if why_not is not None else result["overloads"]
    if not seen:
        why = why_not or str(result["stopped"] or "no overload was run")
        return nothing("stuck_overloads", phase, "share", why, source, widest)
    bad = [one["stuck"] for one in seen if one["stuck"]]
    if not bad and any(not one["rate_before"] for one in seen):
        why = "a small burst before it failed, so that nobody knows what the worker was"
        return nothing("stuck_overloads", phase, "share", why, source, widest)
    away = sum(one["turned_away"] for one in seen)
    detail = f"{len(bad)} of {len(seen)} overloads of {widest} streams left it worse"
    detail += f"; {bad[0]}" if bad else ""
    detail += f"; {away} streams were turned away, as they should be" if away else ""
    return Reading(
        metric="stuck_overloads",
        phase=phase,
        value=len(bad) / len(seen),
        unit="share",
        n=len(seen),
        bad=len(bad),
        concurrency=widest,
        source=source,
        detail=detail,
    )


def soak(outcome: Outcome, check: Check, phase: Phase) -> tuple[Reading, ...]:
    """Progress, memory and rate over some time of steady load, and its sessions."""
    source = f"probe: {check.seconds:g} s of tool-call sessions"
    size = max(check.concurrency)
    result, why_not = outcome
    units = {
        "failed_requests": "share",
        "corrupted_in_soak": "share",
        "stalled_seconds": "s",
        "memory_growth_gb_per_hour": "GB/h",
        "card_growth_gb_per_hour": "GB/h",
        "rate_decay": "of the rate",
    }
    if why_not is not None:
        return tuple(nothing(metric, phase, unit, why_not, source, size) for metric, unit in units.items())
    counted: tuple[Reading, ...] = (
        failed_requests(result["requests"], phase, source, size),
        _decayed(result, phase, source, size),
    )
    if result["stopped"]:
        short = f"the soak ended after {len(result['windows'])} of {check.seconds:g} s: {result['stopped']}"
        # A stall that was long enough to end the soak was measured; a shorter one says nothing of what was to come.
        counted += (_stalled(result, phase, source, size),) if result["silent"] else ()
        rest = [(metric, unit) for metric, unit in units.items() if metric not in {one.metric for one in counted}]
        return (*counted, *(nothing(metric, phase, unit, short, source, size) for metric, unit in rest))
    return (
        *counted,
        _stalled(result, phase, source, size),
        _memory(result, phase, source, size),
        _cards(result, phase, source, size),
        _decay(result, phase, source, size),
    )


def _decayed(result: Mapping[str, Any], phase: Phase, source: str, size: int) -> Reading:
    tally = result["sessions"]
    if not tally["n"]:
        return nothing("corrupted_in_soak", phase, "share", "no session could be judged", source, size)
    first = result["first_bad"]
    seen = f"; the first: wanted {first['wanted']}, got {first['got']}" if first else ""
    return Reading(
        metric="corrupted_in_soak",
        phase=phase,
        value=tally["bad"] / tally["n"],
        unit="share",
        n=tally["n"],
        bad=tally["bad"],
        concurrency=size,
        source=source,
        detail=f"{tally['bad']} of {tally['n']} sessions corrupted{seen}",
    )


def _stalled(result: Mapping[str, Any], phase: Phase, source: str, size: int) -> Reading:
    windows = result["windows"]
    if not windows:
        return nothing("stalled_seconds", phase, "s", "the soak was over before a second of it", source, size)
    longest = run = 0
    for made in windows:
        run = 0 if made else run + 1
        longest = max(longest, run)
    detail = f"{longest} s without a token at the longest, in {len(windows)} s"
    return _amount("stalled_seconds", phase, float(longest), "s", len(windows), source, size, detail)


def _memory(result: Mapping[str, Any], phase: Phase, source: str, size: int) -> Reading:
    metric, unit = "memory_growth_gb_per_hour", "GB/h"
    samples = [(float(at), float(value)) for at, value in result["memory"]]
    warm = samples[round(WARM * len(samples)) :]
    found = rise(warm)
    if found is None:
        why = f"{len(warm)} samples of the worker's memory, and {FEWEST} are needed"
        return nothing(metric, phase, unit, why, source, size)
    slope, low = (3600 * value for value in found)
    detail = f"the worker's memory on the host grows by {slope:+.2f} GB/h, at least {low:+.2f} at 95 %"
    return _amount(metric, phase, low, unit, len(warm), source, size, detail)


def _cards(result: Mapping[str, Any], phase: Phase, source: str, size: int) -> Reading:
    """The growth of what is held on the GPUs; where nobody can ask the cards, it says so and is no reading."""
    metric, unit, told = "card_growth_gb_per_hour", "GB/h", result["cards"]
    samples = [(float(at), float(value)) for at, value in told["samples"]]
    warm = samples[round(WARM * len(samples)) :]
    found = rise(warm)
    if found is None:
        why = str(told["why_not"] or f"{len(warm)} looks at the memory of the cards, and {FEWEST} are needed")
        return nothing(metric, phase, unit, why, source, size)
    slope, low = (3600 * value for value in found)
    detail = f"what {told['of']} hold on the GPUs grows by {slope:+.2f} GB/h, at least {low:+.2f} at 95 %"
    return _amount(metric, phase, low, unit, len(warm), source, size, detail)


def _decay(result: Mapping[str, Any], phase: Phase, source: str, size: int) -> Reading:
    """What the rate lost over the soak: from its first third to its last, or from the rest before it to the one after.

    The first third does not know what the worker was before it, so the looks at rest see a loss that came at once.
    """
    first, *later = result["rests"]
    blind = _incomparable(first) or next(filter(None, map(_unseen, later)), None)
    blind = blind or (None if later else "nobody looked at the worker once it was over")
    if blind is None and (reason := _lingers(first, later[-1])):
        lost = 1 - (later[-1]["rate"] or 0.0) / first["rate"]
        if not later[-1]["rate"] or later[-1]["settled_after"] is None or lost < 1 - RATE_KEPT:
            blind = f"afterwards {reason}"
        else:
            return _amount("rate_decay", phase, lost, "of the rate", len(result["windows"]), source, size, reason)
    if blind is not None:
        return nothing("rate_decay", phase, "of the rate", blind, source, size)
    windows = [float(made) for made in result["windows"]]
    steady = windows[round(WARM * len(windows)) :]
    third = len(steady) // 3
    found = loss(steady[:third], steady[-third:]) if third else None
    if found is None:
        why = f"{len(steady)} s of steady load, and {3 * FEWEST} are needed"
        return nothing("rate_decay", phase, "of the rate", why, source, size)
    share, low = found
    detail = f"the last third runs at {1 - share:.1%} of the first's rate, at {1 - low:.1%} at the most (95 %)"
    return _amount("rate_decay", phase, low, "of the rate", len(steady), source, size, detail)


def _amount(metric: str, phase: Phase, value: float, unit: str, n: int, source: str, size: int, detail: str) -> Reading:
    return Reading(
        metric=metric, phase=phase, value=value, unit=unit, n=n, concurrency=size, source=source, detail=detail
    )
