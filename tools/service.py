"""A worker's service: what speaks for it, and how a start is followed to its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from pydantic import Field

from agent.domain import Noun, Process
from agent.errors import HostError

Identity = tuple[str, int, int]


class _Limits(Noun):
    """How long a restart may take."""

    restart_seconds: float = Field(default=300.0, gt=0)
    """Limit for the restart command, in seconds; longer than the stop timeout of any service manager (systemd: 90)."""
    settle_seconds: float = Field(default=30.0, gt=0)
    """Limit for a new main process to show after the restart command, in seconds."""


class CommandService(_Limits):
    """A service that two commands speak for; the helper on the host runs them."""

    kind: Literal["command"] = "command"
    """How it is spoken to."""
    restart: tuple[str, ...] = Field(min_length=1)
    """Returns with status 0 once the old process is gone and the new one is spawned."""
    pid: tuple[str, ...] = Field(min_length=1)
    """Prints the main pid, or 0 while there is none."""
    directory: str | None = None
    """Where both are run; None: where Prudent itself runs."""
    environ: Mapping[str, str] = {}
    """Variables that both need besides the harmless ones that every command gets; nothing else of ours reaches them."""


class SystemdService(_Limits):
    """A unit of systemd; the helper on the host speaks to its manager."""

    kind: Literal["systemd"] = "systemd"
    """How it is spoken to."""
    unit: str = Field(pattern=r"^[A-Za-z0-9:_.@\\][A-Za-z0-9:_.@\\-]*$", max_length=255)
    """The unit, such as `sglang-decode.service`."""
    scope: Literal["system", "user"] = "system"
    """Whose manager keeps it: the system's, or that of the user whom we log in as."""


ServiceSpec = CommandService | SystemdService
"""What restarts a worker and says who it is."""


def spoken(service: ServiceSpec) -> dict[str, Any]:
    """A service as the helper on the host takes it."""
    limits = {"restart_seconds": service.restart_seconds, "settle_seconds": service.settle_seconds}
    if isinstance(service, SystemdService):
        return {"kind": service.kind, "unit": service.unit, "scope": service.scope, **limits}
    return {
        "kind": service.kind,
        "restart": list(service.restart),
        "pid": list(service.pid),
        "cwd": service.directory,
        "environ": dict(service.environ),
        **limits,
    }


class Progress(NamedTuple):
    """What the engine knows of a start at this moment."""

    ready: bool
    """It is up by its own word and by what it serves; a 200 from `/health` alone is not enough for that."""
    says: str
    """How far it is, such as the newest line of its log; as long as this changes, the start goes on."""
    failed: str | None = None
    """Why it will never be ready, where the log says so."""


class Waited(NamedTuple):
    """How a wait ended."""

    outcome: Literal["ready", "died", "failed", "stuck", "deadline", "unheard"]
    """`died`: the main process is gone or another one; `failed`: the engine says so; `stuck`: no progress; `unheard`:
    time ran out while the host gave no answer, so that nobody knows how the start went."""
    seconds: float
    """How long it took."""
    says: str
    """The reason, or the last that was heard."""
    process: Process | None
    """The main process at the end."""


def wait_ready(
    started: Identity,
    *,
    main: Callable[[], Process | None],
    progress: Callable[[], Progress],
    deadline: float,
    patience: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    tell: Callable[[str], None],
    pause: float = 0.25,
) -> Waited:
    """Follow a start until the worker is ready, dead, or out of time.

    Args:
        started: Identity of the process that has to become ready.
        main: Asks who the main process is.
        progress: Asks the engine how far it is. The main process is looked at after each answer, so that "ready" is
            never said of a process that was gone by then.
        deadline: Seconds in all.
        patience: Seconds without any change of `Progress.says` after which the start counts as stuck.
        clock: Seconds that only go forward.
        sleep: Lets seconds pass.
        tell: Hears each new state of affairs once.
        pause: Seconds between two looks.

    A question that the host leaves unanswered is neither progress nor death: it is asked again until time runs out.
    """
    begin = moved = clock()
    last, process = "", None
    while True:
        now: Progress | None = None
        try:
            now = progress()
            process = main()
        except HostError as error:
            heard = f"no answer from the host: {error}"
        else:
            heard = now.says
            if process is None or process.identity != started:
                says = "it ended" if process is None else f"it was replaced by pid {process.pid}"
                last_words = f"; the last it said: {heard}" if heard else ""
                return Waited("died", clock() - begin, f"pid {started[1]}: {says}{last_words}", process)
            if now.failed is not None:
                return Waited("failed", clock() - begin, now.failed, process)
            if now.ready:
                return Waited("ready", clock() - begin, heard, process)
        if heard != last:
            tell(heard)
            moved = moved if now is None else clock()
            last = heard
        if clock() - begin >= deadline:
            outcome: Literal["deadline", "unheard"] = "deadline" if now is not None else "unheard"
            return Waited(outcome, clock() - begin, f"not ready within {deadline:g} s: {heard}", process)
        if clock() - moved >= patience:
            still: Literal["stuck", "unheard"] = "stuck" if now is not None else "unheard"
            return Waited(still, clock() - begin, f"no progress for {patience:g} s: {heard}", process)
        sleep(pause)
