"""Files and databases of other versions: brought up to date with everything in them, or refused."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from sqlalchemy import create_engine, inspect

import memory
from agent.domain import Request, Verdict
from agent.errors import StoreUnusable
from memory.backends import open_checkpoints, open_store
from memory.kept import tables
from memory.postgres import PostgresStore
from memory.revisions import HEAD
from memory.sqlite import SqliteStore

FIRST = Path(__file__).parent.parent / "data" / "memory" / "first-version.sqlite"
"""Written by the code of commit 68b2716: both seed stories with their checkpoints, and a run that nobody ended."""
HASHES = [
    "7086402477610a877c886ed74e37ef2f394d161493884a6b072be3c2facaa278",
    "23736408635c6406c16973769e1acdf5b09e5cadd6a31eec60b4801172e23dda",
]
"""What `sha256sum` says of the texts of its records, the oldest first."""


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A copy of the first version's file."""
    return Path(shutil.copy(FIRST, tmp_path / "prudent.sqlite"))


def test_nothing_of_the_first_versions_file_is_lost(first: Path) -> None:
    """Every row that the first version wrote is there as it was, and the chain holds with the same hashes."""
    before = contents(first)
    with closing(SqliteStore(first)) as store:
        assert store.breaks() == ()
        links = [store.link(record.run) for record in reversed(store.records())]
        assert [link.hash for link in links if link] == HASHES
    assert {table: rows for table, rows in contents(first).items() if table in before} == before
    assert {table: len(rows) for table, rows in before.items()} == {
        "runs": 3, "plans": 2, "decisions": 2, "readings": 45, "records": 2, "head": 1, "checkpoints": 2, "writes": 2,
    }  # fmt: skip


def test_what_the_first_version_wrote_is_read_and_found(first: Path) -> None:
    """Runs, plans, spent approvals and readings are read back, and the records are found by what they changed."""
    with closing(SqliteStore(first)) as store:
        deferred, kept = store.records()
        assert [row.request.run for row in store.runs(open_only=True)] == ["r-left"]
        assert kept.plan_digest is not None
        assert store.plan(kept.run) is not None
        assert store.is_spent(kept.run, kept.plan_digest)
        assert store.readings(kept.run, "baseline")
        found = store.last_kept("decode")
        assert found is not None
        assert found.run == kept.run
        assert {one.run for one in store.baselines("decode", metric="start_seconds")} == {kept.run, deferred.run}
        assert store.append(kept.model_copy(update={"run": "r-new"})).previous == HASHES[-1]


def test_the_graphs_checkpoints_of_the_first_version_are_read(first: Path) -> None:
    """A run that waited when the version changed can be resumed from its checkpoint."""
    nouns = [("agent.domain", "Request"), ("agent.domain", "Verdict")]
    serde = JsonPlusSerializer(allowed_msgpack_modules=nouns)
    with open_store(str(first)) as store, open_checkpoints(str(first), serde) as saver:
        run = store.records()[0].run
        found = saver.get_tuple({"configurable": {"thread_id": run, "checkpoint_ns": ""}})
    assert found is not None
    values = found.checkpoint["channel_values"]
    assert isinstance(values["request"], Request)
    assert isinstance(values["verdict"], Verdict)


def test_a_power_cut_while_the_file_is_brought_up_to_date_changes_nothing(first: Path) -> None:
    """Killed in the middle of it, the file is the first version's still, and the next start brings it up to date."""
    before = contents(first)
    done = subprocess.run(
        [sys.executable, "-c", DIES_WHILE_MIGRATING, str(first)],
        cwd=Path(memory.__file__).parent.parent,
        check=False,
        capture_output=True,
    )
    assert done.returncode == -9, done.stderr
    with closing(sqlite3.connect(first)) as raw:
        assert raw.execute("PRAGMA user_version").fetchone() == (1,)
    assert contents(first) == before
    with closing(SqliteStore(first)) as store:
        assert store.breaks() == ()
        assert len(store.baselines("decode")) == 45


DIES_WHILE_MIGRATING = """
import os, signal, sys
from pathlib import Path
from sqlalchemy import event
from sqlalchemy.engine import Engine

@event.listens_for(Engine, "before_cursor_execute")
def die(connection, cursor, statement, *rest):
    if "INSERT INTO baselines" in statement:
        os.kill(os.getpid(), signal.SIGKILL)

from memory.sqlite import SqliteStore
SqliteStore(Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_processes_that_find_an_old_file_at_once_bring_it_up_to_date_once(first: Path) -> None:
    """Four processes open the first version's file together, and all of them can use it."""
    code = "import sys; from pathlib import Path; from memory.sqlite import SqliteStore;" \
        " print(len(SqliteStore(Path(sys.argv[1]), patience=60).records()))"  # fmt: skip
    root = Path(memory.__file__).parent.parent
    crowd = [
        subprocess.Popen([sys.executable, "-c", code, str(first)], cwd=root, stdout=subprocess.PIPE) for _ in range(4)
    ]
    assert [process.communicate(timeout=120)[0] for process in crowd] == [b"2\n"] * 4
    with closing(SqliteStore(first)) as store:
        assert len(store.baselines("decode")) == 45


def test_the_head_is_the_last_revision() -> None:
    """What the code takes for the newest revision is the end of the only line of revisions."""
    config = Config()
    config.set_main_option("script_location", str(Path(memory.__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


def test_both_kinds_of_database_have_the_tables_that_are_asked(tmp_path: Path, postgres_url: str) -> None:
    """Every column that a question names was laid, and none was laid that no question knows."""
    SqliteStore(tmp_path / "prudent.sqlite").close()
    PostgresStore(postgres_url).close()
    asked = {
        one.name: {column.name for column in one.columns} for one in vars(tables).values() if hasattr(one, "columns")
    }
    for url in (
        f"sqlite:///{tmp_path / 'prudent.sqlite'}",
        postgres_url.replace("postgresql://", "postgresql+psycopg://"),
    ):
        engine = create_engine(url)
        found = inspect(engine)
        assert {name: {column["name"] for column in found.get_columns(name)} for name in asked} == asked
        engine.dispose()


def test_a_servers_database_of_a_newer_version_is_refused(postgres_url: str) -> None:
    """A database that a later version has been in is left alone, with a remedy."""
    PostgresStore(postgres_url).close()
    with psycopg.connect(postgres_url) as raw:
        raw.execute("UPDATE prudent_version SET version_num = '0999'")
    with pytest.raises(StoreUnusable, match="another version") as refusal:
        PostgresStore(postgres_url)
    assert "0999" in refusal.value.sentence
    assert refusal.value.remedy


def contents(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of the first version's tables."""
    names = ("runs", "plans", "decisions", "readings", "records", "head", "checkpoints", "writes")
    with closing(sqlite3.connect(path)) as raw:
        return {name: raw.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall() for name in names}
