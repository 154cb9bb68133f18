"""How a run looks in a terminal, and as JSON lines."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console, Group
from rich.padding import Padding
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from agent.domain import Check, Evidence, Forecast, Plan, Precedent, Reading, Record, Step, Verdict
from policies.explain import rule

_COLOURS = {
    "kept": "green",
    "answered": "green",
    "unchanged": "green",
    "rolled_back": "yellow",
    "deferred": "yellow",
    "rejected": "yellow",
    "refused": "red",
    "needs_human": "bold red",
    "imported": "dim",
}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_RISK = {"low": "green", "medium": "yellow", "high": "red"}


def shown(text: str, style: str = "") -> Text:
    """Text as it is, its control characters made visible: what came from outside must not drive a terminal."""
    return Text(_CONTROL.sub("\ufffd", text), style=style)


def console() -> Console:
    """The terminal, or lines of 110 characters where there is none."""
    return Console(width=None if sys.stdout.isatty() else 110, highlight=False, markup=False)


def print_json(document: Any) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False, indent=2, default=str) + "\n")


class Terminal:
    """For people: one line an event, one live line for progress, the plan as a card, the verdict at the end."""

    def __init__(self, console: Console) -> None:
        """Take the console to print on."""
        self._console = console
        self._told = False
        self._progress = ""
        self._percent = -1

    def event(self, event: Mapping[str, Any]) -> None:
        """Print an event; progress replaces itself on a terminal and is thinned out elsewhere."""
        kind, text = str(event.get("kind", "")), str(event.get("text", ""))
        if kind == "progress":
            self._step(text, event.get("share"))
            return
        self._end_progress()
        if kind == "node":
            self._console.print(shown(f"\n{text.replace('_', ' ')}", style="bold cyan"))
        else:
            style = "bold yellow" if kind == "stop" else ""
            self._console.print(Padding(shown(text, style=style), (0, 0, 0, 2), expand=False))

    def card(self, plan: Plan) -> None:
        """Print the plan card."""
        self._end_progress()
        self._console.print(plan_card(plan))

    def waiting(self, plan: Plan, seconds_left: float) -> None:
        """Say once how to decide."""
        if not self._told:
            self._told = True
            self._console.print(
                f"\nWaiting for a decision, {seconds_left / 60:.0f} min at most: "
                f"prudent approve {plan.run}  or  prudent reject {plan.run}"
            )

    def record(self, record: Record) -> None:
        """Print the verdict."""
        self._end_progress()
        self._console.print(verdict_panel(record.verdict, record.run))

    def _step(self, text: str, share: Any) -> None:
        percent = int(float(share) * 100) if isinstance(share, int | float) else -1
        line = f"  {text}" + (f"  {percent:3d} %" if percent >= 0 else "")
        if self._console.is_terminal:
            width = max(len(self._progress), len(line))
            self._console.file.write("\r" + line.ljust(width))
            self._console.file.flush()
            self._progress = line
        elif (topic := text.partition(":")[0]) != self._progress or percent // 50 > self._percent // 50:
            self._console.print(shown(line))
            self._progress = topic
        self._percent = percent

    def _end_progress(self) -> None:
        if self._progress and self._console.is_terminal:
            self._console.file.write("\n")
        self._progress = ""
        self._percent = -1


class JsonLines:
    """For programs: one JSON object a line; the last one is the record."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        """Take the stream to write to."""
        self._out = out

    def event(self, event: Mapping[str, Any]) -> None:
        """Write an event."""
        self._write(dict(event))

    def card(self, plan: Plan) -> None:
        """Write the plan with its digest."""
        self._write({"kind": "plan", "digest": plan.digest, "plan": plan.model_dump(mode="json")})

    def waiting(self, plan: Plan, seconds_left: float) -> None:
        """Write nothing: the plan was the question."""

    def record(self, record: Record) -> None:
        """Write the record with its hash."""
        self._write({"kind": "record", "hash": record.hash, "record": record.model_dump(mode="json")})

    def _write(self, document: Mapping[str, Any]) -> None:
        self._out.write(json.dumps(document, ensure_ascii=False) + "\n")
        self._out.flush()


def plan_card(plan: Plan, *, whole: bool = False) -> Panel:
    """What an approval covers, as it should be read at three in the morning.

    Precedents that are not live here and figures that do not move are counted instead of told, unless `whole`.
    """
    parts: list[Any] = [_facts(plan)]
    told = {precedent.id for precedent in plan.precedents}
    ways = [way for way in plan.risk.ways if not told.issuperset(way.because)]
    if ways:
        parts.append(_list("How it can fail", [_way(w.what, w.because, w.caught_by) for w in ways]))
    if plan.precedents:
        parts.append(_precedents(plan, whole=whole))
    parts += [
        forecast_table(plan.forecast, whole=whole),
        _list("Live traffic", [plan.traffic.loses, plan.traffic.load]),
        _numbered("Steps", _steps(plan.steps)),
        _numbered("Checks", [_check(check) for check in plan.checks]),
        _list("Kept only if all of this is shown; a breach or a silence takes it back", list(map(rule, plan.criteria))),
        shown("\nEdit", style="bold"),
        Syntax(_CONTROL.sub("\ufffd", plan.diff), "diff", background_color="default", word_wrap=True),
        shown(plan.edit_proof, style="dim"),
    ]
    title = f"plan {plan.run}   digest {plan.digest[:12]}"
    return Panel(Group(*parts), title=title, border_style=_RISK[plan.risk.level], padding=(0, 2))


def _steps(steps: Sequence[Step]) -> list[str]:
    """The steps in order; of the pairs, which are all alike, the first is shown and the others are counted."""
    told = [f"{step.what}  [undo: {step.undo or 'none'}]" for step in steps]
    pairs = [place for place, step in enumerate(steps) if step.action == "restore_script"]
    if len(pairs) < 2:
        return told
    first, second = pairs[:2]
    again = f"steps {first + 1} to {second} again, up to {len(pairs)} times in all, while it is not settled"
    return [*told[:second], again]


def forecast_table(forecast: Forecast, *, whole: bool = False) -> Group:
    """The forecast against the headroom: the figures that move, or all of them."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("Forecast")
    table.add_column("now", justify="right")
    table.add_column("then", justify="right")
    table.add_column("rests on", overflow="fold")
    still = []
    for row in forecast.rows:
        then = row.then
        if not whole and row.now is not None and _same(row.now, then.low) and _same(row.now, then.high):
            still.append(row.name)
            continue
        now = f"{row.now:g}" if row.now is not None else "?"
        span = f"{then.low:g}" if then.low == then.high else f"{then.low:g} to {then.high:g}"
        table.add_row(*map(shown, (row.name, now, f"{span} {then.unit}", then.basis)))
    style = {"fits": "green", "unsure": "yellow", "does not fit": "red"}[forecast.fits]
    lines: list[Any] = [shown(""), table, shown(f"{forecast.fits}: {forecast.why}", style=style)]
    if still:
        lines.append(shown(f"- as before: {', '.join(still)}"))
    sentences = forecast.queue if whole else forecast.queue[:2]
    return Group(*lines, *(shown(f"- {sentence}") for sentence in sentences))


