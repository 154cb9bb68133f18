"""A worksite for the tools' tests: a real script, a real process, a real service, and the writer over a local host."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent.domain import Approval, Plan, Process
from evals.campaigns.small_plan import small_plan, yes_to
from tools.host import Completed
from tools.local import LocalHost
from tools.service import CommandService
from tools.transaction import HELPER, Writer

SERVICE = Path(__file__).parents[1] / "data" / "service" / "service.sh"
OLD = b"#!/bin/bash\n# decode worker\nexport LEVEL=32\nexec sleep 86432\n"
NEW = OLD.replace(b"32", b"96")


FORGE = """
import json, os, socket, sys
server = socket.socket(fileno=int(sys.argv[1]))
path = sys.argv[2]
with open(path) as file:
    code = compile(file.read(), path, "exec")
exec(code, {"__name__": "warm", "__file__": path})
while wish := server.recv(65536):
    wish = json.loads(wish)
    child = os.fork()
    if not child:
        server.close()
        os.setsid()
        for number, name in enumerate(wish["files"]):
            os.dup2(os.open(name, os.O_RDWR), number)
        os.environ.update(wish["environ"])
        sys.argv = [path, wish["verb"]]
        status = 70
        try:
            exec(code, {"__name__": "__main__", "__file__": path})
        except SystemExit as end:
            status = end.code
        finally:
            sys.stdout.flush()
            os._exit(status)
    server.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
"""


class Forge:
    """Starts the helper by forking an interpreter that has compiled it.

    Each call is a process of its own as in life, in a tenth of the time that a cold start takes.
    """

    def __init__(self, python: str, helper: Path) -> None:
        self.helper = helper
        self._socket, theirs = socket.socketpair()
        argv = [python, "-I", "-S", "-B", "-c", FORGE, str(theirs.fileno()), str(helper)]
        self._server = subprocess.Popen(argv, pass_fds=[theirs.fileno()])
        theirs.close()

    def call(self, verb: str, stdin: bytes, environ: Mapping[str, str]) -> Completed:
        """Run one verb to its end."""
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(tempfile.NamedTemporaryFile()) for _ in range(3)]
            files[0].write(stdin)
            files[0].flush()
            wish = {"verb": verb, "environ": dict(environ), "files": [file.name for file in files]}
            self._socket.send(json.dumps(wish).encode())
            status = int(self._socket.recv(100))
            return Completed(status, files[1].read(), files[2].read())

    def close(self) -> None:
        """End the interpreter."""
        self._socket.close()
        self._server.wait(30)


class SeamedHost(LocalHost):
    """The local host, with the helper's test seams set for its next calls, and its cold starts left out."""

    seams: Mapping[str, str] = {"PRUDENT_DETACHED": "1"}
    forge: Forge | None = None

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float,
        environ: Mapping[str, str] | None = None,
    ) -> Completed:
        """Execute a command with the seams in its environment."""
        environ = {**(environ or {}), **self.seams}
        if self.forge is not None and len(argv) > 2 and argv[-2].endswith("/transaction.py"):
            assert Path(argv[-2]).read_bytes() == self.forge.helper.read_bytes()
            return self.forge.call(argv[-1], stdin, environ)
        return super().run(argv, stdin=stdin, timeout=timeout, environ=environ)


class Site:
    """One worker and everything around it."""

    def __init__(self, folder: Path, *, directory: Path | None = None, forge: Forge | None = None) -> None:
        self.folder = folder
        self.script = folder / "serve.sh"
        self.old = OLD
        self.script.write_bytes(OLD)
        self.script.chmod(0o750)
        self.directory = directory or folder / "prudent"
        self.host = SeamedHost(self.directory)
        self.host.forge = forge
        argv = ("/bin/sh", str(SERVICE))
        self.service = CommandService(
            restart=(*argv, "restart", str(folder), str(self.script)),
            pid=(*argv, "pid", str(folder), str(self.script)),
            restart_seconds=60,
            settle_seconds=10,
        )
        self.writer = self.writer_for("decode")
        self.serve("restart")
        self.before = self.process()

    def writer_for(self, worker: str, **changed: Any) -> Writer:
        """A writer for this script."""
        service = self.service.model_copy(update=changed)
        return Writer(self.host, worker, str(self.script), service, timeout=60)

    def serve(self, verb: str) -> None:
        """Speak to the service directly, as a person would."""
        subprocess.run(["/bin/sh", SERVICE, verb, str(self.folder), str(self.script)], check=True, stdout=-3)

    def process(self) -> Process:
        """The live main process, once its argv is that of the script's last command."""
        for _ in range(1000):
            process = self.writer.main()
            if process is not None and process.argv[:1] == ("sleep",):
                return process
            time.sleep(0.02)
        raise AssertionError("the worker does not run")

    @property
    def restarts(self) -> int:
        """How often the service was told to restart, the first start included."""
        return len((self.folder / "restarts").read_text().split())

    def plan(self, *, new: bytes = NEW, watchdog: float = 60.0, **changed: Any) -> Plan:
        """The plan for an edit and a restart, made for what is there now."""
        return small_plan(
            script=str(self.script),
            old=hashlib.sha256(self.script.read_bytes()).hexdigest(),
            new=hashlib.sha256(new).hexdigest(),
            process=self.before.identity,
            watchdog=watchdog,
            **changed,
        )

    @staticmethod
    def approval(plan: Plan, **changed: Any) -> Approval:
        """A yes to a plan."""
        return yes_to(plan, **changed)

    def open(self, token: int, transaction: str = "r-1", **changed: Any) -> Plan:
        """Open a transaction for a fresh plan."""
        plan = self.plan(**changed)
        self.writer.open(token, transaction, plan, self.approval(plan), NEW, now=datetime.now(UTC))
        return plan

    @contextlib.contextmanager
    def seams(self, **seams: str) -> Iterator[None]:
        """Set test seams of the helper for the calls in a block."""
        before = self.host.seams
        self.host.seams = {**before, **{f"PRUDENT_{name}": value for name, value in seams.items()}}
        try:
            yield
        finally:
            self.host.seams = before

    def crash_at(self, number: int) -> contextlib.AbstractContextManager[None]:
        """Have the helper killed just before its action of this number."""
        return self.seams(CRASH_AT=str(number))

    def watchdog_pid(self) -> int:
        """The pid of the watchdog that was started last."""
        return int((self.directory / "workers" / "decode" / "watchdog").read_text())

    def close(self) -> None:
        """End what this site started: watchdogs first, so that none works in a folder that is gone."""
        for presence in self.directory.glob("workers/*/watchdog"):
            text = presence.read_text().strip()
            with contextlib.suppress(OSError):
                if text and b"transaction.py" in _cmdline(int(text)):
                    os.kill(int(text), signal.SIGKILL)
        self.serve("stop")


def _cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.fixture(scope="session")
def forge() -> Iterator[Forge]:
    """One warm interpreter for all tests."""
    made = Forge(sys.executable, HELPER)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def site(tmp_path: Path, forge: Forge) -> Iterator[Site]:
    """A worker that runs from its script, and nothing of ours on its host yet."""
    made = Site(tmp_path, forge=forge)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def cold_site(tmp_path: Path) -> Iterator[Site]:
    """The same, with every call of the helper started as in life: from nothing, and any number at a time."""
    made = Site(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def idle_site(tmp_path_factory: pytest.TempPathFactory, forge: Forge) -> Iterator[Site]:
    """A site that all tests of a file share, because each of them is refused before it changes anything."""
    made = Site(tmp_path_factory.mktemp("idle"), forge=forge)
    try:
        yield made
    finally:
        made.close()
