"""Record -> the block of Markdown that a plan document keeps of it, for an engineer at 3 am who argues with it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from agent.domain import Finding, Interval, Precedent, Reading, Record, Setting

STATE_WORDS = {
    "kept": "kept",
    "rolled_back": "rolled back",
    "deferred": "deferred",
    "needs_human": "needs a human",
    "refused": "refused",
    "rejected": "rejected",
    "answered": "answered",
    "unchanged": "unchanged",
    "imported": "imported, unproven",
}
"""What a decision is called in a document."""
PROVEN = {
    "new": "the changed configuration is live, proven",
    "restored": "the configuration from before is live again, proven",
    "untouched": "nothing was written and nothing restarted",
    "unknown": "NOT PROVEN: a person has to look at the worker",
}
"""What a proven state means, in words."""
CONFIDENCE = 0.95
"""One-sided confidence of the bounds that stand beside shares."""
BRIEFLY = 240
"""Characters of a precedent's story; the lesson stands beside it in full."""
LONGEST = 600
"""Characters of somebody's words that are shown; the record has them all."""


def marker(record: Record) -> str:
    """The comment by which a block is known again: one line, with the run and the record's hash."""
    return f"<!-- prudent-record: {record.run} {record.hash} -->"


def end_marker(record: Record) -> str:
    """The comment that ends a block."""
    return f"<!-- prudent-record end: {record.run} -->"


def title(record: Record) -> str:
    """The heading of a block: date, decision, change, run."""
    what = record.change.summary if record.change is not None else record.request.text
    decision = STATE_WORDS[record.verdict.decision].capitalize()
    return f"{record.at.date().isoformat()} · {decision}: {said(what, 120)} ({record.run})"


def render(record: Record, *, level: int = 3, bullet: str = "-") -> str:
    """Write a record as a block with an ATX heading.

    Args:
        record: The record, as it was chained.
        level: Level of the heading, 1 to 6.
        bullet: The sign of its lists: `-`, `*` or `+`.

    Returns:
        The block, with a newline at its end.
    """
    return f"{'#' * level} {title(record)}\n\n{body(record, bullet=bullet)}"


