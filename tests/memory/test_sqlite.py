"""What only the file can promise: refusals with a remedy, several processes, a chain that shows what was done to it."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite import SqliteSaver

from agent.errors import StoreUnusable
from memory.sqlite import SqliteStore


def filled(path: Path, nouns: Any, count: int = 5) -> Path:
    """A database with a few records, closed."""
    with closing(SqliteStore(path)) as store:
        for place in range(1, count + 1):
            store.open_run(nouns.request(f"r-{place}"), nouns.owner)
            store.append(nouns.record(f"r-{place}"))
    return path


def test_what_was_written_is_there_after_reopening(tmp_path: Path, nouns: Any) -> None:
    """Closing and opening again loses nothing, and the folder is made on the way."""
    path = filled(tmp_path / "deep" / "down" / "prudent.sqlite", nouns)
    with closing(SqliteStore(path)) as store:
        assert [record.run for record in store.records()] == ["r-5", "r-4", "r-3", "r-2", "r-1"]
        assert store.broken_at() is None
    assert [entry.name for entry in path.parent.iterdir()] == ["prudent.sqlite"]


def newer(path: Path) -> None:
    """A later version was here."""
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA user_version = 99")


def cut_in_half(path: Path) -> None:
    """A copy that broke off."""
    os.truncate(path, path.stat().st_size // 2)


def cut_to_nothing(path: Path) -> None:
    """A copy that broke off at once."""
    os.truncate(path, 0)


def overwritten(path: Path) -> None:
    """Something else under its name."""
    path.write_bytes(b"these are my holiday photos\n" * 500)


def somebody_elses(path: Path) -> None:
    """Another program's database under its name."""
    path.unlink()
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("CREATE TABLE bookmarks (url TEXT)")


def log_without_database(path: Path) -> None:
    """The main file lost, its log left."""
    path.rename(path.with_name("prudent.sqlite-wal"))


def a_folder(path: Path) -> None:
    """A folder under its name."""
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (newer, "another version"),
        (cut_in_half, "damaged or cut short"),
        (cut_to_nothing, "is empty"),
        (overwritten, "not a database"),
        (somebody_elses, "another program"),
        (log_without_database, "is gone"),
        (a_folder, "cannot be opened"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, nouns: Any, harm: Any, sentence: str) -> None:
    """An unusable file gives one sentence with a remedy, and is left exactly as it was."""
    path = filled(tmp_path / "prudent.sqlite", nouns)
    harm(path)
    before = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir() if entry.is_file()}
    with pytest.raises(StoreUnusable, match=sentence) as refusal:
        SqliteStore(path, patience=0.2)
    assert refusal.value.remedy
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir() if entry.is_file()} == before


def test_a_file_that_somebody_holds_is_refused_after_a_while(tmp_path: Path, nouns: Any) -> None:
    """A lock that is not released is reported, and once it is released the store works."""
    path = filled(tmp_path / "prudent.sqlite", nouns)
    with closing(SqliteStore(path, patience=0.2)) as store, closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnusable, match="locked by another process"):
            store.append(nouns.record("r-6"))
        with pytest.raises(StoreUnusable, match="locked by another process"):
            SqliteStore(path, patience=0.2)
        assert store.record("r-5") is not None
        raw.execute("ROLLBACK")
        assert store.append(nouns.record("r-6")).seq == 6


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that every user can enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_file_without_the_right_to_write_is_refused(open_to_all: Path, nouns: Any) -> None:
    """A user who may only read the file is told so."""
    path = filled(open_to_all / "prudent.sqlite", nouns)
    path.chmod(0o444)
    me = os.geteuid()
    open_to_all.chmod(0o555)
    if me == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(StoreUnusable, match=r"may not be written|cannot be opened") as refusal:
            SqliteStore(path)
        with pytest.raises(StoreUnusable, match="cannot be made"):
            SqliteStore(open_to_all / "new.sqlite")
    finally:
        os.seteuid(me)
        open_to_all.chmod(0o755)
    assert "right to write" in refusal.value.remedy or "may write" in refusal.value.remedy


def test_the_graphs_checkpoints_may_share_the_file(tmp_path: Path, nouns: Any) -> None:
    """A file in which the checkpointer was first becomes ours as well, and keeps what it had."""
    path = tmp_path / "prudent.sqlite"
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("CREATE TABLE checkpoints (thread_id TEXT)")
        raw.execute("INSERT INTO checkpoints VALUES ('r-1')")
        raw.commit()
    filled(path, nouns)
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT thread_id FROM checkpoints").fetchall() == [("r-1",)]


TAMPERED = [
    ("an edited verdict", "UPDATE records SET document = replace(document, 'every', 'no') WHERE seq = 3", 3),
    ("a hash of somebody's own", "UPDATE records SET hash = replace(hash, substr(hash, 1, 8), '00000000')", 1),
    ("a record that is gone", "DELETE FROM records WHERE seq = 2", 2),
    ("the newest record that is gone", "DELETE FROM records WHERE seq = 5", 5),
    ("all records gone", "DELETE FROM records", 1),
    ("the last record's place moved", "UPDATE records SET seq = 9 WHERE seq = 5", 5),
    (
        "two records swapped",
        "UPDATE records SET seq = -seq WHERE seq IN (2, 4); UPDATE records SET seq = 6 + seq WHERE seq < 0",
        2,
    ),
    ("no longer JSON", "UPDATE records SET document = 'nothing to see' WHERE seq = 4", 4),
]


