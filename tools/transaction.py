"""The agent's side of `on_host/transaction.py`: every verb as a method, every refusal as an error of ours."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from agent.domain import Approval, Execution, HostState, JournalEntry, Plan, Process
from agent.errors import (
    ApprovalExpired,
    BadSettings,
    DiskFull,
    EditRefused,
    ForeignApproval,
    HelperRefused,
    NoAnswer,
    PrudentError,
    Refused,
    RunInFlight,
    ServiceUnusable,
    SpentApproval,
    StaleState,
    UnreadableScript,
)
from tools.host import Host
from tools.service import ServiceSpec, spoken

QUESTIONS = frozenset({"observe", "status", "doctor"})
"""Verbs that may be asked again: whatever became of the first time, the worker and its books are as they were."""
PAUSES_SECONDS = (1.0, 3.0)
"""Before a question that found no answer is asked a second and a third time: a link that was reset is back by then,
and one that is not is down."""
TICKS_PER_SECOND = 100.0
"""USER_HZ, in which /proc/PID/stat counts: 100 on every architecture that Linux runs GPUs on (asm/param.h)."""
HELPER = Path(__file__).with_name("on_host") / "transaction.py"

REFUSALS: Mapping[str, tuple[type[Refused], str]] = {
    "held": (RunInFlight, "Wait for that run, or see it with: prudent history"),
    "locked": (RunInFlight, "Wait for it to end, then ask again."),
    "busy": (RunInFlight, "Settle it first with: prudent resume"),
    "stale": (StaleState, "Ask again: the plan has to be made anew for what is there now."),
    "spent": (SpentApproval, "Ask again: every approval opens one transaction."),
    "expired": (ApprovalExpired, "Ask again and approve in time."),
    "foreign": (ForeignApproval, "Approve the plan as it is shown now."),
    "no_space": (DiskFull, "Make room on the worker's machine and ask again; nothing was touched."),
    "no_script": (UnreadableScript, "Check the script's path and permissions."),
    "unsafe_script": (EditRefused, "Edit it by hand."),
    "no_unit": (BadSettings, "Correct unit and scope of the worker's service in prudent.toml."),
    "masked": (ServiceUnusable, "Unmask it with systemctl unmask, and see why it was masked; nothing was touched."),
    "no_systemd": (ServiceUnusable, "See what prudent doctor says; nothing was begun."),
    "not_controllable": (
        ServiceUnusable,
        'Log in as root, let become = "sudo" in prudent.toml, let a rule of polkit allow '
        "org.freedesktop.systemd1.manage-units for this unit, or run the worker as a user unit.",
    ),
    "unit_changed": (
        StaleState,
        "Read what changed in the unit, run systemctl daemon-reload, restart the worker by hand, then ask again.",
    ),
}
"""Refusals that the operator can do something about, by the helper's kind; all others become `HelperRefused`."""


class Grant(NamedTuple):
    """A lease that was granted."""

    token: int
    """Fencing token: newer than any before, so that every call under an earlier one is refused from now on."""
    unfinished: Execution | None
    """A transaction that has not come to its end; whoever holds the lease can undo it."""


class Listener(NamedTuple):
    """Who listens on the worker's port."""

    relation: Literal["main", "descendant", "foreign", "nobody"]
    """How it is related to the service's main process. `nobody`: no socket that this user may see."""
    process: Process | None
    """The process itself."""


class UnitState(NamedTuple):
    """A unit of systemd as its manager sees it; words and names are systemd's own."""

    unit: str
    """Its own name, whatever alias was asked for."""
    scope: str
    """`system` or `user`."""
    load: str
    """`loaded`, `not-found`, `masked` and so on."""
    active: str
    """`active`, `activating`, `deactivating`, `failed`, `inactive`."""
    sub: str
    """The finer state, such as `running` or `auto-restart`."""
    result: str
    """How the last run ended: `success`, `exit-code`, `signal`, `start-limit-hit` and so on."""
    main_pid: int
    """Main pid; 0: none."""
    main_started: float | None
    """When the main process was started, in seconds since boot; None: never."""
    restarts: int
    """How often the manager restarted it by itself."""
    restart_policy: str
    """`Restart=` as it is in force now."""
    need_daemon_reload: bool
    """Whether the unit's files are newer than what the manager has loaded."""
    start_limit: str
    """Starts that are allowed in a time, such as `5 in 10s`."""
    kill_mode: str
    """Who is killed on a stop; `process` and `none` leave children behind."""
    job: bool
    """Whether a start or stop is under way."""
    fragment: str
    """Path of the unit's file."""
    drop_ins: tuple[str, ...]
    """Paths of its drop-ins."""
    triggered_by: tuple[str, ...]
    """Timers, sockets and paths that may start it."""


