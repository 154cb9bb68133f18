"""The approvals' matrix: one approval, and a plan, a file or a process that is another one: 0 writes."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from agent.errors import HelperRefused, NoAnswer, StaleState
from evals.bench.matrix_points import Point
from evals.campaigns.bench_plan import Bench, planned
from evals.campaigns.campaign import Campaign
from evals.campaigns.host import VirtualHost
from tools.host import Completed
from tools.transaction import Writer

BATCHES, BATCH = 16, 50
"""Mutated plans: 800."""
FILE_ROUNDS, PROCESS_ROUNDS = 10, 8
ALWAYS = 3
"""Batches of each kind that are always taken."""
FOREIGN = b"\n# somebody was here\n"
PATIENCE = 60.0


def points(_: Campaign) -> list[Point]:
    """800 mutated plans and requests, 120 changes of the file and 80 of the process."""
    plans = [Point("approval", f"plan | {number}", number < ALWAYS, BATCH) for number in range(BATCHES)]
    files = [Point("approval", f"file | {number}", number < ALWAYS, len(FILE_CASES)) for number in range(FILE_ROUNDS)]
    processes = [Point("approval", f"process | {number}", number < ALWAYS, 10) for number in range(PROCESS_ROUNDS)]
    return [*plans, *files, *processes]


def check(campaign: Campaign, point: Point) -> str | None:
    """Try a batch; what is wrong, or None."""
    kind, number = point.id.split(" | ")
    with campaign.ground() as ground:
        bench = planned(campaign, ground)
        wrong = {"plan": _plans, "file": _files, "process": _processes}[kind](bench, int(number), point.cases)
        bench.host.close()
        return wrong


# ------------------------------------------------------------------------------------------------------- plans


class _Heard(Exception):
    """What would have been sent."""

    def __init__(self, argv: Sequence[str], request: dict[str, Any]) -> None:
        super().__init__("heard")
        self.argv = list(argv)
        self.request = request


class _Ear(VirtualHost):
    """A host that sends no opening, but says what would have been sent."""

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout: float, environ: Any = None) -> Completed:
        """Execute a command, unless it opens a transaction."""
        if argv[-1] == "open":
            raise _Heard(argv, json.loads(stdin))
        return super().run(argv, stdin=stdin, timeout=timeout, environ=environ)


def _plans(bench: Bench, number: int, cases: int) -> str | None:
    """Send the approval with plans and requests that differ in one place; then the true one, which has to open."""
    ear = _Ear(bench.ground, bench.host.forge)
    writer = bench.writer(ear)
    plan = bench.plan("r-approved")
    token = writer.lease(plan.run, 300).token
    try:
        bench.open(writer, token, plan)
    except _Heard as heard:
        argv, request = heard.argv, heard.request
    chance = Random(f"approval/{number}")
    for case in range(cases):
        where, mutated = _mutated(request, chance, case)
        answer = _sent(bench.host, argv, mutated)
        if answer["ok"]:
            return f"case {case} opened a transaction: {where}"
        wrong = _untouched(bench)
        if wrong is not None:
            return f"case {case}, {where}: {wrong}"
    answer = _sent(bench.host, argv, request)
    if not answer["ok"]:
        return f"the true plan was refused after all those: {answer}"
    bench.writer().undo(token, plan.run)
    return None


def _sent(host: VirtualHost, argv: Sequence[str], request: dict[str, Any]) -> dict[str, Any]:
    request = {key: value for key, value in request.items() if key != "seal"}
    seal = hashlib.sha256(_canonical(request).encode()).hexdigest()
    done = host.run(argv, stdin=json.dumps({**request, "seal": seal}).encode(), timeout=60)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _canonical(document: Any) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _mutated(request: dict[str, Any], chance: Random, case: int) -> tuple[str, dict[str, Any]]:
    """A request that differs in one place: nearly always in the plan, else in what comes with it."""
    request = json.loads(json.dumps(request))
    if case % 10 == 9:
        what = chance.choice(
            ["approval.digest", "approval.run", "approval.decision", "new_content", "script", "worker"]
        )
        if what == "new_content":
            content = bytearray(base64.b64decode(request["new_content"]))
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(7)
            request["new_content"] = base64.b64encode(bytes(content)).decode()
        elif what == "script":
            request["script"] = request["log"] if "log" in request else request["script"] + ".other"
        elif what == "worker":
            request["worker"] = "prefill"
        else:
            key = what.partition(".")[2]
            value = request["approval"][key]
            request["approval"][key] = (
                "reject" if key == "decision" else value[:-1] + ("0" if value[-1] != "0" else "1")
            )
        return what, request
    plan = json.loads(request["plan"])
    leaves = list(_leaves(plan, ()))
    path = chance.choice(leaves)
    holder = plan
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = _other(holder[path[-1]], chance)
    request["plan"] = _canonical(plan)
    return "plan." + ".".join(map(str, path)), request


def _leaves(value: Any, path: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Every place of a document; lists and objects are places too, because something can be put into them."""
    found = [path] if path else []
    if isinstance(value, dict):
        found += [leaf for key in value for leaf in _leaves(value[key], (*path, key))]
    elif isinstance(value, list):
        found += [leaf for at in range(len(value)) for leaf in _leaves(value[at], (*path, at))]
    return found


