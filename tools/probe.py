"""Check -> Readings: ship the load to the worker's host, follow it, and say what it measured.

A measurement that fails is a reading without a value and with the reason, never an exception: what silence means is
for the policy to say. Everything that replies contain is text from outside and reaches a reading clipped and printable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

from agent.domain import Check, Phase, Reading
from agent.errors import HostError
from tools import steadiness
from tools.host import Host
from tools.measured import Outcome, failed_requests, nothing
from tools.serve_script.secrets import mask

Tell = Callable[[str, float | None], None]
"""Takes a sentence about what is happening, and the share that is done where it is known."""

SILENCE_SECONDS = 30.0
"""The probe says something every second; a longer silence than this is a broken link or a stopped host."""
FOREIGN_SHARE = 0.01
"""Requests of others, as a share of ours, from which on a throughput measurement is discarded: it aims at 1 %."""


RAMP_SECONDS = 0.02
"""Between the beginnings of two sessions: some 100 prompts within two seconds, as after a router's restart."""
LOOK_SECONDS = 0.5
"""Between two looks at the engine's counters: some ten decode steps of a busy large model, so that traffic shows."""


class Stall(NamedTuple):
    """How long a worker may go without a token after a storm before it counts as wedged: the longer of the two."""

    steps: float = 150.0
    """In decode steps of its own for a lone request, as measured before the storm."""
    floor_seconds: float = 6.0
    """In seconds, however short its steps are."""


STALL = Stall()


def run_check(
    host: Host,
    *,
    base_url: str,
    counters_url: str | None = None,
    check: Check,
    phase: Phase,
    seed: int,
    limit_seconds: float,
    tell: Tell,
    stall: Stall = STALL,
    pid: int | None = None,
    captured: bool = False,
) -> tuple[Reading, ...]:
    """Run one check from the worker's host and return its readings.

    Args:
        host: The worker's host.
        base_url: Where the load goes, as the host reaches it, such as `http://127.0.0.1:31000`.
        counters_url: The worker's own address, where the load goes through a router; None: the same.
        check: What to send: sessions in all, runs at each concurrency, or streams in each storm.
        phase: What the worker is while it is measured.
        seed: Decides prompts, facts, orders and cuts; another seed sends other text.
        limit_seconds: When the load ends at the latest, whatever it has by then.
        tell: Is told about the progress a few times a second.
        stall: When a worker counts as wedged after a storm.
        pid: The worker's main process, whose memory a soak watches; None: it is not watched.
        captured: The engine says that it has graphs for all batches at which the change acts; passes that it counts as
            eager all the same are no exposure to them.

    Returns:
        `sessions`: corrupted_sessions (share) and failed_requests (share). `throughput`: one
        throughput_tokens_per_second (tokens/s) for each concurrency, then failed_requests. `aborts`: wedged_storms
        and lingering_storms (share), and kv_leak_per_storm. `overload`: stuck_overloads (share). `soak`:
        failed_requests, corrupted_in_soak (share), stalled_seconds, memory_growth_gb_per_hour, rate_decay.
    """
    wish = {
        "kind": check.name,
        "base_url": base_url,
        "counters_url": counters_url or base_url,
        "concurrency": list(check.concurrency),
        "count": check.count,
        "tokens": check.tokens,
        "seed": seed,
        "steps": stall.steps,
        "floor_seconds": stall.floor_seconds,
        "depths": list(check.depths),
        "seconds": check.seconds,
        "most": check.most,
        "sequential": check.sequential.model_dump() if check.sequential else None,
        "stop_at": check.stop_at,
        "acts": list(check.acts) if check.acts else None,
        "storms": check.storms,
        "texts": check.texts,
        "ramp": RAMP_SECONDS * max(check.concurrency),
        "pid": pid,
    }
    outcome = _measure(host, wish, limit_seconds, tell)
    if check.name == "sessions":
        return _sessions(outcome, check, phase, captured=captured)
    if check.name == "throughput":
        return _throughput(outcome, check, phase)
    if check.name == "overload":
        return (steadiness.overloads(outcome, check, phase),)
    if check.name == "soak":
        return steadiness.soak(outcome, check, phase)
    return (_aborts(outcome, check, phase), *steadiness.after_storms(outcome, check, phase))