class Leftover(NamedTuple):
    """Something that stands in the way of the worker's next start, or that holds what it will need."""

    kind: Literal["earlier", "port", "load", "gpu"]
    """`earlier`: a process of a former life of the worker. `port`: a stranger on its port. `load`: a load process of
    ours that nobody waits for. `gpu`: somebody else with memory on its GPU, who may have a right to it."""
    says: str
    """It in a few words, with its pid."""


class Ability(NamedTuple):
    """One thing that this login may do on the worker's host, or may not."""

    name: str
    """What it is about: python, directory, script, exchange, service, unit, restart, disarm, triggers, on failure,
    stop, process, port, log, watchdog, reboot, gpu."""
    ok: bool | None
    """None: not known, or a change is possible without it, less well."""
    says: str
    """What was found, in a few words."""
    remedy: str
    """What to do about it; empty where there is nothing to do."""


class Observation(NamedTuple):
    """The host at one moment, without anything written."""

    script_sha256: str | None
    """Hash of the script's bytes; None: not asked, or not readable."""
    script_problem: str | None
    """The system's own word on why it is not readable."""
    process: Process | None
    """The service's main process; None: there is none, or the service would not say."""
    process_problem: str | None
    """Why the service would not say."""
    listener: Listener | None
    """Who listens on the port that was asked for."""
    execution: Execution | None
    """The newest transaction."""
    holder: str | None
    """Who holds the lease."""
    who: str | None = None
    """Which process on which machine that is, as it says of itself."""
    unit: UnitState | None = None
    """The unit, where systemd keeps the worker."""
    now: float | None = None
    """The host's own clock, in seconds since its boot: no two hosts' wall clocks have to agree."""
    leftovers: tuple[Leftover, ...] | None = None
    """What stands in the way of a start; None: not asked for."""

    def age_of(self, process: Process) -> float | None:
        """How long a process has lived, in seconds, by the host's own clock; None: of another boot, or not known."""
        if self.now is None or self.process is None or process.boot_id != self.process.boot_id:
            return None
        return self.now - process.start_ticks / TICKS_PER_SECOND

    @property
    def state(self) -> HostState:
        """What a plan's steps are checked against."""
        return HostState(script_sha256=self.script_sha256, process=self.process.identity if self.process else None)


class Heartbeat:
    """Whether the lease and the watchdog's deadline still move."""

    def __init__(self) -> None:
        self.lost: str | None = None
        """Why the transaction is no longer ours, once it is not; nothing may be decided after that but an undo."""
        self.trouble: str | None = None
        """The last renewal that was not answered; not lost yet."""


