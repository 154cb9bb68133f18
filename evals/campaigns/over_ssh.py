"""Points of the `ssh` matrix, taken on the test host itself: an agent, a link that fails, a real sshd, a ground.

    python -m evals.campaigns.over_ssh WAY     WAY: {"port": ..., "key": FILE, "host_key": "ssh-ed25519 ..."}

It prints the loopback port at which it listens. Every connection is one JSON line and its answer: a story's name, which
is answered with its acts, or a point's `[story, act, trouble]`, which is answered with what is wrong, or null.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TextIO, TypeVar

from evals.campaigns.agent import STORIES, Around, World, ask, forked, record_of, resume
from evals.campaigns.behind import Passing
from evals.campaigns.campaign import Campaign, campaign
from evals.campaigns.ground import Ground
from evals.campaigns.mortal import Act, Fate, die, name_of
from evals.campaigns.oracle import before, end_of
from evals.lab.relay import Relay
from tools.host import Completed, Host
from tools.ssh import SshHost
from tools.ssh_host import LinkedHost
from tools.ssh_target import SshTarget

TROUBLES = (
    *("cut before", "cut in the request", "cut in the answer"),
    *("stalled in the request", "stalled in the answer"),
    *("killed before", "killed in the request", "killed in the answer", "killed after"),
)
"""`cut`: the connection ends there, and none comes about until the call has ended. `stalled`: nothing comes through for
`STALL_SECONDS`, then all of it. `killed`: the agent dies there, and another resumes."""
STALL_SECONDS = 2.0
IN_THE_REQUEST, IN_THE_ANSWER = 0.5, 0.7
"""Which share of a call's bytes has come through; sshd's own words before an answer are some hundred of them."""
RUN = "r-crash"
Answer = TypeVar("Answer")


class Way(NamedTuple):
    """How this machine's own sshd is reached."""

    port: int
    """Its port on the loopback interface."""
    key: str
    """File of a key that root is let in with."""
    host_key: str
    """Its own key, as known_hosts has it."""


class Call(NamedTuple):
    """A call of a story, and how many bytes it takes."""

    act: Act
    there: int
    back: int


class OverSsh(Passing):
    """A ground whose commands and files go through sshd; endpoints and load stay computed.

    Args:
        host: The ground's own host.
        ssh: The same by SSH.
        relay: What lies between.
        trouble: What happens at a call.
        at: That call; None: nothing happens.
        calls: Takes each call that is made.
    """

    def __init__(
        self,
        host: Host,
        ssh: LinkedHost,
        relay: Relay,
        *,
        trouble: str = "",
        at: Call | None = None,
        calls: list[Call] | None = None,
    ) -> None:
        super().__init__(host)
        self._ssh = ssh
        self._relay = relay
        self._fate = Fate()
        self._trouble = trouble
        self._at = at
        self._calls = calls
        self.met = False
        """Whether the call came."""

    @property
    def python(self) -> str:
        """The interpreter there."""
        return self._ssh.python

    def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float, environ: Mapping[str, str] | None = None
    ) -> Completed:
        """Execute a command by SSH; what is installed is the ground's to say."""
        if Path(argv[-1]).name == "engine_help.py":
            return self._host.run(argv, stdin=stdin, timeout=timeout, environ=environ)
        name = name_of(argv, stdin)
        return self._over(name, lambda: self._ssh.run(argv, stdin=stdin, timeout=timeout, environ=environ))

    def read(self, path: str, *, tail: int | None = None) -> bytes:
        """Return a file's bytes by SSH."""
        return self._over(f"read {Path(path).name}", lambda: self._ssh.read(path, tail=tail))

    def ship(self, name: str, content: bytes) -> str:
        """Put a file there by SSH."""
        return self._over(f"ship {name}", lambda: self._ssh.ship(name, content))

    def _over(self, name: str, call: Callable[[], Answer]) -> Answer:
        with self._fate.act(name) as act:
            there, back = self._relay.passed("there"), self._relay.passed("back")
            mine = self._at is not None and act == self._at.act
            try:
                if mine:
                    self._brew()
                return call()
            finally:
                self._relay.unblock()
                if mine and self._trouble == "killed after":
                    die()
                if self._calls is not None and " renew" not in name:
                    passed = (self._relay.passed("there") - there, self._relay.passed("back") - back)
                    self._calls.append(Call(act, *passed))

    def _brew(self) -> None:
        """Let the trouble come at its place in the call."""
        assert self._at is not None
        self.met = True
        what, _, where = self._trouble.partition(" ")
        do = {"cut": self._relay.block, "stalled": self._stall, "killed": die}[what]
        if where == "before":
            do()
        elif where == "in the request":
            self._relay.at("there", int(self._at.there * IN_THE_REQUEST), do)
        elif where == "in the answer":
            self._relay.at("back", int(self._at.back * IN_THE_ANSWER), do)

    def _stall(self) -> None:
        self._relay.hush()
        threading.Timer(STALL_SECONDS, self._relay.speak).start()


