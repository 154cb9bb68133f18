"""The nouns of Prudent, in the order in which a change meets them.

    request -> change -> evidence -> risk -> plan -> approval -> execution -> readings -> verdict -> record

Every noun is a frozen value; a change makes a new one. Nothing of ours is imported here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Decision = Literal[
    "kept",  # the change is live and every criterion is met
    "rolled_back",  # a measured breach: the old configuration is back
    "deferred",  # not now: the data did not suffice, or a named condition has to hold first
    "refused",  # cannot or must not be done as asked; nothing was touched
    "needs_human",  # cannot be settled or proven here; a person has to look
    "answered",  # a question, answered with its sources
    "rejected",  # a person said no to the plan
    "unchanged",  # the worker already is as asked
    "imported",  # from before our time: somebody's files say that it was changed, and nobody here proved anything
]
ProvenState = Literal[
    "new",  # the changed configuration is live, proven
    "restored",  # the configuration from before is live again, proven
    "untouched",  # nothing was written and nothing restarted
    "unknown",  # could not be proven
]
Level = Literal["low", "medium", "high"]
CheckName = Literal["sessions", "throughput", "aborts", "overload", "soak"]
Phase = Literal["baseline", "candidate", "restored"]


class Noun(BaseModel):
    """A frozen value without room for unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


# ------------------------------------------------------------------------------------------------- request


class Request(Noun):
    """What was asked for, word for word, and through which door."""

    run: str
    """The id of the run that this request opened, such as `r-7k2m9q`."""
    text: str
    """The words of whoever asked, unaltered."""
    worker: str
    """The name of the worker in `prudent.toml`."""
    door: Literal["cli", "schedule", "sweep", "alarm", "replay", "import"]
    """The way in."""
    by: str
    """Who asked: a login name, a schedule's name."""
    at: datetime
    """When, with a time zone."""


# -------------------------------------------------------------------------------------------------- change


class Spelling(Noun):
    """How a knob is written for a range of engine versions."""

    text: str
    """The flag with its dashes, or the variable's name."""
    since: str | None = None
    """First version that knows it; None: as far back as we know."""
    until: str | None = None
    """First version that no longer accepts it; None: still accepted."""
    deprecated: str | None = None
    """First version that warns about it; None: not deprecated."""


class Knob(Noun):
    """One setting of an engine: how it is written, bounded, read back, and what it touches."""

    engine: Literal["sglang", "vllm"]
    """The engine that reads it."""
    name: str
    """Canonical name: the flag without its dashes, or the variable's name."""
    kind: Literal["flag", "env"]
    """Whether it is an argument or an environment variable."""
    meaning: str
    """What it does, in one sentence."""
    value: Literal["integer", "fraction", "switch", "text", "list", "json"]
    """The type of its value. A switch flag has no value: it is there or not; a switch variable is 0 or 1."""
    unit: str = ""
    """Unit of the value, such as `requests`; empty where there is none."""
    low: float | None = None
    """Smallest sensible value, inclusive."""
    high: float | None = None
    """Largest sensible value, inclusive."""
    default: str | None = None
    """What the engine does when nothing is said, as its documentation puts it."""
    spellings: tuple[Spelling, ...]
    """Every spelling, the preferred first."""
    words: tuple[str, ...] = ()
    """What operators call it, lower case, such as `cuda graphs`."""
    inverted: bool = False
    """True where the words name the opposite of the switch: `overlap scheduler` against `disable-overlap-schedule`."""
    effective: tuple[str, ...] = ()
    """Dotted paths in the engine's server info where the value in force shows, the most telling first."""
    logged: str = ""
    """The line of the engine's log that shows it, where one does."""
    subsystem: str
    """The part of the engine that it acts on, such as `decode graph capture`."""
    couples: tuple[str, ...] = ()
    """Names of the knobs whose values bear on this one."""
    coupling: str = ""
    """The arithmetic of those couplings, in words."""
    risk: Level
    """How bad a wrong value can be."""
    demands: tuple[CheckName, ...] = ()
    """Checks that every change of it must pass."""
    source: str
    """Where these facts were read."""


