"""A worker that a real systemd keeps on the test host, and the writer for it, as root and as an ordinary user."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from agent.domain import Approval, Plan, Process
from agent.errors import HostError, NoAnswer
from evals.campaigns.small_plan import small_plan, yes_to
from evals.lab.machine import Machine, MachineError
from tools.host import Completed, HttpAnswer, LineStream
from tools.service import SystemdService
from tools.transaction import Writer

OLD = b"#!/bin/bash\n# decode worker\nexport LEVEL=32\nexec sleep 86432\n"
NEW = OLD.replace(b"32", b"96")
OLD_RUNS, NEW_RUNS = ("sleep", "86432"), ("sleep", "86496")
_NUMBER = itertools.count(1)


class Inside:
    """The test host as a host, past sshd: what a login of an account would do there, without the login."""

    python = "/usr/bin/python3"

    def __init__(self, machine: Machine, user: str, directory: str) -> None:
        self.machine = machine
        self.user = user
        self.name = f"{user}@{machine.port}"
        self.directory = directory
        self.environ: Mapping[str, str] = {}

    def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float, environ: Mapping[str, str] | None = None
    ) -> Completed:
        """Execute a command to its end."""
        words = {**self.environ, **(environ or {})}
        done = self.machine.run(argv, user=self.user, stdin=stdin, environ=words, timeout=timeout, check=False)
        return Completed(done.returncode, done.stdout, done.stderr)

    def ask(self, *argv: str, check: bool = True) -> str:
        """Execute a command and return what it printed."""
        return self.machine.run(argv, user=self.user, check=check).stdout.decode()

    def read(self, path: str, *, tail: int | None = None) -> bytes:
        """A file's bytes."""
        try:
            content = self.machine.run(["cat", "--", path], user=self.user).stdout
        except MachineError as error:
            raise HostError(self.name, ("read", path), None, str(error)) from error
        return content if tail is None else content[-tail:]

    def stream(
        self, argv: Sequence[str], *, stdin: bytes = b"", silence: float
    ) -> contextlib.AbstractContextManager[LineStream]:
        """Send load, which no site takes.

        Raises:
            NoAnswer: always.
        """
        raise NoAnswer(self.name, argv, None, "no site takes load")

    def http(self, method: str, url: str, *, timeout: float, body: bytes = b"") -> HttpAnswer:
        """Ask an engine, of which no site has one.

        Raises:
            NoAnswer: always.
        """
        raise NoAnswer(self.name, (method, url), None, "no site has an engine")

    def ship(self, name: str, content: bytes) -> str:
        """Put a file of ours into Prudent's directory."""
        path = f"{self.directory}/shipped/{hashlib.sha256(content).hexdigest()[:16]}/{name}"
        self.machine.run(["mkdir", "-p", "-m", "700", self.directory], user=self.user)
        self.machine.write(path, content, user=self.user)
        return path


