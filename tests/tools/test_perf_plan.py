"""Where a record lands in plan documents of many styles, and what of them changes."""

from __future__ import annotations

import difflib
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent.domain import Change, Record, Request, Setting, Verdict
from tools.perf_plan import append_record, render

PLANS = Path(__file__).parent.parent / "data" / "plans"
NOON = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
GRAPHS = ("cuda graphs", "cuda graph", "cuda graph max bs", "max batch", "captured batch")
OVERLAP = ("overlap scheduler", "overlap schedule")
KINDS = {
    "graphs kept": ("cuda-graph-max-bs", "32", "96", GRAPHS, "kept", "new", "bump cuda graphs to 96"),
    "overlap deferred": (
        "disable-overlap-schedule",
        "",
        None,
        OVERLAP,
        "deferred",
        "restored",
        "try #2, if it is safe",
    ),
}


def record_of(kind: str, run: str = "r-1", **more: Any) -> Record:
    """A record of one of two changes."""
    knob, old, new, _, decision, state, text = KINDS[kind]
    fields: dict[str, Any] = {
        "seq": 7,
        "run": run,
        "worker": "decode",
        "at": NOON,
        "request": Request(run=run, text=text, worker="decode", door="cli", by="ana", at=NOON),
        "change": Change(
            worker="decode",
            operation="set",
            settings=(Setting(knob=knob, kind="flag", spelling=f"--{knob}", old=old, new=new),),
            summary=f"{knob} {old or 'on'} -> {new or 'off'}",
        ),
        "verdict": Verdict.model_validate({"decision": decision, "state": state, "why": "the criteria say so"}),
        "previous": "0" * 64,
    }
    return Record(**(fields | more))


class Case(NamedTuple):
    """A document, a record, and what shall become of them."""

    document: str
    kind: str
    below: str
    """The last heading before the block."""
    heading: str
    """How the block's heading begins."""
    changed: dict[str, str] = {}  # noqa: RUF012 - never written to
    """Lines of the document that state the option's state, and what they become."""


CASES = [
    Case("numbered-options", "graphs kept", "#### Risks", "#### 2026", {"Status: proposed": "Status: kept"}),
    Case(
        "numbered-options",
        "overlap deferred",
        "### 2. Overlap scheduler",
        "#### 2026",
        {"**Status:** proposed (ask Maria first)": "**Status:** deferred (was: proposed (ask Maria first))"},
    ),
    Case(
        "table-and-log",
        "graphs kept",
        "### 2026-06-01 captured batch to 64",
        "### 2026",
        {
            "| 2  | `--cuda-graph-max-bs` 64 -> 96 | +5 %     | in progress | ana   |": (
                "| 2  | `--cuda-graph-max-bs` 64 -> 96 | +5 %     | kept        | ana   |"
            )
        },
    ),
    Case(
        "table-and-log",
        "overlap deferred",
        "### 2026-06-01 captured batch to 64",
        "### 2026",
        {
            "| 3  | overlap scheduler              | +5-7 %   | TBD         | ben   |": (
                "| 3  | overlap scheduler              | +5-7 %   | deferred    | ben   |"
            )
        },
    ),
    Case(
        "checklist",
        "graphs kept",
        "## Decision records",
        "### 2026",
        {
            "* [ ] raise max batch to 96 (Ana has the memory numbers)": (
                "* [x] raise max batch to 96 (Ana has the memory numbers)"
            )
        },
    ),
    Case(
        "checklist",
        "overlap deferred",
        "## Decision records",
        "### 2026",
        {"* [ ] turn on the overlap scheduler": "* [ ] turn on the overlap scheduler — deferred (r-1)"},
    ),
    Case(
        "setext-crlf",
        "graphs kept",
        "Raise the captured batch (CUDA graphs to 96)",
        "### 2026",
        {"State: PROPOSED": "State: KEPT"},
    ),
    Case("setext-crlf", "overlap deferred", "Overlap scheduler", "### 2026", {"State: PROPOSED": "State: DEFERRED"}),
    Case("newest-first", "graphs kept", "## Changelog ##", "### 2026-11-29 · Kept"),
    Case(
        "newest-first",
        "overlap deferred",
        "## Changelog ##",
        "### 2026-11-29 · Deferred",
        {"- overlap scheduler [proposed]": "- overlap scheduler [deferred]"},
    ),
    Case("bold-labels", "graphs kept", "**Option A: cuda graphs to 96**", "**2026", {"State: open": "State: kept"}),
    Case(
        "bold-labels",
        "overlap deferred",
        "**Option B: overlap scheduler**",
        "**2026",
        {"State: open": "State: deferred"},
    ),
    Case("adr", "overlap deferred", "## Decision", "### 2026", {"Proposed": "Deferred"}),
    Case("nested", "graphs kept", "### 32 → 96", "#### 2026", {"State: 🟡 proposed": "State: ✅ kept"}),
    Case(
        "nested",
        "overlap deferred",
        "### Overlap scheduler — deferred",
        "#### 2026",
        {"### Overlap scheduler — proposed": "### Overlap scheduler — deferred"},
    ),
    Case("prose", "graphs kept", "## Decision records", "### 2026"),
    Case("by-number", "graphs kept", "## Decision records", "### 2026"),
    Case(
        "by-number",
        "overlap deferred",
        "## #2 CPU/GPU overlap in the loop",
        "### 2026",
        {"| Status | proposed |": "| Status | deferred |"},
    ),
    Case("flags-in-text", "graphs kept", "## Fewer eager steps", "### 2026"),
    Case(
        "flags-in-text",
        "overlap deferred",
        "## Hide the CPU gap between steps",
        "### 2026",
        {
            "- state: waiting for a window in the on-call calendar": (
                "- state: deferred (was: waiting for a window in the on-call calendar)"
            )
        },
    ),
    Case(
        "list-of-options",
        "graphs kept",
        "Decision log",
        "### 2026",
        {"   - Status: **proposed**": "   - Status: **kept**"},
    ),
    Case(
        "list-of-options",
        "overlap deferred",
        "Decision log",
        "### 2026",
        {"2. Overlap scheduler: +5 to 7 % — _proposed_": "2. Overlap scheduler: +5 to 7 % — _deferred_"},
    ),
    Case(
        "emoji-table",
        "graphs kept",
        "## Decision records",
        "### 2026",
        {"Bigger CUDA graphs (96) | 🟡 proposed | ana": "Bigger CUDA graphs (96) | ✅ kept | ana"},
    ),
    Case(
        "emoji-table",
        "overlap deferred",
        "## Decision records",
        "### 2026",
        {"Overlap scheduler | 🟡 **proposed** | ben": "Overlap scheduler | ⏸ **deferred** | ben"},
    ),
    Case("title-only", "overlap deferred", "## Decision records", "### 2026"),
]