class Setting(Noun):
    """One knob of one worker, from a value to a value."""

    knob: str
    """Canonical knob name."""
    kind: Literal["flag", "env"]
    """Flag or environment variable."""
    spelling: str
    """The spelling to write, which is the one that the script already uses where it has one."""
    old: str | None
    """Text of the value in the script; None: absent. A switch flag that is there reads as an empty text."""
    new: str | None
    """Text of the value to write; None: remove; an empty text: a switch flag without a value."""


class Change(Noun):
    """Settings of one worker that are approved together, or an operation on it."""

    worker: str
    """The worker's name."""
    operation: Literal["set", "roll_back", "restart"]
    """What kind of change it is."""
    settings: tuple[Setting, ...] = ()
    """The settings, nearly always one."""
    summary: str
    """The change in the field's words, such as `cuda-graph-max-bs 32 -> 96`."""
    unless_unsafe: bool = False
    """The request said "skip it if it is unsafe": a condition that the run has to settle."""
    undoes: str | None = None
    """The run whose change this one takes back, for a roll back."""


# ------------------------------------------------------------------------------------------------ evidence


class Evidence(Noun):
    """One observed fact."""

    id: str
    """Short id that risks, answers and records cite, such as `e3`."""
    what: str
    """The fact in one sentence, with its numbers."""
    source: str
    """Where it was read: an endpoint, a file and line, a record id."""
    at: datetime
    """When it was observed."""
    tainted: bool = False
    """True for text that came from outside (logs, files, models, people): data, never instructions."""
    claimed: bool = False
    """True while it is only somebody's word and nobody has measured it."""


class Process(Noun):
    """The identity of a process, from the process itself."""

    pid: int
    """Process id on its host."""
    start_ticks: int
    """Start in clock ticks since boot (field 22 of /proc/PID/stat): with the boot id it names a process for good."""
    boot_id: str
    """The kernel's boot id."""
    argv: tuple[str, ...]
    """/proc/PID/cmdline, secrets masked."""
    environ: Mapping[str, str] = {}
    """Those variables of /proc/PID/environ that were asked for."""

    @property
    def identity(self) -> tuple[str, int, int]:
        """Boot id, pid and start ticks: equal only for the very same process."""
        return (self.boot_id, self.pid, self.start_ticks)


class HostState(Noun):
    """What a step expects to find, or leaves behind."""

    script_sha256: str | None = None
    """Hash of the serve script's bytes; None: not asked."""
    process: tuple[str, int, int] | None = None
    """Identity of the worker's main process; None: any that is new since the step before."""
    effective: Mapping[str, str] = {}
    """Values in force by knob name, as the engine reports them."""


class Precedent(Noun):
    """An earlier change or a published incident that bears on this change."""

    id: str
    """Record or incident id."""
    source: Literal["record", "incident"]
    """Our own history, or the shipped and the team's incidents."""
    what: str
    """What happened, in one or two sentences."""
    why: str
    """Why it bears on this change, in words."""
    at: str | None = None
    """When, as far as known."""
    lesson: str | None = None
    """What to do because of it."""
    demands: tuple[CheckName, ...] = ()
    """Checks that it demands."""
    signature: tuple[str, ...] = ()
    """Metrics whose breach is this incident happening again."""
    reopen_when: str | None = None
    """The condition under which a change that was deferred for it may be tried again."""
    undoes_fix: bool = False
    """Whether the change would undo a fix: what is known to keep this away is in force, and would be no longer."""
    reference: str | None = None
    """Where it can be read."""
    tainted: bool = False
    """True where its text came from outside."""


# ---------------------------------------------------------------------------------------------------- risk


class FailureMode(Noun):
    """One way in which the change can go wrong."""

    what: str
    """The failure, in one sentence."""
    because: tuple[str, ...]
    """Ids of the evidence or precedents that it rests on; never empty."""
    caught_by: str
    """The check or criterion that would show it."""


class Risk(Noun):
    """How dangerous the change is, and why."""

    level: Level
    """The overall level."""
    ways: tuple[FailureMode, ...]
    """The ways it can fail."""
    summary: str
    """The assessment in one or two sentences."""
    add_checks: tuple[CheckName, ...] = ()
    """Checks to add to those that policy demands; nothing here can remove one."""
    by: str
    """Who assessed: `rules`, or the model's name."""
    instead_of: str | None = None
    """Where the rules stood in for a model: which one, and why its answer could not be used."""


