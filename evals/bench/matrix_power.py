"""The power matrix: the machine dies between any two system calls of the helper, and loses what was not synced.

Each verb of a transaction is run under strace; from the trace follow the states that the disk may be left in. In each
of them everything that was answered before has to be there still, and the helper has to bring the worker to a named
state: undone with the old script, or committed with the new one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from agent.domain import Execution
from agent.errors import HelperRefused, PrudentError
from evals.bench.matrix_points import Point
from evals.campaigns.bench_plan import Bench, planned
from evals.campaigns.campaign import Campaign
from evals.campaigns.disk import Effect, Image, images, traced
from evals.campaigns.host import VirtualHost
from tools.host import Completed
from tools.local import LocalHost
from tools.transaction import Writer

VERBS = ("lease", "open", "edit", "restart", "commit", "undo")
PARTS = 4
"""Points of a verb: each takes every fourth state of the disk."""
RUN = "r-power"


def points(_: Campaign) -> list[Point]:
    """Every verb, in parts."""
    return [Point("power", f"{verb} | {part} of {PARTS}", True) for verb in VERBS for part in range(PARTS)]


def check(campaign: Campaign, point: Point) -> str | None:
    """Try every state that the disk may be left in by a verb; what is wrong with the first bad one, or None."""
    if shutil.which("strace") is None:
        return "there is no strace on this machine"
    verb, part = point.id.split(" | ")
    with campaign.ground() as ground:
        bench = planned(campaign, ground)
        try:
            return _verb(bench, verb, int(part.split()[0]))
        finally:
            bench.host.close()


class _Traced(VirtualHost):
    """A host that runs one verb of the helper under strace."""

    wanted: str | None = None
    effects: tuple[Effect, ...] = ()
    answer: bytes = b""

    def run(self, argv: Any, *, stdin: bytes = b"", timeout: float, environ: Any = None) -> Completed:
        """Execute a command."""
        if self.wanted is None or argv[-1] != self.wanted:
            return super().run(argv, stdin=stdin, timeout=timeout, environ=environ)
        below = [str(self.ground.host_directory), str(self.ground.script)]
        self.answer, effects = traced(argv, stdin, below, self.ground.folder / "run" / "strace")
        self.effects = tuple(effects)
        return Completed(0, self.answer, b"")


class _Rebooted(VirtualHost):
    """A host after another boot, where this user may lay another boot's id over the kernel's; else after none."""

    def run(self, argv: Any, *, stdin: bytes = b"", timeout: float, environ: Any = None) -> Completed:
        """Execute a command."""
        if os.geteuid() or Path(argv[-2]).name != "transaction.py":
            return super().run(argv, stdin=stdin, timeout=timeout, environ=environ)
        boot = self.ground.folder / "run" / "boot-id"
        real = LocalHost(self.ground.host_directory)
        return real.run([*_ELSEWHERE, str(boot), *argv], stdin=stdin, timeout=timeout, environ=environ)


_LAID_OVER = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'
_ELSEWHERE = ("unshare", "--mount", "/bin/sh", "-c", _LAID_OVER)


class _Acked(NamedTuple):
    """What was answered before the verb that is cut off."""

    opened: bool
    done: frozenset[str]


def _verb(bench: Bench, verb: str, part: int) -> str | None:
    host = _Traced(bench.ground, bench.host.forge)
    writer = bench.writer(host)
    calls = _calls(bench, writer)
    before = VERBS[: VERBS.index(verb)] if verb != "undo" else VERBS[:4]
    for name in before:
        calls[name]()
    start = _image(bench)
    host.wanted = {"edit": "step", "restart": "step"}.get(verb, verb)
    calls[verb]()
    effects, host.wanted = host.effects, None
    if not effects:
        return f"strace saw nothing of {verb}"
    acked = _Acked("open" in before, frozenset(name for name in before if name in {"edit", "restart"}))
    seen, number = list[Image](), 0
    for crash in range(len(effects) + 1):
        for label, image in images(start, effects, crash).items():
            if image in seen:
                continue
            seen.append(image)
            number += 1
            if number % PARTS != part:
                continue
            after = acked
            if crash == len(effects):
                after = _Acked(acked.opened or verb == "open", acked.done | ({verb} & {"edit", "restart"}))
            wrong = _tried(bench, image, after, committed=verb == "commit" and crash == len(effects))
            if wrong is not None:
                return f"cut after {crash} of {len(effects)} calls of {verb}, {label}: {wrong}"
    return None


def _calls(bench: Bench, writer: Writer) -> dict[str, Callable[[], Any]]:
    plan = bench.plan(RUN)
    held: list[int] = []
    return {
        "lease": lambda: held.append(writer.lease(RUN, 600).token),
        "open": lambda: bench.open(writer, held[-1], plan),
        "edit": lambda: writer.step(held[-1], RUN, plan.steps[0].id),
        "restart": lambda: writer.step(held[-1], RUN, plan.steps[1].id),
        "commit": lambda: writer.commit(held[-1], RUN),
        "undo": lambda: writer.undo(held[-1], RUN),
    }


def _image(bench: Bench) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {str(bench.ground.script): bench.ground.script.read_bytes()}
    root = bench.ground.host_directory
    for path in (root, *sorted(root.rglob("*"))):
        found[str(path)] = None if path.is_dir() else path.read_bytes()
    return found


def _tried(bench: Bench, image: Image, acked: _Acked, *, committed: bool) -> str | None:
    """Put the disk into a state, boot, and settle; what is wrong, or None."""
    _end_watchdogs(bench)
    _lay(bench, image)
    (bench.ground.folder / "run" / "boot-id").write_text(f"{uuid.uuid4()}\n", encoding="ascii")
    bench.ground.service("restart")
    bench.host.sleep(0.0)
    writer = bench.writer(_Rebooted(bench.ground, bench.host.forge))
    try:
        found = writer.status(RUN)
        wrong = _lost(found, acked, committed=committed)
        if wrong is not None:
            return wrong
        token = writer.lease(RUN, 600).token
        if found is not None and found.state in {"open", "undo_failed"}:
            found = writer.undo(token, RUN)
        writer.release(token)
    except HelperRefused as refusal:
        return f"the helper would not settle it: {refusal.kind}: {refusal.said}"
    except PrudentError as problem:
        return f"it could not be settled: {problem}"
    wanted = bench.new if found is not None and found.state == "committed" else bench.old
    if found is not None and found.state not in {"committed", "undone"}:
        return f"the transaction ended {found.state}"
    held = bench.ground.script.read_bytes() if bench.ground.script.exists() else None
    if held != wanted:
        return f"the script holds {'nothing' if held is None else f'{len(held)} other bytes'}"
    litter = [path.name for path in bench.ground.folder.glob(".serve*")]
    return f"left lying: {litter}" if litter else None


def _lost(found: Execution | None, acked: _Acked, *, committed: bool) -> str | None:
    """What was answered and is not there any more."""
    if acked.opened and found is None:
        return "the opening was answered, and the journal knows nothing of it"
    done = {entry.step for entry in found.journal if entry.event == "done"} if found is not None else set()
    for name in acked.done:
        if not any(step is not None and step.endswith(name) for step in done):
            return f"the step {name!r} was answered, and the journal does not say that it is done"
    if committed and (found is None or found.state != "committed"):
        return "the commit was answered, and the journal does not say so"
    return None


def _lay(bench: Bench, image: Image) -> None:
    root = bench.ground.host_directory
    shutil.rmtree(root)
    for path, content in sorted(image.items()):
        place = Path(path)
        if content is None:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        else:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.write_bytes(content)
            place.chmod(0o755 if place == bench.ground.script else 0o600)
    if str(bench.ground.script) not in image:
        bench.ground.script.unlink(missing_ok=True)


def _end_watchdogs(bench: Bench) -> None:
    for presence in bench.ground.host_directory.glob("workers/*/watchdog"):
        text = presence.read_text(encoding="ascii").strip()
        with contextlib.suppress(OSError, ValueError):
            pid = int(text)
            if str(bench.ground.host_directory).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
