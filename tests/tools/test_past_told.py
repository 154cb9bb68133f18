"""The time before us as documents and logs tell of it, and several sources that tell of one change."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.domain import Origin, Record, Setting
from agent.errors import BadSettings
from tools.past.change import NO_AUTHOR, NO_BEFORE, NO_DATE, NO_OUTCOME, PastChange, record_of
from tools.past.once import known_as, told_once
from tools.past.source import read_sources
from tools.past.versions import Subject
from tools.plan_entry import with_record

DATA = Path(__file__).parent.parent / "data"
RECORDINGS = DATA / "recordings" / "sglang-0.5.14-h200"
DECODE = Subject(script="serve_decode.sh", engine="sglang", launch=None)
NOW = datetime(2026, 11, 29, tzinfo=UTC)


def document(folder: Path, text: str):
    """What a plan document tells."""
    path = folder / "plan.md"
    path.write_text(text)
    return read_sources([path], DECODE, given=True)


def change(kind: str, old: str | None, new: str | None, at: str | None = None, **more: object) -> PastChange:
    """A change of the captured batch as some source tells it."""
    setting = Setting(knob="cuda-graph-max-bs", kind="flag", spelling="--cuda-graph-max-bs", old=old, new=new)
    origin = Origin.model_validate(
        {
            "kind": kind,
            "sources": (f"a {kind}",),
            "at": at and datetime.fromisoformat(f"{at}T00:00:00+00:00"),
            "unsure": (NO_OUTCOME, *(() if at else (NO_DATE,))),
            **more,
        }
    )
    return PastChange(f"{kind} {old} {new} {at}", origin, (setting,), "")


def test_a_decision_log_tells_what_was_done_and_what_was_said_of_it(tmp_path):
    """Sections, items and rows with dates become changes with their line; what is only proposed does not."""
    read = document(
        tmp_path,
        "# Decode\n\n## Options\n\n- cuda graphs 96 [proposed]\n\n## Decision log\n\n"
        "### 2026-06-01: cuda graphs 32 -> 64\n\nBy: Ana\n\nKept. 657 tok/s at 64.\n\n---\n\n"
        "### 3 July 2026: overlap scheduler on\n\nRolled back, the abort storm hung it.\n\n"
        "### 2026-08-01: chunked prefill\n\nSet to 8192, rolled back.\n\n"
        "### 2026-09-01: new fans\n\nKept.\n",
    )

    assert [(str(c.origin.at)[:10], c.summary, c.origin.outcome) for c in read.changes] == [
        ("2026-06-01", "cuda-graph-max-bs 32 -> 64", "By: Ana\n\nKept. 657 tok/s at 64."),
        ("2026-07-03", "disable-overlap-schedule set -> not set", "Rolled back, the abort storm hung it."),
        ("2026-08-01", "chunked-prefill-size not known -> 8192", "Set to 8192, rolled back."),
        ("2026-09-01", "2026-09-01: new fans Kept.", "Kept."),
    ]
    first, _, third, last = read.changes
    assert (first.origin.by, first.origin.sources) == ("Ana", ("plan.md, line 9",))
    assert any("somebody's word" in doubt for doubt in first.origin.unsure)
    assert NO_BEFORE in third.origin.unsure
    assert "It names no setting that Prudent knows." in last.origin.unsure
    assert "1 of 1 options were not tried" in read.left_out[0]


def test_a_list_and_a_table_are_decision_logs_too(tmp_path):
    """Items and rows with a date are entries, each with its own line."""
    read = document(
        tmp_path,
        "# Log\n\n- 2026-05-01 cuda graphs 16 -> 32, kept\n- 2026-05-09 page size to 64: reverted\n\n# History\n\n"
        "| when | what | result |\n|---|---|---|\n| 2026-06-02 | `--max-running-requests` 48 -> 64 | kept |\n",
    )

    assert [(c.origin.sources[0], c.summary) for c in read.changes] == [
        ("plan.md, line 3", "cuda-graph-max-bs 16 -> 32"),
        ("plan.md, line 4", "page-size not known -> 64"),
        ("plan.md, line 10", "max-running-requests 48 -> 64"),
    ]


def test_an_option_that_was_deferred_brings_its_condition(tmp_path):
    """A state that says that something happened is imported, with what it waits for in its own words."""
    read = document(
        tmp_path,
        "# Plan\n\n## Options\n\n### 1. Overlap scheduler on\n\nStatus: deferred until the abort fix is in\n\n"
        "### 2. CUDA graphs 32 -> 96\n\nStatus: proposed\n",
    )

    (only,) = read.changes
    assert only.summary == "disable-overlap-schedule set -> not set"
    assert only.reopen_when == "until the abort fix is in"
    assert {NO_DATE, NO_AUTHOR} <= set(only.origin.unsure)


def test_records_of_ours_are_not_imported_again(tmp_path):
    """What Prudent itself wrote into a decision log is in the store, and is passed over."""
    theirs = "# Plan\n\n## Decision log\n\n### 2026-05-01: page size to 64\n\nKept.\n"
    ours = record_of(change("git", "32", "64", "2026-06-01"), worker="decode", imported_by="ana", now=NOW)
    written = with_record(theirs, ours, ("cuda graphs",))

    assert written is not None
    assert ours.run in written.text
    assert [one.summary for one in document(tmp_path, written.text).changes] == ["page-size not known -> 64"]


def test_a_document_without_a_past_says_so():
    """Prose about ideas is no history."""
    read = read_sources([DATA / "plans" / "prose.md"], DECODE, given=True)
    assert read.changes == ()
    assert "no decision log" in read.left_out[0]


def test_a_log_tells_what_the_starts_were_given(tmp_path):
    """Two real starts of an engine, one after the other, differ by what was changed between them."""
    log = tmp_path / "worker.log"
    log.write_bytes(b"".join((RECORDINGS / run / "startup.log").read_bytes() for run in ("q_bs32", "q_bs96")))

    read = read_sources([log], DECODE, given=True)

    (only,) = read.changes
    assert {s.knob: (s.old, s.new) for s in only.settings}["cuda-graph-max-bs"] == ("32", "96")
    assert only.origin.outcome is not None
    assert only.origin.outcome.startswith("the start came up")
    assert any("may follow from another" in doubt for doubt in only.origin.unsure)


def test_a_start_that_failed_is_told_as_one(tmp_path):
    """A start that did not come up is a change all the same, and says how it ended."""
    log = tmp_path / "worker.log"
    log.write_bytes(b"".join((RECORDINGS / run / "startup.log").read_bytes() for run in ("q_bs32", "q_oom_mf999")))

    read = read_sources([log], DECODE, given=True)

    assert [change.origin.outcome for change in read.changes] == ["the start did not come up, by its log"]
    assert "mem-fraction-static" in {setting.knob for setting in read.changes[0].settings}


def test_a_file_that_is_nothing_of_all_that_is_refused(tmp_path):
    """A file that is no document, no script and no log is a mistake with a remedy."""
    (tmp_path / "notes.txt").write_text("hello\n")
    with pytest.raises(BadSettings, match=r"no log of sglang in which it starts.*--script"):
        read_sources([tmp_path / "notes.txt"], DECODE, given=True)


def test_one_change_that_several_sources_tell_of_is_one():
    """Git dates it, the document says what came of it, and both are named; far apart they are two."""
    commit = change("git", "32", "64", "2026-06-01", by="Ana")
    entry = change("plan", None, "64", "2026-06-02", outcome="kept")._replace(from_known=False)
    later = change("plan", None, "64", "2026-09-02", outcome="kept")._replace(from_known=False)

    one, two = told_once([later, entry, commit])

    assert (one.summary, one.origin.sources, one.origin.outcome) == (
        "cuda-graph-max-bs 32 -> 64",
        ("a git", "a plan"),
        "kept",
    )
    assert one.origin.at == commit.origin.at
    assert NO_OUTCOME not in one.origin.unsure
    assert two.origin.sources == ("a plan",)


def test_what_was_taken_back_later_is_told_so():
    """The sources show that it was, and never why."""
    first, second = told_once([change("git", "32", "96", "2026-06-01"), change("git", "96", "32", "2026-06-04")])

    assert first.origin.outcome == "taken back on 2026-06-04, by a git"
    assert any(doubt.startswith("Why it was taken back") for doubt in first.origin.unsure)
    assert second.origin.outcome is None


def test_a_record_of_an_import_claims_nothing():
    """It is marked, its facts are claims of outside text, and it holds no reading, plan, approval or execution."""
    record = record_of(change("git", "32", "64", "2026-06-01"), worker="decode", imported_by="ana", now=NOW)

    assert (record.verdict.decision, record.verdict.state) == ("imported", "unknown")
    assert all(fact.claimed and fact.tainted for fact in record.evidence)
    assert (record.readings, record.plan, record.approval, record.execution) == ((), None, None, None)
    assert record.origin is not None
    assert record.at == NOW
    assert record.origin.at == datetime(2026, 6, 1, tzinfo=UTC)


def test_what_another_source_told_before_is_known():
    """A document that tells of an imported commit adds nothing; another commit with the same values does."""
    before = record_of(change("git", "32", "64", "2026-06-01"), worker="decode", imported_by="ana", now=NOW)
    entry, commit = change("plan", None, "64", None), change("git", "32", "64", "2026-06-02")

    assert known_as([entry, commit], [before], "decode") == {entry.key: before.run}


VLLM = """\
(APIServer pid=1) INFO {day} 23:59:20 [api_utils.py:299] vLLM API server version {version}
(APIServer pid=1) INFO {day} 23:59:20 [api_utils.py:273] non-default args: {{{args}, 'api_key': ['sesame']}}
(EngineCore pid=2) INFO {day} 23:59:30 [core.py:115] Initializing a V1 LLM engine (v{version}) with config: model='/m'
"""


def test_a_log_without_a_year_does_not_get_one(tmp_path):
    """The log of vLLM says day and month only: the date is not known, an upgrade is told, and no secret is."""
    log = tmp_path / "worker.log"
    log.write_text(
        VLLM.format(day="03-01", version="0.23.0", args="'max_num_seqs': 64, 'enable_prefix_caching': False")
        + VLLM.format(day="03-02", version="0.24.0", args="'max_num_seqs': 128")
        + VLLM.format(day="03-03", version="0.24.1", args="'max_num_seqs': 128")
    )

    first, second = read_sources([log], Subject("serve.sh", "vllm", None), given=True).changes

    assert {s.knob: (s.old, s.new) for s in first.settings} == {
        "enable-prefix-caching": ("off", "on"),
        "max-num-seqs": ("64", "128"),
    }
    assert (first.origin.at, second.origin.at) == (None, None)
    assert "03-02 23:59:20" in first.origin.sources[0]
    assert (first.words, second.summary) == ("engine version 0.23.0 -> 0.24.0", "engine version 0.24.0 -> 0.24.1")
    assert any("its defaults alone" in doubt for doubt in first.origin.unsure)
    assert "sesame" not in str((first, second))


def test_no_document_can_stop_the_reading(tmp_path):
    """Whatever pieces a document is put together from, it is read, and what comes out can be kept."""
    pieces = (
        "# Log", "## Decision log", "### 2026-13-40: cuda graphs 1 -> 2", "- 2026-05-01", "| 2026-05-01 |", "---", "",
        "Status: deferred until", "cuda graphs -> ", "> quoted", "```", "**Outcome**", "1. 30 Feb 2026 page size to 64",
        "<!--", "By:", "\x00\x1b[2J", "Kept.", "deferred until the moon is full", "===", "overlap scheduler on off",
    )  # fmt: skip
    chance = random.Random(7)
    for _ in range(200):
        text = "\n".join(chance.choice(pieces) for _ in range(chance.randrange(1, 14)))
        for one in told_once(document(tmp_path, text).changes):
            record = record_of(one, worker="decode", imported_by="ana", now=NOW)
            assert Record.model_validate_json(record.model_dump_json()) == record