def verdict_panel(verdict: Verdict, run: str) -> Panel:
    """The verdict with what decided and what to do next."""
    lines: list[Any] = [shown(verdict.why)]
    if verdict.findings:
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for finding in verdict.findings:
            style = {"met": "green", "breached": "red"}.get(finding.outcome, "yellow")
            mark = shown(finding.outcome.replace("_", " "), style=style)
            table.add_row(mark, shown(finding.criterion), shown(finding.says))
        lines += [shown(""), table]
    if verdict.reopen_when:
        lines.append(shown(f"\nMay be tried again when: {verdict.reopen_when}"))
    if verdict.choices:
        lines.append(shown("\nDid you mean:"))
        lines += [shown(f"  - {choice}") for choice in verdict.choices]
    if verdict.remedy:
        lines.append(shown(f"\nWhat to do: {verdict.remedy}"))
    title = f"{verdict.decision.replace('_', ' ')}, worker {verdict.state}"
    colour = _COLOURS[verdict.decision]
    return Panel(Group(*lines), title=title, subtitle=f"run {run}", border_style=colour, padding=(1, 2))


def record_view(record: Record, kept_hash: str) -> Group:
    """A whole record: what was asked, seen, planned, done, measured and decided.

    Its hash is the one that the store keeps: computed again, it would change as soon as a noun gets a field.
    """
    lines: list[Any] = [
        shown(f"run {record.run}   record {record.seq}   {record.at:%Y-%m-%d %H:%M:%S} UTC", style="bold"),
        shown(f"{record.request.by} asked through {record.request.door}: {record.request.text!r}"),
        shown(f"hash {kept_hash[:16]}  after {record.previous[:16]}", style="dim"),
    ]
    if record.plan is not None:
        lines += [shown(""), plan_card(record.plan, whole=True)]
    if record.evidence:
        lines.append(_list("Evidence", [_fact_line(fact) for fact in record.evidence]))
    if record.approval is not None:
        said = record.approval
        lines.append(
            _list("Decision of a person", [f"{said.decision} by {said.by} through {said.door}, {said.at:%H:%M:%S} UTC"])
        )
    if record.execution is not None:
        journal = [f"{e.event} {e.step or ''} by {e.by}" for e in record.execution.journal]
        lines.append(_numbered(f"Journal of the host: {record.execution.state}", journal))
    if record.readings:
        lines.append(_list("Readings", [reading_line(reading) for reading in record.readings]))
    if record.notes:
        lines.append(_list("Notes", list(record.notes)))
    if record.origin is not None:
        lines.append(_list("Not known", list(record.origin.unsure)))
    return Group(*lines, shown(""), verdict_panel(record.verdict, record.run))


