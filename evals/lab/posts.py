"""The posts of a ground: the processes that make it up, each with its script, its log and whoever keeps it running."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, NamedTuple

from evals.lab import private

Supervision = Literal["supervisor", "systemd-system", "systemd-user"]
"""Who keeps the processes: the small supervisor, the system's systemd, or the one of the user."""
Topology = Literal["single", "pd"]
"""One worker, or a prefill worker and a decode worker with a router before them."""
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
    (folder / _FILE).write_text(json.dumps(document, indent=1, default=str), encoding="utf-8")


def read(directory: Path) -> Layout | None:
    """What a ground is made of; None where there is no ground."""
    path = directory / private.FOLDER / _FILE
    if not path.exists():
        return None
    document = json.loads(path.read_text(encoding="utf-8"))
    places = ("directory", "script", "log")
    posts = tuple(Post(**{**post, **{name: Path(post[name]) for name in places}}) for post in document["posts"])
    return Layout(**{**document, "posts": posts})
