"""`prudent.toml` and the environment -> settings, with the line of a mistake and the nearest right key."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from agent.domain import Noun
from agent.errors import BadSettings, UnknownWorker

FILE = "prudent.toml"
_SECTION = re.compile(r"^\s*\[\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(r"^\s*([A-Za-z0-9_.\"'-]+)\s*=")

_VARIABLES = {
    "PRUDENT_MODEL_URL": ("reasoner", "base_url"),
    "PRUDENT_MODEL": ("reasoner", "model"),
    "PRUDENT_STORE": ("store", "path"),
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


class WorkerSettings(Noun):
    """One worker: where it runs, what starts it, and who is served by it."""

    host: Literal["local"] = "local"
    """The machine; `local` is this one."""
    engine: Literal["sglang"]
    """The engine that it runs."""
    version: str | None = None
    """The engine's version; left out, the worker is asked."""
    script: str
    """The launch file to edit; paths are relative to the settings file."""
    launch: str | None = None
    """Which launch of the script is meant, where it starts several: a role such as `decode`, a function, service or
    container, or a port as `port:30000`."""
    log: str
    """The file that the worker's output is appended to."""
    control: Url
    """Where the worker itself answers."""
    entry: Url | None = None
    """Where its users send their requests; left out: the control address."""
    policy: str = "decode"
    """A policy's name, or the path of a policy file."""
    plan: str | None = None
    """The performance plan document that decisions are recorded in."""
    directory: str = ".prudent/host"
    """Prudent's own directory on the worker's machine."""
    service: CommandService
    """What restarts it."""


class StoreSettings(Noun):
    """Where runs and records are kept."""

    path: str = ".prudent/prudent.sqlite"
    """An SQLite file; relative to the settings file."""


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
        raise _explained(path, text, error, environ) from error
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


def _absolute(settings: Settings, folder: Path) -> Settings:
    def at(path: str) -> str:
        return str(folder / Path(path).expanduser())

    workers = {}
    for name, worker in settings.workers.items():
        moved = {field: at(getattr(worker, field)) for field in ("script", "log", "directory")}
        if worker.plan is not None:
            moved["plan"] = at(worker.plan)
        if worker.policy.endswith((".yaml", ".yml")):
            moved["policy"] = at(worker.policy)
        workers[name] = worker.model_copy(update=moved)
    store = settings.store.model_copy(update={"path": at(settings.store.path)})
    return settings.model_copy(update={"workers": workers, "store": store})


def _explained(path: Path, text: str, error: ValidationError, environ: Mapping[str, str]) -> BadSettings:
    """Turn the first mistake into a sentence with its line, and a remedy with the nearest right key."""
    first = min(error.errors(include_url=False), key=lambda one: one["type"] != "extra_forbidden")
    where = [str(part) for part in first["loc"]]
    line = _line_of(text, where)
    at = f"{path}:{line}" if line else str(path)
    variable = next((name for name, spot in _VARIABLES.items() if name in environ and list(spot) == where), None)
    if variable is not None:
        at = f"the environment's {variable}"
    name = ".".join(where)
    if first["type"] == "extra_forbidden":
        keys = _keys_at(where[:-1])
        near = difflib.get_close_matches(where[-1], keys, n=1)
        remedy = f"Did you mean {near[0]!r}?" if near else f"Known here: {', '.join(sorted(keys))}."
        return BadSettings(f"{at}: unknown key {name!r}.", remedy)
    if first["type"] == "missing":
        return BadSettings(f"{at}: {name!r} is missing.", "Add it.")
    if first["type"] == "literal_error":
        allowed = str(first.get("ctx", {}).get("expected", ""))
        near = difflib.get_close_matches(str(first["input"]), re.findall(r"'([^']+)'", allowed), n=1)
        remedy = f"Did you mean {near[0]!r}?" if near else f"It has to be {allowed}."
        return BadSettings(f"{at}: {name!r} is {first['input']!r}.", remedy)
    if first["type"] == "string_pattern_mismatch":
        return BadSettings(
            f"{at}: {name!r} is {first['input']!r}.", "It has to be an address like http://127.0.0.1:30000."
        )
    return BadSettings(f"{at}: {name!r}: {first['msg']}.", "Correct the value.")


def _keys_at(where: Sequence[str]) -> list[str]:
    """The keys that are known under a path of the settings."""
    model: type[BaseModel] = Settings
    rest = list(where)
    while rest:
        part = rest.pop(0)
        if part not in model.model_fields:
            return []
        inner = _models_in(model.model_fields[part].annotation)
        if not inner:
            return []
        model = inner[0]
        if part == "workers" and rest:
            rest.pop(0)
    return list(model.model_fields)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


def _line_of(text: str, where: Sequence[str]) -> int | None:
    """The line of a key, or of the section that should hold it, counted from 1."""
    section: list[str] = []
    best: int | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        header = _SECTION.match(line)
        key = _KEY.match(line)
        if header:
            section = _parts(header[1])
            if section == list(where):
                return number
            if section == list(where[: len(section)]):
                best = number
        elif key:
            full = section + _parts(key[1])
            if full == list(where):
                return number
            if full == list(where[: len(full)]):
                best = number
    return best


def _parts(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]