def canary(host: Host, *, base_url: str, phase: Phase, limit_seconds: float) -> Reading:
    """Send one request as a user would, through the traffic entry: entry_answers is 1 or 0.

    Args:
        host: The host that sends it.
        base_url: The traffic entry.
        phase: What the worker is meanwhile.
        limit_seconds: How long an answer may take, in seconds.
    """
    wish = {"kind": "canary", "base_url": base_url, "timeout": limit_seconds}
    # The request's own limit ends it; the run's, a little later, is for the look-ups around it.
    result, why_not = _measure(host, wish, limit_seconds + 8, _say_nothing)
    source = f"probe: one request through {re.sub(r'//[^/@]*@', '//', base_url)}"
    if why_not is not None:
        return nothing("entry_answers", phase, "", why_not, source)
    answered = bool(result["answered"])
    if answered:
        sound = "" if result["sound"] else ", but the text is not sound"
        detail = f"answered after {result['first_token']:.2f} s ({result['text']!r}){sound}"
    else:
        detail = f"no answer: {mask(str(result['why_not']))}"
    return Reading(
        metric="entry_answers", phase=phase, value=float(answered), unit="", n=1, source=source, detail=detail
    )


def live_requests(host: Host, *, base_url: str, limit_seconds: float) -> int | None:
    """Count the requests that the worker is serving or has queued.

    The scheduler's own word counts first; a gauge alone only while tokens move, since gauges stay as they were for
    half a minute after the last request.

    Args:
        host: The worker's host.
        base_url: The control endpoint.
        limit_seconds: How long to look when the gauges cannot be believed at once.

    Returns:
        The number, or None where it could not be counted.
    """
    wish = {"kind": "counters", "base_url": base_url, "window_seconds": min(LOOK_SECONDS, limit_seconds / 4)}
    result, _ = _measure(host, wish, limit_seconds, _say_nothing)
    live = result.get("live")
    return live if isinstance(live, int) else None


def _say_nothing(_: str, __: float | None) -> None:
    pass


def _measure(host: Host, wish: Mapping[str, Any], limit_seconds: float, tell: Tell) -> Outcome:
    program = resources.files("tools.on_host").joinpath("probe.py").read_bytes()
    order = json.dumps({**wish, "deadline": limit_seconds}).encode()
    said, status = "", None
    try:
        path = host.ship("probe.py", program)
        with host.stream([host.python, "-I", path], stdin=order, silence=SILENCE_SECONDS) as lines:
            for line in lines:
                event = _event(line)
                if event.get("event") == "result":
                    return Outcome(event, None)
                if event.get("event") == "invalid":
                    return Outcome({}, str(event.get("why")))
                if event.get("event") == "progress":
                    tell(*_progress(event))
                else:
                    said = line.decode("utf-8", "replace")[:200]
            status = lines.status
    except HostError as error:
        return Outcome({}, f"the load could not be run: {error}")
    return Outcome({}, f"the load ended with status {status} and without a result; its last words: {said or 'none'}")


