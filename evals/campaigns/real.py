"""The practice ground in real time, where some points of a campaign are taken again, to see whether both agree."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from evals.campaigns.ground import SEED, Identity, end_watchdogs, start_ticks
from evals.lab import ground as lab
from evals.lab import private
from tools.local import LocalHost

READY_SECONDS = 60.0
"""How long a worker may take until it serves again."""


class RealGround(NamedTuple):
    """A practice ground, as campaigns look at one."""

    lab: lab.Ground
    """The ground itself."""

    @property
    def folder(self) -> Path:
        """All of it."""
        return self.lab.directory

    @property
    def script(self) -> Path:
        """The serve script."""
        return self.lab.script

    @property
    def settings(self) -> Path:
        """`prudent.toml`."""
        return self.lab.settings

    @property
    def host_directory(self) -> Path:
        """Prudent's own directory on the host."""
        return self.folder / ".prudent" / "host"

    @property
    def nature(self) -> private.Nature:
        """What is wrong with the worker."""
        return private.read(self.folder)

    def main(self) -> Identity | None:
        """The worker's main process; None: there is none."""
        pid = lab.status(self.folder).pid
        ticks = start_ticks(pid) if pid else None
        return None if ticks is None else Identity(pid, ticks)

    def argv(self) -> list[str]:
        """The main process's argv; empty: there is none."""
        main = self.main()
        try:
            words = Path(f"/proc/{main.pid}/cmdline").read_bytes().split(b"\0")[:-1] if main else []
        except OSError:
            return []
        return [word.decode() for word in words]


class RealWorld(LocalHost):
    """This machine, and its own time."""

    def now(self) -> float:
        """Seconds that only go forward."""
        return time.monotonic()

    def moment(self) -> datetime:
        """The time, with its zone."""
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def close(self) -> None:
        """Nothing was started."""


@contextlib.contextmanager
def real_ground(watchdog: float = 60.0) -> Iterator[RealGround]:
    """A practice ground whose worker serves, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="prudent-real-"))
    made = lab.up(folder / "lab", seed=SEED)
    try:
        law = Path(__file__).with_name("policy.yaml").read_text(encoding="utf-8")
        law = law.replace("watchdog_floor_seconds: 60", f"watchdog_floor_seconds: {watchdog:g}")
        (made.directory / "policy.yaml").write_text(law, encoding="utf-8")
        text = made.settings.read_text(encoding="utf-8")
        text, found = re.subn(r"(?m)^policy = .*$", 'policy = "policy.yaml"', text)
        if not found:
            text, found = re.subn(r"(?m)^(script = .*)$", r'\1\npolicy = "policy.yaml"', text)
        if found != 1:
            raise RuntimeError(f"{made.settings} is not the settings of one worker")
        made.settings.write_text(text, encoding="utf-8")
        yield RealGround(made)
    finally:
        end_watchdogs(RealGround(made).host_directory)
        lab.down(made.directory)
        shutil.rmtree(folder, ignore_errors=True)