@pytest.mark.parametrize(("harm", "seq"), [case[1:] for case in TAMPERED], ids=[case[0] for case in TAMPERED])
def test_what_was_done_to_the_records_is_located(tmp_path: Path, nouns: Any, harm: str, seq: int) -> None:
    """An edit, a gap, a reorder and a cut end are found at the first record that does not hold."""
    path = filled(tmp_path / "prudent.sqlite", nouns)
    with closing(sqlite3.connect(path)) as raw:
        raw.executescript(harm)
        raw.commit()
    with closing(SqliteStore(path)) as store:
        assert store.broken_at() == seq


def test_a_record_that_cannot_be_read_is_said_to_be_that(tmp_path: Path, nouns: Any) -> None:
    """Reading an altered record gives a sentence with a remedy, and the others can still be read."""
    path = filled(tmp_path / "prudent.sqlite", nouns)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("""UPDATE records SET document = replace(document, '"kept"', '"adored"') WHERE seq = 3""")
        raw.commit()
    with closing(SqliteStore(path)) as store:
        with pytest.raises(StoreUnusable, match="a record that this version cannot read"):
            store.records()
        assert [record.run for record in store.records(limit=2)] == ["r-5", "r-4"]


def test_a_run_that_cannot_be_read_is_said_to_be_that(tmp_path: Path, nouns: Any) -> None:
    """A run whose time was altered gives a sentence with a remedy."""
    path = filled(tmp_path / "prudent.sqlite", nouns)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("UPDATE runs SET ended = 'yesterday' WHERE run = 'r-2'")
        raw.commit()
    with closing(SqliteStore(path)) as store, pytest.raises(StoreUnusable, match="for run 'r-2'"):
        store.runs()


def test_an_edit_whose_own_hash_was_mended_is_found_at_the_next_record(tmp_path: Path, nouns: Any) -> None:
    """A forger who computes the hash of the altered record again is betrayed by the one after it."""
    path = filled(tmp_path / "prudent.sqlite", nouns)
    with closing(sqlite3.connect(path)) as raw:
        raw.create_function("sha256", 1, sha256)
        raw.execute("UPDATE records SET document = replace(document, 'every', 'no') WHERE seq = 3")
        raw.execute("UPDATE records SET hash = sha256(document) WHERE seq = 3")
        raw.commit()
    with closing(SqliteStore(path)) as store:
        assert store.broken_at() == 4


def sha256(text: str) -> str:
    """The hash, by somebody else's program."""
    return subprocess.run(["sha256sum"], input=text.encode(), capture_output=True, check=True).stdout.decode()[:64]


def test_the_chain_can_be_verified_without_prudent(tmp_path: Path, nouns: Any) -> None:
    """Every kept text has its hash by sha256sum and names the hash before it."""
    path = filled(tmp_path / "prudent.sqlite", nouns)
    previous = "0" * 64
    with closing(sqlite3.connect(path)) as raw:
        for document, kept in raw.execute("SELECT document, hash FROM records ORDER BY seq"):
            assert (sha256(document), json.loads(document)["previous"]) == (kept, previous)
            previous = kept


@pytest.mark.slow
def test_processes_that_open_and_write_at_once_lose_nothing(tmp_path: Path, writers: Any) -> None:
    """Four processes make the file together; every record is there, and each decision was won and spent by one."""
    path = tmp_path / "prudent.sqlite"
    lines = writers(str(path), count=25)
    with closing(SqliteStore(path)) as store:
        assert {record.run for record in store.records()} == {line[0] for line in lines}
        assert len(lines) == 100
        assert store.broken_at() is None
    assert sum(int(line[1]) for line in lines) == 25
    assert sum(int(line[2]) for line in lines) == 25


def test_the_real_checkpointer_and_the_store_share_a_file(tmp_path: Path, nouns: Any) -> None:
    """The graph's own checkpointer, opened before or after, works in the same file beside ours."""
    for first in ("store", "checkpointer"):
        path = tmp_path / f"{first}.sqlite"
        if first == "store":
            filled(path, nouns)
        with SqliteSaver.from_conn_string(str(path)) as saver:
            saver.setup()
            if first == "checkpointer":
                filled(path, nouns)
            saved = saver.put(
                {"configurable": {"thread_id": "r-1", "checkpoint_ns": ""}}, empty_checkpoint(), {"step": 1}, {}
            )
            assert saver.get_tuple(saved) is not None
            with closing(SqliteStore(path)) as store:
                assert store.append(nouns.record("r-6")).seq == 6
                assert store.broken_at() is None


def test_a_file_with_random_damage_is_refused_or_tells_where(tmp_path: Path, nouns: Any) -> None:
    """Whatever bytes are flipped or cut, there is a refusal with a remedy, a located break, or every record intact."""
    whole = filled(tmp_path / "prudent.sqlite", nouns, count=12).read_bytes()
    with closing(SqliteStore(tmp_path / "prudent.sqlite")) as store:
        intact = [record.hash for record in store.records()]
    chance = random.Random(20261129)
    outcomes = []
    for place in range(150):
        harmed = bytearray(whole)
        if place % 3 == 0:
            del harmed[chance.randrange(1, len(harmed)) :]
        for _ in range(chance.randrange(1, 40)):
            harmed[chance.randrange(len(harmed))] = chance.randrange(256)
        path = tmp_path / f"{place}.sqlite"
        path.write_bytes(harmed)
        try:
            with closing(SqliteStore(path, patience=0.2)) as store:
                broken = store.broken_at()
                records = [record.hash for record in store.records()]
        except StoreUnusable as refusal:
            outcomes.append("refused" if refusal.remedy else "without a remedy")
        else:
            assert broken is not None or records == intact
            outcomes.append("intact" if broken is None else "located")
    assert {"refused", "intact"} <= set(outcomes) <= {"refused", "intact", "located"}
