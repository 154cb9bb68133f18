"""`prudent.toml` and the environment -> settings."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationError

from agent.domain import Noun
from agent.errors import BadSettings, UnknownWorker
from agent.mistakes import explained, line_of

FILE = "prudent.toml"
LOCAL = "local"
"""The host that is this machine."""
DIRECTORY = ".prudent/host"
"""Prudent's own directory on a worker's machine, where the settings do not name one."""
JOURNAL = "journal"
"""The log that journald keeps of a unit."""

_VARIABLES = {
    "PRUDENT_MODEL_URL": ("reasoner", "base_url"),
    "PRUDENT_MODEL": ("reasoner", "model"),
    "PRUDENT_STORE": ("store", "path"),
    "PRUDENT_STORE_URL": ("store", "url"),
}


def _with_port(url: str) -> str:
    """Refuse an address whose port is none; `urlsplit` says so only when it is asked."""
    _ = urlsplit(url).port
    return url


Url = Annotated[str, Field(pattern=r"^https?://[^\s/]+"), AfterValidator(_with_port)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class CommandService(Noun):
    """A service that two commands speak for."""

    kind: Literal["command"]
    """A restart command and a command that prints the main pid."""
    restart: tuple[str, ...] = Field(min_length=1)
    """Returns with status 0 once the old process is gone and the new one is spawned."""
    pid: tuple[str, ...] = Field(min_length=1)
    """Prints the main pid, or 0 while there is none."""
    environ: Mapping[str, str] = {}
    """Variables that both commands need: they see a few harmless ones like PATH and HOME, and nothing else of ours."""


class SystemdService(Noun):
    """A service that systemd keeps."""

    kind: Literal["systemd"]
    """A unit of systemd."""
    unit: str = Field(pattern=r"^[A-Za-z0-9:_.@\\-]+$", max_length=255)
    """The unit, such as `sglang-decode.service`."""
    scope: Literal["system", "user"] = "system"
    """Whose manager keeps it: the system's, or the login's own."""


class HostSettings(Noun):
    """A machine that is reached over SSH; what is left out is read from the SSH configuration, as `ssh` does."""

    address: str | None = None
    """Name or address; left out: the section's own name, as the SSH configuration resolves it."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """TCP port of its sshd."""
    user: str | None = None
    """Login name there."""
    identity: str | None = None
    """A private key file, relative to the settings file."""
    known_hosts: str | None = None
    """The file that its host key is checked against; left out: the user's own."""
    config: str | None = None
    """An SSH configuration; left out: the user's own."""
    become: Literal["sudo"] | None = None
    """Every command goes through `sudo -n`."""
    python: str = "python3"
    """A Python 3.10 or newer there, for the files that Prudent ships."""


class WorkerSettings(Noun):
    """One worker: where it runs, what starts it, and who is served by it."""

    host: str = Field(default=LOCAL, pattern=r"^[A-Za-z0-9_][^\s/]{0,253}$")
    """The machine; `local` is this one, another a section of `hosts`, an alias of the SSH configuration, or
    `user@host:port`."""
    engine: Literal["sglang", "vllm"]
    """The engine that it runs."""
    version: str | None = None
    """The engine's version; left out, the worker is asked."""
    script: str
    """The launch file to edit; paths are relative to the settings file."""
    launch: str | None = None
    """Which launch of the script is meant, where it starts several: a role such as `decode`, a function, service or
    container, or a port as `port:30000`."""
    log: str
    """The file that the worker's output is appended to, or `journal` for a unit whose output journald keeps."""
    control: Url
    """Where the worker itself answers."""
    entry: Url | None = None
    """Where its users send their requests; left out: the control address."""
    role: Literal["whole", "prefill", "decode"] = "whole"
    """What it does of a request. One side of a disaggregated pair serves nobody by itself: load takes `entry`."""
    peers: tuple[Url, ...] = ()
    """Other workers that serve the same entry: the other side of a pair, or replicas behind a router."""
    policy: str = "decode"
    """A policy's name, or the path of a policy file."""
    benchmark: tuple[str, ...] = ()
    """A command of your own that measures throughput instead of Prudent's bursts, run on the worker's machine once for
    each concurrency and run. `{concurrency}`, `{seed}` and `{base_url}` in it stand for what is asked, and `{output}`
    for the file that it has to write: one result as vLLM's or SGLang's `bench_serving` writes it."""
    plan: str | None = None
    """The performance plan document that decisions are recorded in."""
    directory: str = DIRECTORY
    """Prudent's own directory on the worker's machine; left out, it lies beside the settings file, and on another
    machine in the home of the user that commands run as."""
    service: CommandService | SystemdService = Field(discriminator="kind")
    """What restarts it."""

    @property
    def load(self) -> str:
        """Where load is sent: a worker that serves whole requests is measured by itself, a side of a pair is not."""
        address = self.control if self.role == "whole" or self.entry is None else self.entry
        return address.rstrip("/")


