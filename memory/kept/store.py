"""The whole promise on one database."""

from __future__ import annotations

from memory.kept.decisions import Decisions
from memory.kept.lessons import Lessons
from memory.kept.measurements import Measurements
from memory.kept.records import Records
from memory.kept.runs import Runs
from memory.kept.traces import Traces


class SqlStore(Runs, Decisions, Measurements, Records, Traces, Lessons):
    """Keeps the promise of `Store`; safe for several threads, and for several processes on one database."""

    def close(self) -> None:
        """Let go of files and connections."""
        self._database.close()