def _other(value: Any, chance: Random) -> Any:
    """Something else of about the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + chance.choice([1, -1, 0.5])
    if isinstance(value, str):
        return chance.choice([value + "x", value[1:] or "x", value.swapcase() if value.swapcase() != value else "y"])
    if isinstance(value, list):
        return [*value, *(value[-1:] or ["x"])]
    if isinstance(value, dict):
        return {**value, "besides": 1}
    return "something"


def _untouched(bench: Bench) -> str | None:
    """Why a ground is not as it was before anything was opened."""
    if bench.ground.script.read_bytes() != bench.old:
        return "the script was written"
    if bench.restarts() != 1:
        return "the worker was restarted"
    journal = bench.ground.host_directory / "workers" / "decode" / "journal"
    if journal.exists() and journal.read_bytes():
        return "the journal was written"
    spent = bench.ground.host_directory / "spent"
    return "an approval was spent" if spent.exists() and list(spent.iterdir()) else None


# ----------------------------------------------------------------------------------------- files and processes

Change = Callable[[Path], None]


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(FOREIGN)


def _replace(path: Path) -> None:
    part = path.with_name("editor.tmp")
    part.write_bytes(path.read_bytes() + FOREIGN)
    part.chmod(0o755)
    part.replace(path)


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(bytes(content))


CHANGES: dict[str, Change] = {"appended": _append, "replaced": _replace, "cut": _truncate, "one bit": _flip}
INSTANTS = ("before the opening", "before the edit", "between check and exchange")
FILE_CASES = [(change, instant) for change in CHANGES for instant in INSTANTS]


def _files(bench: Bench, number: int, _: int) -> str | None:
    """Change the file at an instant; the edit must not happen, and what somebody wrote must stay."""
    writer = bench.writer()
    for case, (change, instant) in enumerate(FILE_CASES):
        run = f"r-file-{number}-{case}"
        plan = bench.plan(run)
        token = writer.lease(run, 300).token
        meddle = CHANGES[change]
        try:
            if instant == "before the opening":
                meddle(bench.ground.script)
                bench.open(writer, token, plan)
                return f"{change}, {instant}: a transaction was opened"
            bench.open(writer, token, plan)
            if instant == "before the edit":
                meddle(bench.ground.script)
                writer.step(token, run, plan.steps[0].id)
            else:
                between = functools.partial(meddle, bench.ground.script)
                _paused(bench, writer, token, run, plan.steps[0].id, "exchange", between)
        except StaleState:
            pass
        else:
            return f"{change}, {instant}: the step was not refused"
        held = bench.ground.script.read_bytes()
        if held in (bench.old, bench.new):
            return f"{change}, {instant}: what somebody wrote is gone"
        if bench.restarts() != 1:
            return f"{change}, {instant}: the worker was restarted"
        if instant != "before the opening":
            writer.undo(token, run)
        if bench.ground.script.read_bytes() != held:
            return f"{change}, {instant}: the undo wrote over what somebody wrote"
        writer.release(token)
        bench.ground.script.write_bytes(bench.old)
    return None


def _processes(bench: Bench, number: int, cases: int) -> str | None:
    """Restart the worker by hand at an instant; no step that was approved for the process before may run."""
    writer = bench.writer()
    for case in range(cases):
        run = f"r-process-{number}-{case}"
        plan = bench.plan(run)
        token = writer.lease(run, 300).token
        instant = ("before the opening", "before the edit", "before the restart")[case % 3]
        try:
            if instant != "before the opening":
                bench.open(writer, token, plan)
            if instant == "before the restart":
                writer.step(token, run, plan.steps[0].id)
            bench.ground.service("restart")
            main, restarts = bench.ground.main(), bench.restarts()
            if instant == "before the opening":
                bench.open(writer, token, plan)
            else:
                writer.step(token, run, plan.steps[1 if instant == "before the restart" else 0].id)
        except StaleState:
            pass
        else:
            return f"{instant}: the step was not refused"
        if (bench.ground.main(), bench.restarts()) != (main, restarts):
            return f"{instant}: the worker was restarted"
        if instant != "before the restart" and bench.ground.script.read_bytes() != bench.old:
            return f"{instant}: the script was written"
        if instant != "before the opening":
            writer.undo(token, run)
        if bench.ground.script.read_bytes() != bench.old:
            return f"{instant}: the undo did not restore the script"
        writer.release(token)
    return None


def _paused(
    bench: Bench, writer: Writer, token: int, run: str, step: str, action: str, meanwhile: Callable[[], None]
) -> None:
    """Carry out a step; just before an action of the helper it stops, and something happens meanwhile.

    Raises:
        StaleState: the step was refused.
        RuntimeError: the action never came.
    """
    flag = bench.ground.folder / "run" / "paused"
    bench.host.environ = {"PRUDENT_PAUSE_AT": f"{action}={flag}"}
    heard: list[BaseException | None] = []

    def work() -> None:
        try:
            writer.step(token, run, step)
            heard.append(None)
        except (StaleState, HelperRefused, NoAnswer) as refusal:
            heard.append(refusal)

    thread = threading.Thread(target=work)
    thread.start()
    until = time.monotonic() + PATIENCE
    while not flag.exists() and not heard and time.monotonic() < until:
        time.sleep(0.002)
    if not flag.exists():
        raise RuntimeError(f"{action} never came: {heard}")
    meanwhile()
    flag.unlink()
    thread.join(PATIENCE)
    bench.host.environ = {}
    if heard and heard[0] is not None:
        raise heard[0]
