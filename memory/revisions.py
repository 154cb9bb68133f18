"""The tables of a database, brought to the revision that this version works with."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, column, select, table

from agent.errors import StoreUnusable
from memory.database import Database
from memory.kept.index import reindex

HEAD = "0002"
"""The revision that the statements of `memory.kept` are written for; the last file of `migrations/versions`."""
VERSION_TABLE = "prudent_version"
"""Where the revision of a database stands; not Alembic's usual name, which a database may have of another program."""
OUR_TABLES = frozenset({"runs", "plans", "decisions", "readings", "records", "head"})
"""Tables that only the first version's own file may have without a revision."""


def revision_of(connection: Connection) -> str | None:
    """The revision that a database's tables have; the table that says it must be there."""
    found = connection.execute(select(column("version_num")).select_from(table(VERSION_TABLE))).scalar()
    return None if found is None else str(found)


def bring_up_to_date(database: Database, connection: Connection, *, revision: str | None) -> None:
    """Run the revisions that are missing and make the index anew, in the transaction that is open.

    Args:
        database: The database.
        connection: A connection of it, in a transaction that keeps others away.
        revision: Where its tables are; None: there are none.

    Raises:
        StoreUnusable: a later version of Prudent has been there.
    """
    if revision == HEAD:
        return
    if revision is not None and revision > HEAD:
        raise newer(database.label, revision)
    # Alembic takes a third of a second to import, and a database is brought up to date once.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes.update(connection=connection, version_table=VERSION_TABLE)
    if revision is not None and not connection.dialect.has_table(connection, VERSION_TABLE):
        command.stamp(config, revision)
    command.upgrade(config, HEAD)
    reindex(connection, add_prose=database.dialect.add_prose, forget_prose=database.dialect.forget_prose)


def newer(label: str, revision: str) -> StoreUnusable:
    """The refusal of a database that a later version has written."""
    return StoreUnusable(
        f"{label} was written by another version of Prudent (its tables are revision {revision}, ours {HEAD}).",
        "Run the version of Prudent that wrote it, or name another one under [store] in prudent.toml.",
    )
