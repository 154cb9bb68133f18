"""Settings -> concrete parts: the one place of the product where promises meet what keeps them."""

from __future__ import annotations

import os
import platform
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from agent import domain
from agent.graph import Run, build
from agent.reasoning.fallback import Fallback
from agent.reasoning.reasoner import Reasoner
from agent.reasoning.rules import Rules
from agent.settings import DIRECTORY, LOCAL, Settings, WorkerSettings
from agent.state import Heard, Parts, RunState, Stop
from memory import backends
from memory.incidents import incidents
from memory.store import Owner, Store
from policies.load import load as load_policy
from tools.engines.catalogue import knobs
from tools.host import Host
from tools.installed import HelpTexts
from tools.local import LocalHost
from tools.service import CommandService, ServiceSpec, SystemdService
from tools.worker import Worker


class Assembly(NamedTuple):
    """Everything that a door needs to carry runs of one worker."""

    store: Store
    """Runs and records."""
    parts: Parts
    """What the nodes are handed."""
    graph: Run
    """The graph with its checkpoints."""

    def resumption(self, run: str) -> RunState | None:
        """How a run whose owner died goes on: from a checkpoint (None), or from the start where there is none.

        Without a valid approval a run is only ended or undone; one that is carried forward needs it still to be valid.
        """
        config: RunnableConfig = {"configurable": {"thread_id": run}}
        snapshot = self.graph.get_state(config)
        row = self.store.run(run)
        assert row is not None
        if not self._may_go_on(snapshot.values):
            self.parts.stop.why = "left by its owner, whose process is gone,"
            self.parts.stop.asked.set()
        return None if snapshot.values else {"request": row.request}

    def _may_go_on(self, values: Mapping[str, Any]) -> bool:
        plan = values.get("plan")
        if "verdict" in values:
            return True
        if not isinstance(plan, domain.Plan):
            return False
        decision = self.store.decision(plan.run, plan.digest)
        return decision is not None and self.parts.clock() < decision.expires


@contextmanager
def open_store(settings: Settings) -> Iterator[Store]:
    """Open the store of the settings, and close it again.

    Raises:
        StoreUnusable: it is damaged, locked, too new, or not to be written.
    """
    with backends.open_store(_location(settings)) as store:
        yield store


def _location(settings: Settings) -> str:
    """Where the store and the checkpoints are: a server's URL, else a file."""
    return settings.store.url or settings.store.path


@contextmanager
def assemble(
    settings: Settings,
    name: str,
    *,
    environ: Mapping[str, str],
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    seed: int | None = None,
    host: Host | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Assembly]:
    """Put the parts for one worker together.

    Args:
        settings: The settings.
        name: The worker.
        environ: Where the model's key is looked up.
        clock: The time, with its zone.
        seed: Seeds the load; None: something new each time, so that caches of the worker cannot answer.
        host: The worker's machine; None: the one that the settings name.
        monotonic: Seconds that only go forward, for waiting.
        sleep: Lets seconds pass.

    Raises:
        UnknownWorker: there is none of that name.
        BadSettings: the worker's policy cannot be used.
        StoreUnusable: the state database cannot be used.
    """
    _, chosen = settings.worker(name)
    policy, owner, heard = load_policy(chosen.policy), owner_here(), Heard()
    catalogue = knobs(chosen.engine)
    with (
        open_store(settings) as store,
        _checkpoints(_location(settings)) as checkpoints,
        nullcontext(host) if host is not None else _reached(settings, chosen, heard.hear) as machine,
    ):
        parts = Parts(
            name=name,
            settings=chosen,
            worker=_worker(name, chosen, catalogue, machine, owner, heard, monotonic, sleep, _help_texts(settings)),
            store=store,
            reasoner=_reasoner(settings, environ),
            rules=Rules(),
            policy=policy,
            knobs=catalogue,
            incidents=(*incidents(), *store.incidents()),
            owner=owner,
            clock=clock,
            seed=zlib.crc32(os.urandom(8)) if seed is None else seed,
            stop=Stop(),
            heard=heard,
        )
        yield Assembly(store, parts, build(checkpoints))