class StoreSettings(Noun):
    """Where runs and records are kept."""

    path: str = ".prudent/prudent.sqlite"
    """An SQLite file; relative to the settings file. Prudent's own log lies beside it."""
    url: Annotated[str, Field(pattern=r"^postgresql(\+psycopg)?://")] | None = None
    """A PostgreSQL database, which a team can share; it stands before `path`."""


class ReasonerSettings(Noun):
    """The model to ask; without this section the rules answer."""

    base_url: Url
    """An endpoint that speaks the OpenAI chat protocol with tool calls."""
    model: str
    """The model's name there."""
    api_key_env: str | None = None
    """The variable that holds the key; left out: no key is sent."""
    timeout_seconds: float = Field(default=60.0, gt=0)
    """For each call."""


class Settings(Noun):
    """All of it."""

    store: StoreSettings = StoreSettings()
    """Where runs and records are kept."""
    reasoner: ReasonerSettings | None = None
    """The model; none: rules."""
    hosts: Mapping[Name, HostSettings] = {}
    """Machines that are reached over SSH, by the name that workers use."""
    workers: Mapping[Name, WorkerSettings] = Field(min_length=1)
    """The workers by name."""

    def worker(self, name: str | None) -> tuple[str, WorkerSettings]:
        """Find a worker by name; None finds the only one there is.

        Raises:
            UnknownWorker: there is none of that name, or several and no name.
        """
        known = ", ".join(sorted(self.workers))
        if name is None:
            if len(self.workers) > 1:
                raise UnknownWorker(f"There are several workers: {known}.", "Say which with --worker NAME.")
            name = next(iter(self.workers))
        if name not in self.workers:
            near = difflib.get_close_matches(name, self.workers, n=1)
            raise UnknownWorker(
                f"No worker is called {name!r}.",
                f"Did you mean {near[0]!r}?" if near else f"The settings know {known}.",
            )
        return name, self.workers[name]


def find(start: Path, environ: Mapping[str, str]) -> Path:
    """Find the settings file: `PRUDENT_SETTINGS`, else `prudent.toml` in the folder or the nearest one above.

    Raises:
        BadSettings: there is none.
    """
    named = environ.get("PRUDENT_SETTINGS")
    if named:
        return Path(named)
    for folder in (start, *start.parents):
        if (folder / FILE).is_file():
            return folder / FILE
    raise BadSettings(
        f"There is no {FILE} here or above {str(start)!r}.",
        "Go to its folder, set PRUDENT_SETTINGS, or try the practice ground with: prudent lab up",
    )


