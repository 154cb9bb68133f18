from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tools.local import LocalHost

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "tools" / "on_host" / "probe.py"


class Served(NamedTuple):
    """A model server under one script."""

    url: str

    def seen(self) -> dict[str, Any]:
        """What the server saw since it got its script."""
        return httpx.get(f"{self.url}/seen", timeout=30, trust_env=False).json()


@pytest.fixture(scope="session")
def _server() -> Iterator[str]:
    command = [sys.executable, str(ROOT / "tests/data/probe/model_server.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.kill()


@pytest.fixture
def serve(_server: str) -> Callable[..., Served]:
    """Give the server a script; see tests/data/probe/model_server.py for its words."""

    def with_script(**wish: Any) -> Served:
        httpx.post(f"{_server}/wish", json=wish, timeout=30, trust_env=False).raise_for_status()
        return Served(_server)

    return with_script


@pytest.fixture
def engine() -> Iterator[Served]:
    """A second server, for what is counted behind the one that is loaded."""
    command = [sys.executable, str(ROOT / "tests/data/probe/model_server.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        httpx.post(f"{url}/wish", json={"loads": 3}, timeout=30, trust_env=False).raise_for_status()
        yield Served(url)
        process.kill()


@pytest.fixture
def host(tmp_path: Path) -> LocalHost:
    """This machine."""
    return LocalHost(tmp_path / "host")


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start the program as a host would, and leave none behind."""
    started: list[subprocess.Popen[bytes]] = []

    def with_order(environ: Mapping[str, str] | None = None, **order: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-I", str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(environ or {})},
        )
        started.append(process)
        assert process.stdin is not None
        process.stdin.write(json.dumps({"deadline": 60, "seed": 5, **order}).encode())
        process.stdin.close()
        process.stdin = None
        return process

    yield with_order
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def measure(start: Callable[..., subprocess.Popen[bytes]]) -> Callable[..., dict[str, Any]]:
    """Run the program to its end and return its last line."""

    def with_order(**order: Any) -> dict[str, Any]:
        out, complaints = start(**order).communicate(timeout=120)
        assert complaints == b""
        last: dict[str, Any] = json.loads(out.splitlines()[-1])
        return last

    return with_order