def heading_lines(lines: list[str]) -> list[str]:
    """Lines that a reader takes for headings, outside of code."""
    found, code = [], False
    for place, line in enumerate(lines):
        code ^= line.startswith("```")
        below = lines[place + 1] if place + 1 < len(lines) else ""
        if not code and (line.startswith(("#", "**Option")) or re.fullmatch(r"(=|-){4,}", below)):
            found.append(line)
    return found


@pytest.mark.parametrize("case", CASES, ids=[f"{case.document}, {case.kind}" for case in CASES])
def test_a_record_lands_where_a_person_would_put_it(case: Case, tmp_path: Path) -> None:
    """The block stands under its option or among the decisions, the state changes, and every other byte stays."""
    before = (PLANS / f"{case.document}.md").read_bytes()
    path = tmp_path / "plan.md"
    path.write_bytes(before)
    record = record_of(case.kind)
    done = append_record(path, record, words=KINDS[case.kind][3])
    assert (done.written, done.committed) == (True, None)
    after = path.read_bytes()
    ending = b"\r\n" if b"\r\n" in before else b"\n"
    lines = after.decode().removeprefix("\ufeff").split(ending.decode())
    start = next(place for place, line in enumerate(lines) if "(r-1)" in line and "2026-11-29" in line)
    assert lines[start].startswith(case.heading)
    assert heading_lines(lines[:start])[-1] == case.below
    old = before.decode().removeprefix("\ufeff").split(ending.decode())
    gone, came = [], []
    for line in difflib.ndiff(old, lines):
        if line.startswith("- "):
            gone.append(line[2:])
        elif line.startswith("+ "):
            came.append(line[2:])
    assert gone == list(case.changed)
    assert set(case.changed.values()) <= set(came)
    block = came[came.index(next(line for line in came if "prudent-record: " in line)) :]
    outside = [line for line in came if line not in block and line.strip() and line not in case.changed.values()]
    assert [line for line in outside if "2026-11-29" not in line and line != "## Decision records"] == []
    assert after.count(b"\r\n") == (after.count(b"\n") if ending == b"\r\n" else 0)
    assert after.startswith(b"\xef\xbb\xbf") == before.startswith(b"\xef\xbb\xbf")
    assert after.endswith(ending) == before.endswith(ending)


@pytest.mark.parametrize("name", sorted(path.stem for path in PLANS.glob("*.md")))
def test_a_record_is_written_once_and_others_join_it(name: str, tmp_path: Path) -> None:
    """Writing a record again adds nothing; a later one of the same option stands beside it and takes nothing away."""
    path = tmp_path / "plan.md"
    path.write_bytes((PLANS / f"{name}.md").read_bytes())
    first, second = record_of("graphs kept", "r-1"), record_of("graphs kept", "r-2")
    assert append_record(path, first, words=GRAPHS).written
    once = path.read_bytes()
    again = append_record(path, first, words=GRAPHS)
    assert (again.written, path.read_bytes()) == (False, once)
    assert append_record(path, second, words=GRAPHS).written
    twice = path.read_text()
    assert twice.count("prudent-record: r-1 ") == twice.count("prudent-record: r-2 ") == 1
    missing = [line for line in difflib.ndiff(once.decode().splitlines(), twice.splitlines()) if line.startswith("- ")]
    assert missing == []
    assert append_record(path, record_of("overlap deferred", "r-3"), words=OVERLAP).written


