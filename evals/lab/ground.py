"""Puts up a practice ground: a serve script, a worker behind it, its keeper, settings and a performance plan."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evals.lab import papers, posts, private, tree
from evals.lab.faults import DEFAULT_FAULTS, check
from evals.lab.faults.catalogue import read
from evals.lab.keepers import KeeperError, keeper_of
from evals.lab.ports import answers
from evals.lab.posts import Layout, Post, Supervision, Topology
from evals.lab.readiness import NotUpError, await_up


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
    """The performance plan, in a repository of its own where there is git."""
    log: Path
    """The worker's log."""
    entry: str = ""
    """Where users send their requests: the router of a pair, else the worker."""
    posts: tuple[Post, ...] = ()
    """Its processes; the worker's is called `decode`."""

    @property
    def unit(self) -> str | None:
        """The worker's unit, where systemd keeps it."""
        return next((post.unit for post in self.posts if post.name == "decode"), None)


class Status(NamedTuple):
    """How a ground is doing."""

    running: bool
    """Its keeper holds a worker's process."""
    ready: bool
    """The worker's port is open."""
    state: str
    """The keeper's word: running, restarting, failed, stopped; `absent` without a ground."""
    pid: int
    """The worker's process id; 0: none."""
    port: int
    """Where it listens, or would; 0: no ground."""
    restarts: int
    """How often it was started again after a crash."""
    beside: tuple[tuple[str, str, int], ...] = ()
    """The other posts of a pair: name, state and port."""


class GroundError(Exception):
    """A ground could not be put up; the text says why and shows the end of the log."""


def up(
    directory: Path,
    *,
    seed: int = 0,
    faults: Sequence[str] = DEFAULT_FAULTS,
    port: int | None = None,
    engine: str = "sglang",
    version: str | None = None,
    topology: Topology = "single",
    supervision: Supervision = "supervisor",
    journal: bool = False,
    boot_noise: float = 0.005,
    run_noise: float = 0.005,
    start_speed: float = 35.0,
    serve_speed: float = 2.0,
    cold: bool = False,
    errors: float = 0.0,
    capture: int = 32,
    wait: bool = True,
    lifeline: int | None = None,
) -> Ground:
    """Put up a ground and start its worker.

    Whoever is killed on the way leaves nothing running, unless systemd keeps the worker.

    Args:
        directory: Where; made if need be. A ground that stands there already is taken down and written anew; its plan
            and Prudent's own folder stay.
        seed: Seed of everything that is drawn.
        faults: What is wrong with the worker, each `NAME` or `NAME:parameter=value,...` (see `faults.FAULTS`).
        port: Where it listens; None: a free port.
        engine: Which engine it is, of `VERSIONS`.
        version: Which version of it; None: the usual one.
        topology: One worker, or a pair with a router before it.
        supervision: Who keeps it running.
        journal: The output goes to the journal; only with systemd.
        boot_noise: Relative standard deviation from start to start.
        run_noise: Relative standard deviation from burst to burst.
        start_speed: Seconds of life a second while it starts.
        serve_speed: Seconds of life a second while it serves.
        cold: Nothing has been compiled yet, so that the first start, and the first pass of a new size, take longer.
        errors: Share of ordered calls that the model by itself gets wrong; a real one's is about 0.002.
        capture: The script's `--cuda-graph-max-bs`.
        wait: Return when every port is open; else as soon as the processes are spawned.
        lifeline: The reading end of a pipe: the ground goes down when nobody holds the other end. None: it stands by
            itself once this has returned.

    Raises:
        ValueError: no such fault, engine, version or combination.
        GroundError: the worker did not come up; nothing is left running.
    """
    check(faults)
    version = posts.checked(engine, version, topology, supervision, journal=journal)
    between = tuple(fault for fault in faults if read(fault)[0].of_pairs)
    if between and topology != "pd":
        raise ValueError(f"{between[0]!r} takes a pair")
    directory = directory.resolve()
    down(directory)
    directory.mkdir(parents=True, exist_ok=True)
    nature = private.Nature(
        engine=engine,
        version=version,
        seed=seed,
        faults=tuple(faults),
        boot_noise=boot_noise,
        run_noise=run_noise,
        start_speed=start_speed,
        serve_speed=serve_speed,
        cold=cold,
        errors=errors,
    )
    try:
        layout, bootstrap = posts.laid_out(directory, port, engine, topology, supervision, journal=journal)
        for post in layout.posts:
            # The decode side is the one that is operated; its prefill side is sound but for what lies between them.
            like = nature if post.name == "decode" else nature._replace(faults=between)
            _write(layout, post, like, capture, bootstrap)
        _start(layout, wait=wait, lifeline=lifeline)
    except (KeeperError, NotUpError, OSError) as failure:
        with contextlib.suppress(GroundError, OSError):
            down(directory)
        raise GroundError(str(failure)) from failure
    return _ground(directory, layout)


