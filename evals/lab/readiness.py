"""When the processes of a ground are up, by what they print."""

from __future__ import annotations

import subprocess
import time

from evals.lab.keepers import Keeper
from evals.lab.ports import answers
from evals.lab.posts import Layout, Post

READY_SECONDS = 120.0
"""Wall seconds that a start may take; it takes about two on a machine with nothing else to do."""
_READY = {"sglang": b"The server is fired up and ready to roll!", "vllm": b"Application startup complete."}


class NotUpError(Exception):
    """A process did not come up; the text says which and shows the end of what it printed."""


def await_up(layout: Layout, keeper: Keeper) -> None:
    """Wait until every post is up.

    Args:
        layout: What the ground is made of.
        keeper: Who keeps it.

    Raises:
        NotUpError: one stayed down.
        KeeperError: the keeper does not say.
    """
    deadline = time.monotonic() + READY_SECONDS
    for post in layout.posts:
        while not _ready(layout, post):
            if time.monotonic() > deadline or keeper.kept(post).state == "failed":
                end = _printed(layout, post).decode(errors="replace").splitlines()[-12:]
                raise NotUpError("\n".join([f"the {post.name} process did not come up:", *end]))
            time.sleep(0.05)


def _ready(layout: Layout, post: Post) -> bool:
    """Whether a worker listens and has said that it is up; a router is when it listens.

    The journal keeps what a unit of the same name has said before, so that its word alone is not enough.
    """
    return answers(post.port) and (post.name == "router" or _READY[layout.engine] in _printed(layout, post))


def _printed(layout: Layout, post: Post) -> bytes:
    """What a post has printed since it was put up."""
    if not layout.journal:
        return post.log.read_bytes() if post.log.exists() else b""
    whose = "--user-unit" if layout.supervision == "systemd-user" else "--unit"
    command = ["journalctl", "--quiet", "--output=cat", "--boot", f"{whose}={post.unit}"]
    return subprocess.run(command, capture_output=True, check=False).stdout