class Interval(Noun):
    """A number that knows how unsure it is."""

    low: float
    """Lower end."""
    high: float
    """Upper end."""
    unit: str
    """Unit, such as `GB` (GiB, as the engines' logs say it) or `s`."""
    basis: str
    """What it rests on: measured here before, a formula, or a fleet prior, with the source."""


class ForecastRow(Noun):
    """One quantity of a forecast."""

    name: str
    """What it is, such as `decode graphs`."""
    now: float | None
    """The value that was measured at the last start; None: not known."""
    then: Interval
    """What is expected after the change."""


class Forecast(Noun):
    """GPU memory, capture and restart time, and what happens to queue and KV pool."""

    rows: tuple[ForecastRow, ...]
    """The quantities, in the order of the start."""
    free_after_capture: Interval | None
    """Free GPU memory once everything is captured; None: nothing is known to forecast it from."""
    restart_seconds: Interval | None
    """From stop to ready."""
    fits: Literal["fits", "does not fit", "unsure"]
    """Whether the low end of the free memory keeps the floor that the policy sets."""
    why: str
    """The reason for that, with the numbers."""
    queue: tuple[str, ...] = ()
    """What the change does to the queue limit, to admission and to the KV pool."""


# ---------------------------------------------------------------------------------------------------- plan


class Step(Noun):
    """One change on the host, with the state before and after it, and its undo."""

    id: str
    """Unique in the plan; the host's journal knows the step by it."""
    action: Literal["edit_script", "restore_script", "restart"]
    """What the helper on the host does; `restore_script` puts the old bytes back for a while, to measure them again."""
    what: str
    """The step in one sentence."""
    before: HostState
    """The step runs only where the host shows this."""
    after: HostState
    """What it must leave behind."""
    undo: str | None
    """How it is taken back; None: it cannot be, and the law decides whether it may run at all."""
    optional: bool = False
    """Whether it is taken only where the measurements before it did not settle the matter."""


class Sequential(Noun):
    """Wald's sequential test of a share: it ends as soon as the samples tell one share from the other."""

    ok: float
    """The share that is acceptable, above 0."""
    bad: float
    """The share that must not be kept, above `ok`."""
    error: float
    """Probability of either mistake, such as 0.05."""
    cap: int
    """Samples at which it ends without a decision."""


class Check(Noun):
    """One verification: load to send and what is measured with it."""

    name: CheckName
    """Which check."""
    concurrency: tuple[int, ...]
    """Requests in flight at once, a run for each."""
    count: int
    """Sessions in all (sessions), streams in a storm or in an overload, runs at each concurrency (throughput)."""
    tokens: int
    """Tokens to generate for each request."""
    depths: tuple[int, ...] = ()
    """Tokens of context in front of each session's facts, one stratum each; none: short sessions only."""
    texts: int = 0
    """Long texts that are asked for after the sessions, all at once, and have to stay text to their end."""
    seconds: float = 0.0
    """How long a soak lasts."""
    most: int | None = None
    """Sessions with which a soak ends although its time is not over; None: only its time ends it."""
    storms: int = 3
    """Abort storms at each concurrency; a slope over them needs five."""
    sequential: Sequential | None = None
    """Where it may end early; `count` is then the least that is sent unless it is bad."""
    stop_at: int | None = None
    """So many bad ones end it at once."""
    acts: tuple[int, int] | None = None
    """Batch sizes at which the change acts: above the first, up to the second. None: at all of them."""
    before: bool = False
    """Whether it is also run before the change, on the worker as it is."""
    why: str
    """What demands it: the policy, a knob's risk, or a precedent."""


class Criterion(Noun):
    """A hard rule on one metric: what must hold, at which confidence, and what silence means."""

    id: str
    """Unique in the policy."""
    metric: str
    """The reading that it looks at."""
    comparison: Literal["at_most", "at_least"]
    """Which side of the bound is good."""
    bound: float
    """The bound, in the metric's unit, or as a share of the baseline."""
    of: Literal["absolute", "baseline"] = "absolute"
    """Whether the bound is a value, or a factor on the baseline's reading."""
    minimum_n: int = 1
    """Fewest samples for a reading to count."""
    confidence: float | None = None
    """For shares and for comparisons with the baseline: the one-sided confidence that is asked for."""
    hard_count: int | None = None
    """For shares: this many bad ones are a breach, whatever the share."""
    sequential: Sequential | None = None
    """For shares: the sequential test that decides instead of the bound, which then says what was claimed."""
    exposure: float | None = None
    """For shares: the least part of the decoded tokens that has to come from where the change acts."""
    missing: Literal["defer", "breach"] = "defer"
    """What it means when there is no reading; never "met"."""
    because: str
    """Why the rule is there, in one sentence."""


