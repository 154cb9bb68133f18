"""Health that lies: too gloomy while the worker is only busy, or a burden by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from evals.lab.ask import Ask
from evals.lab.conversation import Conversation
from evals.lab.faults.fault import Fault, Parameter
from evals.lab.replies import Reply, Token

if TYPE_CHECKING:
    from evals.lab.clock import Clock
    from evals.lab.scheduler import Scheduler


class FalseNegativeHealth(Fault):
    """Health counts what leaves the detokenizer, and long prompts keep that waiting."""

    meaning = "health checks fail while many prompt tokens are still to be computed, although requests are served"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "backlog": Parameter(400_000.0, "prompt tokens to be computed above which health hears nothing", 1.0),
    }

    def deaf(self, backlog: int) -> bool:
        """While so much is to be computed."""
        return backlog > self.number("backlog")


class ProbePileUp(Fault):
    """A prober sends generations as probes, gives up on late ones without taking them back, and tries again."""

    meaning = "probes that generate are sent again when late and never taken back, until the queue is full of them"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "period": Parameter(5.0, "seconds of life from probe to probe", 0.1),
        "timeout": Parameter(10.0, "seconds of life after which a probe is late", 0.1),
        "retries": Parameter(2.0, "probes that are sent for a late one", 0.0, 16.0),
        "tokens": Parameter(8.0, "tokens that a probe generates", 1.0, 4096.0),
        "most": Parameter(512.0, "probes that can be open at once", 1.0, 8192.0),
    }

    async def attend(self, scheduler: Scheduler, clock: Clock) -> None:
        """Probe for ever."""
        late: list[asyncio.Task[None]] = []
        open_probes: list[Ask] = []
        number = 0

        async def probe() -> None:
            nonlocal number, open_probes
            open_probes = [ask for ask in open_probes if ask.finish is None]
            queued = scheduler.limits.queued
            full = queued is not None and len(scheduler.waiting) >= queued
            if full or len(open_probes) >= self.number("most"):
                return
            number += 1
            ask = _probe(number, int(self.number("tokens")))
            open_probes.append(ask)
            scheduler.submit(ask)
            await asyncio.sleep(clock.wall(self.number("timeout")))
            if ask.finish is None:
                late.extend(asyncio.create_task(probe()) for _ in range(int(self.number("retries"))))

        while True:
            late[:] = [task for task in late if not task.done()]
            late.append(asyncio.create_task(probe()))
            await asyncio.sleep(clock.wall(self.number("period")))


def _probe(number: int, tokens: int) -> Ask:
    """A probe as an orchestrator sends it; it looks like one of the worker's own."""
    words = Reply(tuple(Token("text", ".") for _ in range(tokens)), None, "")
    return Ask(f"HEALTH_CHECK_{number}", Conversation("", 0, (), (), None, "", 1, ()), words, most=tokens, own=True)
