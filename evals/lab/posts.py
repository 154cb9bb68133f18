"""The posts of a ground: the processes that make it up, each with its script, its log and whoever keeps it running."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from evals.lab import private
from evals.lab.ports import free_ports

Supervision = Literal["supervisor", "systemd-system", "systemd-user"]
"""Who keeps the processes: the small supervisor, the system's systemd, or the one of the user."""
Topology = Literal["single", "pd"]
"""One worker, or a prefill worker and a decode worker with a router before them."""
VERSIONS = {"sglang": ("0.5.14", "0.5.13", "0.5.20"), "vllm": ("0.24.0",)}
"""The engines, with the versions that each can be, the usual one first."""
_FILE = "posts.json"


class Post(NamedTuple):
    """One process of a ground."""

    name: str
    """`decode`, `prefill` or `router`."""
    directory: Path
    """Its own folder; the decode worker's is the ground's."""
    port: int
    """Where it listens on the loopback interface."""
    script: Path
    """What starts it."""
    log: Path
    """Where its output goes, unless the journal takes it."""
    unit: str | None = None
    """The unit that keeps it, where systemd does."""

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"


class Layout(NamedTuple):
    """What a ground is made of."""

    supervision: Supervision
    """Who keeps it running."""
    engine: str
    """Which engine it is."""
    journal: bool
    """The output goes to the journal."""
    posts: tuple[Post, ...]
    """Its processes, in the order in which they are started; the decode worker is among them."""

    @property
    def decode(self) -> Post:
        """The worker that Prudent operates."""
        return next(post for post in self.posts if post.name == "decode")

    @property
    def entry(self) -> Post:
        """Where users send their requests: the router where there is one."""
        return self.posts[-1]


def write(directory: Path, layout: Layout) -> None:
    """Lay down what a ground is made of, for those who ask about it later."""
    folder = directory / private.FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    document = {**layout._asdict(), "posts": [post._asdict() for post in layout.posts]}
    # Whoever asks meanwhile finds all of it or nothing.
    fresh = folder / f"{_FILE}.fresh"
    fresh.write_text(json.dumps(document, indent=1, default=str), encoding="utf-8")
    fresh.replace(folder / _FILE)


def read(directory: Path) -> Layout | None:
    """What a ground is made of; None where there is no ground."""
    path = directory / private.FOLDER / _FILE
    if not path.exists():
        return None
    document = json.loads(path.read_text(encoding="utf-8"))
    places = ("directory", "script", "log")
    posts = tuple(Post(**{**post, **{name: Path(post[name]) for name in places}}) for post in document["posts"])
    return Layout(**{**document, "posts": posts})


def checked(engine: str, version: str | None, topology: str, supervision: str, *, journal: bool) -> str:
    """The version, after a look at whether all of that goes together.

    Raises:
        ValueError: it does not.
    """
    if engine not in VERSIONS:
        raise ValueError(f"no engine is called {engine!r}; there are {' and '.join(sorted(VERSIONS))}")
    version = version or VERSIONS[engine][0]
    if version not in VERSIONS[engine]:
        raise ValueError(f"{engine} {version} is not known here; there are {', '.join(VERSIONS[engine])}")
    if topology not in get_args(Topology):
        raise ValueError(f"no topology is called {topology!r}; there are {' and '.join(get_args(Topology))}")
    if supervision not in get_args(Supervision):
        raise ValueError(f"nothing called {supervision!r} keeps it; there are {', '.join(get_args(Supervision))}")
    if topology == "pd" and engine != "sglang":
        raise ValueError(f"a pair is made of sglang, not of {engine}")
    if journal and supervision == "supervisor":
        raise ValueError("only systemd hands output to the journal")
    return version


def laid_out(
    directory: Path, port: int | None, engine: str, topology: Topology, supervision: Supervision, *, journal: bool
) -> tuple[Layout, int]:
    """What the ground is made of, and the port of the prefill side's bootstrap server.

    Raises:
        NoPortError: too few ports are free.
    """
    names = ("decode",) if topology == "single" else ("prefill", "decode", "router")
    found = free_ports(directory, len(names) + 1)
    ports = dict(zip(names, found[:-1], strict=True))
    if port is not None:
        ports["decode"] = port
    made = []
    for name in names:
        folder = directory if name == "decode" else directory / name
        script, log = folder / f"serve_{name}.sh", folder / "run" / "worker.log"
        unit = None if supervision == "supervisor" else f"{engine}-{name}-{ports[name]}.service"
        made.append(Post(name, folder, ports[name], script, log, unit))
    return Layout(supervision, engine, journal, tuple(made)), found[-1]