def _event(line: bytes) -> Mapping[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _progress(event: Mapping[str, Any]) -> tuple[str, float | None]:
    done, total = event.get("done", 0), event.get("total")
    share = done / total if total else None
    if not total:
        return "the load is starting", None
    if event.get("kind") == "sessions":
        return f"{done} of {total} sessions, {event['bad']} corrupted, {event['in_flight']} in flight", share
    if event.get("kind") == "overload":
        return f"{done} of {total} overloads, {event['stuck']} from which it did not come back", share
    if event.get("kind") == "soak":
        return f"{done} of {total} s, {event['made']} tokens in the last second", share
    if event.get("kind") == "aborts":
        return f"{done} of {total} abort storms, {event['wedged']} wedged", share
    return f"{done} of {total} bursts, the last with {event['concurrency']} streams", share


def _sessions(outcome: Outcome, check: Check, phase: Phase, *, captured: bool) -> tuple[Reading, ...]:
    source = "probe: tool-call sessions with known answers"
    widest = max(check.concurrency)
    result, why_not = outcome
    if why_not is not None:
        return (
            nothing("corrupted_sessions", phase, "share", why_not, source, widest),
            nothing("failed_requests", phase, "share", why_not, source, widest),
        )
    tally = result["sessions"]
    failed = failed_requests(result["requests"], phase, source, widest)
    detail = f"{tally['bad']} of {tally['n']} sessions corrupted{_exposure(result['in_flight'])}"
    if tally["bad"]:
        first = result["first_bad"]
        kinds = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in sorted(tally["kinds"].items()))
        detail += f"; {kinds}; the first in turn {first['turn']}: wanted {first['wanted']}, got {first['got']}"
    if tally["n"] < tally["planned"]:
        why = result["stopped"] or failed.detail
        detail += f"; {tally['planned'] - tally['n']} of {tally['planned']} sessions could not be judged: {why}"
    missed = [str(part["tokens"]) for part in result["depths"] if not part["n"]] if len(check.depths) > 1 else []
    if missed and tally["n"] and not tally["bad"]:
        why = f"no session at {', '.join(missed)} tokens of depth could be judged; {detail}"
        return nothing("corrupted_sessions", phase, "share", why, source, widest), failed
    texts = result["texts"]
    if texts["asked"] and not texts["long"] and not tally["bad"]:
        why = f"none of {texts['asked']} texts that were to be long was; {detail}"
        return nothing("corrupted_sessions", phase, "share", why, source, widest), failed
    if texts["asked"]:
        detail += f"; {texts['long']} of {texts['asked']} long texts were long and are among them"
    if len(check.depths) > 1:
        parts = ", ".join(f"{part['bad']} of {part['n']} at {part['tokens']}" for part in result["depths"])
        detail += f"; by tokens of depth {parts}"
    if not tally["n"]:
        reasons = [reason for reason in (result["stopped"], failed.detail or failed.no_data) if reason]
        why = f"no session could be judged: {'; '.join(reasons)}"
        return nothing("corrupted_sessions", phase, "share", why, source, widest), failed
    exposure, counted = _exposed(result, check, captured=captured)
    corrupted = Reading(
        metric="corrupted_sessions",
        phase=phase,
        value=tally["bad"] / tally["n"],
        unit="share",
        n=tally["n"],
        bad=tally["bad"],
        concurrency=widest,
        exposure=exposure,
        source=source,
        detail=detail + counted,
    )
    return corrupted, failed


def _exposed(result: Mapping[str, Any], check: Check, *, captured: bool) -> tuple[float | None, str]:
    """The share of tokens from where the change acts, and what the engine's counter of passes says of it.

    Where all those batches are captured, an eager pass was not one of the graphs that the change brought. How many
    tokens it made is not counted; at the most as many as the largest batch, and so many are taken off.
    """
    exposure, passes = result["exposure"], result["passes"]
    if passes is None or not (total := passes["eager"] + passes["captured"]):
        return exposure, ""
    said = f"; {passes['captured'] / total:.0%} of its {total:.0f} decode passes were replayed from graphs"
    if exposure is None or check.acts is None or not captured or not result["decoded"]:
        return exposure, said
    eager = passes["eager"] * check.acts[1] / result["decoded"]
    return max(0.0, exposure - eager), said


def _exposure(in_flight: Mapping[str, Any]) -> str:
    shares = [f"{share:.0%} with more than {size}" for size, share in list(in_flight["tokens_above"].items())[-2:]]
    tokens = f"; of the tokens came {', '.join(shares)} decoding at once" if shares else ""
    return f" at {in_flight['peak']} in flight (mean {in_flight['mean']:.0f}){tokens}"


