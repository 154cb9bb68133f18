"""What only a server can promise: refusals with a remedy, no password shown, several processes, a chain that holds."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

import memory
from agent.errors import StoreUnusable
from evals.bench.postgres_server import Server
from memory.backends import open_checkpoints, open_store
from memory.postgres import PostgresStore, label_of

ROOT = Path(memory.__file__).parent.parent


@pytest.fixture
def url(postgres_url: str, nouns: Any) -> str:
    """A database with five records."""
    with closing(PostgresStore(postgres_url)) as store:
        for place in range(1, 6):
            store.open_run(nouns.request(f"r-{place}"), nouns.owner)
            store.append(nouns.record(f"r-{place}"))
    return postgres_url


def refused(url: str, sentence: str, **how: Any) -> StoreUnusable:
    """Open the store and have it refused, without the password in what is said."""
    with pytest.raises(StoreUnusable, match=sentence) as refusal:
        PostgresStore(url, **how)
    assert refusal.value.remedy
    return refusal.value


def test_what_was_written_is_there_after_reopening(url: str) -> None:
    """Closing and opening again loses nothing."""
    with closing(PostgresStore(url)) as store:
        assert [record.run for record in store.records()] == ["r-5", "r-4", "r-3", "r-2", "r-1"]
        assert store.breaks() == ()


def test_a_server_that_is_not_there_is_refused(postgres: Server) -> None:
    """Nobody listens: the sentence names host and port, and no password."""
    url = "postgresql://ana:geheim@127.0.0.1:1/prudent"
    said = refused(url, "cannot be reached")
    assert "127.0.0.1:1" in said.sentence
    assert "geheim" not in str(said)


def test_a_wrong_password_is_refused_and_not_shown(postgres: Server) -> None:
    """The server says no: the remedy says where the password is looked for, and shows none."""
    said = refused(postgres.url(password="geheim"), "does not accept the password")
    assert "PGPASSWORD" in said.remedy
    assert "geheim" not in str(said)
    assert postgres.password not in str(said)


def test_a_url_that_is_none_is_refused_and_not_shown() -> None:
    """A URL with a sign that belongs escaped gives a remedy and hides the password that stands in it."""
    said = refused("postgresql://ana:geh@im:sehr@127.0.0.1:x/prudent?a", "cannot be read")
    assert "%40" in said.remedy
    assert "sehr" not in str(said)
    assert said.__cause__ is None
    assert said.__context__ is None


def test_a_label_shows_no_password() -> None:
    """What people see of a URL is user, host, port and database."""
    assert label_of("postgresql://ana:geheim@db.local:6432/prudent?sslmode=require") == (
        "postgresql://ana@db.local:6432/prudent"
    )


def test_a_database_that_is_not_there_is_refused(postgres: Server) -> None:
    """A name that the server does not know gives the remedy to create it."""
    assert "createdb" in refused(postgres.url("nowhere"), "no such database").remedy


def test_a_user_who_is_not_there_is_refused(postgres: Server) -> None:
    """The server does not tell a user that it does not know from a wrong password, and neither do we."""
    refused(postgres.url(user="nobody_here"), "does not accept the password")


def test_a_database_that_is_read_only_is_refused(postgres: Server, url: str) -> None:
    """A standby, or a database that is set to read-only, is refused before anything is tried on it."""
    said = refused(f"{url}%20-cdefault_transaction_read_only%3Don", "is read-only")
    assert "primary" in said.remedy


def test_a_user_who_may_only_read_is_refused(postgres: Server, url: str) -> None:
    """A role without the right to insert is told so when the store is opened, and not in the middle of a run."""
    schema = url.rpartition("%3D")[2]
    role = f"reader_{schema}"
    postgres.ask(f"CREATE ROLE {role} LOGIN PASSWORD 'reads'")
    postgres.ask(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    postgres.ask(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")
    theirs = f"{postgres.url(user=role, password='reads')}?options=-csearch_path%3D{schema}"
    try:
        said = refused(theirs, "may not be written by this user")
        assert "Grant" in said.remedy
    finally:
        postgres.ask(f"DROP OWNED BY {role}")
        postgres.ask(f"DROP ROLE {role}")


def test_a_user_who_may_not_lay_tables_is_refused(postgres: Server, postgres_url: str) -> None:
    """A role without the right to create anything in an empty schema is told so."""
    schema = postgres_url.rpartition("%3D")[2]
    role = f"guest_{schema}"
    postgres.ask(f"CREATE ROLE {role} LOGIN PASSWORD 'looks'")
    postgres.ask(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    try:
        refused(
            f"{postgres.url(user=role, password='looks')}?options=-csearch_path%3D{schema}",
            "may not be written by this user",
        )
    finally:
        postgres.ask(f"DROP OWNED BY {role}")
        postgres.ask(f"DROP ROLE {role}")


def test_tables_of_another_program_are_refused_and_left_alone(postgres: Server, postgres_url: str) -> None:
    """A schema with somebody else's table under one of our names is not touched."""
    with psycopg.connect(postgres_url) as raw:
        raw.execute("CREATE TABLE runs (kilometres INT)")
        raw.execute("CREATE TABLE alembic_version (version_num TEXT)")
    said = refused(postgres_url, "tables of another program")
    assert "search_path" in said.remedy
    with psycopg.connect(postgres_url) as raw:
        found = raw.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema() ORDER BY 1").fetchall()
    assert found == [("alembic_version",), ("runs",)]


