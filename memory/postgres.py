"""The store in a PostgreSQL database, which a team shares: one schema, one chain, as many agents as there are."""

from __future__ import annotations

import re

import psycopg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Connection, create_engine, text

from agent.errors import StoreUnusable
from memory.database import Database, Dialect
from memory.kept.store import SqlStore
from memory.revisions import OUR_TABLES, VERSION_TABLE, bring_up_to_date, revision_of

CHAIN_LOCK, REVISION_LOCK, CHECKPOINT_LOCK = 0x50525544_00000001, 0x50525544_00000002, 0x50525544_00000003
"""Advisory locks: for appending to the chain, for bringing the tables up to date, for the checkpoints' tables."""
CONNECT_SECONDS = 10
"""Patience for a server that does not answer, unless the URL says `connect_timeout`."""


class PostgresStore(SqlStore):
    """Keeps the promise of `Store` on a server; safe for any number of threads, processes and machines."""

    def __init__(self, url: str, *, patience: float = 20.0) -> None:
        """Connect, and lay the tables where there are none; those of an earlier version are brought up to date.

        Args:
            url: `postgresql://user@host:port/database`, with whatever parameters libpq knows. A password may stand in
                it, in PGPASSWORD, or in ~/.pgpass.
            patience: Seconds to wait for another session's lock.

        Raises:
            StoreUnusable: the server cannot be reached or does not let us in, the database is newer, somebody else's,
                read-only or locked.
        """
        url = plain_url(url)
        label = label_of(url)
        engine = create_engine("postgresql+psycopg://", creator=lambda: connected(url), pool_pre_ping=True)
        database = Database(engine, label, _dialect(label, patience))
        try:
            with database.writing() as connection:
                _check(database, connection)
        except BaseException:
            database.close()
            raise
        super().__init__(database)


def connected(url: str) -> psycopg.Connection[tuple[object, ...]]:
    """A connection; what the URL leaves open, libpq's environment and files say."""
    patience = _parsed(url).get("connect_timeout", CONNECT_SECONDS)
    return psycopg.connect(url, connect_timeout=patience, application_name="prudent")


def plain_url(url: str) -> str:
    """A URL as the driver takes it, where it was written as libraries above the driver do."""
    return url.replace("postgresql+psycopg://", "postgresql://", 1)


def label_of(url: str) -> str:
    """A URL as it may be shown: without the password and the parameters.

    Raises:
        StoreUnusable: it is none.
    """
    known = _parsed(url)
    user = f"{known['user']}@" if "user" in known else ""
    port = f":{known['port']}" if "port" in known else ""
    return f"postgresql://{user}{known.get('host', '')}{port}/{known.get('dbname', '')}"


def refusal_of(error: BaseException, label: str) -> StoreUnusable | None:
    """What an error of the server, or of the way to it, means for an operator; None: it is neither."""
    if not isinstance(error, psycopg.Error):
        return None
    code = error.sqlstate or _code_in(str(error))
    said = " ".join(str(error).split()).rstrip("?. ")
    for start, (sentence, remedy) in EXPLAINED.items():
        if code.startswith(start):
            return StoreUnusable(sentence.format(label=label, said=said), remedy)
    return StoreUnusable(
        f"The state database {label} does not work: {said} ({code or type(error).__name__}).",
        "Look at the server's log; `prudent history` shows whether it works again.",
    )


EXPLAINED = {
    "28P01": (
        "{label} does not accept the password.",
        "Put the right one into PGPASSWORD or ~/.pgpass, or correct the user of the URL under [store].",
    ),
    "28": (
        "{label} does not let this user in: {said}.",
        "Correct the user of the URL under [store], or have the server's pg_hba.conf let it in.",
    ),
    "3D": (
        "{label}: there is no such database.",
        "Create it (createdb), or correct its name in the URL under [store].",
    ),
    "25006": (
        "{label} is read-only: {said}.",
        "Name the primary server, not a standby, in the URL under [store], or allow writing there.",
    ),
    "42501": (
        "{label} may not be written by this user: {said}.",
        "Grant it CREATE and USAGE on the schema and all rights on Prudent's tables, or name another user.",
    ),
    "42P": (
        "{label} is not as its revision says: {said}.",
        "Somebody changed Prudent's tables; restore the database from a backup, or name an empty one.",
    ),
    "55P03": (
        "{label} is locked by another session.",
        "Wait for it, or find it: SELECT pid, state, query FROM pg_stat_activity WHERE state <> 'idle'.",
    ),
    "40P01": ("{label} is locked by another session.", "Try again; the server broke a deadlock."),
    "53100": ("There is no room left on the disk of {label}.", "Free some space there and try again."),
    "53300": (
        "{label} takes no more connections.",
        "Wait, raise the server's max_connections, or put a pooler between.",
    ),
    "57014": ("{label} took too long: {said}.", "Raise the role's statement_timeout, or look at the server's load."),
    "57P03": ("{label} is starting or stopping.", "Try again in a moment."),
    "57P": ("{label} ended the connection: {said}.", "Try again once the server is back."),
    "XX": ("{label} is damaged: {said}.", "Look at the server's log, and restore the database from a backup."),
    "08": (
        "{label} cannot be reached: {said}.",
        "Check host and port in the URL under [store], and that the server runs and listens there.",
    ),
}
"""What the server's error codes (PostgreSQL 15, appendix A) mean for an operator, by the beginning of the code."""