def owner_here() -> Owner:
    """This process."""
    pid = os.getpid()
    ticks = _start_ticks(pid)
    assert ticks is not None
    return Owner(host=platform.node(), boot_id=_boot_id(), pid=pid, start_ticks=ticks)


def owner_lives(owner: Owner) -> bool:
    """Whether an owner's process is still there; one on another machine is taken to be alive.

    The boot id says which machine it is: names change, and a container has one of its own.
    """
    if owner.boot_id == _boot_id():
        return _start_ticks(owner.pid) == owner.start_ticks
    return owner.host != platform.node()


def same_machine(owner: Owner) -> bool:
    """Whether an owner runs, or ran, on this very boot of this machine, so that its process can be looked for."""
    return owner.boot_id == _boot_id() or owner.host == platform.node()


def _help_texts(settings: Settings) -> HelpTexts:
    """Kept beside the embedded store, so that an engine is asked once and not in every run."""
    return HelpTexts(Path(settings.store.path).parent / "help")


@contextmanager
def _reached(settings: Settings, worker: WorkerSettings, tell: Callable[[str], None]) -> Iterator[Host]:
    """The worker's machine: this one, or one behind a connection that ends with the block.

    Raises:
        Refused: no connection comes about; see `SshHost.connect`.
    """
    if worker.host == LOCAL:
        yield LocalHost(Path(worker.directory))
        return
    # The library behind it takes a while to import, which nobody with a worker on this machine should wait for.
    from tools.ssh import SshHost  # noqa: PLC0415
    from tools.ssh_target import SshTarget  # noqa: PLC0415

    said = settings.hosts.get(worker.host)
    target = SshTarget.parse(worker.host) if said is None else SshTarget(name=worker.host, **said.model_dump())
    own = None if worker.directory == DIRECTORY else worker.directory
    with closing(SshHost.connect(target.model_copy(update={"directory": own}), tell=tell)) as host:
        yield host


def _worker(
    name: str,
    worker: WorkerSettings,
    catalogue: tuple[domain.Knob, ...],
    host: Host,
    owner: Owner,
    heard: Heard,
    monotonic: Callable[[], float],
    sleep: Callable[[float], None],
    help_texts: HelpTexts,
) -> Worker:
    return Worker(
        name,
        host,
        engine=worker.engine,
        script=worker.script,
        launch=worker.launch,
        log=worker.log,
        control=worker.control.rstrip("/"),
        entry=(worker.entry or worker.control).rstrip("/"),
        load=worker.load,
        partners=() if worker.role == "whole" else tuple(peer.rstrip("/") for peer in worker.peers),
        benchmark=worker.benchmark,
        service=_service(worker),
        knobs=catalogue,
        version=worker.version,
        who=f"process {owner.pid} on {owner.host}",
        heard=heard.hear,
        help_texts=help_texts,
        clock=monotonic,
        sleep=sleep,
    )


def _service(worker: WorkerSettings) -> ServiceSpec:
    said = worker.service
    if said.kind == "systemd":
        return SystemdService(unit=said.unit, scope=said.scope)
    return CommandService(restart=said.restart, pid=said.pid, environ=said.environ)


def _reasoner(settings: Settings, environ: Mapping[str, str]) -> Reasoner:
    """The model with the rules behind it, or the rules alone."""
    if settings.reasoner is None:
        return Rules()
    # The library behind it takes half a second to import, which nobody without a model should wait for.
    from agent.reasoning.openai_chat import OpenAIChat  # noqa: PLC0415

    wanted = settings.reasoner
    key = environ.get(wanted.api_key_env or "", "") or "none"
    model = OpenAIChat.connect(
        base_url=wanted.base_url, model=wanted.model, api_key=key, timeout=wanted.timeout_seconds
    )
    return Fallback(model, Rules())


@contextmanager
def _checkpoints(location: str) -> Iterator[BaseCheckpointSaver[str]]:
    """LangGraph's checkpoints in the store's own database; only nouns of ours are read back from it."""
    nouns = [
        (domain.__name__, kind.__name__)
        for kind in vars(domain).values()
        if isinstance(kind, type) and issubclass(kind, domain.Noun)
    ]
    with backends.open_checkpoints(location, JsonPlusSerializer(allowed_msgpack_modules=nouns)) as saver:
        yield saver


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _start_ticks(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])
