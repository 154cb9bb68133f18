"""What every test may use: a clean environment, practice grounds that are gone afterwards, and the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from evals.bench.postgres_server import Server, binaries, postgres_server
from evals.lab import ground

DATA = Path(__file__).parent / "data"
PRUDENT = (sys.executable, "-m", "agent.doors")


@pytest.fixture(autouse=True)
def clean_environ(monkeypatch: pytest.MonkeyPatch):
    """No setting of whoever runs the tests reaches them."""
    for name in list(os.environ):
        if name.startswith(("PRUDENT_", "OPENAI_")) or name.endswith(("_PROXY", "_proxy")):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A real PostgreSQL server for all tests that want one; PRUDENT_REQUIRE_POSTGRES=1 makes its absence a failure."""
    if binaries() is None and not os.environ.get("PRUDENT_REQUIRE_POSTGRES"):
        pytest.skip("PostgreSQL's server programs are not installed")
    with postgres_server(shared_buffers="32MB", max_connections="60") as server:
        yield server


class Said(NamedTuple):
    """What a command of ours ended with."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Its standard output as one JSON document."""
        return json.loads(self.out)

    @property
    def events(self) -> list[dict[str, Any]]:
        """Its standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def record(self) -> dict[str, Any]:
        """The record that the last line holds."""
        return next(event["record"] for event in reversed(self.events) if event["kind"] == "record")


class Bench:
    """A practice ground and the command line, as an operator would sit before them."""

    def __init__(self, made: ground.Ground) -> None:
        self.ground = made
        self.command = PRUDENT
        self.original = made.script.read_bytes()
        self.environ = {**os.environ, "PRUDENT_SETTINGS": str(made.settings), "COLUMNS": "110"}

    def say(self, *argv: str, environ: Mapping[str, str] = {}, timeout: float = 240.0) -> Said:
        """Run a command to its end."""
        done = subprocess.run(
            [*PRUDENT, *argv],
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def start(self, *argv: str, environ: Mapping[str, str] = {}) -> subprocess.Popen[str]:
        """Start a command; its standard output is a pipe."""
        return subprocess.Popen(
            [*PRUDENT, *argv],
            env={**self.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def ask(
        self,
        text: str,
        *,
        decide: Sequence[str] = ("approve",),
        before: Callable[[str], None] = lambda _: None,
        environ: Mapping[str, str] = {},
    ) -> Said:
        """Ask, and decide from another process once the plan is there; `before` runs just before that."""
        asking = self.start("ask", text, "--json", environ=environ)
        assert asking.stdout is not None
        lines = []
        for line in asking.stdout:
            lines.append(line)
            event = json.loads(line)
            if event["kind"] == "plan":
                run = event["plan"]["run"]
                before(run)
                if decide:
                    said = self.say(*decide, run, environ=environ)
                    assert said.status == 0, said.err
        status = asking.wait(timeout=60)
        assert asking.stderr is not None
        said = Said(status, "".join(lines), asking.stderr.read())
        asking.stdout.close()
        asking.stderr.close()
        return said

    def die_with_the_change_live(self, text: str) -> None:
        """Ask, approve, and kill the agent with SIGKILL once the changed worker is being measured."""
        asking = self.start("ask", text, "--json")
        assert asking.stdout is not None
        for line in asking.stdout:
            event = json.loads(line)
            if event["kind"] == "plan":
                self.say("approve", event["plan"]["run"])
            if event["kind"] == "check" and event["text"].startswith("candidate"):
                os.kill(asking.pid, signal.SIGKILL)
                break
        asking.communicate()

    def fill(self, folder: Path) -> None:
        """Leave no room on the file system of a folder."""
        with (folder / "filler").open("wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(b"\0" * 4096)
            except OSError:
                pass

    def restart(self) -> None:
        """Restart the worker by hand, as somebody at the host would."""
        settings = tomllib.loads(self.ground.settings.read_text(encoding="utf-8"))
        subprocess.run(settings["workers"]["decode"]["service"]["restart"], check=True, capture_output=True)
        self.wait_until_ready()

    def argv(self) -> list[str]:
        """The live worker's own argv."""
        pid = ground.status(self.ground.directory).pid
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        return [word.decode() for word in words]

    def wait_until_ready(self, seconds: float = 30.0) -> None:
        """Wait until the worker serves."""
        until = time.monotonic() + seconds
        while not ground.status(self.ground.directory).ready:
            assert time.monotonic() < until, "the worker did not come up"
            time.sleep(0.1)

    def brisk(self, old: str = "", new: str = "") -> None:
        """Put the worker under the brisk policy, one line of it replaced."""
        text = (DATA / "agent" / "brisk.yaml").read_text(encoding="utf-8")
        assert old in text
        policy = self.ground.directory / "brisk.yaml"
        policy.write_text(text.replace(old, new) if old else text, encoding="utf-8")
        self.settle('policy = "practice"', 'policy = "brisk.yaml"')

    def settle(self, old: str, new: str) -> None:
        """Change a line of the settings."""
        text = self.ground.settings.read_text(encoding="utf-8")
        self.ground.settings.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A practice ground with the usual faults, under the shipped policy."""
    with ground.standing(tmp_path / "lab", seed=11) as made:
        yield Bench(made)


@pytest.fixture
def quick(bench: Bench) -> Bench:
    """The same under the brisk policy, where a run takes seconds."""
    bench.brisk()
    return bench


@pytest.fixture
def quick_pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A decode worker with its prefill worker and a router, under the brisk policy; the parameter: their faults."""
    with ground.standing(tmp_path / "lab", seed=11, topology="pd", faults=request.param) as made:
        pair = Bench(made)
        pair.brisk()
        yield pair


@pytest.fixture
def quick_vllm(tmp_path: Path) -> Iterator[Bench]:
    """A practice ground whose worker is a vLLM, under the brisk policy."""
    with ground.standing(tmp_path / "lab", engine="vllm", seed=11) as made:
        bench = Bench(made)
        bench.brisk()
        yield bench