def _code_in(said: str) -> str:
    """The code of an error that came before there was a session, which the driver hands over as text only."""
    told = (
        (r"password authentication failed|no password supplied", "28P01"),
        (r"no pg_hba\.conf entry|authentication failed|role \S+ (?:does not exist|is not permitted)", "28000"),
        (r"database \S+ does not exist", "3D000"),
        (r"too many (?:clients|connections)|connection slots are reserved", "53300"),
        (r"starting up|shutting down|not yet accepting|in recovery mode", "57P03"),
        (r"permission denied for database", "42501"),
    )
    return next((code for pattern, code in told if re.search(pattern, said)), "08000")


def _parsed(url: str) -> dict[str, str | int | None]:
    try:
        return dict(conninfo_to_dict(url))
    except psycopg.Error:
        # The driver's sentence may hold the URL, and the URL a password, so neither it nor its cause is shown.
        pass
    raise StoreUnusable(
        "The URL of the state database cannot be read.",
        "Write it as postgresql://user@host:5432/database; signs like @ or / in a name or password as %40 or %2F.",
    )


def _dialect(label: str, patience: float) -> Dialect:
    find = "SELECT seq FROM prose WHERE words @@ {words} ORDER BY seq DESC LIMIT :most"
    phrase = "phraseto_tsquery('simple', :phrase)"
    return Dialect(
        begin_write=lambda connection: _begin(connection, patience),
        lock_chain=lambda connection: _lock(connection, CHAIN_LOCK),
        explain=lambda error: refusal_of(error, label),
        add_prose="INSERT INTO prose (seq, words) VALUES (:seq, to_tsvector('simple', :words))",
        forget_prose="DELETE FROM prose",
        find_prose=find.format(words=phrase),
        find_prose_of=find.format(words=f"({phrase} && phraseto_tsquery('simple', :worker))"),
        read_options={"isolation_level": "REPEATABLE READ"},
    )


def _begin(connection: Connection, patience: float) -> None:
    """Limit the wait for locks, and be durable where the server's own setting would acknowledge before the disk."""
    connection.execute(
        text(
            "SELECT set_config('lock_timeout', :patience, true), CASE WHEN current_setting('synchronous_commit')"
            " IN ('off', 'local') THEN set_config('synchronous_commit', 'on', true) END"
        ),
        {"patience": f"{max(1, round(patience * 1000))}ms"},
    )


def _lock(connection: Connection, which: int) -> None:
    connection.execute(text("SELECT pg_advisory_xact_lock(:which)"), {"which": which})


def _check(database: Database, connection: Connection) -> None:
    """Refuse a database that is read-only, newer or somebody else's; bring ours up to date."""
    if connection.execute(text("SHOW transaction_read_only")).scalar() == "on":
        sentence, remedy = EXPLAINED["25006"]
        raise StoreUnusable(sentence.format(label=database.label, said="transaction_read_only is on"), remedy)
    _lock(connection, REVISION_LOCK)
    names = set(
        connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")).scalars()
    )
    if VERSION_TABLE in names:
        revision = revision_of(connection)
        bring_up_to_date(database, connection, revision=revision)
        _may_write(database, connection)
    elif names & OUR_TABLES:
        taken = ", ".join(sorted(names & OUR_TABLES))
        raise StoreUnusable(
            f"{database.label} has tables of another program under the names of ours: {taken}.",
            "Name a database of Prudent's own, or a schema of its own with ?options=-csearch_path%3Dprudent.",
        )
    else:
        bring_up_to_date(database, connection, revision=None)


def _may_write(database: Database, connection: Connection) -> None:
    allowed = connection.execute(text("SELECT has_table_privilege('records', 'INSERT')")).scalar()
    if not allowed:
        sentence, remedy = EXPLAINED["42501"]
        raise StoreUnusable(sentence.format(label=database.label, said="no right to insert into records"), remedy)
