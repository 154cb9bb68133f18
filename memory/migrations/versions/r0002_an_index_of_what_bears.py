"""An index of records by what bears on a change, baselines, incidents and facts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Lay the tables; the index is filled by whoever ran the revisions."""
    place = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "traces",
        sa.Column("metric", sa.Text(), primary_key=True),
        sa.Column("knob", sa.Text(), primary_key=True),
        sa.Column("aim", sa.Text(), primary_key=True),
        sa.Column("seq", place, primary_key=True, autoincrement=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("traces_of_worker", "traces", ["metric", "knob", "aim", "worker", "seq"])
    op.create_table(
        "baselines",
        sa.Column("seq", place, primary_key=True, autoincrement=False),
        sa.Column("place", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("concurrency", sa.Integer(), nullable=False),
        sa.Column("process", sa.Text(), nullable=False),
        sa.Column("configuration", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sqlite_strict=True,
    )
    op.create_index("baselines_of_worker", "baselines", ["worker", "metric", "seq"])
    op.create_table(
        "incidents",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("document", sa.Text(), nullable=False),
        sqlite_strict=True,
    )
    op.create_table(
        "facts",
        sa.Column("place", place, sa.Identity(), primary_key=True),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.UniqueConstraint("worker", "name", "run"),
        sqlite_autoincrement=True,
        sqlite_strict=True,
    )
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        op.execute("CREATE VIRTUAL TABLE prose USING fts5 (words, content='', tokenize='ascii')")
        # What the first version looks at: it refuses the file from now on instead of writing what the index misses.
        op.execute("PRAGMA user_version = 2")
    else:
        op.execute("CREATE TABLE prose (seq BIGINT PRIMARY KEY, words TSVECTOR NOT NULL)")
        op.execute("CREATE INDEX prose_words ON prose USING gin (words)")
