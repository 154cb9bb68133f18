"""A verdict, computed again from its record alone."""

from __future__ import annotations

import json
from typing import NamedTuple

from agent.domain import Finding, Record
from policies.demands import baseline_checks
from policies.judge import judge, judge_baseline

TAKEN_BACK = frozenset({"rolled_back", "deferred", "needs_human"})
"""What a run may say whose readings are a breach or do not suffice: policy turns a breach into a deferral where the
request or an incident says so, and a person is needed where taking it back could not be proven."""


class Again(NamedTuple):
    """What came of it."""

    computed: bool
    """Whether there was anything to compute: a record without readings was decided by something else."""
    differs: tuple[str, ...]
    """Where the record says something else than its own readings; none: they agree, byte for byte."""


def judged_again(record: Record) -> Again:
    """Judge a record's readings by its own criteria, noise and checks, and compare what it says.

    Args:
        record: The record. Nothing else is looked at, neither policy files nor the clock.
    """
    plan, verdict = record.plan, record.verdict
    if plan is None or not verdict.findings:
        return Again(False, ())
    differs: list[str] = []
    if record.execution is None or record.execution.state == "none":
        before = judge_baseline(plan.criteria, record.readings, baseline_checks(plan.checks))
        differs += _findings(verdict.findings, before.findings)
        wanted = {"refused": "refused", "deferred": "deferred"}.get(before.decision)
        if verdict.decision != wanted:
            differs.append(f"the verdict is {verdict.decision}, and the baseline says {before.decision}")
        return Again(True, tuple(differs))
    judged = judge(plan.criteria, record.readings, record.noise, plan.checks)
    differs += _findings(verdict.findings, judged.findings)
    if verdict.decision == "kept" and judged.decision != "kept":
        differs.append(f"the verdict is kept, and the readings say {judged.decision}")
    if verdict.decision not in TAKEN_BACK | {"kept"}:
        differs.append(f"the verdict is {verdict.decision}, which no readings lead to")
    if verdict.decision == "rolled_back" and judged.decision != "rolled_back":
        differs.append(f"the verdict is rolled back, and the readings say {judged.decision}")
    return Again(True, tuple(differs))


def _findings(said: tuple[Finding, ...], computed: tuple[Finding, ...]) -> list[str]:
    """Where two lists of findings are not the same text."""
    of_record, of_readings = ({one.criterion: _text(one) for one in some} for some in (said, computed))
    return [
        f"{criterion}: the record says {of_record.get(criterion, 'nothing')}, its readings say "
        f"{of_readings.get(criterion, 'nothing')}"
        for criterion in dict.fromkeys((*of_record, *of_readings))
        if of_record.get(criterion) != of_readings.get(criterion)
    ]


def _text(finding: Finding) -> str:
    return json.dumps(finding.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
