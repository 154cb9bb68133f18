"""One worker as a whole: its host, script, service and engine; questions to it, and starts that are followed."""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from agent.domain import Approval, Change, Check, Execution, Forecast, Knob, Phase, Plan, Process, Reading, Setting
from agent.errors import (
    AmbiguousLaunch,
    EditRefused,
    HelperRefused,
    HostError,
    NoAnswer,
    Refused,
    RunInFlight,
    UnreadableScript,
    WorkerDown,
)
from tools import own_benchmark, probe
from tools.engines.asking import ask
from tools.engines.catalogue import canonical, spellings
from tools.engines.contract import Remark, check_contract
from tools.engines.engine import Account, engine_of
from tools.engines.exposure import Exposure, exposure, sizes
from tools.engines.facts import StartupFacts
from tools.engines.help_text import Installed
from tools.engines.log_lines import lines_of
from tools.engines.model_shape import ModelShape, read_shape
from tools.host import Host
from tools.installed import HELP_SECONDS, HelpTexts, installed_engine
from tools.log_source import log_of
from tools.serve_script.edit import Intent, diff, plan_edit, value_of
from tools.serve_script.handover import Handover, handover
from tools.serve_script.launches import LineOf, Target
from tools.serve_script.prove import Proof, prove
from tools.serve_script.read import kind_of, read_launches
from tools.serve_script.secrets import mask, mask_argv
from tools.serve_script.text import OPAQUE, plain
from tools.service import Progress, ServiceSpec, Waited, wait_ready
from tools.transaction import Heartbeat, Leftover, Observation, Writer

TAILS_OF_A_LOG = (4 * 1024 * 1024, 64 * 1024 * 1024, 1 << 40)
"""Bytes from the end of a log in which its last start is looked for, one after the other; the last is all of it. A
recorded start takes 0.1 MB, and a day of decode lines some ten."""
LARGEST_LOG_OF_A_CHECK = 64 * 1024 * 1024
"""Bytes of the log that are read after a check; decode lines come a few a second."""
EARLIER_STARTS = 8
"""Starts before the last that a forecast learns from; more of them say little more."""
LEASE_SECONDS = 60.0
"""How long a lease lasts that is taken to settle a run; the work on it renews it."""
QUESTION_SECONDS = 20.0
"""Limit for one question to the engine; a health check that generates takes a second or two."""

Tell = Callable[[str, float | None], None]


class Snapshot(NamedTuple):
    """A worker at one moment."""

    script: bytes
    """The launch file."""
    script_sha256: str
    """Its hash."""
    process: Process
    """The service's main process."""
    server: Process
    """The process that listens on the port, where it is the service's own; else the main process. Its argv and
    environment are the engine's, also where the launch file does not `exec`."""
    version: str | None
    """The engine's version."""
    served_by: Literal["main", "descendant", "foreign", "nobody"]
    """Who listens on the port, in relation to the main process; `nobody` also where this user may not see it."""
    in_force: Mapping[str, str]
    """Values in force by knob name: flags as the engine reports them, variables as the process has them."""
    facts: StartupFacts | None
    """The last start, from the log."""
    earlier: tuple[StartupFacts, ...]
    """The starts before it, as far as the log reaches."""
    execution: Execution | None
    """The newest transaction on this worker."""
    holder: str | None
    """Who holds the worker's lease."""
    who: str | None = None
    """Which process on which machine that is."""


class Written(NamedTuple):
    """A knob's value in the script."""

    value: str | None
    """Its text; None: absent; empty: a switch flag without a value."""
    spelling: str
    """How it is spelled there, or should be."""
    place: str
    """Where, for people."""


class Edited(NamedTuple):
    """The edit of a script, before anything is written."""

    content: bytes
    sha256: str
    diff: str
    """Unified, secrets masked."""
    explanation: str
    intents: tuple[Intent, ...]
    """What it means to change, for the proof."""
    handover: Handover | None
    """What a person does with it, where no service of ours starts the file; None: Prudent can apply it."""