def wrapped(ground: Ground, way: Way, made: list[OverSsh], **more: Any) -> Callable[[World], Host]:
    """What puts sshd between an agent and a ground; each that is made goes into a list."""

    def wrap(world: World) -> Host:
        relay = Relay(way.port)
        known = ground.folder / "run" / "known_hosts"
        known.write_text(f"[127.0.0.1]:{relay.port} {way.host_key}\n", encoding="utf-8")
        target = SshTarget(
            name=world.name,
            address="127.0.0.1",
            port=relay.port,
            user="root",
            identity=way.key,
            known_hosts=str(known),
            config=os.devnull,
            directory=str(ground.host_directory),
        )
        made.append(OverSsh(world, SshHost.connect(target), relay, **more))
        return made[-1]

    return wrap


def calls(under: Campaign, way: Way, story: str) -> list[Call]:
    """Every call of a story that goes through sshd, in order."""
    listed = under.root / f"calls-{story}"
    with under.ground() as ground:

        def work() -> None:
            found: list[Call] = []
            ask(ground, under.forge, RUN, STORIES[story], Around(host=wrapped(ground, way, [], calls=found)))
            listed.write_text(json.dumps(found), encoding="utf-8")

        ended = forked(work, said=ground.folder / "said")
        record = record_of(ground, RUN)
        if ended.status or record is None or record.execution is None:
            raise RuntimeError(f"nothing was carried out: {record and record.verdict}. {ended.said}")
    return [Call(Act(*act), there, back) for act, there, back in json.loads(listed.read_bytes())]


def take(under: Campaign, way: Way, story: str, at: Call, trouble: str) -> str | None:
    """Let it happen, and compare the record with the ground; what is wrong, or None."""
    killed = trouble.startswith("killed")
    with under.ground() as ground:
        was, said, met = before(ground), ground.folder / "run" / "said", ground.folder / "run" / "met"

        def work() -> None:
            made: list[OverSsh] = []
            around = Around(host=wrapped(ground, way, made, trouble=trouble, at=at))
            ask(ground, under.forge, RUN, STORIES[story], around)
            met.write_text(str(made[0].met), encoding="utf-8")

        ended = forked(work, said=said)
        if ended.status != (-signal.SIGKILL if killed else 0):
            return f"the agent ended with status {ended.status}. {ended.said[-2000:]}"
        if killed:
            around = Around(host=wrapped(ground, way, []))
            ended = forked(lambda: resume(ground, under.forge, RUN, around), said=said)
            if ended.status:
                return f"resume ended with status {ended.status}: {ended.said[-2000:]}"
        elif met.read_text(encoding="utf-8") != "True":
            return "the call never came"
        end = end_of(ground, was, story, RUN)
        if isinstance(end, str):
            return end
        if "broken off by" in end.why:
            return f"the run broke: {end.why}"
        return f"nothing was proven: {end.why}" if killed and end.state == "unknown" else None


def main(argv: Sequence[str]) -> int:
    """Listen, and take points until the connection of whoever started this ends."""
    way = Way(**json.loads(argv[0]))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with campaign() as under, socket.create_server(("127.0.0.1", 0)) as listener:
        known: dict[str, Sequence[Call]] = {}
        print(listener.getsockname()[1], flush=True)
        while True:
            speaking, _ = listener.accept()
            with speaking, speaking.makefile("rw", encoding="utf-8") as file:
                _reap()
                match json.loads(file.readline()):
                    case str(story):
                        known[story] = calls(under, way, story)
                        file.write(json.dumps([str(call.act) for call in known[story]]) + "\n")
                    case [story, act, trouble]:
                        at = next(call for call in known[story] if str(call.act) == act)
                        if not os.fork():
                            _answer(under, way, story, at, trouble, file)


def _answer(under: Campaign, way: Way, story: str, at: Call, trouble: str, file: TextIO) -> NoReturn:
    """Be the process of one point."""
    wrong: str | None = "no answer"
    try:
        wrong = take(under, way, story, at, trouble)
    except Exception:
        wrong = traceback.format_exc()
    finally:
        file.write(json.dumps(wrong) + "\n")
        file.flush()
        os._exit(0)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