@contextlib.contextmanager
def standing(directory: Path, **how: Any) -> Iterator[Ground]:
    """A ground for the length of a block; it is down after the block, and after a crash of this process too.

    Args:
        directory: Where.
        **how: What `up` takes; systemd cannot keep such a ground.

    Raises:
        ValueError: as `up`.
        GroundError: as `up`.
    """
    reading, writing = os.pipe()
    try:
        yield up(directory, lifeline=reading, **how)
    finally:
        down(directory)
        os.close(reading)
        os.close(writing)


def down(directory: Path) -> bool:
    """Stop a ground's processes and their keepers; True where something was running.

    Raises:
        GroundError: something could not be stopped.
    """
    layout = posts.read(directory)
    if layout is None:
        return False
    keeper = keeper_of(layout.supervision, journal=layout.journal)
    try:
        # Users are turned away first, as an operator would.
        ran = [keeper.stop(post) for post in reversed(layout.posts)]
    except KeeperError as failure:
        raise GroundError(str(failure)) from failure
    return any(ran)


def status(directory: Path) -> Status:
    """How a ground is doing.

    Raises:
        GroundError: its keeper does not say.
    """
    layout = posts.read(directory)
    if layout is None:
        return Status(False, False, "absent", 0, 0, 0)
    keeper = keeper_of(layout.supervision, journal=layout.journal)
    try:
        kept = {post.name: keeper.kept(post) for post in layout.posts}
    except KeeperError as failure:
        raise GroundError(str(failure)) from failure
    worker, port = kept["decode"], layout.decode.port
    beside = tuple((post.name, kept[post.name].state, post.port) for post in layout.posts if post != layout.decode)
    ready = worker.pid != 0 and answers(port)
    return Status(worker.pid != 0, ready, worker.state, worker.pid, port, worker.restarts, beside)


def _write(layout: Layout, post: Post, nature: private.Nature, capture: int, bootstrap: int) -> None:
    """Everything that lies in a post's folder, and for the worker what lies in the ground's.

    Raises:
        KeeperError: the keeper does not take it.
    """
    post.directory.mkdir(exist_ok=True)
    (post.directory / "run").mkdir(exist_ok=True)
    post.log.unlink(missing_ok=True)
    tree.plant(post.directory, nature.version, engine=layout.engine, router=post.name == "router")
    papers.write_script(layout, post, version=nature.version, capture=capture, bootstrap=bootstrap)
    if post.name != "router":
        private.forget(post.directory)
        private.write(post.directory, nature)
    if post.name == "decode":
        posts.write(post.directory, layout)
        papers.write_settings(post.directory / "prudent.toml", layout)
        papers.write_plan(post.directory / papers.PLAN)
    keeper_of(layout.supervision, journal=layout.journal).prepare(post)


def _start(layout: Layout, *, wait: bool, lifeline: int | None) -> None:
    """Start the posts; without a lifeline of the caller's they live by one of ours until all of them are up.

    Raises:
        KeeperError: one was not started.
        NotUpError: one did not come up.
    """
    keeper = keeper_of(layout.supervision, journal=layout.journal)
    ours = os.pipe() if lifeline is None else ()
    try:
        for post in layout.posts:
            keeper.start(post, ours[0] if ours else lifeline)
        if wait:
            await_up(layout, keeper)
        if ours:
            for post in layout.posts:
                keeper.keep(post)
    finally:
        for end in ours:
            os.close(end)


def _ground(directory: Path, layout: Layout) -> Ground:
    decode = layout.decode
    return Ground(
        directory,
        decode.port,
        directory / "prudent.toml",
        decode.script,
        directory / papers.PLAN,
        decode.log,
        layout.entry.url,
        layout.posts,
    )
