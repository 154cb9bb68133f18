"""A record retold in a sentence or two, for whoever meets it again."""

from __future__ import annotations

from agent.domain import CheckName, Reading, Record

CHECK_OF: dict[str, CheckName] = {
    "corrupted_sessions": "sessions",
    "failed_requests": "sessions",
    "throughput_tokens_per_second": "throughput",
    "wedged_storms": "aborts",
}
"""The check that takes each metric which needs load."""
_VERSION = "engine version "
"""How the fact begins that a run notes of its worker."""


def breached_metrics(record: Record) -> tuple[str, ...]:
    """The metrics whose criteria were breached in a run, in the order of the findings."""
    metric_of = {criterion.id: criterion.metric for criterion in record.plan.criteria} if record.plan else {}
    breached = [finding.criterion for finding in record.verdict.findings if finding.outcome == "breached"]
    return tuple(dict.fromkeys(metric_of.get(criterion, criterion) for criterion in breached))


def is_echo(record: Record) -> bool:
    """Whether a run only told an earlier deferral again: it is no history of its own, and would crowd that out."""
    weighed = record.risk is not None or record.plan is not None or record.execution is not None
    return record.verdict.decision == "deferred" and bool(record.precedents) and not weighed


def version_of(record: Record) -> str | None:
    """The engine's version that a run saw on its worker; None: the record does not say."""
    said = (fact.what for fact in record.evidence if fact.what.startswith(_VERSION) and not fact.claimed)
    return next((what.removeprefix(_VERSION).strip() for what in said), None)


def told(record: Record, taken_back_by: str | None = None) -> str:
    """Retell a record: what was changed, what came of it, and with which numbers.

    Args:
        record: The record.
        taken_back_by: The run that took its change back later.
    """
    summary = record.change.summary if record.change else record.request.text
    parts = [f"{summary} on {record.worker}: {record.verdict.decision.replace('_', ' ')}. {record.verdict.why}".strip()]
    if not parts[0].endswith("."):
        parts[0] += "."
    seen = numbers(record)
    if seen:
        parts.append(f"Measured: {'; '.join(seen)}.")
    if record.approval is not None and record.approval.reason:
        parts.append(f"{record.approval.by} said: {record.approval.reason}")
    if taken_back_by is not None:
        parts.append(f"Taken back later by {taken_back_by}.")
    return " ".join(parts)


def numbers(record: Record) -> tuple[str, ...]:
    """The numbers of a run that tell most: shares with their counts, throughput against the baseline, memory left."""
    before = {
        (reading.metric, reading.concurrency): reading
        for reading in record.readings
        if reading.phase == "baseline" and reading.value is not None
    }
    said = []
    for reading in record.readings:
        if reading.phase != "candidate" or reading.value is None:
            continue
        if reading.metric == "throughput_tokens_per_second":
            said.append(_throughput(reading, before.get((reading.metric, reading.concurrency))))
        elif reading.metric in CHECK_OF and reading.bad is not None:
            said.append(f"{reading.bad} of {reading.n} {reading.metric.replace('_', ' ')}")
        elif reading.metric == "free_after_capture_gb":
            said.append(f"{reading.value:.1f} GB free after capture")
    return tuple(said)


def _throughput(reading: Reading, before: Reading | None) -> str:
    where = f" at {reading.concurrency}" if reading.concurrency is not None else ""
    text = f"{reading.value:.0f} tokens/s{where}"
    if before is not None and before.value and reading.value is not None:
        text += f" ({100 * (reading.value / before.value - 1):+.1f} % against {before.value:.0f})"
    return text
