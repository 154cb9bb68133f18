"""Puts up a practice ground: a serve script, a worker behind it, its supervisor, settings and a performance plan."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from random import Random
from string import Template
from typing import Any, NamedTuple

from evals.lab import private
from evals.lab.faults import DEFAULT_FAULTS, Conditions, build

READY_SECONDS = 60.0
"""Wall seconds that a start may take; it takes about two on a machine with nothing else to do."""
STOP_SECONDS = 3.0
"""Wall seconds that a worker may take to drain before the supervisor kills it."""
_FIRST_PORT, _PORTS = 20_000, 12_000
_LAUNCHER = '''"""Launch the inference server."""

import os
import sys
from pathlib import Path

from evals.lab.worker import main

if __name__ == "__main__":
    main(sys.argv[1:], os.environ, Path(__file__).resolve().parents[3], "/opt/sglang/sglang/launch_server.py")
'''


class Ground(NamedTuple):
    """A practice ground that stands."""

    directory: Path
    """Its folder."""
    port: int
    """Where the worker listens on the loopback interface."""
    settings: Path
    """`prudent.toml`."""
    script: Path
    """The serve script."""
    plan: Path
    """The performance plan, in a repository of its own."""
    log: Path
    """The worker's log."""


class Status(NamedTuple):
    """How a ground is doing."""

    running: bool
    """The supervisor holds a worker's process."""
    ready: bool
    """The worker's port is open."""
    state: str
    """The supervisor's word: running, restarting, failed, stopped; `absent` without a ground."""
    pid: int
    """The worker's process id; 0: none."""
    port: int
    """Where it listens, or would; 0: no ground."""
    restarts: int
    """How often the supervisor started it again after a crash."""


class GroundError(Exception):
    """A ground could not be put up; the text says why and shows the end of the log."""


def up(
    directory: Path,
    *,
    seed: int = 0,
    faults: Sequence[str] = DEFAULT_FAULTS,
    port: int | None = None,
    boot_noise: float = 0.005,
    run_noise: float = 0.005,
    start_speed: float = 35.0,
    serve_speed: float = 2.0,
    capture: int = 32,
    wait: bool = True,
) -> Ground:
    """Put up a ground and start its worker.

    Args:
        directory: Where; made if need be. A ground that stands there already is taken down and written anew; its plan
            and Prudent's own folder stay.
        seed: Seed of everything that is drawn.
        faults: What is wrong with the worker, each `NAME` or `NAME:parameter=value,...` (see `faults.FAULTS`).
        port: Where it listens; None: a free port.
        boot_noise: Relative standard deviation from start to start.
        run_noise: Relative standard deviation from burst to burst.
        start_speed: Seconds of life a second while it starts.
        serve_speed: Seconds of life a second while it serves.
        capture: The script's `--cuda-graph-max-bs`.
        wait: Return when the port is open; else as soon as the worker is spawned.

    Raises:
        ValueError: no such fault.
        GroundError: the worker did not come up; nothing is left running.
    """
    build(faults, Conditions(overlap=True, environ={}), Random(0))
    directory = directory.resolve()
    down(directory)
    directory.mkdir(parents=True, exist_ok=True)
    ground = _ground(directory, port or _free_port(directory))
    private.write(
        directory,
        private.Nature(
            seed=seed,
            faults=tuple(faults),
            boot_noise=boot_noise,
            run_noise=run_noise,
            start_speed=start_speed,
            serve_speed=serve_speed,
        ),
    )
    _write_tree(ground)
    _write_files(ground, capture)
    _write_plan(ground)
    _supervise(directory, "start")
    if wait:
        try:
            _await_ready(ground)
        except GroundError:
            down(directory)
            raise
    return ground


def down(directory: Path) -> bool:
    """Stop a ground's worker and supervisor; True where something was running."""
    if not (directory / "supervisor.json").exists():
        return False
    was = _supervise(directory, "status")
    _supervise(directory, "stop")
    return bool(was["state"] != "stopped")


def status(directory: Path) -> Status:
    """How a ground is doing."""
    if not (directory / "supervisor.json").exists():
        return Status(False, False, "absent", 0, 0, 0)
    said = _supervise(directory, "status")
    port = int(json.loads((directory / private.FOLDER / "port.json").read_text(encoding="utf-8")))
    pid = int(said["pid"])
    return Status(pid != 0, pid != 0 and _answers(port), said["state"], pid, port, int(said["restarts"]))


def _ground(directory: Path, port: int) -> Ground:
    return Ground(
        directory,
        port,
        directory / "prudent.toml",
        directory / "serve_decode.sh",
        directory / "plan" / "DSV4_DECODE_PERF_PLAN.md",
        directory / "run" / "worker.log",
    )


