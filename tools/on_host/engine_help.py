"""Ask the engine that is installed where a worker runs: which version it is, and what its own --help says.

A question only: nothing is written, and nothing of the worker is touched. It runs as the worker's user, in the worker's
directory and with the worker's environment, but it sees no GPU, so that it cannot take memory from the worker, and it
is last in line for the processor.

Spoken to with one JSON document on stdin, answers one on stdout:

    {"pid": 12, "start_ticks": 345, "package": "sglang", "command": ["python3", "-m", "sglang.launch_server"],
     "seconds": 60, "ask": [["python3", "-m", "sglang.launch_server", "--help"]]}

    {"version": "0.5.14", "origin": "/opt/sglang/__init__.py", "stamp": "...", "help": "usage: ..."}

`ask` may be empty: then only version, origin and stamp are answered, which takes a tenth of a second. `problem` says in
one sentence what could not be done. The environment never leaves the machine. Python 3.10, standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 20
"""Of a help text; SGLang's has about 100,000."""
LOOK_SECONDS = 20.0
"""For the look at what is installed, which imports nothing of the engine."""
LAID_OVER = {
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "PYTHONDONTWRITEBYTECODE": "1",
    "COLUMNS": "100",
    "NO_COLOR": "1",
    "TERM": "dumb",
}
"""Laid over the worker's environment: no GPU, nothing written, no colours."""
LOOK = """
import importlib.metadata, importlib.util, json, os, re, sys
if sys.argv[2] == "script":
    sys.path.pop(0)
package = sys.argv[1]
spec = importlib.util.find_spec(package)
places = [spec.origin] if spec and spec.origin else []
roots = list(spec.submodule_search_locations or []) if spec else []
places += [os.path.join(root, name) for root in roots for name in ("version.py", "_version.py")]
version = None
try:
    version = importlib.metadata.version(package)
except importlib.metadata.PackageNotFoundError:
    for place in places:
        if version is None and os.path.exists(place):
            with open(place, encoding="utf-8", errors="replace") as text:
                found = re.search(r"^__version__(?:: *str)? *= *['\\"]([^'\\"]+)", text.read(), re.MULTILINE)
            version = found[1] if found else None
stamps = [(os.stat(p).st_mtime_ns, os.stat(p).st_size) for p in places if os.path.exists(p)]
stamp = repr((sys.executable, stamps))
print(json.dumps({"version": version, "origin": places[0] if places else None, "stamp": stamp}))
"""


class Refusal(Exception):
    """Why it cannot be asked."""


def main() -> None:
    """Read the question, answer it."""
    os.nice(19)
    try:
        answer = asked(json.load(sys.stdin))
    except Refusal as why:
        answer = {"problem": str(why)}
    except OSError as error:
        answer = {"problem": f"{error.strerror or error} ({error.filename})"}
    sys.stdout.write(json.dumps(answer) + "\n")


def asked(wish: dict[str, Any]) -> dict[str, Any]:
    """Look at what is installed and ask it."""
    pid = int(wish["pid"])
    if start_ticks(pid) != wish["start_ticks"]:
        raise Refusal(f"process {pid} is not the worker any more")
    place = Place(pid)
    command = list(wish["command"])
    command[0] = place.program(command[0])
    kind = "module" if "-m" in command else "script"
    options = (
        [word for word in command[1:] if word.startswith("-") and word not in {"-m", "-c"}] if kind == "module" else []
    )
    status, text = place.run([command[0], *options, "-c", LOOK, wish["package"], kind], LOOK_SECONDS)
    try:
        answer = json.loads(text.strip().splitlines()[-1]) if status == 0 else None
    except (ValueError, IndexError):
        answer = None
    if not isinstance(answer, dict) or not answer.get("origin"):
        raise Refusal(f"{command[0]} finds no {wish['package']} (status {status}): {last_words(text)}")
    until = time.monotonic() + float(wish["seconds"])
    said = []
    for question in wish["ask"]:
        left = until - time.monotonic()
        if left <= 0:
            break
        status, text = place.run([command[0], *question[1:]], left)
        if status == 0 and text.strip():
            answer["help"] = text
            return answer
        said.append(f"{question[-1]}: {'no end in time' if status is None else f'status {status}'}, {last_words(text)}")
    if wish["ask"]:
        answer["problem"] = "; ".join(said)
    return answer


class Place:
    """Where the worker runs: its environment, directory and user."""

    def __init__(self, pid: int) -> None:
        proc = Path("/proc") / str(pid)
        words = [word.partition(b"=") for word in (proc / "environ").read_bytes().split(b"\0") if b"=" in word]
        self.environ = {os.fsdecode(name): os.fsdecode(value) for name, _, value in words}
        self.environ.update(LAID_OVER)
        self.directory = (proc / "cwd").readlink()
        state = proc.stat()
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0 and state.st_uid != 0:
            self._user = {"user": state.st_uid, "group": state.st_gid, "extra_groups": []}

    def program(self, name: str) -> str:
        """The full path of a program as the worker would find it."""
        if "/" in name:
            return str(self.directory / name)
        found = shutil.which(name, path=self.environ.get("PATH", os.defpath))
        if found is None:
            raise Refusal(f"{name} is not on the worker's PATH")
        return found

    def run(self, argv: list[str], seconds: float) -> tuple[int | None, str]:
        """Execute a command to its end: its status, None where it was killed for being late, and what it said."""
        with tempfile.TemporaryFile() as out:
            process = subprocess.Popen(
                argv,
                cwd=self.directory,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **self._user,
            )
            try:
                status = process.wait(seconds)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            out.seek(0)
            return status, out.read(MOST_BYTES).decode("utf-8", "replace")


def last_words(text: str) -> str:
    """The last line of what was said, clipped."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else "nothing said"


def start_ticks(pid: int) -> int:
    """Field 22 of /proc/PID/stat."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        raise Refusal(f"process {pid} is gone") from None
    return int(text[text.rindex(")") + 2 :].split()[19])


if __name__ == "__main__":
    main()
