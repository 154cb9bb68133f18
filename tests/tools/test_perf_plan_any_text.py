"""Whatever people write in a plan document, a record adds to it and takes nothing away."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.domain import Change, Record, Request, Setting, Verdict
from tools.plan_entry import with_record

NOON = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
PIECES = st.sampled_from(
    [
        "# Plan", "## Overlap scheduler", "### CUDA graphs to 96 ###", "Title\n=====", "CUDA graphs\n---", "---", "***",
        "Status: proposed", "**State:** done (last week)", "State", "| # | Option | Status |", "|---|---|---|",
        "| 1 | cuda graphs 96 | open |", "| 2 | x |", "|", "- [ ] cuda graphs 96", "* [x] overlap scheduler — deferred",
        "1. cuda graphs (proposed)", "```", "~~~~", "<!--", "-->", "<!-- prudent-record: r-0 zz -->", "**cuda graphs**",
        "    indented", "\ttab", "> quote", "[1]: http://x", "", "", "\ufeff",
        "cuda graphs", "2026-11-29", "# ", "#", "=",
        "<!-- prudent-record end: r-9 -->", "Decisions\n---------", "## Decision log",
        "### 2026-10-01 x", "### 2026-12-01 y",
    ]
)  # fmt: skip
DOCUMENTS = st.tuples(
    st.lists(st.one_of(PIECES, st.text(max_size=12)), max_size=25), st.sampled_from(["\n", "\r\n"]), st.booleans()
).map(lambda parts: parts[1].join(part.replace("\n", parts[1]) for part in parts[0]) + parts[1] * parts[2])


def record_of(run: str) -> Record:
    """A record of a kept change."""
    setting = Setting(knob="cuda-graph-max-bs", kind="flag", spelling="--cuda-graph-max-bs", old="32", new="96")
    return Record(
        seq=1,
        run=run,
        worker="decode",
        at=NOON,
        request=Request(run=run, text="#1 please", worker="decode", door="cli", by="ana", at=NOON),
        change=Change(worker="decode", operation="set", settings=(setting,), summary="cuda-graph-max-bs 32 -> 96"),
        verdict=Verdict(decision="kept", state="new", why="every criterion is met"),
        previous="0" * 64,
    )


def only_adds(old: list[str], new: list[str], noted: set[int]) -> bool:
    """Whether the new lines are the old ones with one run of lines put in, but for the lines that were noted."""
    added = len(new) - len(old)
    return any(
        all(old[place] == new[place] or place in noted for place in range(cut))
        and all(old[place] == new[place + added] or place in noted for place in range(cut, len(old)))
        for cut in range(len(old) + 1)
    )


@settings(max_examples=300, deadline=None)
@given(DOCUMENTS)
def test_a_record_only_adds(text: str) -> None:
    """Every line stays in its place but for those that state the option's state, and the block is there once."""
    written = with_record(text, record_of("r-1"), ("cuda graphs",))
    assert written is not None
    noted = {int(found[1]) - 1 for note in written.notes if (found := re.match(r"state in line (\d+)", note))}
    ending = "\r\n" if re.search(r"prudent-record: r-1 \w+ -->\r\n", written.text) else "\n"
    missing = ending if text.strip("\ufeff") and not text.endswith("\n") else ""
    old, new = ((part.removeprefix("\ufeff") + missing).split("\n") for part in (text, written.text))
    assert only_adds(old, new, noted)
    assert written.text.startswith("\ufeff") == text.startswith("\ufeff")
    assert written.text.endswith("\n") == (text.endswith("\n") or not text.strip("\ufeff"))
    assert written.text.count("<!-- prudent-record: r-1 ") == 1
    assert with_record(written.text, record_of("r-1"), ("cuda graphs",)) is None