def _throughput(outcome: Outcome, check: Check, phase: Phase) -> tuple[Reading, ...]:
    source = "probe: closed bursts"
    result, why_not = outcome
    metric, unit = "throughput_tokens_per_second", "tokens/s"
    if why_not is not None:
        silent = [nothing(metric, phase, unit, why_not, source, size) for size in check.concurrency]
        return (*silent, nothing("failed_requests", phase, "share", why_not, source))
    failed = failed_requests(result["requests"], phase, source, None)
    others = _others(result)
    if others is not None:
        return (*(nothing(metric, phase, unit, others, source, size) for size in check.concurrency), failed)
    readings = []
    for size in check.concurrency:
        bursts = [burst for burst in result["bursts"] if burst["concurrency"] == size]
        values = tuple(burst["tokens_per_second"] for burst in bursts if burst["why_not"] is None)
        why = [burst["why_not"] for burst in bursts if burst["why_not"] is not None] or [result["stopped"]]
        if not values:
            readings.append(nothing(metric, phase, unit, why[0] or "no burst was run", source, size))
            continue
        detail = f"{len(values)} bursts of {size} streams of {check.tokens} tokens; {_latency(result, bursts, size)}"
        if len(values) < check.count:
            detail += f"; {check.count - len(values)} of {check.count} bursts are not valid: {why[0]}"
        readings.append(
            Reading(
                metric=metric,
                phase=phase,
                value=sum(values) / len(values),
                unit=unit,
                n=len(values),
                values=values,
                concurrency=size,
                source=source,
                detail=detail,
            )
        )
    return (*readings, failed)


def _others(result: Mapping[str, Any]) -> str | None:
    ours, foreign = result["requests"]["n"], result["foreign"]
    if foreign["in_flight_before"]:
        return f"{foreign['in_flight_before']:.0f} requests of others were in flight when the measurement began"
    if foreign["finished"] is not None and foreign["finished"] > max(1.0, FOREIGN_SHARE * ours):
        return f"{foreign['finished']} requests of others touched the measurement of {ours}"
    return None


def _latency(result: Mapping[str, Any], bursts: Sequence[Mapping[str, Any]], size: int) -> str:
    invalid = [burst["latency_invalid"] for burst in bursts if burst["latency_invalid"]]
    if invalid:
        return f"latencies are not valid ({invalid[0]})"
    latency = result["latency"][str(size)]
    first, gap = latency["ttft"], latency["gap"]
    if first["p50"] is None or gap["p50"] is None:
        return "no latencies"
    return (
        f"first token p50 {first['p50'] * 1000:.0f} ms, p99 {first['p99'] * 1000:.0f} ms, "
        f"between chunks p50 {gap['p50'] * 1000:.1f} ms, p99 {gap['p99'] * 1000:.1f} ms"
    )


def _aborts(outcome: Outcome, check: Check, phase: Phase) -> Reading:
    source = "probe: abort storms, each followed by one canary"
    widest = max(check.concurrency)
    result, why_not = outcome
    storms = [] if why_not is not None else result["storms"]
    undecided = [storm["undecided"] for storm in storms if storm["undecided"]]
    if why_not is not None or undecided or not storms:
        why = why_not or (undecided or [result["stopped"] or "no storm was run"])[0]
        return nothing("wedged_storms", phase, "share", str(why), source, widest)
    wedged = [storm for storm in storms if storm["wedged"]]
    aborted = sum(storm["aborted"] for storm in storms)
    detail = f"{len(wedged)} of {len(storms)} storms wedged the worker ({aborted} streams cut off)"
    if wedged:
        last = wedged[0]
        why = last["canary"]["why_not"] or "it brought no token"
        detail += (
            f"; after {last['aborted']} of {last['streams']} streams were cut off, the canary got no answer "
            f"within {last['limit']:.1f} s ({why}), and {last['stalled']} streams that were left alone stood still"
        )
    else:
        slowest = max(storm["recovered_after"] for storm in storms)
        detail += f"; a canary got its first token after {slowest:.2f} s at the most"
        still = max(storm["still_counted"] or 0 for storm in storms)
        detail += f"; up to {still} requests stayed in the engine's count two seconds after" if still else ""
        left_alone = sum(storm["survivors_failed"] for storm in storms)
        detail += f"; {left_alone} streams that were left alone failed" if left_alone else ""
    if len(storms) < result["planned"] and not wedged:
        detail += f"; {result['planned'] - len(storms)} of {result['planned']} storms were not run: {result['stopped']}"
    return Reading(
        metric="wedged_storms",
        phase=phase,
        value=len(wedged) / len(storms),
        unit="share",
        n=len(storms),
        bad=len(wedged),
        concurrency=widest,
        source=source,
        detail=detail,
    )