def reading_line(reading: Reading) -> str:
    """One reading in words."""
    at = f" at {reading.concurrency}" if reading.concurrency is not None else ""
    known = reading.value is not None
    value = f"{reading.value:.4g} {reading.unit}".strip() if known else f"no data: {reading.no_data}"
    told = f"  ({reading.detail})" if reading.detail else ""
    start = f" (start {reading.boot})" if reading.boot > 1 else ""
    return f"{reading.phase}{start} {reading.metric}{at}: {value}, n {reading.n}{told}"


def _fact_line(fact: Evidence) -> str:
    mark = " [claimed]" if fact.claimed else ""
    return f"{fact.id}{mark} {fact.what}  ({fact.source})"


def _facts(plan: Plan) -> Group:
    lines = [shown(f"{plan.worker} on {plan.host}: {plan.change.summary}", style="bold")]
    lines.append(shown(f"risk {plan.risk.level}: {plan.risk.summary}", style=_RISK[plan.risk.level]))
    if plan.risk.instead_of:
        lines.append(shown(f"(assessed by the rules instead of {plan.risk.instead_of})", style="dim"))
    lines.append(shown(f"If the agent falls silent for {plan.watchdog_seconds:.0f} s, the host takes the change back."))
    return Group(*lines)


def _precedents(plan: Plan, *, whole: bool) -> Group:
    """What happened before: the live ones with their lesson, the others counted."""
    live = [p for p in plan.precedents if whole or (p.demands and "not live here" not in p.why)]
    rest = len(plan.precedents) - len(live)
    lines = [_precedent(precedent) for precedent in live]
    if rest:
        lines.append(f"{rest} more that are not live here or demand nothing: prudent show {plan.run}")
    return _list("What happened before", lines)


def _precedent(precedent: Precedent) -> str:
    """What happened in one sentence, why it counts, and what to learn from it."""
    title = precedent.what.partition(". ")[0].rstrip(".")
    lesson = f"\n  lesson: {precedent.lesson}" if precedent.lesson else ""
    return f"{title}.  [{precedent.id}]\n  counts because: {precedent.why}{lesson}"


def _check(check: Check) -> str:
    what = {
        "sessions": f"{check.count} tool-call sessions with known answers",
        "throughput": f"throughput, {check.count} runs of {check.tokens} tokens a stream",
        "aborts": f"abort storms, {check.count} streams each",
    }[check.name]
    return f"{what}, at {_join(check.concurrency)} in flight"


def _same(one: float, other: float) -> bool:
    """Equal as far as the engines' logs say figures: to a hundredth, or a hundredth part."""
    return abs(one - other) <= max(0.01, 0.01 * abs(one))


def _way(what: str, because: tuple[str, ...], caught_by: str) -> str:
    return f"{what}  (rests on {', '.join(because)}; caught by {caught_by})"


def _list(title: str, lines: list[str]) -> Group:
    return Group(shown(f"\n{title}", style="bold"), *(shown(f"- {line}") for line in lines))


def _numbered(title: str, lines: list[str]) -> Group:
    return Group(shown(f"\n{title}", style="bold"), *(shown(f"{n}. {line}") for n, line in enumerate(lines, start=1)))


def _join(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
