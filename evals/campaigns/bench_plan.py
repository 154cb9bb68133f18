"""A plan as the graph makes it, an approval of it, and a writer that carries it out without the graph around it."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import NamedTuple

from agent.assemble import open_store
from agent.domain import Approval, Execution, HostState, Plan
from agent.settings import load
from evals.campaigns.agent import STORIES, Around, ask, forked
from evals.campaigns.campaign import Campaign
from evals.campaigns.ground import Ground
from evals.campaigns.host import VirtualHost
from evals.campaigns.mortal import Act, Fate, MortalStore
from evals.campaigns.oracle import EXPECTED
from evals.campaigns.small_plan import yes_to
from tools.host import Host
from tools.service import CommandService
from tools.transaction import Writer

RUN = "r-planned"


class Bench(NamedTuple):
    """A ground with a plan that waits for its approval."""

    ground: Ground
    host: VirtualHost
    made: Plan
    """The plan that the graph made."""
    old: bytes
    """The script as the plan found it."""
    new: bytes
    """The script as the plan would leave it."""

    def writer(self, host: Host | None = None) -> Writer:
        """The agent's side of the helper."""
        return Writer(host or self.host, "decode", str(self.ground.script), self._service)

    @property
    def _service(self) -> CommandService:
        said = load(self.ground.settings, {}).workers["decode"].service
        assert said.kind == "command"
        return CommandService(restart=said.restart, pid=said.pid)

    def plan(self, run: str, *, watchdog: float = 120.0) -> Plan:
        """The same plan for another run, made for what is there now."""
        seen = self.writer().observe()
        assert seen.process is not None
        before = HostState(script_sha256=hashlib.sha256(self.old).hexdigest(), process=seen.process.identity)
        edited = before.model_copy(update={"script_sha256": self.made.new_script_sha256})
        steps = []
        for step in self.made.steps:
            was = before if step.action == "edit_script" else edited
            steps.append(
                step.model_copy(
                    update={
                        "before": step.before.model_copy(update=was.model_dump(include={"script_sha256", "process"}))
                    }
                )
            )
        return self.made.model_copy(
            update={"run": run, "steps": tuple(steps), "watchdog_seconds": watchdog, "made_at": datetime.now(UTC)}
        )

    def open(self, writer: Writer, token: int, plan: Plan) -> Execution:
        """Open a plan's transaction with a fresh yes to it."""
        now = datetime.now(UTC)
        return writer.open(token, plan.run, plan, approval_of(plan), self.new, now=now)

    def restarts(self) -> int:
        """How often the service was told to restart."""
        return len((self.ground.folder / "run" / "restarts").read_text(encoding="ascii").split())


def approval_of(plan: Plan) -> Approval:
    """A yes to a plan."""
    return yes_to(plan, by="campaign", door="replay")


def planned(campaign: Campaign, ground: Ground, story: str = "bump") -> Bench:
    """Have the graph make a plan on a ground, and stop there.

    Raises:
        RuntimeError: it made none.
    """
    fate = Fate(Act("store decide", 1), "before")
    around = Around(store=lambda store: MortalStore(store, fate))
    ended = forked(
        lambda: ask(ground, campaign.forge, RUN, STORIES[story], around), said=ground.folder / "run" / "said"
    )
    with open_store(load(ground.settings, {})) as store:
        plan = store.plan(RUN)
    if plan is None:
        raise RuntimeError(f"no plan was made: {ended.said}")
    old = ground.script.read_bytes()
    return Bench(ground, VirtualHost(ground, campaign.forge), plan, old, old.replace(*EXPECTED[story]))