class Traffic(Noun):
    """What the change means for the users of the worker."""

    live_requests: int | None
    """Requests in flight when the plan was made; None: could not be counted."""
    loses: str
    """Who loses what while the worker restarts."""
    load: str
    """The load that Prudent will send, and how long that takes."""


class Plan(Noun):
    """Everything that one approval covers."""

    run: str
    """The run."""
    worker: str
    """The worker."""
    host: str
    """Where it runs."""
    made_at: datetime
    """When it was made, from the worker as it was then."""
    change: Change
    """What is to be changed."""
    diff: str
    """The edit of the serve script as a unified diff, secrets masked."""
    edit_proof: str
    """How the edit was proven, or that it was not."""
    backup_of: str
    """Path of the script that is backed up and edited."""
    new_script_sha256: str
    """Hash of the edited script's bytes."""
    risk: Risk
    """The risk as it was shown."""
    precedents: tuple[Precedent, ...]
    """The precedents as they were shown."""
    forecast: Forecast
    """The forecast as it was shown."""
    steps: tuple[Step, ...]
    """What the helper on the host will do, in order."""
    checks: tuple[Check, ...]
    """What will be measured, in order."""
    criteria: tuple[Criterion, ...]
    """The rollback criteria."""
    policy: str
    """Name and hash of the policy that they come from."""
    traffic: Traffic
    """What live traffic loses, and the load to be sent."""
    watchdog_seconds: float
    """The host takes the change back by itself when the agent has been silent for this long."""
    approve_within_seconds: float
    """How long after `made_at` an approval may be given, and how long after that it may be used."""

    @property
    def digest(self) -> str:
        """SHA-256 over the canonical JSON of every field: what an approval is bound to."""
        return digest_of(self)

    @property
    def expires(self) -> datetime:
        """Until when an approval may be given."""
        return self.made_at + timedelta(seconds=self.approve_within_seconds)


class Approval(Noun):
    """Who said what to which plan."""

    run: str
    """The run."""
    digest: str
    """Digest of the plan that was shown."""
    decision: Literal["approve", "reject"]
    """Yes or no."""
    by: str
    """Who said it."""
    door: str
    """Through which door."""
    at: datetime
    """When."""
    expires: datetime
    """Until when it can open a transaction."""
    reason: str = ""
    """What the person added."""


# ----------------------------------------------------------------------------------- execution and readings


class JournalEntry(Noun):
    """One line of the host's journal."""

    seq: int
    """Position in the journal."""
    at: float
    """Seconds since the epoch, by the host's clock."""
    event: str
    """opened, guarded, begun, done, failed, committed, undo_begun, restored (first thing in a boot), undone,
    undo_failed, abandoned."""
    step: str | None = None
    """The step's id."""
    by: str = "agent"
    """`agent` or `watchdog`."""
    detail: Mapping[str, Any] = {}
    """What else the helper wrote down."""


class Execution(Noun):
    """What the host's journal says."""

    transaction: str
    """Id of the transaction."""
    token: int
    """Fencing token under which it was opened."""
    state: Literal["none", "open", "committed", "undone", "undo_failed"]
    """Where the transaction stands."""
    journal: tuple[JournalEntry, ...] = ()
    """The lines that belong to it."""
    before: Process | None = None
    """The worker's process before the change."""
    after: Process | None = None
    """The worker's process after the last restart."""
    problem: str | None = None
    """What went wrong, if something did."""


