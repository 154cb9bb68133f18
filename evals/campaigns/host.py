"""A ground as a `Host`: commands, files and the helper are real; the engine's log, endpoints and load are computed.

Time passes only where somebody waits or an engine works. It is written down in the ground, so that whoever comes after
a process that was killed goes on at the same second with the same worker.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from agent.errors import NoAnswer
from evals.campaigns.engine import FOLLOWING, PORT, REST, Engine, Launch, Line, Outcome
from evals.campaigns.forge import Forge
from evals.campaigns.ground import Ground, Identity, start_ticks
from tools.host import Completed, HttpAnswer
from tools.local import LocalHost

CALL_SECONDS = 0.02
"""What a call of any kind takes, in seconds."""
COARSE = 1.0
"""Least that a wait for something takes, in seconds: looking more often finds nothing more on a computed engine."""
READ_BY_THE_ENGINE = ("SGLANG_", "VLLM_", "PYTORCH_", "CUDA_", "NCCL_")
_STAMP = re.compile(r"(?<=\[)20\d\d-\d\d-\d\d \d\d:\d\d:\d\d")


class _Computed(NamedTuple):
    engine: Engine
    outcomes: list[Outcome]
    """Of the start, and of each thing that was sent."""


class VirtualHost:
    """The host of a ground.

    Args:
        ground: The ground.
        forge: Starts the helper.
    """

    def __init__(self, ground: Ground, forge: Forge) -> None:
        self.ground = ground
        self.environ: Mapping[str, str] = {}
        """Variables for the helper's next calls: its test seams."""
        self.forge = forge
        """Starts the helper."""
        self._inner = LocalHost(ground.host_directory)
        self._state = ground.state()
        self._lock = threading.RLock()
        self._program = ground.folder / "run" / "probe.py"
        self._engines: dict[int, _Computed] = {}

    # ----------------------------------------------------------------------------------------------------- time

    def now(self) -> float:
        """Unix time on this ground."""
        return float(self._state["now"])

    def moment(self) -> datetime:
        """The same, with its zone."""
        return datetime.fromtimestamp(self.now(), UTC)

    def sleep(self, seconds: float) -> None:
        """Wait; like any wait it may take longer than was asked."""
        self._pass(max(seconds, COARSE))

    def _pass(self, seconds: float) -> None:
        with self._lock:
            self._state["now"] += seconds
            self._look()

    # -------------------------------------------------------------------------------------------------- promise

    @property
    def name(self) -> str:
        """What messages call it."""
        return "local"

    @property
    def python(self) -> str:
        """The interpreter for shipped files."""
        return self._inner.python

    @property
    def directory(self) -> str:
        """Prudent's own directory."""
        return self._inner.directory

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float,
        environ: Mapping[str, str] | None = None,
    ) -> Completed:
        """Execute a command; the helper by the forge.

        Raises:
            NoAnswer: it did not end in time.
            HostError: it could not be started.
        """
        self._pass(CALL_SECONDS)
        path = Path(argv[-2]) if len(argv) > 1 else Path()
        if path.name == "transaction.py" and path.read_bytes() == self.forge.content:
            try:
                done = self.forge.call(str(path), argv[-1], stdin, {**(environ or {}), **self.environ}, timeout)
            except TimeoutError:
                raise NoAnswer(self.name, argv, None, f"no end within {timeout:g} s") from None
        elif Path(argv[-1]).name == "engine_help.py":
            done = self._installed(argv, stdin, timeout)
        else:
            done = self._inner.run(argv, stdin=stdin, timeout=timeout, environ=environ)
        self._pass(0.0)
        return done

    def _installed(self, argv: Sequence[str], stdin: bytes, timeout: float) -> Completed:
        """What is installed on the ground, the same on all of a campaign: its interpreters are started once to say."""
        folder, anywhere = str(self.ground.folder).encode(), b"@GROUND@"
        wish = {name: said for name, said in json.loads(stdin).items() if name not in {"pid", "start_ticks"}}
        asked = json.dumps(wish, sort_keys=True).encode().replace(folder, anywhere) + Path(argv[-1]).read_bytes()
        kept = self.ground.kept / f"installed-{hashlib.sha256(asked).hexdigest()[:32]}"
        with contextlib.suppress(FileNotFoundError):
            return Completed(0, kept.read_bytes().replace(anywhere, folder), b"")
        done = self._inner.run(argv, stdin=stdin, timeout=timeout)
        if done.status == 0:
            part = kept.with_name(f"{kept.name}.{os.getpid()}")
            part.write_bytes(done.stdout.replace(folder, anywhere))
            part.replace(kept)
        return done

    @contextlib.contextmanager
    def stream(self, argv: Sequence[str], *, stdin: bytes = b"", silence: float) -> Iterator[ComputedLines]:
        """Run a load.

        Raises:
            NoAnswer: it is no load program.
        """
        if Path(argv[-1]).name != "probe.py":
            raise NoAnswer(self.name, argv, None, "only load is streamed from a computed host")
        self._program.write_bytes(Path(argv[-1]).read_bytes())
        self._pass(CALL_SECONDS)
        yield ComputedLines(self._load(json.loads(stdin)))

    def read(self, path: str, *, tail: int | None = None) -> bytes:
        """Return a file's bytes, or its last `tail` bytes.

        Raises:
            HostError: it is not there or not readable.
        """
        self._pass(CALL_SECONDS)
        return self._inner.read(path, tail=tail)

    def http(self, method: str, url: str, *, timeout: float, body: bytes = b"") -> HttpAnswer:
        """Ask the engine.

        Raises:
            NoAnswer: it is not up, or does not answer.
        """
        self._pass(CALL_SECONDS)
        parts = urlsplit(url)
        with self._lock:
            engine = self._serving() if parts.port == self.ground.port and method == "GET" else None
            outcome = engine.get(parts.path) if engine is not None else None
            if outcome is None or outcome.answer is None or outcome.answer["status"] is None:
                raise NoAnswer(self.name, (method, url), None, "Connection refused" if outcome is None else "timed out")
            self._pass(outcome.seconds)
            body = base64.b64decode(outcome.answer["body"]).replace(b"%d" % PORT, b"%d" % self.ground.port)
            return HttpAnswer(outcome.answer["status"], body)

    def ship(self, name: str, content: bytes) -> str:
        """Put one of Prudent's own files into its directory.

        Raises:
            HostError: there is no room, or it may not be written.
        """
        return self._inner.ship(name, content)

    def close(self) -> None:
        """End what was started to compute."""
        for computed in self._engines.values():
            computed.engine.close()

    # --------------------------------------------------------------------------------------------------- inside

    def _load(self, wish: dict[str, Any]) -> list[bytes]:
        """The lines that a load prints."""
        asked = json.loads(json.dumps(wish).replace(f":{self.ground.port}", f":{PORT}"))
        with self._lock:
            engine = self._serving()
            if engine is None:
                nobody = {"event": "invalid", "kind": wish["kind"], "why": "nobody listens there"}
                return [json.dumps(nobody).encode()]
            if wish["kind"] == "counters":
                outcome = engine.look(asked)
            else:
                self._state["now"] += REST
                self._starts[-1]["sent"].append({"wish": asked, "at": self.now()})
                outcome = self._told(len(self._starts) - 1)[-1]
                self._state["now"] += FOLLOWING
            self._pass(outcome.seconds)
            return [json.dumps(event).encode() for event in outcome.answer or ()]

    def _serving(self) -> Engine | None:
        """The engine, once the port is open in earnest and while its process lives."""
        self._look()
        last = self._starts[-1] if self._starts else None
        if last is None or last["over"] is not None:
            return None
        boot = self._told(len(self._starts) - 1)[0]
        ready = not boot.died and self.now() >= last["at"] + boot.seconds
        return self._engines[len(self._starts) - 1].engine if ready else None

    @property
    def _starts(self) -> list[dict[str, Any]]:
        starts: list[dict[str, Any]] = self._state["starts"]
        return starts

    def _look(self) -> None:
        """See which process runs, give it its due in the log, and end it where its engine ends."""
        with self._lock:
            main = self.ground.main()
            last = self._starts[-1] if self._starts else None
            if last is not None and last["over"] is None and (main is None or list(main) != last["identity"]):
                self._print(len(self._starts) - 1)
                last["over"] = self.now()
                self.close()
            if main is not None and (last is None or list(main) != last["identity"]):
                self._adopt(main)
            if self._starts and self._starts[-1]["over"] is None:
                self._print(len(self._starts) - 1)
            self.ground.keep_state(self._state)

    def _adopt(self, main: Identity) -> None:
        """A process that was not there before: wait, while time stands still, until it holds its port, and know it."""
        until = time.monotonic() + 30
        while not (self.ground.folder / "run" / f"listening-{main.pid}").exists():
            if start_ticks(main.pid) != main.ticks:
                return
            if time.monotonic() > until:
                raise RuntimeError(f"process {main.pid} does not take its port")
            time.sleep(0.002)
        words = self.ground.argv()
        variables = Path(f"/proc/{main.pid}/environ").read_bytes().decode().split("\0")
        environ = sorted(pair.split("=", 1) for pair in variables if pair.startswith(READ_BY_THE_ENGINE))
        port = str(self.ground.port)
        argv = [str(PORT) if word == port else word for word in words[words.index("-m") + 2 :]]
        boot = 1 + sum(start["argv"] == argv and start["environ"] == environ for start in self._starts)
        known = {"identity": list(main), "argv": argv, "environ": environ, "boot": boot}
        self._starts.append({**known, "at": self.now(), "sent": [], "printed": 0, "over": None})

    def _told(self, number: int) -> list[Outcome]:
        """What came of a start and of everything that was sent since."""
        start = self._starts[number]
        if number not in self._engines:
            variables = tuple((name, value) for name, value in start["environ"])
            launch = Launch(tuple(start["argv"]), variables, self.ground.nature, start["boot"])
            self._engines[number] = _Computed(Engine(launch, (), self._program, self.ground.kept), [])
        engine, outcomes = self._engines[number]
        if not outcomes:
            outcomes.append(engine.boot())
        for one in start["sent"][len(outcomes) - 1 :]:
            outcomes.append(engine.load(one["wish"]))
        return outcomes

    def _print(self, number: int) -> None:
        """Bring the log of a start up to now; a process whose engine has died by now dies."""
        start = self._starts[number]
        begun = [start["at"], *(one["at"] for one in start["sent"])]
        told = list(zip(begun, self._told(number), strict=True))
        due = [Line(at + line.at, line.text) for at, outcome in told for line in outcome.lines]
        due = [line for line in due if line.at <= self.now()]
        text = "".join(self._stamped(line) for line in due[start["printed"] :])
        if text:
            with self.ground.log.open("a", encoding="utf-8") as log:
                log.write(text.replace(str(PORT), str(self.ground.port)))
            start["printed"] = len(due)
        for at, outcome in told:
            end = at + max([outcome.seconds, *(line.at for line in outcome.lines[-1:])])
            if outcome.died and end <= self.now():
                pid, ticks = start["identity"]
                if start_ticks(pid) == ticks:
                    os.kill(pid, signal.SIGKILL)
                start["over"] = end

    @staticmethod
    def _stamped(line: Line) -> str:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.at))
        return _STAMP.sub(stamp, line.text)


class ComputedLines:
    """The lines of a load."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines
        self._status: int | None = None

    @property
    def status(self) -> int | None:
        """Exit status once the lines are at their end; None before."""
        return self._status

    def __iter__(self) -> Iterator[bytes]:
        """Yield each line."""
        yield from self._lines
        self._status = 0


def stand(ground: Ground, forge: Forge, seconds: float = 10.0) -> None:
    """Let a ground's worker come up, or go on, for so many seconds."""
    host = VirtualHost(ground, forge)
    host.sleep(0.0)
    host.sleep(seconds)
    host.close()
