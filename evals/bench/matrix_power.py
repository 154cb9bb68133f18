"""The power matrix: the worker's machine dies between any two calls of the helper's, and loses what was not synced.

Each verb of a run is carried out under strace, and the agent that asked for it dies with the machine; from the trace
follow the states that the disk may be left in. In each of them everything that was answered before has to be there
still, and `resume` has to bring the worker to a named state that the record tells truly. The verbs that write the
script are tried again with a script on another mount than Prudent's own folder, beside which the swap lies then.
"""

from __future__ import annotations

import os
import pickle
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from agent.domain import Execution
from agent.errors import NoAnswer, PrudentError
from agent.settings import load
from evals.bench.matrix_points import Point
from evals.campaigns.agent import STORIES, Around, World, ask, forked, resume
from evals.campaigns.behind import Passing
from evals.campaigns.campaign import Campaign
from evals.campaigns.disk import Effect, Image, images, traced
from evals.campaigns.forge import Forge
from evals.campaigns.ground import Ground, end_watchdogs, other_mount
from evals.campaigns.host import VirtualHost
from evals.campaigns.mortal import Act, Fate, die, name_of
from evals.campaigns.oracle import Before, before, end_of
from tools.host import Completed, Host
from tools.service import CommandService
from tools.transaction import Writer

RUN = "r-crash"
VERBS: Mapping[str, tuple[str, str]] = {
    "lease": ("bump", "helper lease"),
    "open": ("bump", "helper open"),
    "edit": ("bump", f"helper step {RUN}-edit"),
    "restart": ("bump", f"helper step {RUN}-restart"),
    "commit": ("bump", "helper commit"),
    "undo": ("overlap", "helper undo"),
}
"""The story in which a verb comes, and its name there."""
BEFORE: Mapping[str, tuple[str, ...]] = {
    "restart": ("edit",),
    "commit": ("edit", "restart"),
    "undo": ("edit", "restart"),
}
"""Steps that were answered before a verb."""
ELSEWHERE = ("edit", "commit", "undo")
"""Verbs that are tried again with the script on another mount."""
PARTS = 2
"""Points of a verb: each takes every second state of the disk."""


def points(campaign: Campaign) -> list[Point]:
    """Every verb, in parts; and on two mounts, where this machine has two that we may write to."""
    places = [("", verb) for verb in VERBS]
    if other_mount(campaign.root) is not None:
        places += [(" on two mounts", verb) for verb in ELSEWHERE]
    return [
        Point("power", f"{verb}{where} | {part} of {PARTS}", True) for where, verb in places for part in range(PARTS)
    ]


def check(campaign: Campaign, point: Point) -> str | None:
    """Try every state that the disk may be left in by a verb; what is wrong with the first bad one, or None."""
    if shutil.which("strace") is None:
        return "there is no strace on this machine"
    what, part = point.id.split(" | ")
    verb, _, where = what.partition(" ")
    with campaign.ground(two_mounts=bool(where)) as ground:
        return _verb(campaign, ground, verb, int(part.split()[0]))


class _Cut(NamedTuple):
    """What is known of a verb that was carried out under strace."""

    start: Image
    """The disk before it."""
    effects: tuple[Effect, ...]
    """What it did to the disk."""


class _Traced(Passing):
    """A host that carries one act out under strace, and its agent dies before it hears of it."""

    def __init__(self, host: Host, ground: Ground, act: Act, cut: Path) -> None:
        super().__init__(host)
        self._ground, self._act, self._cut = ground, act, cut
        self._fate = Fate()

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float,
        environ: Mapping[str, str] | None = None,
    ) -> Completed:
        """Execute a command."""
        with self._fate.act(name_of(argv, stdin)) as act:
            if act != self._act:
                return self._host.run(argv, stdin=stdin, timeout=timeout, environ=environ)
            start, script = _image(self._ground), self._ground.script.resolve()
            elsewhere = script.parent != self._ground.folder
            below = [str(self._ground.host_directory), str(script.parent if elsewhere else script)]
            _, effects = traced(argv, stdin, below, self._ground.folder / "run" / "strace")
            self._cut.write_bytes(pickle.dumps(_Cut(start, tuple(effects))))
            die()
            raise AssertionError


class _Rebooted(Passing):
    """A host after another boot, where this user may lay another boot's id over the kernel's; else after none."""

    def __init__(self, host: Host, ground: Ground, forge: Forge) -> None:
        super().__init__(host)
        self._boot = ground.folder / "run" / "boot-id"
        self._forge = forge

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float,
        environ: Mapping[str, str] | None = None,
    ) -> Completed:
        """Execute a command.

        Raises:
            NoAnswer: it did not end in time.
        """
        path = Path(argv[-2]) if len(argv) > 1 else Path()
        if os.geteuid() or path.name != "transaction.py" or path.read_bytes() != self._forge.content:
            return self._host.run(argv, stdin=stdin, timeout=timeout, environ=environ)
        try:
            return self._forge.call(str(path), argv[-1], stdin, environ or {}, timeout, boot=self._boot)
        except TimeoutError:
            raise NoAnswer(self.name, argv, None, f"no end within {timeout:g} s") from None


