"""Two agents on two machines of their own, hours apart by their clocks, at one worker on a third."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from evals.lab import machine as lab_machine
from evals.lab.machine import PYTHONPATH, Machine
from evals.lab.machine_image import cache
from evals.lab.relay import Relay

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DATA = Path(__file__).parents[1] / "data"
BUMP = "token pool is pretty healthy now, can you bump cuda graphs to 96?"
HALF = "bump cuda graphs to 64"
OTHER_CLOCK = "/usr/lib/x86_64-linux-gnu/datefudge/datefudge.so"
"""Debian's datefudge: every reading of the wall clock, and of no other, is so many seconds off."""


class Shop:
    """The worker's machine, with a worker that its systemd keeps.

    Args:
        machine: The machine.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.made = self.lab("up", "--supervision", "systemd-system", "--seed", "11")
        self.original = machine.read(self.made["script"])
        drop_in = f"/etc/systemd/system/{self.made['unit']}.d/slow.conf"
        # A worker that takes its time to end, so that a link can be lost while it does.
        machine.write(drop_in, b"[Service]\nExecStop=/bin/sleep 3\n")
        machine.run(["systemctl", "daemon-reload"])

    def lab(self, word: str, *words: str) -> dict[str, Any]:
        """Speak to the practice ground on the machine."""
        command = ["python3", "-m", "evals.lab", word, "-d", "/srv/decode", *words]
        said: dict[str, Any] = json.loads(self.machine.run(command, environ={"PYTHONPATH": PYTHONPATH}).stdout)
        return said

    def lines(self) -> list[dict[str, Any]]:
        """What the host itself has written down, in order."""
        lines = self.machine.run(["cat", "/root/.prudent/host/workers/decode/journal"], check=False).stdout.splitlines()
        return [json.loads(line[line.index(b"{") :]) for line in lines]

    def journal(self, run: str) -> list[dict[str, Any]]:
        """What of it is about a run."""
        return [entry for entry in self.lines() if entry["transaction"] == run]

    def has(self, run: str, event: str, step: str = "") -> bool:
        """Whether something has come to pass in a run."""
        found = [entry for entry in self.journal(run) if entry["event"] == event]
        return any((entry["step"] or "").endswith(step) for entry in found)

    def script(self) -> bytes:
        """The launch file as it is."""
        return self.machine.read(self.made["script"])

    def argv(self) -> list[str]:
        """The live worker's own argv."""
        shown = self.machine.run(["systemctl", "show", "--property=MainPID", "--value", self.made["unit"]]).stdout
        words = self.machine.read(f"/proc/{shown.decode().strip()}/cmdline").split(b"\0")[:-1]
        return [word.decode() for word in words]

    def down(self) -> None:
        """End the worker, and forget what was kept here."""
        self.lab("down")
        self.machine.run(["rm", "-rf", "/srv/decode", "/root/.prudent"])


class Desk:
    """An operator's own machine: another clock, its own store and known_hosts, its own way to the worker's machine.

    Args:
        name: What the machine calls itself.
        shop: The worker's machine.
    """

    def __init__(self, name: str, shop: Shop) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="prudent-desk-"))
        self._asked: list[Asking] = []
        self.machine = lab_machine.up(self._folder / "host", folder=cache(os.environ), name=name)
        self.relay = Relay(shop.machine.port)
        known = shop.machine.known_hosts.read_text().replace(str(shop.machine.port), str(self.relay.port))
        self.machine.write("/root/desk/known_hosts", known.encode())
        self.machine.write("/root/desk/key", shop.machine.key("root").read_bytes(), mode=0o600)
        lines = (DATA / "agent" / "brisk.yaml").read_text().splitlines(keepends=True)
        speed = next(number for number, line in enumerate(lines) if "{id: throughput" in line)
        law = "".join([*lines[:speed], *lines[speed + 2 :]])
        law = law.replace(
            "{always: true, baseline: true, concurrency: [16]", "{always: false, baseline: false, concurrency: [16]"
        )
        law = law.replace("approve_within_minutes: 0.5", "approve_within_minutes: 5")
        self.machine.write("/root/desk/brisk.yaml", law.encode())
        self.machine.write("/root/desk/prudent.toml", self._settings(shop).encode())

    def _settings(self, shop: Shop) -> str:
        there = tomllib.loads(shop.machine.read(shop.made["settings"]).decode())["workers"]["decode"]
        service = there.pop("service")
        worker = {**there, "host": "gpu7", "script": shop.made["script"], "log": shop.made["log"]}
        worker["policy"] = "brisk.yaml"
        for key in ("plan", "directory"):
            worker.pop(key, None)
        host = {
            "address": "127.0.0.1",
            "port": self.relay.port,
            "user": "root",
            "identity": "/root/desk/key",
            "known_hosts": "/root/desk/known_hosts",
            "config": "/dev/null",
        }
        parts = {"hosts.gpu7": host, "workers.decode": worker, "workers.decode.service": service}
        lines = []
        for section, values in parts.items():
            lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
        return "\n".join(lines) + "\n"

    def environ(self, hours: int) -> dict[str, str]:
        """What a process here has for its variables, its wall clock so many hours off."""
        return {
            "PYTHONPATH": PYTHONPATH,
            "PRUDENT_SETTINGS": "/root/desk/prudent.toml",
            "LD_PRELOAD": OTHER_CLOCK,
            "DATEFUDGE": str(-3600 * hours),
        }

    def say(self, *argv: str, hours: int) -> None:
        """Run a command of ours to its end."""
        self.machine.run(["python3", "-m", "agent.doors", *argv], environ=self.environ(hours), timeout=600)

    def ask(self, text: str, *, hours: int) -> Asking:
        """Begin to ask for something."""
        self._asked.append(Asking(self, text, hours))
        return self._asked[-1]

    def down(self) -> None:
        """End the machine, and who still asks on it."""
        self.relay.close()
        self.machine.down()
        for asking in self._asked:
            asking.end()
        shutil.rmtree(self._folder, ignore_errors=True)