def _free_port(directory: Path) -> int:
    """A free port below the range that outgoing connections take, so that none of those gets in between.

    Where the search begins follows from the directory: grounds that are put up at once do not meet.

    Raises:
        GroundError: all of them are held.
    """
    begin = zlib.crc32(str(directory).encode())
    for step in range(_PORTS):
        port = _FIRST_PORT + (begin + step) % _PORTS
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise GroundError(f"no port is free between {_FIRST_PORT} and {_FIRST_PORT + _PORTS}")


def _write_tree(ground: Ground) -> None:
    """An environment and a source tree, so that the script's `python3 -m sglang.launch_server` finds the worker."""
    shutil.rmtree(ground.directory / "opt", ignore_errors=True)
    package = ground.directory / "opt" / "sglang" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "0.5.14"\n', encoding="utf-8")
    (package / "launch_server.py").write_text(_LAUNCHER, encoding="utf-8")
    venv = ground.directory / "opt" / "venv"
    (venv / "bin").mkdir(parents=True)
    base = Path(sys._base_executable)  # type: ignore[attr-defined]
    for name in ("python", "python3"):
        (venv / "bin" / name).symlink_to(base)
    (venv / "pyvenv.cfg").write_text(
        f"home = {base.parent}\ninclude-system-site-packages = false\nversion = {sys.version.split()[0]}\n",
        encoding="utf-8",
    )
    packages = venv / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    ours = str(Path(__file__).resolve().parents[2])
    paths = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
    (packages / "engine.pth").write_text("".join(f"{path}\n" for path in [*paths, ours]), encoding="utf-8")


def _write_files(ground: Ground, capture: int) -> None:
    """The script, the supervisor's orders and the settings."""
    (ground.directory / "run").mkdir(exist_ok=True)
    ground.log.unlink(missing_ok=True)
    ground.script.write_text(_filled("serve_decode.sh", port=ground.port, capture=capture), encoding="utf-8")
    ground.script.chmod(0o755)
    orders = {"script": ground.script.name, "log": "run/worker.log", "stop_seconds": STOP_SECONDS}
    (ground.directory / "supervisor.json").write_text(json.dumps(orders, indent=1), encoding="utf-8")
    (ground.directory / private.FOLDER / "port.json").write_text(str(ground.port), encoding="utf-8")
    ground.settings.write_text(
        _filled(
            "prudent.toml",
            port=ground.port,
            python=json.dumps(sys.executable),
            supervisor=json.dumps(str(_supervisor())),
            directory=json.dumps(str(ground.directory)),
        ),
        encoding="utf-8",
    )


def _write_plan(ground: Ground) -> None:
    """The plan, committed; one that is there stays."""
    if ground.plan.exists():
        return
    ground.plan.parent.mkdir(exist_ok=True)
    ground.plan.write_text(_filled("plan.md"), encoding="utf-8")
    git = ["git", "-c", "user.name=Decode on-call", "-c", "user.email=oncall@example.org", "-c", "commit.gpgsign=false"]
    environ = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    for words in (
        ["init", "--quiet", "--initial-branch=main"],
        ["config", "user.name", "Decode on-call"],
        ["config", "user.email", "oncall@example.org"],
        ["add", ground.plan.name],
        ["commit", "--quiet", "--message=Write down the plan and what happened so far"],
    ):
        subprocess.run([*git, *words], cwd=ground.plan.parent, env=environ, check=True, capture_output=True)


def _filled(template: str, **values: object) -> str:
    text = resources.files("evals.lab").joinpath(f"templates/{template}").read_text(encoding="utf-8")
    return Template(text).substitute(values)


def _supervisor() -> Path:
    return Path(__file__).resolve().parent / "supervisor.py"


def _supervise(directory: Path, word: str) -> dict[str, Any]:
    """Ask the ground's supervisor, in an environment that holds nothing of the caller's.

    Raises:
        GroundError: it could not be asked.
    """
    environ = {name: os.environ[name] for name in ("HOME", "LANG", "TZ") if name in os.environ}
    environ["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    done = subprocess.run(
        [sys.executable, str(_supervisor()), "--directory", str(directory), word],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise GroundError(f"the supervisor in {directory} did not {word}: {done.stderr.strip() or done.stdout.strip()}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _answers(port: int) -> bool:
    """Whether somebody listens; nothing is asked, so that nothing is logged."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            return True
    except OSError:
        return False


def _await_ready(ground: Ground) -> None:
    """Wait for the port.

    Raises:
        GroundError: it stayed shut.
    """
    deadline = time.monotonic() + READY_SECONDS
    while not _ready(ground):
        if time.monotonic() > deadline or status(ground.directory).state == "failed":
            lines = ground.log.read_text(encoding="utf-8", errors="replace").splitlines() if ground.log.exists() else []
            raise GroundError("the worker did not come up:\n" + "\n".join(lines[-12:]))
        time.sleep(0.05)


def _ready(ground: Ground) -> bool:
    return ground.log.exists() and b"The server is fired up and ready to roll!" in ground.log.read_bytes()