class RunTransaction:
    """The one transaction of a run: the writer with the run's lease, taken again where this process has none yet."""

    def __init__(self, writer: Writer, run: str) -> None:
        """Take the writer and the run, whose id is the transaction's and the lease holder's too."""
        self._writer = writer
        self._run = run
        self._token: int | None = None
        self._ttl = LEASE_SECONDS

    def status(self) -> Execution | None:
        """What the host's journal says; None: never opened."""
        return self._writer.status(self._run)

    def take(self, ttl: float) -> None:
        """Take the lease for so many seconds.

        Raises:
            RunInFlight: another run holds it.
        """
        self._ttl = ttl
        self._token = self._writer.lease(self._run, ttl).token

    def open(self, plan: Plan, approval: Approval, content: bytes, *, now: datetime) -> Execution:
        """Spend the approval; see `Writer.open`."""
        return self._writer.open(self._held, self._run, plan, approval, content, now=now)

    def step(self, step: str) -> Execution:
        """Carry out one step; see `Writer.step`."""
        return self._writer.step(self._held, self._run, step)

    def commit(self) -> Execution:
        """Keep the change; a commit that was done already is found in the journal."""
        done = self.status()
        if done is not None and done.state == "committed":
            return done
        try:
            return self._writer.commit(self._held, self._run)
        except NoAnswer:
            done = self.status()
            if done is not None and done.state == "committed":
                return done
            raise

    def undo(self, ttl: float) -> Execution:
        """Take the change back; see `Writer.undo`.

        A lease that this process holds is used as it is: on a full disk a new one could not be written, an undo can.
        """
        if self._token is not None:
            try:
                return self._writer.undo(self._token, self._run)
            except HelperRefused as refusal:
                if refusal.kind != "fenced":
                    raise
        self.take(ttl)
        return self._writer.undo(self._held, self._run)

    def abandon(self, *, by: str, reason: str) -> Execution:
        """Settle what could not be undone, on a person's word; see `Writer.abandon`."""
        return self._writer.abandon(self._held, self._run, by=by, reason=reason)

    def release(self, *, inherited: bool = False) -> None:
        """Give the lease back, where this process has it; `inherited`: or an owner of the run who died had it."""
        if self._token is None and inherited:
            with suppress(RunInFlight):  # then it has run out, and is somebody else's
                self.take(self._ttl)
        if self._token is not None:
            self._writer.release(self._token)
            self._token = None

    def heartbeat(self, every: float, *, opened: bool = True) -> AbstractContextManager[Heartbeat]:
        """Renew the lease, and the watchdog once a transaction is open, while a block runs."""
        if self._token is None:
            self.take(max(every, LEASE_SECONDS))
        return self._writer.heartbeat(self._held, self._run if opened else None, every=every)

    @property
    def _held(self) -> int:
        if self._token is None:
            self.take(self._ttl)
        assert self._token is not None
        return self._token