class End(NamedTuple):
    """How a run ended for who asked."""

    status: int
    record: dict[str, Any]
    err: str


class Asking:
    """A run, from the request on; its plan is approved from another process as soon as it is there."""

    def __init__(self, desk: Desk, text: str, hours: int) -> None:
        self._desk = desk
        self._hours = hours
        words = ["python3", "-m", "agent.doors", "ask", text, "--json"]
        self._process = desk.machine.start(words, environ=desk.environ(hours))
        self._events: list[dict[str, Any]] = []
        self._err = ""
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            with self._process.stdout as said:
                for line in said:
                    event = json.loads(line)
                    self._hear(event)
                    if event["kind"] == "plan":
                        self._desk.say("approve", event["plan"]["run"], hours=self._hours)
        finally:
            self._hear({"kind": "end"})

    def _hear(self, event: dict[str, Any]) -> None:
        with self._more:
            self._events.append(event)
            self._more.notify_all()

    def texts(self) -> list[str]:
        """What was said so far, in words."""
        return [str(event.get("text", "")) for event in self._events]

    def run(self) -> str:
        """The run's id."""
        self.until("run ")
        return str(self._events[0]["run"])

    def until(self, words: str, seconds: float = 120.0) -> None:
        """Wait until something is said that begins with some words."""

        def said() -> bool:
            return any(text.startswith(words) for text in self.texts())

        with self._more:
            self._more.wait_for(lambda: said() or self._events[-1:] == [{"kind": "end"}], seconds)
        assert said(), "\n".join(self.texts()[-6:])

    def end(self) -> End:
        """Wait until it has ended."""
        self._reader.join(300)
        assert self._process.stderr is not None
        if not self._process.stderr.closed:
            with self._process.stderr as complained:
                self._err = complained.read().decode()
            self._process.wait(300)
        records = [event["record"] for event in self._events if event["kind"] == "record"]
        return End(self._process.returncode, records[-1] if records else {}, self._err)


@pytest.fixture
def shop(machine) -> Iterator[Shop]:
    """A worker on the shared machine."""
    made = Shop(machine)
    yield made
    made.down()


@pytest.fixture
def desks(shop) -> Iterator[tuple[Desk, Desk]]:
    """Two machines of operators."""
    with contextlib.ExitStack() as open_desks:
        made = []
        for name in ("desk-a", "desk-b"):
            made.append(Desk(name, shop))
            open_desks.callback(made[-1].down)
        yield made[0], made[1]


def wait_for(what: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait until something is so."""
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_two_agents_hours_apart_and_a_link_that_is_lost_in_between(shop, desks):
    """The second is refused by name while the first is at work, by whatever clock, and goes on once the host let go.

    The first one's link falls silent while its restart runs, and brings the good news of it when all is long over: the
    host has taken the change back and refuses it, and its record says so.
    """
    one, other = desks
    first = one.ask(BUMP, hours=9)
    run = first.run()
    holder = f"Run {run}, carried by process"

    first.until("baseline: sessions")
    assert_refused(other.ask(BUMP, hours=20).end(), holder)

    first.until("restart decode")
    wait_for(lambda: shop.has(run, "begun", "restart"))
    one.relay.hush("back")
    wait_for(lambda: shop.has(run, "done", "restart"))
    one.relay.hush()
    assert_refused(other.ask(BUMP, hours=-9).end(), holder)

    wait_for(lambda: shop.has(run, "undone"))
    assert shop.journal(run)[-1]["by"] == "watchdog"
    assert shop.script() == shop.original
    second = other.ask(HALF, hours=-9).end()
    verdict = second.record["verdict"]
    assert (second.status, verdict["decision"], verdict["state"]) == (0, "kept", "new"), (verdict, second.err)
    theirs, journal = shop.script(), shop.lines()

    one.relay.speak()
    done = first.end()

    verdict = done.record["verdict"]
    assert (done.status, verdict["decision"], verdict["state"]) == (11, "deferred", "restored"), (verdict, done.err)
    assert "By the host's journal the watchdog restored the configuration from before" in verdict["why"]
    assert f"run {second.record['run']}, carried by process" in verdict["why"]
    assert "on desk-b" in verdict["why"]
    assert any("watchdog took the change back" in note for note in done.record["notes"])
    assert (done.record["execution"]["state"], done.record["execution"]["journal"][-1]["by"]) == ("undone", "watchdog")
    assert any("is not the newest one" in text for text in first.texts()), first.texts()
    assert (shop.script(), shop.lines()) == (theirs, journal)
    argv = shop.argv()
    assert argv[argv.index("--cuda-graph-max-bs") + 1] == "64"
    apart = datetime.fromisoformat(done.record["at"]) - datetime.fromisoformat(second.record["at"])
    assert apart > timedelta(hours=17)
    assert all(abs(entry["at"] - time.time()) < 3600 for entry in journal)


def assert_refused(end: End, holder: str) -> None:
    """Hold what came of a run against the one sentence that it is to be refused with."""
    assert end.record is not None, end.err
    verdict = end.record["verdict"]
    assert (verdict["decision"], verdict["refusal"]) == ("refused", "RunInFlight"), verdict
    assert verdict["why"].startswith(holder), verdict
    assert "on desk-a" in verdict["why"], verdict
    assert verdict["why"].endswith("is at work on worker decode."), verdict