def body(record: Record, *, bullet: str = "-") -> str:
    """Write a block without its heading.

    Args:
        record: The record, as it was chained.
        bullet: The sign of its lists.
    """
    parts = [
        [marker(record)],
        list(_decision(record)),
        list(_change(record)),
        list(_numbers(record.readings)),
        _listed("Criteria", (_finding(finding, record) for finding in record.verdict.findings), bullet),
        _listed("Why it was expected to be safe, or not", _expectations(record), bullet),
        _listed("What was known before", (_precedent(precedent) for precedent in record.precedents), bullet),
        _listed("Evidence", (_evidence(record)), bullet),
        _listed("Who said yes or no", _approval(record), bullet),
        _listed("How to undo it", _undo(record), bullet),
        _listed("Notes", (said(note) for note in record.notes), bullet),
        [f"Record {record.seq}, `{record.hash}`, after `{record.previous[:12]}`: `prudent show {record.run}`"],
        [end_marker(record)],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def said(text: str, longest: int = LONGEST) -> str:
    """Somebody's words as plain Markdown in one line: nothing in them is markup, a heading, or a marker of ours."""
    flat = " ".join(text.split())
    if len(flat) > longest:
        flat = flat[: longest - 1].rstrip() + "…"
    escaped = re.sub(r"([`*\[\]|\\~])", r"\\\1", flat).replace("<", "&lt;")
    return f"\\{escaped}" if escaped[:1] in {"#", ">", "+", "-", "=", "_"} else escaped


def upper_bound(bad: int, n: int, confidence: float = CONFIDENCE) -> float:
    """The exact one-sided upper bound (Clopper and Pearson) of a share.

    Args:
        bad: How many were bad.
        n: Out of how many, at least 1.
        confidence: One-sided confidence.
    """
    if bad >= n:
        return 1.0
    low, high = bad / n, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        at_most = math.fsum(math.exp(_log_probability(k, n, middle)) for k in range(bad + 1))
        low, high = (middle, high) if at_most > 1 - confidence else (low, middle)
    return high


def _log_probability(k: int, n: int, share: float) -> float:
    """Logarithm of the binomial probability of k out of n."""
    ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return ways + (k * math.log(share) if k else 0.0) + (n - k) * math.log1p(-share)


def _decision(record: Record) -> Iterator[str]:
    verdict = record.verdict
    yield f"**{STATE_WORDS[verdict.decision].capitalize()}** on worker `{record.worker}`: {PROVEN[verdict.state]}."
    yield ""
    yield f"Why: {said(verdict.why)}"
    if verdict.reopen_when:
        yield ""
        yield f"Try again when: {said(verdict.reopen_when)}"
    if verdict.remedy:
        yield ""
        yield f"What to do now: {said(verdict.remedy)}"
    yield ""
    asked = f"{record.request.at:%Y-%m-%d %H:%M %Z}"
    yield f"Asked by {said(record.request.by)} ({record.request.door}, {asked}):"
    yield ""
    yield f"> {said(record.request.text)}"


def _change(record: Record) -> Iterator[str]:
    if record.change is None or not record.change.settings:
        return
    yield "| setting | before | after |"
    yield "|---|---|---|"
    for setting in record.change.settings:
        yield f"| `{setting.spelling}` | {_value(setting.old)} | {_value(setting.new)} |"


def _value(value: str | None) -> str:
    if value is None:
        return "absent"
    return f"`{value.replace('`', chr(39)).replace('|', chr(92) + '|')}`" if value else "present"


def _numbers(readings: Iterable[Reading]) -> Iterator[str]:
    slots: dict[tuple[str, int | None], dict[str, Reading]] = {}
    for reading in readings:
        slots.setdefault((reading.metric, reading.concurrency), {})[reading.phase] = reading
    if not slots:
        return
    yield "| measured | before the change | with it | after it was taken back |"
    yield "|---|---|---|---|"
    for (metric, concurrency), of_phase in slots.items():
        name = metric.replace("_", " ") + (f" at {concurrency}" if concurrency is not None else "")
        before = of_phase.get("baseline")
        cells = [_measured(of_phase.get("baseline"), None)]
        cells += [_measured(of_phase.get(phase), before) for phase in ("candidate", "restored")]
        yield f"| {said(name)} | {' | '.join(cells)} |"


def _measured(reading: Reading | None, before: Reading | None) -> str:
    if reading is None:
        return ""
    if reading.value is None:
        return f"no data: {said(reading.no_data or 'no reason given', 80)}"
    if reading.bad is not None and reading.n > 0:
        share = f"{reading.bad} of {reading.n}"
        return f"{share} (under {_percent_above(upper_bound(reading.bad, reading.n))} % at {100 * CONFIDENCE:.0f} %)"
    unit = "" if reading.unit in {"", "1"} else f" {reading.unit}"
    text = f"{reading.value:.4g}{unit}"
    if len(reading.values) > 1 and reading.value:
        spread = math.sqrt(math.fsum((v - reading.value) ** 2 for v in reading.values) / (len(reading.values) - 1))
        text += f" ± {100 * spread / abs(reading.value):.1f} % in {len(reading.values)} runs"
    if before is not None and before.value and reading.concurrency is not None:
        text += f" ({100 * (reading.value / before.value - 1):+.1f} %)"
    return said(text)


def _percent_above(share: float) -> str:
    """A share in percent with two significant digits, rounded up: "under 1 %" must be true."""
    percent = 100 * share
    step = 10.0 ** (math.floor(math.log10(percent)) - 1)
    return f"{math.ceil(percent / step - 1e-9) * step:.2g}" if percent < 99 else "100"


def _finding(finding: Finding, record: Record) -> str:
    decided = " (decided)" if finding.criterion in record.verdict.decided_by else ""
    return f"{finding.outcome.replace('_', ' ')}{decided}: `{finding.criterion}`: {said(finding.says)}"


def _expectations(record: Record) -> Iterator[str]:
    if record.risk is not None:
        yield f"risk {record.risk.level}, assessed by {said(record.risk.by)}: {said(record.risk.summary)}"
        for way in record.risk.ways:
            yield f"{said(way.what)} (because of {', '.join(way.because)}; caught by {said(way.caught_by)})"
    if record.forecast is not None:
        yield f"forecast: {record.forecast.fits}: {said(record.forecast.why)}"
        named = (
            ("free after capture", record.forecast.free_after_capture),
            ("restart", record.forecast.restart_seconds),
        )
        for name, interval in named:
            if interval is not None:
                yield f"{name}: {_interval(interval)}"


def _interval(interval: Interval) -> str:
    return f"{interval.low:.3g} to {interval.high:.3g} {interval.unit} ({said(interval.basis)})"


def _precedent(precedent: Precedent) -> str:
    lesson = f" Lesson: {said(precedent.lesson)}" if precedent.lesson else ""
    return f"`{precedent.id}` ({said(precedent.why)}): {said(precedent.what, BRIEFLY)}{lesson}"


def _evidence(record: Record) -> Iterator[str]:
    for evidence in record.evidence:
        word = " (only said, not measured)" if evidence.claimed else ""
        yield f"`{evidence.id}`{word}: {said(evidence.what)} (from {said(evidence.source)})"


def _approval(record: Record) -> Iterator[str]:
    approval = record.approval
    if approval is None:
        return
    words = {"approve": "approved", "reject": "rejected"}[approval.decision]
    because = f": {said(approval.reason)}" if approval.reason else ""
    yield (
        f"{said(approval.by)} {words} plan `{approval.digest[:12]}` through {said(approval.door)}"
        f" at {approval.at:%Y-%m-%d %H:%M %Z}{because}"
    )


def _undo(record: Record) -> Iterator[str]:
    if record.verdict.state == "untouched" or record.change is None or not record.change.settings:
        return
    if record.verdict.state == "restored":
        yield "nothing to undo: the old configuration is live again"
        return
    where = f" in `{record.plan.backup_of}` on {said(record.plan.host)}" if record.plan is not None else ""
    for setting in record.change.settings:
        yield f"{_backwards(setting)}{where}, then restart the worker"
    yield 'or, while it is the last change: `prudent ask "roll back the last change"`'


def _backwards(setting: Setting) -> str:
    if setting.old is None:
        return f"take `{setting.spelling}` out"
    return f"set `{setting.spelling}` back to `{setting.old}`" if setting.old else f"put `{setting.spelling}` back"


def _listed(label: str, items: Iterable[str], bullet: str) -> list[str]:
    lines = [f"{bullet} {item}" for item in items]
    return [f"**{label}**", "", *lines] if lines else []
