"""A message that its sender did not live to see arrive: it is caught on its way, and comes to the host much later."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from evals.campaigns.behind import Passing
from evals.campaigns.mortal import Act, Fate, die, name_of
from tools.host import Completed, Host

LIMIT = 120.0
"""Seconds that the host may take over a late message."""


class Letter:
    """A command that was sent and has not arrived.

    Args:
        path: The file that keeps it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def is_on_its_way(self) -> bool:
        """Whether it was sent and has not arrived yet."""
        return self._path.exists()

    def send(self, argv: Sequence[str], stdin: bytes) -> None:
        """Put it on its way."""
        words = [list(argv), base64.b64encode(stdin).decode()]
        self._path.write_text(json.dumps(words), encoding="utf-8")

    def arrive(self, host: Host) -> None:
        """Let it arrive; nobody hears what comes of it."""
        argv, stdin = json.loads(self._path.read_text(encoding="utf-8"))
        self._path.unlink()
        with contextlib.suppress(Exception):
            host.run(argv, stdin=base64.b64decode(stdin), timeout=LIMIT)


class PostedHost(Passing):
    """A host on whose way commands may linger.

    Args:
        host: The host.
        letter: The one that lingers.
        posted: The act whose command is put on its way, after which its sender dies.
        after: Calls of this host after which the letter arrives; None: not while this host is used.
    """

    def __init__(self, host: Host, letter: Letter, *, posted: Act | None = None, after: int | None = None) -> None:
        super().__init__(host)
        self._letter = letter
        self._posted = posted
        self._after = after
        self._fate = Fate()
        self._calls = 0

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float,
        environ: Mapping[str, str] | None = None,
    ) -> Completed:
        """Execute a command, unless it is the one that lingers."""
        with self._fate.act(name_of(argv, stdin)) as act:
            if act == self._posted:
                self._letter.send(argv, stdin)
                die()
            if Path(argv[-2]).name == "transaction.py" and argv[-1] != "renew":
                if self._calls == self._after and self._letter.is_on_its_way:
                    self._letter.arrive(self._host)
                self._calls += 1
            return self._host.run(argv, stdin=stdin, timeout=timeout, environ=environ)
