"""One decode step for the whole running batch at a time: admission, prefill, buckets, queue, aborts."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import NamedTuple

from evals.lab.ask import Ask
from evals.lab.books import Books
from evals.lab.clock import Clock
from evals.lab.conversation import Conversation
from evals.lab.failures import KilledError
from evals.lab.faults import Faults, Sight
from evals.lab.model import Model
from evals.lab.pace import Pace
from evals.lab.punctuality import Punctuality
from evals.lab.reports import Load, Reports
from evals.lab.specimen import Specimen

_LATE = 0.25
"""Seconds of the wall that a late loop may catch up; beyond that the time is lost, as it would be on a stalled card."""
_GRAIN = 0.001
"""Seconds of the wall that the loop's own sleep may end late."""
_SHIFT = 0.002
"""Seconds of the wall by which one pass's sending may move the next one's at most: a machine that stalls is no rule."""
ADMISSION_RATIO = 0.7
"""Share of the tokens a request may still generate that admission reserves (gauge `new_token_ratio`)."""


class QueueFullError(Exception):
    """The waiting queue holds as many requests as it may."""


class OutOfMemoryError(Exception):
    """A pass needs more memory than is free."""

    def __init__(self, needed: float, free: float, *, prefill: bool) -> None:
        super().__init__(f"{needed:.2f} GiB needed, {free:.2f} free")
        self.needed = needed
        self.free = free
        self.prefill = prefill


class Limits(NamedTuple):
    """What the started worker can hold."""

    running: int
    """Requests that may run at once."""
    queued: int | None
    """Requests that may wait; None: any number."""
    tokens: int
    """Tokens of the KV pool."""
    chunk: int
    """New prompt tokens of one prefill batch."""
    free: float
    """GiB that are free after capture."""
    cached: bool
    """Prompts are kept for reuse."""
    mode: str = "null"
    """`prefill`: it computes prompts and nothing more; `decode`: it goes on from prompts that others have computed."""