class Writer:
    """One worker, as the sole writer on its host sees it.

    No change is ever sent twice from here. After `NoAnswer` the caller takes a fresh lease, which fences off whatever
    is still on its way, and asks `status`. A question is asked up to three times within the time that one may take.

    Args:
        host: The worker's machine.
        worker: The worker's name.
        script: Absolute path of the serve script.
        service: What restarts the worker.
        ports: Local TCP ports of the worker: where it listens, then where else its load goes.
        timeout: Limit for a call that runs no command of the service, in seconds; calls that do add the service's own.
        clock: Seconds that only go forward, for the heartbeat and for questions.
        sleep: Lets seconds pass before a question is asked again.
        nonce: A text that no two requests share, so that an answer can be for one of them only.
        who: Which process on which machine this is, for whoever is refused because of it.
        tell: Hears of each question that had to be asked again, and why.
    """

    def __init__(
        self,
        host: Host,
        worker: str,
        script: str,
        service: ServiceSpec,
        *,
        ports: Sequence[int] = (),
        timeout: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        nonce: Callable[[], str] = lambda: secrets.token_hex(8),
        who: str = "",
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._host = host
        self._worker = worker
        self._script = script
        self._service = service
        self._ports = tuple(ports)
        self._timeout = timeout
        self._clock = clock
        self._sleep = sleep
        self._nonce = nonce
        self._who = who
        self._tell = tell
        self._path: str | None = None
        self._turn = threading.Lock()
        self._ended: set[str] = set()

    def lease(self, holder: str, ttl: float) -> Grant:
        """Take, or take again, the right to write.

        Args:
            holder: Who holds it: the run's id. The same holder may take its lease again, from another process too.
            ttl: Seconds until it runs out unless a step or a renewal happens.

        Raises:
            RunInFlight: another holder's lease is alive.
        """
        answer = self._call("lease", holder=holder, ttl=ttl, who=self._who)
        return Grant(int(answer["token"]), _execution(answer["execution"]))

    def release(self, token: int) -> None:
        """Give the lease back; the token stays the newest one.

        Raises:
            HelperRefused: `fenced`: somebody has a newer token.
        """
        self._call("release", token=token)

    def observe(
        self,
        *,
        environ_names: Sequence[str] = (),
        port: int | None = None,
        mask: Sequence[str] = (),
        leftovers: bool = False,
    ) -> Observation:
        """Look at the script, the process, the port, the newest transaction and the lease.

        Args:
            environ_names: Variables of the processes to show.
            port: TCP port whose listener to look for; None: the worker's own, if it was given.
            mask: Further words that make a flag's or variable's value secret.
            leftovers: Also look for what stands in the way of a start, which takes a second where there is a GPU.
        """
        answer = self._call(
            "observe",
            script=self._script,
            service=self._spoken,
            environ_names=list(environ_names),
            ports=list(self._ports if port is None else (port, *self._ports)),
            mask=list(mask),
            leftovers=leftovers,
        )
        listener, lease, unit, found = (answer[key] for key in ("listener", "lease", "unit", "leftovers"))
        return Observation(
            script_sha256=answer["script_sha256"],
            script_problem=answer["script_problem"],
            process=_process(answer["process"]),
            process_problem=answer["process_problem"],
            listener=Listener(listener["relation"], _process(listener["process"])) if listener else None,
            execution=_execution(answer["execution"]),
            holder=lease["holder"] if lease else None,
            who=lease["who"] if lease else None,
            unit=_unit(unit) if unit else None,
            now=answer["now"],
            leftovers=None if found is None else tuple(Leftover(one["kind"], one["says"]) for one in found),
        )

    def doctor(self, log: str | None = None) -> tuple[Ability, ...]:
        """Find out what this login may do on the host for this worker, and what is missing.

        Args:
            log: Path of the worker's log, or `journal`; None: not looked at.
        """
        answer = self._call(
            "doctor", patience=60, script=self._script, service=self._spoken, ports=list(self._ports), log=log
        )
        return tuple(Ability(one["name"], one["ok"], one["says"], one["remedy"]) for one in answer["abilities"])

    def main(self) -> Process | None:
        """The service's main process; None: there is none.

        Raises:
            HelperRefused: `no_pid`: the service would not say.
        """
        seen = self.observe()
        if seen.process_problem is not None:
            raise HelperRefused(self._host.name, (self._service.kind, "pid"), "no_pid", seen.process_problem)
        return seen.process

    def open(
        self, token: int, transaction: str, plan: Plan, approval: Approval, new_content: bytes, *, now: datetime
    ) -> Execution:
        """Spend the approval on one transaction; the watchdog runs from here on.

        The same call again, for the same plan and transaction, answers how that transaction stands.

        Args:
            token: From `lease`.
            transaction: Its id; the run's id, so that whoever resumes the run finds it.
            plan: What was approved. The helper gets all of it and checks the digest itself.
            approval: The approval.
            new_content: The edited script; empty for a plan that does not edit.
            now: The time by the clock that `approval.expires` was made with.

        Raises:
            StaleState: script or process are not what the plan was made for; nothing was written.
            SpentApproval: it opened a transaction before.
            ApprovalExpired: it came too late.
            ForeignApproval: it is for another plan, or the content is not the one that was approved.
            RunInFlight: a transaction is not settled.
            DiskFull: no room for the backup; nothing was touched, and the approval is unspent.
            UnreadableScript: the script is not there or not readable.
            EditRefused: the script is no plain file.
            BadSettings: there is no such unit.
            ServiceUnusable: it is masked, its manager does not answer, or this login may not restart it.
            HelperRefused: `fenced`, `lease_expired`, `no_pid`, `no_watchdog`, `forbidden`.
        """
        text = json.dumps(plan.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        answer = self._call(
            "open",
            patience=self._service.settle_seconds,
            token=token,
            transaction=transaction,
            plan=text,
            approval={
                "run": approval.run,
                "digest": approval.digest,
                "decision": approval.decision,
                "by": approval.by,
                "expires_in": (approval.expires - now).total_seconds(),
            },
            script=self._script,
            new_content=base64.b64encode(new_content).decode(),
            service=self._spoken,
            ports=list(self._ports),
        )
        return _known(answer)

    def step(self, token: int, transaction: str, step: str) -> Execution:
        """Carry out one step of the plan, once: a step that is done already is only looked up.

        Raises:
            StaleState: the host does not show the state before; nothing was written by this step.
            HelperRefused: `failed` (the restart did not succeed), `leftovers` (something is in the way of the start, or
                the old worker did not end; each is named), `overdue` or `not_open` (the watchdog has taken or
                takes the change back), `fenced`, `lease_expired`, `out_of_order`.
        """
        with self._turn:
            answer = self._call("step", patience=self._restarting, token=token, transaction=transaction, step=step)
        return _known(answer)

    def renew(self, token: int, transaction: str | None = None) -> None:
        """Let the lease, and the watchdog of a transaction, run their full time again.

        Raises:
            HelperRefused: `overdue`, `not_open`, `fenced`, `lease_expired`: it is no longer ours.
        """
        self._call("renew", token=token, transaction=transaction)

    def commit(self, token: int, transaction: str) -> Execution:
        """Keep the change; the watchdog has nothing to do any more.

        Raises:
            HelperRefused: `moved`: the script is not the approved one any more, or the worker runs as another process
                than the one that was started for it. Also `incomplete`, `overdue`, `not_open`, `fenced`,
                `lease_expired`.
        """
        with self._turn:
            answer = self._call("commit", token=token, transaction=transaction)
            self._ended.add(transaction)
        return _known(answer)

    def undo(self, token: int, transaction: str) -> Execution:
        """Take a transaction back: the script's bytes, and the process wherever it may have seen the change.

        Needs no approval and has no time limit; again for a transaction that is undone, it only answers so.

        Raises:
            HelperRefused: `foreign_edit` (the script is neither the old nor the new one; nothing was overwritten),
                `undo_failed` (may be tried again), `not_open` (committed or abandoned), `fenced`.
        """
        with self._turn:
            answer = self._call("undo", patience=2 * self._restarting, token=token, transaction=transaction)
            self._ended.add(transaction)
        return _known(answer)

    def abandon(self, token: int, transaction: str, *, by: str, reason: str) -> Execution:
        """A person settles a transaction whose undo failed; nothing is touched.

        Raises:
            HelperRefused: `not_open`: its undo has not failed; `fenced`, `lease_expired`.
        """
        return _known(self._call("abandon", token=token, transaction=transaction, by=by, reason=reason))

    def status(self, transaction: str | None = None) -> Execution | None:
        """How a transaction stands, or the newest one; None: there is none.

        Waits for a call that is under way on the host, and sees to it that an open transaction has its watchdog.
        """
        return _execution(self._call("status", patience=2 * self._restarting, transaction=transaction)["execution"])

    @contextlib.contextmanager
    def heartbeat(self, token: int, transaction: str | None, *, every: float) -> Iterator[Heartbeat]:
        """Renew in the background while a block runs.

        Args:
            token: From `lease`.
            transaction: The open transaction; None: only the lease is renewed, before there is one.
            every: The watchdog's time in seconds; it is renewed three times as often.

        A renewal that is refused means lost at once; one that is not answered is tried again, and means lost when the
        last success is as long ago as the watchdog waits. A step, a commit or an undo of this writer is itself a sign
        of life and is waited for, however long it takes; after the latter two nothing is renewed any more.
        """
        pulse, stop = Heartbeat(), threading.Event()

        def beat() -> None:
            last = self._clock()
            try:
                while pulse.lost is None and not stop.wait(every / 3):
                    if not self._turn.acquire(blocking=False):
                        self._turn.acquire()
                        last = self._clock()
                    try:
                        if transaction in self._ended:
                            return
                        sent = self._clock()
                        self._call("renew", limit=every, token=token, transaction=transaction)
                        last, pulse.trouble = sent, None
                    except HelperRefused as refusal:
                        pulse.lost = f"{refusal.kind}: {refusal.said}"
                    except PrudentError as error:
                        pulse.trouble = str(error)
                        if self._clock() - last >= every:
                            pulse.lost = f"not renewed for {every:g} s: {error}"
                    finally:
                        self._turn.release()
            except BaseException as error:
                pulse.lost = f"the heartbeat itself broke: {error!r}"
                raise

        thread = threading.Thread(target=beat, name=f"heartbeat {transaction}", daemon=True)
        thread.start()
        try:
            yield pulse
        finally:
            stop.set()
            thread.join()

    @property
    def _spoken(self) -> dict[str, Any]:
        """The service for the helper; where commands are run is a folder of this machine only if the host is."""
        return {name: value for name, value in spoken(self._service).items() if value is not None}

    @property
    def _restarting(self) -> float:
        return self._service.restart_seconds + self._service.settle_seconds

    def _call(self, verb: str, *, patience: float = 0.0, limit: float | None = None, **request: Any) -> dict[str, Any]:
        """Have one request answered; one that only asks is sent again where a link failed before its time was over."""
        limit = limit or self._timeout + patience
        until, pauses = self._clock() + limit, list(PAUSES_SECONDS if verb in QUESTIONS else ())
        while True:
            try:
                return self._sent(verb, limit, dict(request))
            except NoAnswer as lost:
                if not pauses or self._clock() + pauses[0] > until:
                    raise
                self._tell(f"The host was asked again ({verb}), because it gave no answer: {lost.said}")
                self._sleep(pauses.pop(0))

    def _sent(self, verb: str, limit: float, request: dict[str, Any]) -> dict[str, Any]:
        """Send one request and believe only an answer that is whole and for this very request."""
        if self._path is None:
            self._path = self._host.ship(HELPER.name, HELPER.read_bytes())
        argv = [self._host.python, "-I", "-S", "-B", self._path, verb]
        # Half of the time may go into waiting for the host's lock, so that no call outlives our interest in it.
        own = {"directory": self._host.directory, "worker": self._worker, "wait": limit / 2, "nonce": self._nonce()}
        request |= own
        seal = _seal(request)
        sent = json.dumps({**request, "seal": seal}).encode()
        done = self._host.run(argv, stdin=sent, timeout=limit)
        answer = self._parse(argv, done.status, done.stdout, done.stderr, seal)
        if answer.pop("ok"):
            return answer
        kind, says = str(answer["kind"]), str(answer["says"])
        if kind in REFUSALS:
            refused, remedy = REFUSALS[kind]
            raise refused(f"{self._host.name}: {says}", remedy)
        raise HelperRefused(self._host.name, argv, kind, says)

    def _parse(self, argv: Sequence[str], status: int, stdout: bytes, stderr: bytes, seal: str) -> dict[str, Any]:
        said = stderr.decode(errors="replace")[-500:]
        try:
            answer = json.loads(stdout)
            whole = answer.pop("seal") == _seal(answer) and answer.pop("to") == seal
        except (ValueError, KeyError, AttributeError, TypeError):
            whole = False
        if not whole:
            what = "no answer" if not stdout.strip() else "an answer that is garbled or not for this request"
            raise NoAnswer(self._host.name, argv, status, f"{what}. {said}".strip())
        assert isinstance(answer, dict)
        return answer


def _seal(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _process(seen: Mapping[str, Any] | None) -> Process | None:
    if seen is None:
        return None
    return Process(
        pid=seen["pid"],
        start_ticks=seen["start_ticks"],
        boot_id=seen["boot_id"],
        argv=tuple(seen["argv"]),
        environ=seen["environ"],
    )


def _unit(seen: Mapping[str, Any]) -> UnitState:
    lists = {name: tuple(seen[name]) for name in ("drop_ins", "triggered_by")}
    return UnitState(**{**seen, **lists})


def _execution(seen: Mapping[str, Any] | None) -> Execution | None:
    if seen is None:
        return None
    states: Mapping[str, Literal["open", "committed", "undone", "undo_failed"]] = {
        "open": "open",
        "undoing": "open",
        "committed": "committed",
        "undone": "undone",
        "undo_failed": "undo_failed",
        "abandoned": "undo_failed",
    }
    return Execution(
        transaction=seen["transaction"],
        token=seen["token"],
        state=states[seen["state"]],
        journal=tuple(
            JournalEntry(
                seq=entry["seq"],
                at=entry["at"],
                event=entry["event"],
                step=entry["step"],
                by=entry["by"],
                detail=entry["detail"],
            )
            for entry in seen["journal"]
        ),
        before=_process(seen["before"]),
        after=_process(seen["after"]),
        problem=seen["problem"],
    )


def _known(answer: Mapping[str, Any]) -> Execution:
    execution = _execution(answer["execution"])
    assert execution is not None
    return execution