class UnitSite:
    """One worker under systemd and everything around it."""

    def __init__(self, machine: Machine, user: str, *, unit: str = "", worker: str = "decode") -> None:
        number = next(_NUMBER)
        self.machine = machine
        self.user = user
        self.scope = "system" if user == "root" else "user"
        self.worker = worker
        self.unit = unit or f"decode-{number}.service"
        home = "/root" if user == "root" else f"/home/{user}"
        self.folder = f"{home}/site-{number}"
        self.script = f"{self.folder}/serve.sh"
        self.host = Inside(machine, user, f"{self.folder}/prudent")
        self.units = "/etc/systemd/system" if user == "root" else f"{home}/.config/systemd/user"
        self.fragment = f"{self.units}/{self.unit}"
        self.service = SystemdService(unit=self.unit, scope=self.scope, restart_seconds=60, settle_seconds=10)
        self.writer = self.writer_for()
        self.write(OLD)
        self.define()

    def writer_for(self, worker: str = "", *, directory: str = "", ports: Sequence[int] = (), **changed: Any) -> Writer:
        """A writer for this unit; another directory is another agent's, who was told so."""
        host = Inside(self.machine, self.user, directory) if directory else self.host
        service = self.service.model_copy(update=changed)
        return Writer(host, worker or self.worker, self.script, service, ports=ports, timeout=60)

    def write(self, content: bytes) -> None:
        """Replace the script as a person would, with another editor."""
        self.machine.write(self.script, content, user=self.user, mode=0o750)

    def define(self, *service: str, restart: str = "always") -> None:
        """Write the unit, enabled, and start it."""
        lines = [f"ExecStart={self.script}", f"Restart={restart}", "RestartSec=200ms", *service]
        wanted = "multi-user.target" if self.scope == "system" else "default.target"
        text = "\n".join(["[Service]", *lines, "[Install]", f"WantedBy={wanted}", ""])
        self.machine.write(self.fragment, text.encode(), user=self.user)
        self.systemctl("daemon-reload")
        self.systemctl("enable", "--quiet", self.unit)
        self.systemctl("restart", self.unit)

    def systemctl(self, *words: str, check: bool = True) -> str:
        """Speak to the unit's manager, as its operator would."""
        scope = ["--user"] if self.scope == "user" else []
        return self.host.ask("systemctl", *scope, *words, check=check)

    def shows(self, name: str) -> str:
        """What the manager says of the unit."""
        return self.systemctl("show", self.unit, f"--property={name}", "--value").strip()

    def process(self, argv: tuple[str, ...] = ()) -> Process:
        """The live main process, once its argv is that of the script's last command."""
        seen = self.until(lambda: (p := self.writer.main()) and p.argv[:1] == ("sleep",) and p)
        assert isinstance(seen, Process)
        return seen

    def until(self, look: Callable[[], Any], seconds: float = 60.0) -> Any:
        """What a look brings once it brings something."""
        end = time.monotonic() + seconds
        while True:
            found = look()
            if found:
                return found
            assert time.monotonic() < end, f"never: {found!r}"
            time.sleep(0.1)

    def ended(self, state: str, seconds: float = 60.0) -> Any:
        """The transaction once it is in a state."""

        def look() -> Any:
            try:
                execution = self.writer.observe().execution
            except NoAnswer:
                return None
            return execution if execution is not None and execution.state == state else None

        return self.until(look, seconds)

    def plan(self, *, run: str = "r-1", watchdog: float = 120.0, new: bytes = NEW, edits: bool = True) -> Plan:
        """The plan for an edit and a restart, made for what is there now."""
        process = self.process().identity
        old = hashlib.sha256(self.host.read(self.script)).hexdigest()
        return small_plan(
            script=self.script,
            old=old,
            new=hashlib.sha256(new).hexdigest() if edits else old,
            process=process,
            watchdog=watchdog,
            worker=self.worker,
            host=self.host.name,
            edits=edits,
            run=run,
        )

    @staticmethod
    def approval(plan: Plan, *, at: datetime | None = None) -> Approval:
        """A yes to a plan, by a clock that may be any."""
        return yes_to(plan, at=at)

    def open(self, run: str = "r-1", *, writer: Writer | None = None, new: bytes = NEW, **changed: Any) -> int:
        """Lease and open a transaction for a fresh plan; the token."""
        writer = writer or self.writer
        token = writer.lease(run, 120).token
        plan = self.plan(run=run, new=new, **changed)
        content = new if len(plan.steps) > 1 else b""
        writer.open(token, run, plan, self.approval(plan), content, now=datetime.now(UTC))
        return token

    @contextlib.contextmanager
    def seams(self, **seams: str) -> Iterator[None]:
        """Set test seams of the helper for the calls in a block."""
        self.host.environ = {f"PRUDENT_{name}": value for name, value in seams.items()}
        try:
            yield
        finally:
            self.host.environ = {}

    @property
    def traces(self) -> list[str]:
        """Every file of ours among the manager's units, and every unit of ours that it knows."""
        folders = [self.units, "/run/systemd/system", "/run/systemd/transient"]
        if self.scope == "user":
            runtime = self.host.ask("sh", "-c", "echo $XDG_RUNTIME_DIR").strip()
            folders = [self.units, f"{runtime}/systemd/user", f"{runtime}/systemd/transient"]
        files = self.host.ask("find", *folders, "-name", "*prudent*", check=False).split()
        units = self.systemctl("list-units", "--all", "--plain", "--no-legend", "prudent-*").splitlines()
        return files + [line.split()[0] for line in units]

    def close(self) -> None:
        """End the worker and all that this site has left."""
        self.systemctl("disable", "--now", "--quiet", self.unit, check=False)
        for name in self.traces:
            if "/" in name:
                self.host.ask("rm", "-f", name)
            else:
                self.systemctl("kill", "--signal=KILL", name, check=False)
        self.host.ask("sh", "-c", 'rm -rf "$1" "$2" "$2.d"', "sh", self.folder, self.fragment)
        self.systemctl("daemon-reload")
