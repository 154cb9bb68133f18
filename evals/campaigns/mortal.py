"""Where an agent's process dies: before, during or after one of the things that it does to its world.

Every call of the host and every write to the store or to the checkpoints is such a thing. It has a name, and its
occurrences are counted, so that a point means the same in every run; renewals come by the wall's clock and are no
points.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)

from evals.campaigns.behind import Behind
from memory.store import Store
from tools.host import Completed, Host, HttpAnswer, LineStream

Moment = Literal["before", "during", "after"]
WRITES = frozenset(
    {
        "open_run",
        "adopt_run",
        "set_state",
        "offer_plan",
        "decide",
        "spend",
        "keep_readings",
        "append",
        "end_run",
    }
)
"""What writes to a store."""
MUTATING = frozenset({"lease", "release", "open", "step", "commit", "undo", "renew"})
"""Verbs of the helper that write."""
DURING_SECONDS = 0.004
"""How long after a command was sent its sender dies, for a death during it."""


class Act(NamedTuple):
    """One thing that an agent does."""

    name: str
    """What it is."""
    number: int
    """Which of its name it is, from 1."""

    @property
    def mutating(self) -> bool:
        """Whether it writes something."""
        words = self.name.split()
        return words[0] == "store" or (words[0] == "helper" and words[1] in MUTATING)

    def __str__(self) -> str:
        return f"{self.name} #{self.number}"

    @classmethod
    def of(cls, text: str) -> Act:
        """The act that such a text means."""
        name, _, number = text.rpartition(" #")
        return cls(name, int(number))


class Fate:
    """Counts what an agent does, lists it, and ends the process at one of them.

    Args:
        act: Where to die; None: nowhere.
        moment: When.
        listed: File that takes the name of each act.
    """

    def __init__(self, act: Act | None = None, moment: Moment = "before", listed: Path | None = None) -> None:
        self._act = act
        self._moment = moment
        self._listed = listed
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def act(self, name: str) -> Iterator[Act]:
        """Do something; an exception is an end of it too."""
        with self._lock:
            self._seen[name] += 1
            act = Act(name, self._seen[name])
        if self._listed is not None and " renew" not in name:
            with self._listed.open("a", encoding="utf-8") as listed:
                listed.write(json.dumps(act) + "\n")
        mine = act == self._act
        if mine and self._moment == "before":
            die()
        if mine and self._moment == "during":
            killer = threading.Timer(DURING_SECONDS, die)
            killer.daemon = True
            killer.start()
        try:
            yield act
        finally:
            if mine:
                die()


def die() -> None:
    """End this process as the kernel would."""
    os.kill(os.getpid(), signal.SIGKILL)


def name_of(argv: Sequence[str], stdin: bytes) -> str:
    """What a command of a host is."""
    program = Path(argv[-2]).name if len(argv) > 1 else ""
    if program == "transaction.py":
        request = json.loads(stdin or b"{}")
        step = f" {request['step']}" if "step" in request else ""
        return f"helper {argv[-1]}{step}"
    if Path(argv[-1]).name == "probe.py":
        return f"load {json.loads(stdin)['kind']}"
    return f"run {Path(argv[0]).name}"


class MortalHost(Behind):
    """A host whose every call is an act."""

    def __init__(self, host: Host, fate: Fate) -> None:
        super().__init__(host)
        self._fate = fate

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float,
        environ: Mapping[str, str] | None = None,
    ) -> Completed:
        """Execute a command."""
        with self._fate.act(name_of(argv, stdin)):
            return self._host.run(argv, stdin=stdin, timeout=timeout, environ=environ)

    @contextlib.contextmanager
    def stream(self, argv: Sequence[str], *, stdin: bytes = b"", silence: float) -> Iterator[LineStream]:
        """Start a command."""
        with self._fate.act(name_of(argv, stdin)), self._host.stream(argv, stdin=stdin, silence=silence) as lines:
            yield lines

    def read(self, path: str, *, tail: int | None = None) -> bytes:
        """Return a file's bytes."""
        with self._fate.act(f"read {Path(path).name}"):
            return self._host.read(path, tail=tail)

    def http(self, method: str, url: str, *, timeout: float, body: bytes = b"") -> HttpAnswer:
        """Ask an HTTP endpoint."""
        with self._fate.act(f"http {urlsplit(url).path}"):
            return self._host.http(method, url, timeout=timeout, body=body)

    def ship(self, name: str, content: bytes) -> str:
        """Put a file into Prudent's directory."""
        with self._fate.act(f"ship {name}"):
            return self._host.ship(name, content)


class MortalSaver(BaseCheckpointSaver[str]):
    """Checkpoints whose every write is an act."""

    def __init__(self, saver: BaseCheckpointSaver[str], fate: Fate) -> None:
        super().__init__(serde=saver.serde)
        self._saver = saver
        self._fate = fate

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Look one up."""
        return self._saver.get_tuple(config)

    def list(self, config: RunnableConfig | None, **which: Any) -> Iterator[CheckpointTuple]:
        """Look some up."""
        return self._saver.list(config, **which)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Write one."""
        with self._fate.act("checkpoint put"):
            return self._saver.put(config, checkpoint, metadata, new_versions)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Write what a node has brought."""
        with self._fate.act("checkpoint writes"):
            self._saver.put_writes(config, writes, task_id, task_path)

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Number what comes next."""
        return self._saver.get_next_version(current, channel)


class MortalStore:
    """A store whose every write is an act; questions to it are not."""

    def __init__(self, store: Store, fate: Fate) -> None:
        self._store = store
        self._fate = fate

    def __getattr__(self, name: str) -> Any:
        """A verb of the store."""
        verb = getattr(self._store, name)
        if name not in WRITES:
            return verb

        def acting(*arguments: Any, **named: Any) -> Any:
            with self._fate.act(f"store {name}"):
                return verb(*arguments, **named)

        return acting
