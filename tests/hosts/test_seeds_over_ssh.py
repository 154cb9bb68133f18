"""Both seed stories from another machine: over SSH, on a worker that systemd keeps, proven from the worker's side."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from evals.lab.machine import PYTHONPATH, Machine, MachineError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DATA = Path(__file__).parents[1] / "data"
PRUDENT = (sys.executable, "-m", "agent.doors")
BUMP = "token pool is pretty healthy now, can you bump cuda graphs to 96?"
OVERLAP = "turn the overlap scheduler on, skip that one if it's unsafe"


class Said(NamedTuple):
    """What a command of ours ended with."""

    status: int
    record: dict[str, Any]
    err: str
    texts: tuple[str, ...] = ()


class Office:
    """Where the operator sits: settings that name a worker on another machine, and the command line.

    Args:
        folder: The operator's folder.
        machine: The worker's machine.
        login: Who logs in; `deploy` becomes root with sudo.
        words: What the practice ground is to be like.
    """

    def __init__(self, folder: Path, machine: Machine, login: str, *words: str) -> None:
        self.machine = machine
        self.login = login
        self.user = user = "root" if login == "deploy" else login
        self.folder = folder
        self.where = "/srv/decode" if user == "root" else f"/home/{user}/decode"
        scope = "system" if user == "root" else "user"
        self.scope = [] if user == "root" else ["--user"]
        self.made = self.lab("up", "--supervision", f"systemd-{scope}", "--seed", "11", *words)
        self.original = machine.read(self.made["script"])
        self.settings = folder / "prudent.toml"
        self.settings.write_text(self._settings())

    def _settings(self) -> str:
        """The worker's own settings, as they read from here."""
        there = tomllib.loads(self.machine.read(self.made["settings"]).decode())["workers"]["decode"]
        service = there.pop("service")
        worker = {**there, "host": "gpu7", "script": self.made["script"], "plan": "plan.md"}
        worker["log"] = there["log"] if there["log"] == "journal" else self.made["log"]
        del worker["directory"]
        host = {
            "address": self.machine.address,
            "port": self.machine.port,
            "user": self.login,
            "identity": str(self.machine.key(self.login)),
            "known_hosts": str(self.machine.known_hosts),
            "config": os.devnull,
            **({"become": "sudo"} if self.login == "deploy" else {}),
        }
        (self.folder / "plan.md").write_bytes(self.machine.read(self.made["plan"]))
        parts = {"hosts.gpu7": host, "workers.decode": worker, "workers.decode.service": service}
        lines = []
        for section, values in parts.items():
            lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
        return "\n".join(lines) + "\n"

    def brisk(self) -> None:
        """Put the worker under the law of the tests, where a run takes seconds, without a word on speed.

        A machine that does something else meanwhile gives no valid rate, and a rate is not what is tested here.
        """
        lines = (DATA / "agent" / "brisk.yaml").read_text().splitlines(keepends=True)
        speed = next(number for number, line in enumerate(lines) if "{id: throughput" in line)
        law = "".join([*lines[:speed], *lines[speed + 2 :]])
        law = law.replace(
            "{always: true, baseline: true, concurrency: [16]", "{always: false, baseline: false, concurrency: [16]"
        )
        patient = law.replace("approve_within_minutes: 0.5", "approve_within_minutes: 5")
        assert patient != law
        (self.folder / "brisk.yaml").write_text(patient)
        self.settings.write_text(self.settings.read_text().replace('policy = "practice"', 'policy = "brisk.yaml"'))

    def lab(self, word: str, *words: str) -> dict[str, Any]:
        """Speak to the practice ground on the machine."""
        command = ["python3", "-m", "evals.lab", word, "-d", self.where, *words]
        done = self.machine.run(command, user=self.user, environ={"PYTHONPATH": PYTHONPATH})
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    def start(self, *argv: str) -> subprocess.Popen[str]:
        """Start a command of ours."""
        return subprocess.Popen(
            [*PRUDENT, *argv],
            env={**os.environ, "PRUDENT_SETTINGS": str(self.settings), "COLUMNS": "110"},
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def say(self, *argv: str) -> Said:
        """Run a command to its end."""
        asking = self.start(*argv)
        out, err = asking.communicate(timeout=600)
        events = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        records = [event["record"] for event in events if event.get("kind") == "record"]
        return Said(asking.returncode, records[-1] if records else {}, err)

    def ask(self, text: str, *, at: Mapping[str, Callable[[int], object]] = {}) -> Said:
        """Ask, approve from another process, and do something when an event's text begins with some words."""
        asking = self.start("ask", text, "--json")
        assert asking.stdout is not None
        assert asking.stderr is not None
        record: dict[str, Any] = {}
        texts: list[str] = []
        todo = dict(at)
        for line in asking.stdout:
            event = json.loads(line)
            if event["kind"] == "plan":
                approved = self.say("approve", event["plan"]["run"])
                assert approved.status == 0, approved.err
            if event["kind"] == "record":
                record = event["record"]
            said = str(event.get("text", ""))
            texts.append(said)
            for words in [words for words in todo if said.startswith(words)]:
                todo.pop(words)(asking.pid)
        status = asking.wait(timeout=120)
        said = asking.stderr.read()
        asking.stdout.close()
        asking.stderr.close()
        return Said(status, record, said, tuple(texts))

    def argv(self) -> list[str]:
        """The live worker's own argv, from its own machine."""
        pid = self.shows("MainPID")
        return [word.decode() for word in self.machine.read(f"/proc/{pid}/cmdline").split(b"\0")[:-1]]

    def shows(self, name: str) -> str:
        """What systemd says of the worker's unit."""
        words = ["systemctl", *self.scope, "show", f"--property={name}", "--value", self.made["unit"]]
        return self.machine.run(words, user=self.user).stdout.decode().strip()

    def is_as_the_record_says(self, record: Mapping[str, Any]) -> None:
        """Hold a record's word against script, process and unit on the machine itself."""
        state = record["verdict"]["state"]
        now = self.machine.read(self.made["script"])
        assert state in {"new", "restored", "untouched"}, record["verdict"]
        assert (now != self.original) == (state == "new")
        self._await(lambda: self.shows("ActiveState") == "active" and self.shows("MainPID") != "0")
        argv = self.argv()
        if record["change"] is not None and "graph" in record["change"]["summary"]:
            assert argv[argv.index("--cuda-graph-max-bs") + 1] == ("96" if state == "new" else "32")
        else:
            assert ("--disable-overlap-schedule" in argv) == (state != "new")

    def wait_until_restored(self, seconds: float = 180.0) -> None:
        """Wait until the machine, by itself, has the old bytes and runs them."""

        def restored() -> bool:
            pid = self.shows("MainPID")
            old = self.machine.read(self.made["script"]) == self.original
            return old and pid != "0" and "32" in self.argv() and self.lab("status")["ready"]

        self._await(restored, seconds)

    def _await(self, what: Callable[[], bool], seconds: float = 60.0) -> None:
        until = time.monotonic() + seconds
        while True:
            with contextlib.suppress(MachineError):
                if what():
                    return
            assert time.monotonic() < until
            time.sleep(0.3)

    def down(self) -> None:
        """End the worker, and forget what Prudent kept on its machine."""
        self.lab("down")
        home = "/root" if self.user == "root" else f"/home/{self.user}"
        self.machine.run(["rm", "-rf", self.where, f"{home}/.prudent"])


@pytest.fixture
def office(tmp_path, machine):
    """Makes the operator's desk for a worker of a user; the worker is gone afterwards."""
    made: list[Office] = []

    def make(user: str, *words: str) -> Office:
        made.append(Office(tmp_path, machine, user, *words))
        return made[-1]

    yield make
    for one in made:
        one.down()


@pytest.mark.parametrize("login", ["root", "operator", "deploy"])
def test_a_safe_change_is_kept_on_another_machine(office, login):
    """One value of the script there changes; the unit's own new process has it; owner and mode are what they were."""
    desk = office(login)
    desk.brisk()
    before = desk.shows("MainPID")

    said = desk.ask(BUMP)

    verdict = said.record["verdict"]
    assert (said.status, verdict["decision"], verdict["state"]) == (0, "kept", "new"), (verdict, said.err)
    assert desk.machine.read(desk.made["script"]) == desk.original.replace(b"max-bs 32", b"max-bs 96")
    argv = desk.argv()
    assert argv[argv.index("--cuda-graph-max-bs") + 1] == "96"
    assert desk.shows("MainPID") != before
    assert desk.shows("ActiveState") == "active"
    owner = desk.machine.run(["stat", "-c", "%U %a", desk.made["script"]]).stdout.decode().split()
    assert owner == [desk.user, "755"]
    assert said.record["run"] in (desk.folder / "plan.md").read_text()


@pytest.mark.parametrize("user", ["root", "operator"])
def test_an_unsafe_change_is_taken_back_on_another_machine(office, user):
    """The overlap scheduler wedges under aborts: the old bytes are back, and a new process of the old launch."""
    desk = office(user)
    desk.brisk()
    before = desk.shows("MainPID")

    said = desk.ask(OVERLAP)

    verdict = said.record["verdict"]
    assert (said.status, verdict["decision"], verdict["state"]) == (11, "deferred", "restored"), (verdict, said.err)
    assert desk.machine.read(desk.made["script"]) == desk.original
    assert "--disable-overlap-schedule" in desk.argv()
    assert desk.shows("MainPID") != before
    restored = {r["metric"]: r["value"] for r in said.record["readings"] if r["phase"] == "restored"}
    assert (restored["identity_proven"], restored["effective_matches"], restored["entry_answers"]) == (1, 1, 1)


@pytest.mark.parametrize(
    ("text", "status", "decision", "state"),
    [(BUMP, 0, "kept", "new"), (OVERLAP, 11, "deferred", "restored")],
    ids=["kept", "taken back"],
)
def test_a_side_of_a_pair_is_changed_on_another_machine(office, text, status, decision, state):
    """A decode worker behind a router, its load through the entry only, and its output in the journal."""
    desk = office("operator", "--topology", "pd", "--journal")
    desk.brisk()

    said = desk.ask(text)

    verdict = said.record["verdict"]
    assert (said.status, verdict["decision"], verdict["state"]) == (status, decision, state), (verdict, said.err)
    desk.is_as_the_record_says(said.record)


@pytest.mark.parametrize(
    ("moment", "states"),
    [
        ("baseline: sessions", {"untouched"}),
        ("restart decode", {"new", "restored"}),
        ("candidate: sessions", {"new", "restored"}),
    ],
)
def test_sshd_dies_under_a_run_and_nothing_is_said_that_is_not_so(office, moment, states):
    """Before the change, in its restart and while it is measured: the run ends in a state that it has proven.

    That the connection had to be made again is shown, and stands in the record of a run that went on with it.
    """
    desk = office("root")
    desk.brisk()

    said = desk.ask(BUMP, at={moment: lambda _: desk.machine.run(["pkill", "-KILL", "sshd"])})

    assert said.record["verdict"]["state"] in states, (said.record["verdict"], said.err)
    desk.machine.wait_until_up()
    desk.is_as_the_record_says(said.record)
    if "untouched" not in states:
        again = "gpu7: the connection was lost and has been made again"
        assert again in said.texts
        assert again in said.record["notes"]


@pytest.mark.parametrize("login", ["root", "operator", "deploy"])
def test_doctor_finds_out_what_a_login_may_do(office, login):
    """Whoever may carry a change out is told so; who may not is told what is missing."""
    desk = office(login)
    assert desk.say("doctor", "decode").status == 0

    desk.settings.write_text(desk.settings.read_text().replace('become = "sudo"\n', ""))
    if login == "operator":
        text = desk.settings.read_text().replace('scope = "user"', 'scope = "system"')
        desk.settings.write_text(text)
    said = desk.say("doctor", "decode")

    assert (said.status == 0) == (login == "root"), said.err


def test_the_agent_never_comes_back_and_the_worker_is_restored(office):
    """SIGKILL of the agent with the change live: the host itself puts the old launch back; resume says so."""
    desk = office("operator")
    desk.brisk()

    said = desk.ask(BUMP, at={"candidate: sessions": lambda pid: os.kill(pid, signal.SIGKILL)})

    assert said.status == -signal.SIGKILL
    desk.wait_until_restored()
    resumed = desk.say("resume", "--json")
    assert resumed.record["verdict"]["state"] == "restored", (resumed.record, resumed.err)
    desk.is_as_the_record_says(resumed.record)


@pytest.mark.parametrize("user", ["root", "operator"])
def test_the_power_goes_with_the_change_live(own_machine, tmp_path, user):
    """The agent dies and the machine with it: after the boot, without anybody asking, the old launch serves again."""
    desk = Office(tmp_path, own_machine, user)
    desk.brisk()

    def cut(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        own_machine.power_cut()

    desk.ask(BUMP, at={"candidate: sessions": cut})

    desk.wait_until_restored()
    resumed = desk.say("resume", "--json")
    assert resumed.record["verdict"]["state"] == "restored", (resumed.record, resumed.err)
    desk.is_as_the_record_says(resumed.record)


def test_the_power_goes_under_a_living_agent(own_machine, tmp_path):
    """It finds the machine again, and what it says of the worker is what the worker is."""
    desk = Office(tmp_path, own_machine, "root")
    desk.brisk()

    said = desk.ask(BUMP, at={"candidate: sessions": lambda _: own_machine.power_cut()})

    assert said.record["verdict"]["decision"] != "kept"
    desk.wait_until_restored()
    if said.record["verdict"]["state"] == "unknown":
        said = desk.say("resume", "--json")
    desk.is_as_the_record_says(said.record)