class _Acked(NamedTuple):
    """What had been answered when the machine died."""

    opened: bool
    done: frozenset[str]
    committed: bool


def _verb(campaign: Campaign, ground: Ground, verb: str, part: int) -> str | None:
    (story, name), cut, said = VERBS[verb], ground.folder / "run" / "cut", ground.folder / "run" / "said"
    was = before(ground)

    def doomed(world: World) -> _Traced:
        return _Traced(world, ground, Act(name, 1), cut)

    ended = forked(lambda: ask(ground, campaign.forge, RUN, STORIES[story], Around(host=doomed)), said=said)
    if ended.status != -9 or not cut.exists():
        return f"the agent did not die in {verb}: status {ended.status}. {ended.said[-2000:]}"
    start, effects = pickle.loads(cut.read_bytes())
    if not effects:
        return f"strace saw nothing of {verb}"
    end_watchdogs(ground.host_directory)
    agents = _Agents(ground)
    seen, number = list[Image](), 0
    for crash in range(len(effects) + 1):
        for label, image in images(start, effects, crash).items():
            if image in seen:
                continue
            seen.append(image)
            number += 1
            if number % PARTS != part:
                continue
            last = {verb} if crash == len(effects) else set()
            done = frozenset((*BEFORE.get(verb, ()), *(last & {"edit", "restart"})))
            opened = verb in list(VERBS)[2:] or "open" in last
            agents.restore()
            wrong = _tried(campaign, ground, image, _Acked(opened, done, "commit" in last), was, story)
            if wrong is not None:
                return f"cut after {crash} of {len(effects)} calls of {verb}, {label}: {wrong}"
    return None


class _Agents:
    """What the agent's own machine holds, and time, as they were when the worker's machine died."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._kept = ground.folder / "kept-agent"
        shutil.copytree(ground.folder / ".prudent", self._kept)
        self._state, self._log = ground.state(), ground.log.read_bytes()

    def restore(self) -> None:
        """Put it back."""
        shutil.rmtree(self._ground.folder / ".prudent")
        shutil.copytree(self._kept, self._ground.folder / ".prudent")
        self._ground.keep_state(self._state)
        self._ground.log.write_bytes(self._log)


def _image(ground: Ground) -> dict[str, bytes | None]:
    script = ground.script.resolve()
    found: dict[str, bytes | None] = {str(script): script.read_bytes()}
    root = ground.host_directory
    for path in (root, *sorted(root.rglob("*")), *script.parent.glob(".serve*")):
        found[str(path)] = None if path.is_dir() else path.read_bytes()
    return found


def _tried(campaign: Campaign, ground: Ground, image: Image, acked: _Acked, was: Before, story: str) -> str | None:
    """Put the disk into a state, boot, and resume; what is wrong, or None."""
    end_watchdogs(ground.host_directory)
    _lay(ground, image)
    (ground.folder / "run" / "boot-id").write_text(f"{uuid.uuid4()}\n", encoding="ascii")
    ground.service("restart")
    world = VirtualHost(ground, campaign.forge)
    try:
        world.sleep(10.0)
        wrong = _lost(_writer(_Rebooted(world, ground, campaign.forge), ground).status(RUN), acked)
    except PrudentError as problem:
        return f"the helper would not say how it stands: {problem}"
    finally:
        world.close()
    if wrong is not None:
        return wrong
    came_up = ground.main() if ground.script.read_bytes() == was.script else None
    said = ground.folder / "run" / "said"
    ended = forked(
        lambda: resume(ground, campaign.forge, RUN, Around(host=lambda host: _Rebooted(host, ground, campaign.forge))),
        said=said,
    )
    if ended.status:
        return f"resume ended with status {ended.status}: {ended.said[-2000:]}"
    end = end_of(ground, was._replace(process=came_up), story, RUN)
    if isinstance(end, str):
        return end
    if acked.committed and end.real.journal != "committed":
        return f"it was committed, and is {end.real.journal} now"
    return f"nothing was proven: {end.why}" if end.state == "unknown" else None


def _writer(host: Host, ground: Ground) -> Writer:
    said = load(ground.settings, {}).workers["decode"].service
    assert said.kind == "command"
    return Writer(host, "decode", str(ground.script), CommandService(restart=said.restart, pid=said.pid))


def _lost(found: Execution | None, acked: _Acked) -> str | None:
    """What was answered and is not there any more."""
    if acked.opened and found is None:
        return "the opening was answered, and the journal knows nothing of it"
    done = {entry.step for entry in found.journal if entry.event == "done"} if found is not None else set()
    for name in acked.done:
        if not any(step is not None and step.endswith(name) for step in done):
            return f"the step {name!r} was answered, and the journal does not say that it is done"
    if acked.committed and (found is None or found.state != "committed"):
        return "the commit was answered, and the journal does not say so"
    return None


def _lay(ground: Ground, image: Image) -> None:
    root, script = ground.host_directory, ground.script.resolve()
    shutil.rmtree(root)
    for left in script.parent.glob(".serve*"):
        left.unlink()
    for path, content in sorted(image.items()):
        place = Path(path)
        if content is None:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        else:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.write_bytes(content)
            place.chmod(0o755 if place == script else 0o600)
    if str(script) not in image:
        script.unlink(missing_ok=True)