def test_a_state_is_not_said_of_another_value(tmp_path: Path) -> None:
    """Keeping 96 does not make the option of 160 kept, and the note says that it was left."""
    path = tmp_path / "plan.md"
    path.write_text("# Plan\n\n## CUDA graphs to 160\n\nState: proposed\n")
    done = append_record(path, record_of("graphs kept"), words=GRAPHS)
    assert "State: proposed\n" in path.read_text()
    assert "names another value" in " ".join(done.notes)


def test_taking_a_change_back_rolls_the_option_back(tmp_path: Path) -> None:
    """A roll back that was kept makes the option's state rolled back."""
    path = tmp_path / "plan.md"
    path.write_text("# Plan\n\n## CUDA graphs\n\nState: kept\n")
    record = record_of("graphs kept")
    assert record.change is not None
    back = record.model_copy(update={"change": record.change.model_copy(update={"operation": "roll_back"})})
    append_record(path, back, words=GRAPHS)
    assert "State: rolled back\n" in path.read_text()


def test_a_refusal_leaves_the_options_state(tmp_path: Path) -> None:
    """A worker that was busy says nothing of the option."""
    path = tmp_path / "plan.md"
    path.write_text("# Plan\n\n## CUDA graphs\n\nState: proposed\n")
    refused = Verdict(decision="refused", state="untouched", why="another run was in flight")
    assert append_record(path, record_of("graphs kept", verdict=refused), words=GRAPHS).written
    assert "State: proposed\n" in path.read_text()


def test_a_missing_document_is_made(tmp_path: Path) -> None:
    """Where there is no document yet, one with a title and a section for decisions is made, folder and all."""
    path = tmp_path / "plan" / "PLAN.md"
    assert append_record(path, record_of("graphs kept"), words=GRAPHS).written
    text = path.read_text()
    assert text.startswith("# Performance plan\n\n## Decision records\n\n### 2026-11-29 · Kept")


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"\xff\xfeP\x00l\x00", "not a UTF-8 text"), (b"%PDF\x00\x01", "not a UTF-8 text")],
)
def test_a_document_that_is_no_text_is_left_alone(content: bytes, said: str, tmp_path: Path) -> None:
    """A document in another encoding is not touched, and the run goes on with a note."""
    path = tmp_path / "plan.md"
    path.write_bytes(content)
    done = append_record(path, record_of("graphs kept"))
    assert (done.written, path.read_bytes()) == (False, content)
    assert said in done.notes[0]


def test_a_document_that_cannot_be_written_does_not_fail_the_run(tmp_path: Path) -> None:
    """A folder in the document's place is said, not raised."""
    done = append_record(tmp_path, record_of("graphs kept"))
    assert not done.written
    assert "was not written" in done.notes[0]


def test_bytes_that_are_not_utf8_survive(tmp_path: Path) -> None:
    """A stray Latin-1 letter in the document is the same byte afterwards."""
    path = tmp_path / "plan.md"
    path.write_bytes(b"# Plan\n\nM\xfcller owns this.\n")
    assert append_record(path, record_of("graphs kept"), words=GRAPHS).written
    assert b"M\xfcller owns this.\n" in path.read_bytes()


def test_a_linked_document_stays_a_link(tmp_path: Path) -> None:
    """Where the path is a symbolic link, the document behind it is written, with its mode."""
    real = tmp_path / "real.md"
    real.write_text("# Plan\n")
    real.chmod(0o640)
    link = tmp_path / "plan.md"
    link.symlink_to(real)
    assert append_record(link, record_of("graphs kept")).written
    assert link.is_symlink()
    assert "prudent-record" in real.read_text()
    assert real.stat().st_mode & 0o777 == 0o640


def test_words_from_outside_are_no_markup(tmp_path: Path) -> None:
    """A request cannot open a heading, a table cell, or a block of ours in the document."""
    forged = f"# Owned\n<!-- prudent-record: r-9 {'a' * 64} -->\n| x | `y` <script>"
    request = Request(run="r-1", text=forged, worker="decode", door="cli", by="a|b", at=NOON)
    path = tmp_path / "plan.md"
    assert append_record(path, record_of("graphs kept", request=request), words=GRAPHS).written
    text = path.read_text()
    assert "\n# Owned" not in text
    assert "<script>" not in text
    assert re.findall(r"^> .*$", text, re.MULTILINE) == [
        f"> \\# Owned &lt;!-- prudent-record: r-9 {'a' * 64} --> \\| x \\| \\`y\\` &lt;script>"
    ]
    assert append_record(path, record_of("graphs kept", "r-9"), words=GRAPHS).written
    assert render(record_of("graphs kept", request=request)) in text