class Scheduler:
    """The loop that owns the batch.

    Args:
        limits: What the worker can hold.
        pace: How long passes take.
        faults: What is wrong with it.
        specimen: Model and cards.
        clock: Serving clock.
        reports: Hears what it does.
        books: Where it is written down, out of everybody's sight, what came of all that.
        model: What answers; None: one that never errs.
    """

    def __init__(
        self,
        limits: Limits,
        pace: Pace,
        faults: Faults,
        specimen: Specimen,
        clock: Clock,
        reports: Reports,
        books: Books,
        model: Model | None = None,
    ) -> None:
        self.model = model or Model()
        """What answers."""
        self.limits = limits
        self.running: list[Ask] = []
        self.waiting: deque[Ask] = deque()
        self.heartbeat = clock.now()
        """Second of life at which a pass last ended."""
        self.heard = clock.now()
        """Second of life at which health checks last noticed that."""
        self.tokens = 0
        """Tokens generated since the start."""
        self.prefilled = 0
        """Prompt tokens computed since the start."""
        self.nominal = 0.0
        """Seconds of life that the passes so far should have taken."""
        self.took = 0.0
        """Seconds of life that they were made to take."""
        self.punctuality = Punctuality()
        """How far tokens were off what the passes say."""
        self._lead = 0.0
        self._pace = pace
        self._faults = faults
        self._specimen = specimen
        self._clock = clock
        self.reports = reports
        """Hears what it does."""
        self._books = books
        self._born = clock.now()
        self._served = 0
        self._computing = 0
        self._spinning = False
        self._wake = asyncio.Event()
        self.paused = False
        """Nothing is generated until somebody lets it go on."""
        self._prefixes: OrderedDict[str, int] = OrderedDict()

    def submit(self, ask: Ask) -> None:
        """Queue a request.

        Raises:
            QueueFullError: no more may wait.
        """
        queued = self.limits.queued
        if queued is not None and len(self.waiting) >= queued:
            raise QueueFullError
        ask.arrived = self._clock.now()
        if self.limits.mode == "prefill":
            ask.most = 1
        self.waiting.append(ask)
        self._wake.set()

    def abort(self, ask: Ask) -> None:
        """Take a request back; a running one leaves the batch at the end of the step in flight."""
        if ask.finish is None and not ask.aborted:
            ask.aborted = True
            self.reports.aborted()
            if ask in self.waiting:
                self.waiting.remove(ask)
                self._end(ask)
        self._wake.set()

    def find(self, prefix: str) -> list[Ask]:
        """Requests whose id begins so; all of them for an empty prefix."""
        return [ask for ask in (*self.running, *self.waiting) if ask.rid.startswith(prefix)]

    @property
    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return not self.running and not self.waiting

    @property
    def used(self) -> int:
        """Tokens in the KV pool."""
        return sum(ask.conversation.length + len(ask.produced) for ask in self.running)

    @property
    def places(self) -> int:
        """Requests that may run at once by now."""
        return self.limits.running - self._faults.held()

    @property
    def free(self) -> float:
        """GiB of the card that are free by now."""
        return self.limits.free - self._faults.taken()

    @property
    def pretends(self) -> bool:
        """Health checks are answered without regard to the loop."""
        return self._faults.pretends()

    @property
    def load(self) -> Load:
        """How busy the loop is."""
        return Load(len(self.running), len(self.waiting), self.used)

    def flush(self) -> bool:
        """Forget cached prompts, unless requests are about."""
        done = self.idle
        self.reports.flushed(self.load, done=done)
        if done:
            self._prefixes.clear()
        return done

    def pause(self, mode: str) -> None:
        """Stop after the pass in flight: `abort` takes requests back, `retract` queues them, `in_place` leaves them."""
        if mode == "abort":
            for ask in self.find(""):
                self.abort(ask)
        elif mode == "retract":
            self.waiting.extendleft(reversed(self.running))
            self.running = []
        self.paused = mode != "abort"
        self._wake.set()

    def go_on(self) -> None:
        """Go on after a pause."""
        self.paused = False
        self._wake.set()

    async def run(self) -> None:
        """Serve for ever.

        Raises:
            OutOfMemoryError: a pass did not fit; the worker is lost.
            KilledError: the process is gone.
        """
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            if self.paused:
                self._wake.clear()
                await self._wake.wait()
                due = loop.time()
                continue
            if self.idle:
                await self._rest()
                self._pace.next_run()
                due = loop.time()
                continue
            if self.limits.mode == "decode":
                self._join()
                if not self.running:
                    await asyncio.sleep(self._clock.wall(0.01))
                due = await self._decode(due) if self.running else loop.time()
            elif batch := self._admit():
                due = await self._prefill(batch, due)
            else:
                due = await self._decode(due)
            if self._faults.doomed():
                raise KilledError

    async def _rest(self) -> None:
        """Wait for work; idle gauges are refreshed every 30 seconds of life."""
        self._wake.clear()
        while self.idle:
            try:
                await asyncio.wait_for(self._wake.wait(), self._clock.wall(30.0))
            except TimeoutError:
                self.reports.rested(self.load)
            self._wake.clear()

    async def _until(self, due: float, seconds: float) -> float:
        """Let a pass of so many seconds of life end, on the wall's schedule; return when the next may begin."""
        loop = asyncio.get_running_loop()
        due = max(due, loop.time() - _LATE) + self._clock.wall(seconds)
        for ask in self.running:
            if ask.outlet is not None:
                ask.outlet.prepare()
        # Sending takes time too: half of it shall lie before the moment, half after.
        start = due - len(self.running) * self._lead
        await asyncio.sleep(max(start - loop.time() - _GRAIN, 0))
        # Selectors count in milliseconds; the last one is slept through by the whole thread, which is more precise.
        time.sleep(max(start - loop.time(), 0))
        return due

    def _admit(self) -> list[Ask]:
        """Requests for the next prefill batch: as many as the batch, the chunk and the KV pool take."""
        batch: list[Ask] = []
        fresh = 0
        reserved = self.used + sum(
            int(min(ask.most - len(ask.produced), 4096) * ADMISSION_RATIO) for ask in self.running
        )
        while self.waiting and len(self.running) + len(batch) < self.places:
            ask = self.waiting[0]
            need = ask.conversation.length + len(ask.produced) + int(min(ask.most, 4096) * ADMISSION_RATIO)
            ask.cached = self._cached(ask.conversation)
            new = ask.conversation.length + len(ask.produced) - ask.cached
            if batch and fresh + new > self.limits.chunk:
                break
            if (self.running or batch) and reserved + need > self.limits.tokens:
                break
            self.waiting.popleft()
            batch.append(ask)
            fresh += new
            reserved += need
        return batch

    def _join(self) -> None:
        """Requests whose prompt has come from elsewhere enter the batch without a pass of their own."""
        joined: list[Ask] = []
        reserved = self.used
        while self.waiting and len(self.running) + len(joined) < self.places:
            ask = self.waiting[0]
            reserved += ask.conversation.length + len(ask.produced) + int(min(ask.most, 4096) * ADMISSION_RATIO)
            if (self.running or joined) and reserved > self.limits.tokens:
                break
            joined.append(self.waiting.popleft())
            ask.admitted = self._clock.now()
            ask.first = ask.first or ask.admitted
        if joined:
            self.running += joined
            self._emit(joined, asyncio.get_running_loop().time())
            self._leave()

    def _cached(self, conversation: Conversation) -> int:
        """Prompt tokens that an earlier request left in the pool, in whole pages."""
        if not self.limits.cached:
            return 0
        for digest, length in reversed(conversation.prefixes):
            if digest in self._prefixes:
                self._prefixes.move_to_end(digest)
                return length // self._specimen.page * self._specimen.page
        return 0

    async def _prefill(self, batch: list[Ask], due: float) -> float:
        cached = sum(ask.cached for ask in batch)
        fresh = sum(ask.conversation.length + len(ask.produced) for ask in batch) - cached
        for ask in batch:
            ask.admitted = self._clock.now()
        needed = min(fresh, self.limits.chunk) * self._specimen.prefill_per_token
        needed += self._faults.peak(fresh, max(ask.conversation.length for ask in batch))
        if needed > self.free:
            raise OutOfMemoryError(needed, self.free, prefill=True)
        before = len(self.running)
        self.running += batch
        self._computing = fresh
        due = await self._pass(due, self._pace.prefill(fresh), captured=False)
        self._computing = 0
        self.prefilled += fresh
        self.reports.prefilled(batch, fresh, cached, before, self.load)
        for ask in batch:
            self._keep(ask.conversation)
            ask.first = self._clock.now()
        self._emit(batch, due)
        self._leave()
        return due

    def _keep(self, conversation: Conversation) -> None:
        """Leave a prompt in the pool for the next one that begins so."""
        for digest, length in conversation.prefixes:
            self._prefixes[digest] = length
            self._prefixes.move_to_end(digest)
        while len(self._prefixes) > 8192:
            self._prefixes.popitem(last=False)

    async def _decode(self, due: float) -> float:
        step = self._pace.step(len(self.running))
        needed = 0.0 if step.captured else len(self.running) * self._specimen.decode_per_request
        if needed > self.free:
            raise OutOfMemoryError(needed, self.free, prefill=False)
        due = await self._pass(due, step.seconds, captured=step.captured)
        batch = list(self.running)
        if self._faults:
            sight = self._sight(captured=step.captured)
            self._spinning = self._faults.spins(sight)
            for ask in batch:
                if not ask.settled and not self._spinning:
                    self._settle(ask, sight)
        else:
            for ask in batch:
                ask.settled = True
        self._emit(batch, due)
        self.reports.decoded(len(batch), step.seconds, captured=step.captured, load=self.load)
        self._leave()
        self._retract()
        return due

    async def _pass(self, due: float, seconds: float, *, captured: bool) -> float:
        """A pass of so many seconds of life, or what becomes of it; it may never end."""
        took = seconds * self._faults.stretch(self._sight(captured=captured)) if self._faults else seconds
        due = await self._until(due, took)
        self.nominal += seconds
        self.took += took
        if not self._faults:
            return due
        sight = self._sight(captured=captured)
        if self._faults.stalls(sight):
            self._books.note("stalled", f"{sight.aborted} of {sight.running} aborted")
            await asyncio.Event().wait()
        return due

    def _sight(self, *, captured: bool) -> Sight:
        """What faults may look at: the batch with what was aborted while the pass was in flight."""
        return Sight(
            at=self._clock.now() - self._born,
            running=len(self.running),
            waiting=len(self.waiting),
            aborted=sum(ask.aborted for ask in self.running),
            captured=captured,
            top=self._pace.top,
            limit=self.limits.running,
            usage=self.used / self.limits.tokens,
            served=self._served,
            adapters=frozenset(ask.adapter for ask in self.running),
        )

    def _settle(self, ask: Ask, sight: Sight) -> None:
        """Fix what a reply will be, at its first decode step."""
        ask.settled = True
        other = self._faults.spoil(ask, sight)
        if other is not None:
            self._books.note("spoilt", f"{ask.conversation.session} turn {ask.conversation.turn}")
            # The first token is out already; a reply that begins otherwise begins after it.
            out = tuple(ask.produced)
            rest = other.tokens[len(out) :] if other.tokens[: len(out)] == out else other.tokens
            ask.reply = other._replace(tokens=(*out, *rest))

    def _emit(self, batch: Sequence[Ask], due: float) -> None:
        """One token for each request that still wants one, at its moment; what can wait comes after the last is out."""
        wanting = [ask for ask in batch if not ask.aborted and ask.finish is None and not self._spinning]
        now = asyncio.get_running_loop().time
        sent = [now() for ask in wanting if ask.outlet is not None and ask.outlet.fire()]
        if sent:
            self.punctuality.sent(due, sent)
            late = min(max((sent[0] + sent[-1]) / 2 - due, -_SHIFT), _SHIFT)
            self._lead = max(self._lead + 0.3 * late / len(sent), 0.0)
        self.heartbeat = self._clock.now()
        backlog = self._computing + (sum(ask.conversation.length for ask in self.waiting) if self._faults else 0)
        if not self._faults.deaf(backlog):
            self.heard = self.heartbeat
        for ask in wanting:
            ask.advance()
        self.tokens += len(wanting)
        self.reports.emitted(len(wanting))

    def _leave(self) -> None:
        """Finished and aborted requests leave the batch."""
        staying = []
        for ask in self.running:
            if ask.finish is None and not ask.aborted:
                staying.append(ask)
            else:
                self._end(ask)
        self.running = staying

    def _end(self, ask: Ask) -> None:
        """Close a request's books."""
        if ask.aborted and ask.finish is None:
            ask.finish = "abort"
        ask.news.set()
        self.reports.ended(ask)
        self._books.ended(ask)
        if not ask.own:
            self._served += 1
            if self._faults:
                self._faults.ended(ask, self._sight(captured=False))

    def _retract(self) -> None:
        """Send the youngest requests back to the queue while the KV pool overflows."""
        over = self.used - self.limits.tokens
        if (over <= 0 and not self._spinning) or len(self.running) < 2:
            return
        gained = 0
        back: list[Ask] = []
        while (self.used > self.limits.tokens or (self._spinning and not back)) and len(self.running) > 1:
            ask = self.running.pop()
            gained += ask.conversation.length + len(ask.produced)
            back.append(ask)
        self.waiting.extendleft(back)
        self.reports.retracted(len(back), gained)