class Worker:
    """A worker on a host.

    Args:
        name: Its name in the settings.
        host: Its machine.
        engine: What it runs.
        script: Absolute path of the launch file.
        launch: Which of its launches, where it has several: a name, or `port:N`.
        log: Absolute path of its log, or `journal` for what journald keeps of its unit.
        control: Where it answers.
        entry: Where its users send requests.
        load: Where load for a measurement is sent; None: to the worker itself.
        partners: Workers that cannot serve without this one, nor it without them: the other side of a pair.
        benchmark: A command of the team's that measures throughput instead of our bursts; empty: none.
        who: Which process on which machine this is, for whoever is refused because of it.
        heard: Hears what comes to pass on the way to the host, such as a question that had to be asked again.
        service: What restarts it.
        knobs: The engine's catalogue.
        version: The engine's version, where the settings say it.
        help_texts: Help texts of installed engines that were asked before; None: this process remembers its own.
        clock: Seconds that only go forward.
        sleep: Lets seconds pass.
    """

    def __init__(
        self,
        name: str,
        host: Host,
        *,
        engine: Literal["sglang", "vllm"],
        script: str,
        launch: str | None = None,
        log: str,
        control: str,
        entry: str,
        service: ServiceSpec,
        knobs: Sequence[Knob],
        version: str | None = None,
        help_texts: HelpTexts | None = None,
        load: str | None = None,
        partners: Sequence[str] = (),
        benchmark: Sequence[str] = (),
        who: str = "",
        heard: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name = name
        self.host = host
        self.control = control
        self.entry = entry
        self.load = load or control
        self.partners = tuple(partners)
        self.benchmark = tuple(benchmark)
        entered = urlsplit(entry)
        ports = (self._port, *filter(None, (entered.port,)))
        self.writer = Writer(host, name, script, service, ports=ports, sleep=sleep, who=who, tell=heard)
        self.log = log_of(host, log, service)
        self.engine = engine_of(engine)
        self._script = script
        self._target = Target.parse(launch)
        self._knobs = tuple(knobs)
        self._version = version
        self._help_texts = help_texts or HelpTexts()
        self._clock = clock
        self._sleep = sleep
        self._transactions: dict[str, RunTransaction] = {}

    @property
    def effective_source(self) -> str:
        """Where the values in force are read, for a reading's source."""
        says_where = self.engine.says_where
        return f"{self.control}{says_where}" if says_where.startswith("/") else f"{self.control}: {says_where}"

    def transaction(self, run: str) -> RunTransaction:
        """The transaction of a run; the same object while this process lives, because it holds the lease."""
        return self._transactions.setdefault(run, RunTransaction(self.writer, run))

    def rest(self, seconds: float) -> None:
        """Let time pass between two looks."""
        self._sleep(seconds)

    # ------------------------------------------------------------------------------------------------ questions

    def script(self) -> bytes:
        """The launch file's bytes.

        Raises:
            UnreadableScript: it cannot be read.
        """
        try:
            return self.host.read(self._script)
        except NoAnswer:
            raise
        except HostError as error:
            raise UnreadableScript(
                f"{self.host.name}: the serve script {self._script} cannot be read: {error.said.strip()}.",
                "Check the path in prudent.toml and its permissions; nothing was touched.",
            ) from error

    def observe(self) -> Observation:
        """The host's view: script hash, main process, listener, transaction and lease."""
        variables = [knob.name for knob in self._knobs if knob.kind == "env"]
        return self.writer.observe(environ_names=variables)

    def leftovers(self) -> tuple[Leftover, ...]:
        """What stands in the way of the worker's next start, or holds what it will need."""
        return self.writer.observe(leftovers=True).leftovers or ()

    def info(self) -> Account:
        """The engine's own account of itself.

        Raises:
            WorkerDown: it does not answer, or not as this engine does.
        """
        heard: dict[str, str] = {}
        silent: list[str] = []

        def get(path: str) -> bytes | None:
            url = f"{self.control}{path}"
            if silent:
                return None
            try:
                answer = self.host.http("GET", url, timeout=QUESTION_SECONDS)
            except HostError as error:
                silent.append(path)
                heard[path] = f"{url} gives no answer: {error}"
                return None
            heard[path] = f"{url} answers {answer.status}"
            return answer.body if answer.status == 200 else None

        asked = ask(self.engine.questions, get)
        if asked.silent is not None:
            raise self._down(heard[silent[0] if silent else asked.silent])
        account = self.engine.account(asked.answers)
        if account is None:
            raise self._down(f"{self.control} does not answer as {self.engine.name} does")
        return account

    def facts(self, version: str | None = None, *, after: str = "") -> StartupFacts | None:
        """The last start in the log, or in what was written to it since a mark of `log.mark`.

        None where the log cannot be read, or holds no start there.
        """
        return self._starts(version, after)[0]

    def _starts(self, version: str | None, after: str = "") -> tuple[StartupFacts | None, tuple[StartupFacts, ...]]:
        """The last start and those before it; a worker that has run for days has its start far up in the log."""
        for window in TAILS_OF_A_LOG:
            tail = self.log.tail(window, after=after)
            if tail is None:
                break
            log = self.engine.read_log(
                lines_of(io.BytesIO(tail.text)), version=version or self._version, earlier=EARLIER_STARTS
            )
            whole = log.facts is not None and bool(log.facts.settings)
            if whole or tail.whole:
                return (log.facts if whole else None), log.earlier
        return None, ()

    def snapshot(self) -> Snapshot:
        """Everything at once, each part read from where it is true.

        Raises:
            UnreadableScript: the launch file cannot be read.
            WorkerDown: no process, no listener, or no answer.
        """
        script = self.script()
        seen = self.observe()
        if seen.process is None:
            raise self._down(seen.process_problem or "the service has no main process")
        info = self.info()
        version = self.engine.version(info) or self._version
        facts, earlier = self._starts(version)
        listener = seen.listener
        ours = listener is not None and listener.relation in {"main", "descendant"}
        server = listener.process if listener is not None and ours and listener.process else seen.process
        return Snapshot(
            script=script,
            script_sha256=hashlib.sha256(script).hexdigest(),
            process=seen.process,
            server=server,
            served_by="nobody" if listener is None else listener.relation,
            version=version,
            in_force=self._in_force(info, server, facts),
            facts=facts,
            earlier=earlier,
            execution=seen.execution,
            holder=seen.holder,
            who=seen.who,
        )

    def value_in(self, script: bytes, knob: Knob, version: str | None) -> Written:
        """A knob's value in a launch file, and the spelling to use."""
        preferred = spellings(knob, version)
        every = tuple(dict.fromkeys((*preferred, *(spelling.text for spelling in knob.spellings))))
        try:
            found = value_of(script, path=self._script, kind=knob.kind, names=every, target=self._target)
        except AmbiguousLaunch as several:
            raise AmbiguousLaunch(
                f"{self._script}: {several.sentence}",
                'Say which in prudent.toml, such as launch = "decode" or launch = "port:30000".',
            ) from several
        return Written(found.value, found.spelling or every[0], found.sentence)

    def launch(self, script: bytes, version: str | None) -> dict[str, Written]:
        """What a launch file says of every knob that it sets; a knob whose value cannot be read is left out."""
        said = {}
        for knob in self._knobs:
            try:
                written = self.value_in(script, knob, version)
            except Refused:
                continue
            if written.value is not None:
                said[knob.name] = written
        return said

    def launches(self, script: bytes) -> list[dict[str, Any]]:
        """Every server that a launch file starts: its flags and variables with their lines, secrets masked.

        Raises:
            UnreadableScript: the file starts no server.
        """
        line_of = LineOf(script)
        shown = []
        for launch in read_launches(script, path=self._script):
            flags = [(flag.line, (flag.name, *(plain(runs) for runs in flag.values))) for flag in launch.flags(line_of)]
            shown.append(
                {
                    "line": launch.line,
                    "engine": launch.engine,
                    "name": ", ".join(launch.names),
                    "flags": [{"line": line, "text": " ".join(mask_argv(words))} for line, words in flags],
                    "environment": [
                        {"line": variable.line, "text": mask(f"{variable.name}={variable.text}").replace(OPAQUE, "…")}
                        for variable in launch.env
                    ],
                    "notes": list(launch.notes),
                }
            )
        return shown

    def contract(self, snapshot: Snapshot, change: Change, installed: Installed | None = None) -> tuple[Remark, ...]:
        """What the engine would refuse, clamp, cut or ignore in the launch as the change would leave it.

        What is installed is asked, unless somebody has asked it already.
        """
        written = self.launch(snapshot.script, snapshot.version)
        launch: dict[str, str | None] = {name: one.value for name, one in written.items()}
        spelled = {name: one.spelling for name, one in written.items()}
        installed = installed or self.installed(snapshot)
        if installed.flags is not None:
            spelled |= {word: word for word in _other_flags(snapshot) if word not in spelled.values()}
        for setting in change.settings:
            launch[setting.knob] = setting.new
            spelled[setting.knob] = setting.spelling
        return check_contract(
            self.engine.name,
            snapshot.version,
            launch=launch,
            spelled=spelled,
            changed={setting.knob for setting in change.settings},
            facts=snapshot.facts,
            installed=installed,
        )

    def installed(self, snapshot: Snapshot) -> Installed:
        """What the next start of the worker would run, by its own word; what cannot be asked says so in `basis`."""
        return installed_engine(
            self.host,
            self.engine,
            snapshot.server,
            running=snapshot.version,
            texts=self._help_texts,
            limit_seconds=HELP_SECONDS,
        )

    def live_requests(self) -> int | None:
        """Requests in flight that a restart would cut off, those on the other side of a pair included.

        None: they could not be counted, on one of the sides.
        """
        total = 0
        for address in (self.control, *self.partners):
            live = probe.live_requests(self.host, base_url=address, limit_seconds=QUESTION_SECONDS)
            if live is None:
                return None
            total += live
        return total

    def forecast(
        self,
        change: Change,
        snapshot: Snapshot,
        *,
        floor_gb: float | None,
        start_seconds: Sequence[float],
        remembered: Sequence[StartupFacts] = (),
    ) -> Forecast:
        """What a change costs, from this worker's own last start and those before it.

        Args:
            change: The change.
            snapshot: The worker as it is.
            floor_gb: Free memory that has to be left after capture, GB.
            start_seconds: What its starts took, in seconds.
            remembered: Starts that the log may no longer hold; those that it does hold, and those of another version
                of the engine, are not counted.
        """
        if snapshot.facts is None:
            why = f"{self.log.name} holds no start to forecast from; the checks after the start decide"
            return Forecast(rows=(), free_after_capture=None, restart_seconds=None, fits="unsure", why=why)
        wanted = {setting.knob: setting.new for setting in change.settings}
        return self.engine.forecast(
            facts=snapshot.facts,
            history=(*snapshot.earlier, *_beyond_the_log(remembered, snapshot)),
            change=wanted,
            floor_gb=floor_gb or 0.0,
            start_seconds=start_seconds,
            stated=set(self.launch(snapshot.script, snapshot.version)),
            variables=snapshot.server.environ,
            shape=self.model_shape(snapshot.facts),
        )

    def model_shape(self, facts: StartupFacts) -> ModelShape | None:
        """The model's sizes from its config.json beside the weights; None where that is not on this host."""
        path = self.engine.model_path(facts)
        if path is None or not path.startswith("/"):
            return None
        try:
            return read_shape(self.host.read(f"{path.rstrip('/')}/config.json"))
        except HostError:
            return None

    def edit(self, script: bytes, change: Change) -> Edited:
        """The edit that carries a change out; nothing is written.

        Raises:
            AmbiguousLaunch: the script starts several servers.
            EditRefused: it cannot be edited safely; the reason names the line.
        """
        content, told, intents = script, [], []
        for setting in change.settings:
            knob = next(knob for knob in self._knobs if knob.name == setting.knob)
            names = (setting.spelling, *(s.text for s in knob.spellings if s.text != setting.spelling))
            edit = plan_edit(
                content,
                path=self._script,
                kind=setting.kind,
                names=names,
                operation=_operation(setting),
                value=setting.new or None,
                target=self._target,
            )
            content = edit.content
            told += [edit.explanation, *edit.notes]
            intents.append(edit.intent)
        return Edited(
            content=content,
            sha256=hashlib.sha256(content).hexdigest(),
            diff=diff(script, content, self._script),
            explanation=" ".join(told),
            intents=tuple(intents),
            handover=handover(kind_of(script, path=self._script), self._script),
        )

    def prove(self, script: bytes, edited: Edited) -> Proof:
        """Execute the script before and after the edit with stubbed programs, and say what that showed.

        Raises:
            EditRefused: it shows a difference that was not intended.
        """
        proof = prove(script, edited.content, path=self._script, intended=edited.intents)
        if proof.outcome in {"other-difference", "no-effect", "does-not-parse"}:
            raise EditRefused(
                f"Executed, the edited script does not do what was meant. {proof.how}",
                "Edit it by hand; nothing was touched.",
            )
        return proof

    # ------------------------------------------------------------------------------------------------- starts

    def follow_start(
        self,
        started: Process,
        *,
        limit_seconds: float,
        log_before: str,
        tell: Tell,
        pause: Callable[[float], None] | None = None,
    ) -> Waited:
        """Wait until the process that was started serves, dies, stands still, or runs out of time.

        Args:
            started: What the service manager started.
            limit_seconds: After this the start has failed; after half of it without progress it stands still.
            log_before: The mark of the log from before: starts up to there are not this one.
            tell: Hears how far it is.
            pause: Lets time pass between two looks; may raise to end the wait.
        """

        def progress() -> Progress:
            facts = self.facts(after=log_before)
            seen = self.observe()
            ours = seen.listener is not None and seen.listener.relation in {"main", "descendant"}
            says = "starting" if facts is None else self.engine.how_far(facts)
            if seen.unit is not None and seen.unit.active == "failed":
                says += f"; unit {seen.unit.unit} failed: {seen.unit.result}"
            return Progress(ready=ours and facts is not None and facts.ready and self._answers(), says=says)

        return wait_ready(
            started.identity,
            main=self.writer.main,
            progress=progress,
            deadline=limit_seconds,
            patience=limit_seconds / 2,
            clock=self._clock,
            sleep=pause or self._sleep,
            tell=lambda says: tell(says, None),
        )

    def check(
        self, check: Check, *, phase: Phase, seed: int, limit_seconds: float, stall: probe.Stall, tell: Tell
    ) -> tuple[Reading, ...]:
        """Send the load of one check from the worker's host and read what comes back.

        Where the change acts at some batch sizes only, what the client saw decoding at once is held against what the
        engine's log says: the smaller part counts, at its lower end.
        """
        if check.name == "throughput" and self.benchmark:
            return own_benchmark.throughput(
                self.host,
                self.benchmark,
                base_url=self.load,
                check=check,
                phase=phase,
                seed=seed,
                limit_seconds=limit_seconds,
                clock=self._clock,
                tell=tell,
            )
        mark = self.log.mark() if check.acts is not None else None
        facts = self.facts() if check.acts is not None else None
        decode = facts.capture("decode") if facts is not None else None
        readings = probe.run_check(
            self.host,
            base_url=self.load,
            counters_url=self.control,
            check=check,
            phase=phase,
            seed=seed,
            limit_seconds=limit_seconds,
            tell=tell,
            stall=stall,
            pid=self._main_pid() if check.name == "soak" else None,
            captured=decode is not None and check.acts is not None and max(decode.sizes, default=0) >= check.acts[1],
        )
        if check.acts is None or mark is None:
            return readings
        written = self.log.tail(LARGEST_LOG_OF_A_CHECK, after=mark)
        seen = exposure(sizes(lines_of(io.BytesIO(written.text))), *check.acts) if written is not None else None
        return tuple(_exposed(reading, seen) for reading in readings)

    def _main_pid(self) -> int | None:
        try:
            process = self.writer.main()
        except HostError:
            return None
        return process.pid if process is not None else None

    def through_entry(self, phase: Phase, limit_seconds: float) -> Reading:
        """One request as a user would send it."""
        return probe.canary(self.host, base_url=self.entry, phase=phase, limit_seconds=limit_seconds)

    # ------------------------------------------------------------------------------------------------- inside

    @property
    def _port(self) -> int:
        parts = urlsplit(self.control)
        return parts.port or (443 if parts.scheme == "https" else 80)

    def _answers(self) -> bool:
        try:
            self.info()
        except WorkerDown:
            return False
        return True

    def _down(self, why: str) -> WorkerDown:
        return WorkerDown(
            f"Worker {self.name} is down: {why}.",
            "Start it and see that it serves, then ask again; nothing was touched.",
        )

    def _in_force(self, info: Account, process: Process, facts: StartupFacts | None) -> dict[str, str]:
        values = self.engine.effective(info, self._knobs, facts=facts, argv=process.argv)
        for knob in self._knobs:
            if knob.kind == "env" and knob.name in process.environ:
                values[knob.name] = canonical(knob, process.environ[knob.name])
        return values


def _beyond_the_log(remembered: Sequence[StartupFacts], snapshot: Snapshot) -> list[StartupFacts]:
    """The remembered starts that were not read from the log just now, by the same version of the engine."""
    read = {start.begun_at for start in (*snapshot.earlier, snapshot.facts) if start is not None}
    return [start for start in remembered if start.begun_at not in read and start.version in {None, snapshot.version}]


def _other_flags(snapshot: Snapshot) -> list[str]:
    """Flags of the running process that stand in the script word for word, so that the next start has them too."""
    words = [word.partition("=")[0] for word in snapshot.server.argv if word.startswith("--") and len(word) > 2]
    return [word for word in dict.fromkeys(words) if word.encode() in snapshot.script]


def _exposed(reading: Reading, seen: Exposure | None) -> Reading:
    """A reading with the smaller of what the client and the engine's log say of its batch sizes."""
    if reading.exposure is None or seen is None:
        return reading
    told = f"; by {seen.lines} lines of the engine's log {seen.share:.0%}, at least {seen.low:.0%}"
    detail = f"{reading.detail}; where the change acts came {reading.exposure:.0%} of the tokens{told}"
    return reading.model_copy(update={"exposure": min(reading.exposure, seen.low), "detail": detail})


def _operation(setting: Setting) -> Literal["set", "add", "unset"]:
    if setting.new is None:
        return "unset"
    return "add" if setting.old is None else "set"