def test_a_table_that_somebody_holds_is_refused_after_a_while(url: str, nouns: Any) -> None:
    """A lock that is not released is reported, and once it is released the store works."""
    with closing(PostgresStore(url, patience=0.3)) as store, psycopg.connect(url) as raw:
        raw.execute("LOCK TABLE records IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreUnusable, match="locked by another session") as refusal:
            store.append(nouns.record("r-6"))
        assert "pg_stat_activity" in refusal.value.remedy
        raw.rollback()
        assert store.append(nouns.record("r-6")).seq == 6


def test_a_connection_that_was_cut_is_made_anew(postgres: Server, url: str, nouns: Any) -> None:
    """Sessions that the server ended while nobody spoke are replaced; the next write and checkpoint succeed."""
    serde = JsonPlusSerializer()
    config: Any = {"configurable": {"thread_id": "r-1", "checkpoint_ns": ""}}
    with open_store(url) as store, open_checkpoints(url, serde) as saver:
        saver.put(config, empty_checkpoint(), {"step": 1}, {})
        postgres.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'prudent'")
        assert store.append(nouns.record("r-6")).seq == 6
        assert saver.get_tuple(config) is not None


def test_a_session_that_is_cut_in_the_middle_is_said_to_be_that(postgres: Server, url: str, nouns: Any) -> None:
    """A session that ends under a write gives a sentence with a remedy, and what was not acknowledged is not there."""
    with closing(PostgresStore(url)) as store, psycopg.connect(url) as raw, ThreadPoolExecutor(1) as other:
        raw.execute("LOCK TABLE records IN ACCESS EXCLUSIVE MODE")
        writing = other.submit(store.append, nouns.record("r-6"))
        waiting = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        while not postgres.ask(waiting):
            assert not writing.done()
        with pytest.raises(StoreUnusable, match=r"ended the connection|cannot be reached") as refusal:
            writing.result(30)
        raw.rollback()
        assert refusal.value.remedy
        assert store.record("r-6") is None
        assert store.breaks() == ()


@pytest.mark.slow
def test_processes_that_open_and_write_at_once_lose_nothing(postgres_url: str, writers: Any) -> None:
    """Four processes lay the tables together; every record is there, and each decision was won and spent by one."""
    lines = writers(postgres_url, count=25)
    with closing(PostgresStore(postgres_url)) as store:
        assert {record.run for record in store.records()} == {line[0] for line in lines}
        assert len(lines) == 100
        assert store.breaks() == ()
    assert sum(int(line[1]) for line in lines) == 25
    assert sum(int(line[2]) for line in lines) == 25


CHECKPOINTER = """
import sys
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from memory.backends import open_checkpoints
with open_checkpoints(sys.argv[1], JsonPlusSerializer()) as saver:
    saver.put({"configurable": {"thread_id": sys.argv[2], "checkpoint_ns": ""}}, empty_checkpoint(), {"step": 1}, {})
    print("kept")
"""


@pytest.mark.slow
def test_processes_that_lay_the_checkpoints_tables_at_once_do_not_block_each_other(postgres_url: str) -> None:
    """Four agents that meet an empty database all get their checkpoints into it."""
    crowd = [
        subprocess.Popen([sys.executable, "-c", CHECKPOINTER, postgres_url, str(n)], cwd=ROOT, stdout=subprocess.PIPE)
        for n in range(4)
    ]
    assert [process.communicate(timeout=120)[0] for process in crowd] == [b"kept\n"] * 4


def test_a_session_that_would_acknowledge_too_early_is_made_durable(postgres: Server, url: str, nouns: Any) -> None:
    """Where the server's default is not to wait for the disk, our writes wait for it all the same."""
    lazy = f"{url}%20-csynchronous_commit%3Doff"
    with psycopg.connect(url) as raw:
        raw.execute("CREATE TABLE seen (setting TEXT)")
        raw.execute(
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
            " $$BEGIN INSERT INTO seen SELECT current_setting('synchronous_commit'); RETURN NEW; END$$"
        )
        raw.execute("CREATE TRIGGER note AFTER INSERT ON records FOR EACH ROW EXECUTE FUNCTION note()")
    with closing(PostgresStore(lazy)) as store:
        store.append(nouns.record("r-6"))
    with psycopg.connect(url) as raw:
        assert raw.execute("SELECT setting FROM seen").fetchall() == [("on",)]


TAMPERED = [
    ("an edited verdict", "UPDATE records SET document = replace(document, 'every', 'no') WHERE seq = 3", 3),
    ("a record that is gone", "DELETE FROM records WHERE seq = 2", 2),
    ("the newest record that is gone", "DELETE FROM records WHERE seq = 5", 5),
    ("all records gone", "DELETE FROM records", 1),
]


@pytest.mark.parametrize(("harm", "seq"), [case[1:] for case in TAMPERED], ids=[case[0] for case in TAMPERED])
def test_what_was_done_to_the_records_is_located(url: str, harm: str, seq: int) -> None:
    """An edit, a gap and a cut end are found at the first record that does not hold."""
    with psycopg.connect(url) as raw:
        raw.execute(harm.encode())
    with closing(PostgresStore(url)) as store:
        assert store.broken_at() == seq
