"""The smallest whole plan, an edit and a restart, and a yes to it, for what tries the helper without the graph."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from agent.domain import Approval, Change, Forecast, HostState, Plan, Risk, Step, Traffic


def small_plan(
    *,
    script: str,
    old: str,
    new: str,
    process: tuple[str, int, int],
    watchdog: float,
    worker: str = "decode",
    host: str = "local",
    edits: bool = True,
    **changed: Any,
) -> Plan:
    """A plan that writes another level into a script and restarts its worker.

    Args:
        script: Path of the script.
        old: Hash of what it holds.
        new: Hash of what it shall hold.
        process: Identity of the worker's main process.
        watchdog: Seconds of silence after which the host takes it back.
        worker: The worker's name.
        host: What its host is called.
        edits: Whether there is an edit before the restart.
        changed: Fields of the plan that are to be otherwise.
    """
    edit = Step(
        id="edit",
        action="edit_script",
        what="write 96",
        before=HostState(script_sha256=old, process=process),
        after=HostState(script_sha256=new, process=process),
        undo="put the old bytes back",
    )
    restart = Step(
        id="restart",
        action="restart",
        what="restart decode",
        before=HostState(script_sha256=new, process=process),
        after=HostState(script_sha256=new),
        undo="restart again",
    )
    fields: dict[str, Any] = {
        "run": "r-1",
        "made_at": datetime(2026, 11, 29, 12, tzinfo=UTC),
        "worker": worker,
        "host": host,
        "change": Change(worker=worker, operation="set", summary="level 32 -> 96"),
        "diff": "",
        "edit_proof": "",
        "backup_of": script,
        "new_script_sha256": new,
        "risk": Risk(level="low", ways=(), summary="", by="rules"),
        "precedents": (),
        "forecast": Forecast(rows=(), free_after_capture=None, restart_seconds=None, fits="unsure", why=""),
        "steps": (edit, restart) if edits else (restart,),
        "checks": (),
        "criteria": (),
        "policy": "decode 0",
        "traffic": Traffic(live_requests=0, loses="nobody", load="none"),
        "watchdog_seconds": watchdog,
        "approve_within_seconds": 60.0,
    }
    return Plan(**{**fields, **changed})


def yes_to(plan: Plan, *, at: datetime | None = None, **changed: Any) -> Approval:
    """An approval of a plan that lasts ten minutes.

    Args:
        plan: The plan.
        at: When it was given; None: now.
        changed: Fields of the approval that are to be otherwise.
    """
    at = at or datetime.now(UTC)
    fields: dict[str, Any] = {
        "run": plan.run,
        "digest": plan.digest,
        "decision": "approve",
        "by": "ada",
        "door": "cli",
        "at": at,
        "expires": at + timedelta(seconds=600),
    }
    return Approval(**{**fields, **changed})
