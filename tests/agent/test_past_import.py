"""The past through the command line: shown first, kept on demand, once, marked, and never a proof."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.domain import Change, Setting
from memory.precedents import precedents_for
from memory.sqlite import SqliteStore
from tools.engines.catalogue import knobs

HISTORY = Path(__file__).parent.parent / "data" / "memory" / "first-version.sqlite"
"""Both seed stories: the captured batch, which was kept, and the overlap scheduler, which was deferred."""
SETTINGS = """
[workers.decode]
host = "local"
engine = "sglang"
script = "srv/serve_decode.sh"
log = "srv/worker.log"
control = "http://127.0.0.1:9"
plan = "plan.md"
[workers.decode.service]
kind = "command"
restart = ["false"]
pid = ["false"]
"""
SCRIPT = "#!/bin/bash\nexec python3 -m sglang.launch_server --model-path /m --cuda-graph-max-bs {}\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A worker that was there before Prudent: its script, three backups and a plan document."""
    (tmp_path / "prudent.toml").write_text(SETTINGS)
    (tmp_path / "srv").mkdir()
    for name, batch in (("bak-20260601", 8), ("bak-20260610", 16), ("bak-20260620", 24)):
        (tmp_path / "srv" / f"serve_decode.sh.{name}").write_text(SCRIPT.format(batch))
    (tmp_path / "srv" / "serve_decode.sh").write_text(SCRIPT.format(24))
    (tmp_path / "plan.md").write_text(
        "# Plan\n\n## Decision log\n\n### 2026-06-02: cuda graphs 8 -> 16\n\nKept, +12 % at 16.\n"
    )
    return tmp_path


def prudent(place: Path, *argv: str) -> tuple[int, str]:
    """Run a command there; its status and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "agent.doors", *argv],
        env={**os.environ, "PRUDENT_SETTINGS": str(place / "prudent.toml"), "COLUMNS": "110"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def document(place: Path, *argv: str) -> Any:
    """The JSON of a command that has to succeed."""
    status, said = prudent(place, *argv, "--json")
    assert status == 0, said
    return json.loads(said)


def test_the_past_is_shown_first_and_kept_on_demand_once(place):
    """Without --write nothing is kept; with it each change once, whatever path it is read from again."""
    dry = document(place, "history", "import")
    assert [change["what"] for change in dry["changes"]] == ["cuda-graph-max-bs 8 -> 16", "cuda-graph-max-bs 16 -> 24"]
    assert len(dry["changes"][0]["sources"]) == 2
    assert (dry["written"], document(place, "history")["records"]) == ([], [])

    status, said = prudent(place, "history", "import", "--write")
    assert (status, "2 kept for worker decode, as imported and unproven" in said) == (0, True), said

    again = document(place, "history", "import", "--write")
    document_alone = document(place, "history", "import", str(place / "plan.md"), "--write")
    folder_alone = document(place, "history", "import", str(place / "srv"), "--write")
    assert [again["written"], document_alone["written"], folder_alone["written"]] == [[], [], []]
    assert len(document(place, "history")["records"]) == 2


def test_what_was_imported_is_marked_wherever_it_shows(place):
    """In the history, in the record and in a precedent; the chain holds, and no verdict is claimed."""
    document(place, "history", "import", "--write")

    _, listed = prudent(place, "history")
    assert listed.count("imported, unproven") == 2
    assert "2026-06-10" in listed
    records = document(place, "history")["records"]
    _, shown = prudent(place, "show", records[-1]["run"])
    assert "unproven" in shown
    assert "Who changed it is not known." in shown
    status, verified = prudent(place, "verify", "--all")
    assert (status, "The chain of 2 records holds." in verified) == (0, True), verified
    assert {record["verdict"]["decision"] for record in records} == {"imported"}


def test_a_later_change_meets_what_was_imported_and_what_was_proven_first(place):
    """The same knob's imported change is a precedent that says so and demands nothing; a proven one outranks it."""
    (place / ".prudent").mkdir()
    shutil.copy(HISTORY, place / ".prudent" / "prudent.sqlite")
    document(place, "history", "import", "--write")
    setting = Setting(knob="cuda-graph-max-bs", kind="flag", spelling="--cuda-graph-max-bs", old="96", new="128")
    change = Change(worker="decode", operation="set", settings=(setting,), summary="cuda-graph-max-bs 96 -> 128")

    store = SqliteStore(place / ".prudent" / "prudent.sqlite")
    found = precedents_for(
        change,
        knobs=knobs("sglang"),
        history=store,
        incidents=(),
        engine="sglang",
        version="0.5.14",
        settings_in_force={"cuda-graph-max-bs": "96"},
    )
    store.close()

    imported = [one for one in found if "imported, unproven" in one.why]
    proven = [place for place, one in enumerate(found) if one.id.startswith("r-") and "same knob" in one.why]
    assert [one.at for one in imported] == ["2026-06-10", "2026-06-01"]
    assert all(one.demands == () and one.tainted for one in imported)
    assert proven
    assert max(proven) < found.index(imported[0])


