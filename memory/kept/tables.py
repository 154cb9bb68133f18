"""The tables as questions are asked of them; `memory/migrations` lays them."""

from __future__ import annotations

from sqlalchemy import column, table

RUNS = table(
    "runs",
    *map(column, ("place", "run", "worker", "request", "host", "boot_id", "pid", "start_ticks", "state", "ended")),
)
PLANS = table("plans", *map(column, ("run", "digest", "document")))
DECISIONS = table("decisions", *map(column, ("run", "digest", "decision", "document", "spent")))
READINGS = table("readings", *map(column, ("place", "run", "metric", "phase", "concurrency", "document")))
RECORDS = table("records", *map(column, ("seq", "run", "worker", "hash", "document")))
HEAD = table("head", *map(column, ("one", "seq", "hash")))
TRACES = table("traces", *map(column, ("metric", "knob", "aim", "worker", "seq")))
BASELINES = table(
    "baselines",
    *map(
        column,
        (
            "seq",
            "place",
            "run",
            "worker",
            "metric",
            "phase",
            "concurrency",
            "process",
            "configuration",
            "document",
        ),
    ),
)
INCIDENTS = table("incidents", *map(column, ("id", "document")))
FACTS = table("facts", *map(column, ("place", "worker", "name", "run", "document")))