class Reading(Noun):
    """One measurement, or the reason why there is none."""

    metric: str
    """What was measured, such as `throughput_tokens_per_second`."""
    phase: Phase
    """Before the change, with it, or after it was taken back."""
    value: float | None
    """The value; None: no data."""
    unit: str
    """Unit of the value."""
    n: int = 0
    """Sample size: sessions, runs, requests."""
    bad: int | None = None
    """For shares: how many of the n were bad."""
    values: tuple[float, ...] = ()
    """The single runs, where the value is their mean."""
    concurrency: int | None = None
    """Requests in flight at once, where it matters."""
    exposure: float | None = None
    """The part of the decoded tokens that came from batch sizes at which the change acts, at its lower end."""
    boot: int = 1
    """Which start of its phase it was taken after."""
    no_data: str | None = None
    """Why there is no value."""
    source: str = ""
    """What produced it."""
    detail: str = ""
    """One sentence for people: what was seen, such as the line of a log or the first bad session."""


class Noise(Noun):
    """How much throughput differs between boots and between runs, as relative standard deviations."""

    boot_sd: float
    """Between boots of one configuration, such as 0.026."""
    run_sd: float
    """Between runs in one boot."""
    basis: str
    """This worker's own history, or the published prior at its upper bound."""


# ------------------------------------------------------------------------------------------------- verdict


class Finding(Noun):
    """What one criterion says."""

    criterion: str
    """Id of the criterion."""
    outcome: Literal["met", "breached", "undecided", "no_data"]
    """`undecided`: there is a reading, and it does not suffice either way."""
    says: str
    """The arithmetic in one sentence, with numbers, bound and confidence."""


class Verdict(Noun):
    """A decision and the proven state of the worker."""

    decision: Decision
    """What came of the request."""
    state: ProvenState
    """What the worker is, proven."""
    why: str
    """The reason, for a person, in one or two sentences."""
    findings: tuple[Finding, ...] = ()
    """The criteria that were judged."""
    decided_by: tuple[str, ...] = ()
    """Ids of the criteria that decided."""
    reopen_when: str | None = None
    """For a deferral: the condition under which it may be tried again, with the datum that it is quoted from."""
    remedy: str | None = None
    """What a person can do now."""
    choices: tuple[str, ...] = ()
    """For a request that was not clear: what could have been meant, each as words that can be typed."""
    refusal: str | None = None
    """For a refusal: its kind, which names the exit code (see `errors.py`)."""


class Origin(Noun):
    """Where an imported change was read, and what nobody can say of it any more."""

    kind: Literal["plan", "backups", "git", "log"]
    """What was read: a plan document, backups of a script, a script's git history, an engine's log."""
    sources: tuple[str, ...]
    """Where it stands: files with lines, commits, versions by hash; several where several tell of it."""
    at: datetime | None = None
    """When it was changed, as far as the sources say; None: they do not."""
    by: str | None = None
    """Who changed it, as far as the sources say."""
    outcome: str | None = None
    """What came of it, in the sources' own words; a claim, never a proof."""
    unsure: tuple[str, ...]
    """What is not known or not certain, each in one sentence."""


class Record(Noun):
    """All of it, chained to the record before."""

    seq: int
    """Position in the chain, from 1."""
    run: str
    """The run."""
    worker: str
    """The worker."""
    at: datetime
    """When it was written."""
    request: Request
    change: Change | None = None
    evidence: tuple[Evidence, ...] = ()
    precedents: tuple[Precedent, ...] = ()
    risk: Risk | None = None
    forecast: Forecast | None = None
    plan: Plan | None = None
    plan_digest: str | None = None
    approval: Approval | None = None
    execution: Execution | None = None
    readings: tuple[Reading, ...] = ()
    noise: Noise | None = None
    verdict: Verdict
    notes: tuple[str, ...] = ()
    """What a reader should know besides: a fallback to rules, an unclean working tree."""
    origin: Origin | None = None
    """For what was imported: where it comes from. Such a record proves nothing."""
    previous: str
    """Hash of the record before; 64 zeros for the first."""

    @property
    def when(self) -> datetime | None:
        """When what it tells of happened; None: it was imported, and its source does not say."""
        return self.at if self.origin is None else self.origin.at

    @property
    def hash(self) -> str:
        """SHA-256 over the canonical JSON of the record, the previous hash included."""
        return digest_of(self)


def digest_of(noun: BaseModel) -> str:
    """SHA-256, in hex, of a noun's canonical JSON: sorted keys, no white space, UTF-8."""
    document = noun.model_dump(mode="json")
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
