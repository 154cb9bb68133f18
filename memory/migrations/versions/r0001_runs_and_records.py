"""Runs, plans, decisions, readings and the chain of records, as the first version laid them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Lay the tables."""
    place = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "runs",
        sa.Column("place", place, sa.Identity(), primary_key=True),
        sa.Column("run", sa.Text(), nullable=False, unique=True),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("pid", place, nullable=False),
        sa.Column("start_ticks", place, nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("ended", sa.Text()),
        sqlite_autoincrement=True,
        sqlite_strict=True,
    )
    op.create_table(
        "plans",
        sa.Column("run", sa.Text(), primary_key=True),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sqlite_strict=True,
    )
    op.create_table(
        "decisions",
        sa.Column("run", sa.Text(), primary_key=True),
        sa.Column("digest", sa.Text(), primary_key=True),
        sa.Column("decision", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("spent", sa.Integer(), nullable=False, server_default="0"),
        sqlite_strict=True,
    )
    op.create_table(
        "readings",
        sa.Column("place", place, sa.Identity(), primary_key=True),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("concurrency", sa.Integer(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.UniqueConstraint("run", "metric", "phase", "concurrency"),
        sqlite_autoincrement=True,
        sqlite_strict=True,
    )
    op.create_table(
        "records",
        sa.Column("seq", place, primary_key=True, autoincrement=False),
        sa.Column("run", sa.Text(), nullable=False, unique=True),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sqlite_strict=True,
    )
    op.create_index("records_of_worker", "records", ["worker", "seq"])
    op.create_table(
        "head",
        sa.Column("one", sa.Integer(), sa.CheckConstraint("one = 1"), primary_key=True, autoincrement=False),
        sa.Column("seq", place, nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sqlite_strict=True,
    )
