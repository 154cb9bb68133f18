"""A PostgreSQL server of one's own for as long as a block lasts: real binaries, a fresh cluster, loopback only."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import psycopg

USER = "prudent"
START_SECONDS = 60.0
"""Patience for a start: a second on an idle machine, many on one whose cores are taken."""


class Server(NamedTuple):
    """A running server."""

    port: int
    """Where it listens on the loopback address."""
    password: str
    """The superuser's."""
    folder: Path
    """Its cluster, socket and log."""

    def url(self, database: str = "postgres", *, user: str = USER, password: str | None = None) -> str:
        """The URL of one of its databases, with the password in it."""
        secret = quote(self.password if password is None else password, safe="")
        return f"postgresql://{user}:{secret}@127.0.0.1:{self.port}/{database}"

    def ask(self, statement: str, database: str = "postgres") -> Sequence[tuple[object, ...]]:
        """Run a statement as the superuser; its rows, where it has some."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else ()

    def fresh(self) -> str:
        """The URL of a new, empty database."""
        name = f"d{secrets.token_hex(6)}"
        self.ask(f"CREATE DATABASE {name}")
        return self.url(name)


def binaries() -> Path | None:
    """The folder of the server's programs; None: they are not installed."""
    folders: list[Path] = []
    configured = shutil.which("pg_config")
    if configured is not None:
        said = subprocess.run([configured, "--bindir"], capture_output=True, text=True, check=False)
        folders.append(Path(said.stdout.strip()))
    versions = Path("/usr/lib/postgresql").glob("*/bin")
    folders += sorted(versions, key=lambda path: float(path.parent.name), reverse=True)
    found = shutil.which("initdb")
    if found is not None:
        folders.append(Path(found).resolve().parent)
    return next(
        (folder for folder in folders if (folder / "initdb").is_file() and (folder / "postgres").is_file()), None
    )


@contextmanager
def postgres_server(**settings: str) -> Iterator[Server]:
    """Make a cluster and run a server on it; both are gone afterwards, and with this process whatever happens to it.

    Args:
        settings: Parameters of the server, such as `shared_buffers`.

    Raises:
        FileNotFoundError: PostgreSQL's server programs are not installed.
    """
    programs = binaries()
    if programs is None:
        raise FileNotFoundError("no initdb and postgres here: install the package postgresql")
    # Not below a folder of ours: the server's user must be able to walk there.
    folder = Path(tempfile.mkdtemp(prefix="prudent-postgres-"))
    try:
        prefix = _as_server_user(folder)
        password = secrets.token_urlsafe(12)
        (folder / "password").write_text(password)
        (folder / "password").chmod(0o644)
        made = subprocess.run(
            [
                *prefix, programs / "initdb", "--pgdata", folder / "data", "--username", USER, "--encoding", "UTF8",
                "--locale", "C", "--auth", "scram-sha-256", "--pwfile", folder / "password",
            ],
            capture_output=True,
            text=True,
            cwd=folder,
            check=False,
        )  # fmt: skip
        if made.returncode != 0:
            raise RuntimeError(f"initdb: {made.stderr.strip()}")
        server = Server(_free_port(), password, folder)
        with (folder / "log").open("wb") as log, _running(prefix, programs, server, settings, log.fileno()) as process:
            _wait(server, process)
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _as_server_user(folder: Path) -> list[str]:
    """How a program is run as the user that owns the folder, and ended when we are."""
    with_us = ["setpriv", "--pdeathsig", "INT"] if shutil.which("setpriv") else []
    if os.geteuid() != 0:
        return with_us
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        folder.chmod(0o755)
        os.chown(folder, user.pw_uid, user.pw_gid)
        if not with_us:
            raise FileNotFoundError("PostgreSQL does not run as root, and there is no setpriv to become another user")
        return [*with_us, "--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups"]
    raise FileNotFoundError("PostgreSQL does not run as root, and there is no user postgres or nobody")


@contextmanager
def _running(
    prefix: Sequence[str], programs: Path, server: Server, settings: dict[str, str], log: int
) -> Iterator[subprocess.Popen[bytes]]:
    given = {
        "port": str(server.port),
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": str(server.folder),
        **settings,
    }
    options = [word for name, value in given.items() for word in ("-c", f"{name}={value}")]
    process = subprocess.Popen(
        [*prefix, programs / "postgres", "-D", server.folder / "data", *options],
        stdout=log,
        stderr=log,
        stdin=subprocess.DEVNULL,
        cwd=server.folder,
    )
    try:
        yield process
    finally:
        # A fast shutdown: sessions are ended, what is committed stays.
        process.send_signal(signal.SIGINT)
        try:
            process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGQUIT)
            process.wait(START_SECONDS)


def _wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            psycopg.connect(server.url(), connect_timeout=5).close()
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > until:
                said = (server.folder / "log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"the server does not start: {said}") from error
            time.sleep(0.05)
        else:
            return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