def test_an_imported_change_makes_an_incident_whose_cause_is_unknown(place):
    """What an import does not say, whether it did harm, has to be said by whoever adds the incident."""
    run = document(place, "history", "import", "--write")["written"][0]
    assert prudent(place, "incident", "add", run)[0] == 38
    made = document(place, "incident", "add", run, "--outcome", "harmed", "--check", "soak")
    assert (made["certainty"], made["at"], made["signature"]) == ("unknown", "2026-06-01", [])


def test_a_run_of_ours_is_not_imported_as_somebodys_change(place):
    """What Prudent changed itself is recognised in the files by its values and its day, and left to its record."""
    (place / ".prudent").mkdir()
    shutil.copy(HISTORY, place / ".prudent" / "prudent.sqlite")
    ours = next(r for r in document(place, "history")["records"] if r["verdict"]["decision"] == "kept")
    day = ours["at"][:10]
    (place / "plan.md").write_text(f"# Plan\n\n## Log\n\n- {day} cuda graphs 32 -> 96, kept\n")

    read = document(place, "history", "import", str(place / "plan.md"))

    assert [change["run"] for change in read["known"]] == [ours["run"]]
    assert read["changes"] == []


def test_a_path_that_is_not_there_is_a_sentence_with_a_remedy(place):
    """A wrong path or worker ends with a code and no traceback."""
    status, said = prudent(place, "history", "import", str(place / "nowhere.md"))
    assert (status, "cannot be read" in said, "Traceback" in said) == (21, True, False), said
    assert prudent(place, "history", "import", "--worker", "other")[0] == 20
    shutil.rmtree(place / "srv")
    (place / "plan.md").unlink()
    status, said = prudent(place, "history", "import")
    assert (status, "Name what there is" in " ".join(said.split())) == (21, True), said


def test_an_import_hides_nothing_that_was_done_here(place):
    """However much was imported after our own runs, those stand at their own time, and so does what was imported."""
    (place / ".prudent").mkdir()
    shutil.copy(HISTORY, place / ".prudent" / "prudent.sqlite")
    for day in range(1, 29):
        (place / "srv" / f"serve_decode.sh.bak-202505{day:02}").write_text(SCRIPT.format(100 + day))
    document(place, "history", "import", "--write")

    listed = document(place, "history")["records"]

    assert len(listed) == 20
    assert [record["verdict"]["decision"] for record in listed[:2]] == ["deferred", "kept"]
    assert {record["verdict"]["decision"] for record in listed[2:]} == {"imported"}
    days = [record["origin"]["at"] for record in listed[2:]]
    assert days == sorted(days, reverse=True)
    store = SqliteStore(place / ".prudent" / "prudent.sqlite")
    ours, imported = store.records(limit=3), store.records(imported=True)
    store.close()
    assert [record.verdict.decision for record in ours] == ["deferred", "kept"]
    assert len(imported) == 30
