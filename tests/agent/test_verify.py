"""Verifying records offline, as an operator would, on a history in which somebody has been busy."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from memory.sqlite import SqliteStore

HISTORY = Path(__file__).parent.parent / "data" / "memory" / "first-version.sqlite"
"""Both seed stories: the captured batch, which was kept, and the overlap scheduler, which was deferred."""
SETTINGS = """
[workers.decode]
host = "local"
engine = "sglang"
script = "serve.sh"
log = "worker.log"
control = "http://127.0.0.1:9"
[workers.decode.service]
kind = "command"
restart = ["false"]
pid = ["false"]
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with settings and a history, brought up to date, and no worker."""
    (tmp_path / "prudent.toml").write_text(SETTINGS)
    (tmp_path / ".prudent").mkdir()
    shutil.copy(HISTORY, tmp_path / ".prudent" / "prudent.sqlite")
    SqliteStore(tmp_path / ".prudent" / "prudent.sqlite").close()
    return tmp_path


def verify(place: Path, *argv: str) -> tuple[int, str]:
    """Verify there; the status and what was said."""
    return prudent(place, "verify", *argv)


def prudent(place: Path, *argv: str) -> tuple[int, str]:
    """Run a command there; its status and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "agent.doors", *argv],
        env={**os.environ, "PRUDENT_SETTINGS": str(place / "prudent.toml")},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def harm(place: Path, *statements: str) -> None:
    """Do something to the file behind Prudent's back, the hashes mended by whoever does it."""
    with closing(sqlite3.connect(place / ".prudent" / "prudent.sqlite")) as raw:
        raw.create_function("sha256", 1, lambda text: sha256(text.encode()).hexdigest())
        for statement in statements:
            raw.execute(statement)
        raw.commit()


def test_a_history_that_nobody_touched_holds(place: Path) -> None:
    """The chain holds, and both verdicts follow from their own readings; no worker is asked."""
    status, said = verify(place, "--all")
    assert status == 0, said
    assert "The chain of 2 records holds." in said
    assert "2 looked into, 2 with readings that were judged again, 0 in which" in said


@pytest.mark.parametrize(
    ("statement", "kind", "seq"),
    [
        ("UPDATE records SET document = replace(document, 'kept', 'lost') WHERE seq = 1", "edit", 1),
        ("DELETE FROM records WHERE seq = 1", "gap", 1),
        ("DELETE FROM records WHERE seq = 2", "end", 2),
        ("UPDATE records SET seq = 7 WHERE seq = 1", "gap", 1),
    ],
    ids=["an edit", "a gap", "a cut end", "a record moved"],
)
def test_what_was_done_to_the_chain_is_said_and_located(place: Path, statement: str, kind: str, seq: int) -> None:
    """An edit, a gap and a moved record are named with their place, and the command ends with 13."""
    harm(place, statement)
    status, said = verify(place, "--json")
    found = json.loads(said)
    assert (status, found["holds"]) == (13, False)
    assert (found["breaks"][0]["kind"], found["breaks"][0]["seq"]) == (kind, seq)


def test_a_forger_who_mends_every_hash_is_betrayed_by_the_readings(place: Path) -> None:
    """A reading made better and the whole chain written anew still does not lead to the verdict that stands there."""
    forged = 'replace(document, \'"decision":"deferred"\', \'"decision":"kept"\')'
    harm(
        place,
        f"UPDATE records SET document = {forged}, hash = sha256({forged}) WHERE seq = 2",
        "UPDATE head SET hash = (SELECT hash FROM records WHERE seq = 2)",
    )
    status, said = verify(place)
    assert status == 0, "the chain alone cannot show it"
    status, said = verify(place, "--all", "--json")
    wrong = json.loads(said)["wrong"]
    assert status == 13
    assert [one["seq"] for one in wrong] == [2]
    assert any("the verdict is kept" in text for text in wrong[0]["differs"])


def test_a_plan_that_is_not_the_approved_one_is_found(place: Path, run_of: Any) -> None:
    """A plan altered after its approval does not have the digest that was approved, whoever mended the hashes."""
    forged = "replace(document, '\"watchdog_seconds\":', '\"watchdog_seconds\":9')"
    harm(
        place,
        f"UPDATE records SET document = {forged}, hash = sha256({forged}) WHERE seq = 2",
        "UPDATE head SET hash = (SELECT hash FROM records WHERE seq = 2)",
    )
    status, said = verify(place, run_of(2), "--json")
    assert status == 13
    assert "not the one of its digest" in json.loads(said)["wrong"][0]["differs"][0]


@pytest.fixture
def run_of(place: Path) -> Any:
    """Says which run has a place in the chain."""

    def find(seq: int) -> str:
        with closing(sqlite3.connect(place / ".prudent" / "prudent.sqlite")) as raw:
            return str(raw.execute("SELECT run FROM records WHERE seq = ?", (seq,)).fetchone()[0])

    return find


def test_a_run_that_is_not_there_is_refused(place: Path) -> None:
    """Asking for a run without a record says so."""
    status, said = verify(place, "r-unheard")
    assert status == 37
    assert "no record of run 'r-unheard'" in said


def test_the_hash_that_is_shown_is_the_one_that_is_kept(place: Path, run_of: Any) -> None:
    """A record of an earlier version is shown with the hash of its text, not with one of the nouns as they are now."""
    with closing(sqlite3.connect(place / ".prudent" / "prudent.sqlite")) as raw:
        kept = [str(row[0]) for row in raw.execute("SELECT hash FROM records ORDER BY seq DESC")]
    listed = json.loads(prudent(place, "history", "--json")[1])["records"]
    assert [record["hash"] for record in listed] == kept
    assert json.loads(prudent(place, "show", run_of(2), "--json")[1])["hash"] == kept[0]
    assert kept[0][:16] in prudent(place, "show", run_of(2))[1]
