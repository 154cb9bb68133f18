"""Who keeps the posts of a ground running: the small supervisor, or systemd, the system's or the user's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from evals.lab import supervisor
from evals.lab.posts import Post, Supervision
from evals.lab.texts import filled

STOP_SECONDS = 3.0
"""Wall seconds that a worker may take to drain before it is killed."""
SUPERVISOR = Path(supervisor.__file__).resolve()
"""The small supervisor's program."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_STATES = {
    "active": "running",
    "reloading": "running",
    "activating": "restarting",
    "deactivating": "running",
    "failed": "failed",
}


class KeeperError(Exception):
    """Whoever should keep a post did not do what it was asked; the text says what it said."""


class Kept(NamedTuple):
    """How a post is doing, by the word of its keeper."""

    state: str
    """running, restarting, failed or stopped."""
    pid: int
    """The main process; 0: none."""
    restarts: int
    """How often it was started again after a crash."""


class Keeper(Protocol):
    """Keeps posts running."""

    def prepare(self, post: Post) -> None:
        """Write what the keeper needs to know of a post.

        Raises:
            KeeperError: it does not take it.
        """

    def start(self, post: Post, lifeline: int | None) -> None:
        """Start a post.

        Args:
            post: The post.
            lifeline: The reading end of a pipe that it lives by until `keep`, where the keeper can do that.

        Raises:
            KeeperError: it was not started.
        """

    def keep(self, post: Post) -> None:
        """Let a post live on when its lifeline is cut.

        Raises:
            KeeperError: it is gone.
        """

    def stop(self, post: Post) -> bool:
        """Stop a post and forget it; True where it ran, or was trying to.

        Raises:
            KeeperError: it was not stopped.
        """

    def kept(self, post: Post) -> Kept:
        """How a post is doing.

        Raises:
            KeeperError: the keeper does not say.
        """


def keeper_of(supervision: Supervision, *, journal: bool = False) -> Keeper:
    """The keeper of that name.

    Args:
        supervision: Which one.
        journal: The journal takes the output; only for systemd.
    """
    if supervision == "supervisor":
        return Small()
    return Systemd(user=supervision == "systemd-user", journal=journal)


class Small:
    """The small supervisor, one for each post, in the post's folder."""

    def prepare(self, post: Post) -> None:
        """Write its orders."""
        where = post.directory
        (where / "run").mkdir(exist_ok=True)
        names = {"script": post.script.name, "log": str(post.log.relative_to(where)), "stop_seconds": STOP_SECONDS}
        (where / "supervisor.json").write_text(json.dumps(names, indent=1), encoding="utf-8")

    def start(self, post: Post, lifeline: int | None) -> None:
        """Start the daemon, which starts the script."""
        self._ask(post, "start", lifeline)

    def keep(self, post: Post) -> None:
        """Cut the daemon loose."""
        self._ask(post, "keep")

    def stop(self, post: Post) -> bool:
        """End worker and daemon."""
        was = self._ask(post, "status")
        self._ask(post, "stop")
        return bool(was["state"] != "stopped")

    def kept(self, post: Post) -> Kept:
        """Ask the daemon."""
        said = self._ask(post, "status")
        return Kept(said["state"], int(said["pid"]), int(said["restarts"]))

    def _heard(self, post: Post, word: str) -> dict[str, Any] | None:
        """What the daemon answers on its socket, by a path that is short wherever the folder lies; None: no daemon."""
        folder = os.open(post.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return supervisor.ask(word, place=f"/proc/self/fd/{folder}/{supervisor.SOCKET}")
        except (OSError, ValueError) as failure:
            raise KeeperError(f"the supervisor in {post.directory} did not answer {word}: {failure}") from failure
        finally:
            os.close(folder)

    def _ask(self, post: Post, word: str, lifeline: int | None = None) -> dict[str, Any]:
        """Put one word to the daemon, in an environment that holds nothing of the caller's."""
        nobody: dict[str, Any] = {"state": "stopped", "pid": 0, "restarts": 0}
        if not (post.directory / "supervisor.json").exists():
            return nobody
        if word in {"status", "keep"}:
            return self._heard(post, word) or nobody
        environ = {name: os.environ[name] for name in ("HOME", "LANG", "TZ") if name in os.environ}
        handed = () if lifeline is None else (lifeline,)
        more = [f"--lifeline={end}" for end in handed]
        command = [sys.executable, str(SUPERVISOR), "--directory", str(post.directory), *more, word]
        answer: dict[str, Any] = json.loads(_said(command, {**environ, "PATH": _PATH}, handed))
        return answer


class Systemd:
    """systemd: one unit for each post, enabled, so that it comes back with the machine.

    Args:
        user: The user's own manager; else the system's, which takes root.
        journal: The journal takes the output.
    """

    def __init__(self, *, user: bool, journal: bool) -> None:
        self._user = user
        self._journal = journal

    def prepare(self, post: Post) -> None:
        """Write the unit."""
        path = self._path(post)
        (post.directory / "run").mkdir(exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = filled(
            "unit.service",
            description=f"{'Router' if post.name == 'router' else f'Inference worker, {post.name}'}",
            directory=str(post.directory).replace("%", "%%"),
            script=post.script.name,
            output="journal" if self._journal else f"append:{str(post.log).replace('%', '%%')}",
            stop=f"{STOP_SECONDS:g}",
            target="default.target" if self._user else "multi-user.target",
        )
        path.write_text(text, encoding="utf-8")
        self._call("daemon-reload")

    def start(self, post: Post, lifeline: int | None) -> None:
        """Enable the unit and start it; it is systemd's from then on, whatever becomes of a lifeline."""
        self._call("enable", "--now", "--quiet", self._unit(post))

    def keep(self, post: Post) -> None:
        """Nothing to do: systemd keeps what it has started."""

    def stop(self, post: Post) -> bool:
        """Stop the unit and take it off the machine."""
        was = self.kept(post).state
        path = self._path(post)
        if path.exists():
            self._call("disable", "--now", "--quiet", self._unit(post))
            path.unlink()
            self._call("daemon-reload")
            self._call("reset-failed", "--quiet", self._unit(post), check=False)
        return was != "stopped"

    def kept(self, post: Post) -> Kept:
        """Ask systemd."""
        said = self._call("show", "--property=ActiveState,MainPID,NRestarts", self._unit(post))
        read = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
        state = _STATES.get(read.get("ActiveState", ""), "stopped")
        return Kept(state, int(read.get("MainPID") or 0), int(read.get("NRestarts") or 0))

    def _unit(self, post: Post) -> str:
        assert post.unit is not None
        return post.unit

    def _path(self, post: Post) -> Path:
        """Where the unit's file lies."""
        if not self._user:
            return Path("/etc/systemd/system") / self._unit(post)
        home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        return home / "systemd" / "user" / self._unit(post)

    def _call(self, *words: str, check: bool = True) -> str:
        # A login without a session of its own lacks the variable; lingering users have the folder all the same.
        environ = {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}", **os.environ}
        return _said(["systemctl", *(["--user"] if self._user else []), *words], environ, check=check)


def _said(
    command: Sequence[str], environ: Mapping[str, str], handed: tuple[int, ...] = (), *, check: bool = True
) -> str:
    """What a command printed.

    Raises:
        KeeperError: it failed, or it is not there.
    """
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, pass_fds=handed)
    except FileNotFoundError as missing:
        raise KeeperError(f"there is no {command[0]} on this machine") from missing
    if check and done.returncode:
        raise KeeperError(f"{' '.join(command[:4])} ...: {done.stderr.strip() or done.stdout.strip() or 'no word'}")
    return done.stdout
