"""A ground for campaigns: real script, service, helper, journal and process; an engine on virtual time."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from evals.lab import private
from evals.lab.faults import DEFAULT_FAULTS

SEED = 11
"""Seeds the worker's noise and faults; the real practice ground of the seed tests has the same."""
_SETTINGS = """[store]
path = ".prudent/prudent.sqlite"

[workers.decode]
host = "local"
engine = "sglang"
script = "serve_decode.sh"
log = "run/worker.log"
control = "http://127.0.0.1:{port}"
policy = "policy.yaml"
directory = "host"

[workers.decode.service]
kind = "command"
restart = ["/bin/sh", {service}, "restart", {folder}]
pid = ["/bin/sh", {service}, "pid", {folder}]
"""
ROOM = 1 << 29
"""Bytes that have to be free in memory for a campaign; containers often have less."""
_SERVICE = Path(__file__).with_name("service.sh")


class Identity(NamedTuple):
    """A process for good."""

    pid: int
    ticks: int
    """Start in clock ticks since boot."""


class Ground(NamedTuple):
    """A campaign's ground."""

    folder: Path
    """All of it."""
    port: int
    """The port that the worker holds."""
    kept: Path
    """What engines were computed to say; shared by the grounds of a campaign."""

    @property
    def script(self) -> Path:
        """The serve script."""
        return self.folder / "serve_decode.sh"

    @property
    def settings(self) -> Path:
        """`prudent.toml`."""
        return self.folder / "prudent.toml"

    @property
    def log(self) -> Path:
        """The worker's log."""
        return self.folder / "run" / "worker.log"

    @property
    def host_directory(self) -> Path:
        """Prudent's own directory on the host."""
        return self.folder / "host"

    @property
    def nature(self) -> private.Nature:
        """What is wrong with the worker."""
        return private.read(self.folder)

    def state(self) -> dict[str, Any]:
        """The time, and what every start of the worker has gone through."""
        path = self.folder / "run" / "virtual.json"
        document: dict[str, Any] = json.loads(path.read_bytes())
        return document

    def keep_state(self, state: dict[str, Any]) -> None:
        """Write it down."""
        path = self.folder / "run" / "virtual.json"
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(state), encoding="utf-8")
        part.replace(path)

    def service(self, verb: str) -> str:
        """Speak to the service as somebody at the host would."""
        argv = ["/bin/sh", str(_SERVICE), verb, str(self.folder)]
        environ = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
        done = subprocess.run(argv, env=environ, check=True, stdin=-3, stdout=subprocess.PIPE, timeout=60)
        return done.stdout.decode().strip()

    def main(self) -> Identity | None:
        """The worker's main process; None: there is none."""
        try:
            pid = int((self.folder / "run" / "pid").read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return None
        ticks = start_ticks(pid)
        return None if ticks is None else Identity(pid, ticks)

    def argv(self) -> list[str]:
        """The main process's argv; empty: there is none."""
        main = self.main()
        try:
            words = Path(f"/proc/{main.pid}/cmdline").read_bytes().split(b"\0")[:-1] if main else []
        except OSError:
            return []
        return [word.decode() for word in words]


def start_ticks(pid: int) -> int | None:
    """When a process started; None: it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


def room() -> Path:
    """Where grounds are made: in memory where there is such a file system, because nothing of them has to last."""
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > ROOM:
        return memory
    return Path(tempfile.gettempdir())


def other_mount(folder: Path) -> Path | None:
    """A folder on another mount than this one that we may write to; None: this machine has none."""
    here = folder.stat().st_dev
    for place in (Path("/dev/shm"), Path(tempfile.gettempdir()), Path("/var/tmp")):
        if place.is_dir() and os.access(place, os.W_OK) and place.stat().st_dev != here:
            return place
    return None


def make(folder: Path, kept: Path, *, watchdog: float = 60.0, epoch: float, scripts: Path | None = None) -> Ground:
    """Lay a ground out and start its worker.

    Args:
        folder: Where; made.
        kept: Folder of what was computed before, shared by the grounds of a campaign.
        watchdog: Seconds of the wall after which the host takes a change back by itself.
        epoch: Unix time at which its virtual time begins.
        scripts: Folder where the script really lies, for one that is a link; None: it is a file on the ground.
    """
    ground = Ground(folder, _free_port(folder), kept)
    for name in ("run", "opt/sglang/sglang", "opt/venv/bin", "host"):
        (folder / name).mkdir(parents=True)
    (folder / "host").chmod(0o700)
    (folder / "run" / "owner").write_text(str(os.getpid()), encoding="ascii")
    private.write(folder, private.Nature(seed=SEED, faults=DEFAULT_FAULTS))
    script = Path(__file__).with_name("serve_decode.sh").read_text(encoding="utf-8")
    if scripts is not None:
        ground.script.symlink_to(Path(tempfile.mkdtemp(dir=scripts, prefix="prudent-scripts-")) / ground.script.name)
    ground.script.write_text(script.replace("@PORT@", str(ground.port)), encoding="utf-8")
    ground.script.chmod(0o755)
    (folder / "opt/sglang/sglang/__init__.py").write_text("", encoding="utf-8")
    shutil.copy(Path(__file__).with_name("listener.py"), folder / "opt/sglang/sglang/launch_server.py")
    base = Path(sys._base_executable)  # type: ignore[attr-defined]
    (folder / "opt/venv/bin/python3").symlink_to(base)
    (folder / "opt/venv/pyvenv.cfg").write_text(
        f"home = {base.parent}\nversion = {sysconfig.get_python_version()}\n", encoding="utf-8"
    )
    law = Path(__file__).with_name("policy.yaml").read_text(encoding="utf-8")
    law = law.replace("watchdog_floor_seconds: 60", f"watchdog_floor_seconds: {watchdog:g}")
    (folder / "policy.yaml").write_text(law, encoding="utf-8")
    said = _SETTINGS.format(port=ground.port, service=json.dumps(str(_SERVICE)), folder=json.dumps(str(folder)))
    ground.settings.write_text(said, encoding="utf-8")
    ground.log.touch()
    ground.keep_state({"now": epoch, "starts": []})
    ground.service("restart")
    return ground


def unmake(ground: Ground) -> None:
    """End everything that belongs to a ground: watchdogs first, so that none works in a folder that is gone."""
    end_watchdogs(ground.host_directory)
    ground.service("stop")
    if ground.script.is_symlink():
        shutil.rmtree(ground.script.readlink().parent, ignore_errors=True)
    shutil.rmtree(ground.folder, ignore_errors=True)


def end_watchdogs(directory: Path) -> None:
    """End the watchdogs of a host's directory: one that wakes up in a folder that is gone makes it again."""
    for presence in directory.glob("workers/*/watchdog"):
        text = presence.read_text(encoding="ascii").strip()
        with contextlib.suppress(OSError):
            if text and str(directory).encode() in _cmdline(int(text)):
                os.kill(int(text), signal.SIGKILL)


def _cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _free_port(folder: Path) -> int:
    """A port that is free now, below the range that outgoing connections take; where the search begins is the folder's.

    Raises:
        OSError: none is.
    """
    begin = zlib.crc32(str(folder).encode())
    for step in range(5000):
        port = 15_000 + (begin + step) % 5000
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free between 15000 and 20000")