def load(path: Path, environ: Mapping[str, str]) -> Settings:
    """Read the settings; relative paths become absolute, the environment's values stand before the file's.

    Raises:
        BadSettings: the file cannot be read, is not TOML, or says something unknown or impossible.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadSettings(f"{path}: cannot be read: {error}.", "Check the path and its permissions.") from error
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadSettings(f"{path}: {error}.", "It has to be TOML; the line is named above.") from error
    raw = _with_environment(raw, environ)
    try:
        settings = Settings.model_validate(raw)
    except ValidationError as error:
        raise explained(path, text, error, Settings, _set_by(environ)) from error
    for name, worker in settings.workers.items():
        _possible(path, text, name, worker)
    try:
        return _absolute(settings, path.resolve().parent)
    except RuntimeError as error:
        raise BadSettings(f"{path}: {error}.", "Write the path without the ~, or with a user that there is.") from error


def _with_environment(raw: dict[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Lay `PRUDENT_MODEL_URL`, `PRUDENT_MODEL` and `PRUDENT_STORE` over the file."""
    raw = dict(raw)
    for variable, (section, key) in _VARIABLES.items():
        if variable in environ:
            there = raw.get(section, {})
            raw[section] = {**there, key: environ[variable]} if isinstance(there, dict) else there
    return raw


def _set_by(environ: Mapping[str, str]) -> dict[tuple[str, ...], str]:
    """The settings that come from the environment, and the variable of each."""
    return {where: variable for variable, where in _VARIABLES.items() if variable in environ}


def _possible(path: Path, text: str, name: str, worker: WorkerSettings) -> None:
    """See that what is set for a worker can be meant together.

    Raises:
        BadSettings: it cannot.
    """

    def at(key: str) -> str:
        line = line_of(text, ["workers", name, key])
        return f"{path}:{line}" if line else str(path)

    if worker.host != LOCAL:
        for key, besides in (("script", None), ("log", JOURNAL), ("directory", DIRECTORY)):
            value = getattr(worker, key)
            if not value.startswith("/") and value != besides:
                raise BadSettings(
                    f"{at(key)}: 'workers.{name}.{key}' is {value!r}, which means nothing on the host {worker.host}.",
                    "Write the path from the root, as it is there.",
                )
    if worker.log == JOURNAL and worker.service.kind != "systemd":
        raise BadSettings(
            f"{at('log')}: 'workers.{name}.log' is {JOURNAL!r}, and its service is no unit of systemd.",
            'Name the log file, or set service.kind = "systemd" and service.unit.',
        )
    for place in ("{concurrency}", "{output}"):
        if worker.benchmark and not any(place in word for word in worker.benchmark):
            raise BadSettings(
                f"{at('benchmark')}: 'workers.{name}.benchmark' is not told {place}.",
                f"Hand {place} to it as an argument: without it, what it measures could not be used.",
            )
    if worker.role != "whole" and worker.entry is None:
        raise BadSettings(
            f"{at('role')}: 'workers.{name}' is the {worker.role} side of a pair and has no entry.",
            "Set entry to the address of the router, or of whatever its users send their requests to.",
        )


def _absolute(settings: Settings, folder: Path) -> Settings:
    def at(path: str) -> str:
        return str(folder / Path(path).expanduser())

    workers = {}
    for name, worker in settings.workers.items():
        here = ("script", "log", "directory") if worker.host == LOCAL else ()
        moved = {field: at(getattr(worker, field)) for field in here if not (field == "log" and worker.log == JOURNAL)}
        if worker.plan is not None:
            moved["plan"] = at(worker.plan)
        if worker.policy.endswith((".yaml", ".yml")):
            moved["policy"] = at(worker.policy)
        workers[name] = worker.model_copy(update=moved)
    hosts = {
        name: host.model_copy(
            update={
                field: at(value)
                for field in ("identity", "known_hosts", "config")
                if (value := getattr(host, field)) is not None
            }
        )
        for name, host in settings.hosts.items()
    }
    store = settings.store.model_copy(update={"path": at(settings.store.path)})
    return settings.model_copy(update={"workers": workers, "hosts": hosts, "store": store})
