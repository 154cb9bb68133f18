"""`prudent`: the first door. Every command ends with an exit code that says what came of it; see EXIT_CODES."""

from __future__ import annotations

import os
import secrets
import select
import sys
import termios
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from agent.assemble import Assembly, assemble, open_store, owner_lives, same_machine
from agent.carry import Show
from agent.domain import Approval, Decision, Plan, Request, Verdict
from agent.doors.carry import INTERRUPTED, Outcome, carry, pause
from agent.doors.doctor import doctor
from agent.doors.drawing import edges, mermaid
from agent.doors.incident import incident
from agent.doors.lab import lab
from agent.doors.logged import logged
from agent.doors.looks import explain_command, forecast_command, knobs_command, load_settings, script
from agent.doors.past import past
from agent.doors.plan import plans
from agent.doors.policies import policy
from agent.doors.terminal import JsonLines, Terminal, console, plan_card, print_json, record_view, shown
from agent.doors.verify import verify_command
from agent.doors.who import login
from agent.errors import (
    ApprovalExpired,
    ForeignApproval,
    HostError,
    Refused,
    RunInFlight,
    SpentApproval,
    UnknownRun,
    refusals,
)
from agent.settings import Settings

EXIT_CODES: dict[Decision, int] = {
    "kept": 0,
    "rolled_back": 10,
    "deferred": 11,
    "refused": 12,
    "needs_human": 13,
    "rejected": 14,
    "unchanged": 15,
    "answered": 16,
}
"""What `prudent ask` and `prudent resume` end with. A refusal ends with the code of its kind (`errors.py`), a usage
error with 2, and a run that was stopped with 130, whatever its verdict is."""

app = typer.Typer(
    name="prudent",
    help="Operate LLM inference workers the way a careful engineer does.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(lab, name="lab")
app.add_typer(script, name="script")
app.add_typer(policy, name="policy")
app.add_typer(plans, name="plan")
app.add_typer(past, name="history")
app.add_typer(incident, name="incident")

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
WorkerName = Annotated[str | None, typer.Option("--worker", "-w", help="The worker, where there are several.")]


@app.command()
def ask(
    text: Annotated[str, typer.Argument(help='What you want, such as "bump cuda graphs to 96".')],
    worker: WorkerName = None,
    as_json: Json = False,
) -> None:
    """Ask for a change, or ask what something is."""
    settings = load_settings()
    name, _ = settings.worker(worker)
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    run = "r-" + "".join(secrets.choice("23456789abcdefghjkmnpqrstuvwxyz") for _ in range(6))
    request = Request(run=run, text=text, worker=name, door="cli", by=login(), at=datetime.now(UTC))
    with (
        assemble(settings, name, environ=_taking_the_key(settings)) as parts,
        logged(_show(as_json), _log_of(settings), run) as show,
    ):
        parts.store.open_run(request, parts.parts.owner)
        show.event({"kind": "run", "text": f"run {run}: {text!r} on worker {name}", "run": run})
        outcome = carry(run, parts.graph, parts.parts, show, _asker(parts, as_json), {"request": request})
    _leave(outcome)


@app.command()
def resume(
    run: Annotated[str | None, typer.Argument(help="The run; left out: every run whose owner is gone.")] = None,
    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="Take RUN over from an owner on another machine; it is fenced off."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Bring runs whose owner died to a named verdict about a proven worker."""
    settings = load_settings()
    open_runs = _open_runs(settings, run, take_over=take_over)
    if not open_runs:
        _show(as_json).event({"kind": "nothing", "text": "There is nothing to resume."})
        return
    codes = []
    for request in open_runs:
        try:
            outcome = _resume(settings, request, as_json)
        except Refused as refusal:
            if run is not None:
                raise
            _show(as_json).event({"kind": "refusal", "text": f"run {request.run}: {refusal}"})
            codes.append(refusal.code)
            continue
        codes.append(_code(outcome))
        if outcome.interrupted:
            break
    raise typer.Exit(max(codes, key=_gravity))


def _resume(settings: Settings, request: Request, as_json: bool) -> Outcome:
    with (
        assemble(settings, request.worker, environ=_taking_the_key(settings)) as parts,
        logged(_show(as_json), _log_of(settings), request.run) as show,
    ):
        row = parts.store.run(request.run)
        assert row is not None
        if not parts.store.adopt_run(request.run, parts.parts.owner, row.owner):
            raise RunInFlight(f"Run {request.run} was taken over by somebody else just now.", "Let them finish.")
        show.event({"kind": "run", "text": f"resuming run {request.run}: {request.text!r}", "run": request.run})
        start = parts.resumption(request.run)
        return carry(request.run, parts.graph, parts.parts, show, _asker(parts, as_json), start)


@app.command()
def approve(
    run: Annotated[str, typer.Argument(help="The run whose plan is to be carried out.")],
    digest: Annotated[str | None, typer.Option(help="The digest on the plan card, or its beginning.")] = None,
    reason: Annotated[str, typer.Option(help="What the record should say besides.")] = "",
    as_json: Json = False,
) -> None:
    """Say yes to the plan of a run."""
    _decide(run, "approve", digest, reason, as_json)


@app.command()
def reject(
    run: Annotated[str, typer.Argument(help="The run whose plan is not to be carried out.")],
    digest: Annotated[str | None, typer.Option(help="The digest on the plan card, or its beginning.")] = None,
    reason: Annotated[str, typer.Option(help="Why; it goes into the record.")] = "",
    as_json: Json = False,
) -> None:
    """Say no to the plan of a run."""
    _decide(run, "reject", digest, reason, as_json)


@app.command()
def settle(
    run: Annotated[str, typer.Argument(help="The run whose change could not be taken back.")],
    reason: Annotated[str, typer.Option(help="What you found and what you did about it.")],
    as_json: Json = False,
) -> None:
    """Say that you have put right by hand what could not be taken back; the worker is free for changes again."""
    settings = load_settings()
    with open_store(settings) as store:
        row = store.run(run)
    if row is None:
        raise UnknownRun(f"There is no run {run!r}.", "See prudent history.")
    if row.ended is None:
        raise UnknownRun(f"Run {run} has not ended.", f"Let it finish, or: prudent resume {run}")
    with assemble(settings, row.request.worker, environ=os.environ) as parts:
        transaction = parts.parts.worker.transaction(run)
        done = transaction.status()
        if done is None or done.state not in {"open", "undo_failed"}:
            raise UnknownRun(f"There is nothing to settle in run {run}.", f"See prudent show {run}.")
        if done.state == "open":
            done = transaction.undo(parts.parts.policy.times.watchdog_seconds(None))
        if done.state == "undo_failed":
            transaction.abandon(by=login(), reason=reason)
        transaction.release()
    if as_json:
        print_json({"run": run, "settled_by": login(), "reason": reason})
    else:
        console().print(f"Settled: worker {row.request.worker} is free for changes again.")


@app.command()
def show(run: Annotated[str, typer.Argument(help="The run.")], as_json: Json = False) -> None:
    """Show a run: its record, or the plan that waits for a decision."""
    settings = load_settings()
    with open_store(settings) as store:
        record, row, plan, link = store.record(run), store.run(run), store.plan(run), store.link(run)
    if record is None and row is None:
        raise UnknownRun(f"There is no run {run!r}.", "See prudent history.")
    if as_json:
        document = (
            {"hash": link.hash, **record.model_dump(mode="json")}
            if record and link
            else {"state": row.state if row else ""}
        )
        print_json(
            document
            if record or plan is None
            else {**document, "plan": plan.model_dump(mode="json"), "digest": plan.digest}
        )
        return
    out = console()
    if record is not None and link is not None:
        out.print(record_view(record, link.hash))
    elif plan is not None:
        out.print(plan_card(plan))
        out.print(f"{row.state if row else ''}: prudent approve {run}  or  prudent reject {run}")
    elif row is not None:
        out.print(shown(f"run {run}: {row.request.text!r}, {row.state}"))


app.command("doctor")(doctor)
app.command("verify")(verify_command)
app.command("knobs")(knobs_command)
app.command("explain")(explain_command)
app.command("forecast")(forecast_command)


@app.command()
def graph(as_json: Json = False) -> None:
    """Print the graph that every run goes through, as Mermaid."""
    if as_json:
        print_json({"mermaid": mermaid(), "edges": [edge._asdict() for edge in edges()]})
    else:
        sys.stdout.write(mermaid())


def main() -> None:
    """Run the command line; what an operator can put right is a sentence and an exit code, not a traceback."""
    try:
        code = app(standalone_mode=False)
    except Refused as refusal:
        _complain(f"{refusal.sentence} {refusal.remedy}", type(refusal).__name__, refusal.code)
    except HostError as error:
        _complain(str(error), "HostError", EXIT_CODES["needs_human"])
    except typer.Exit as leaving:
        code = leaving.exit_code
    except (KeyboardInterrupt, typer.Abort):
        _complain("Stopped; nothing was begun.", "Interrupted", INTERRUPTED)
    except Exception as error:
        show_usage = getattr(error, "show", None)
        if show_usage is None or getattr(error, "exit_code", None) is None:
            raise
        show_usage()
        code = 2
    sys.exit(code if isinstance(code, int) else 0)


def _decide(run: str, decision: str, digest: str | None, reason: str, as_json: bool) -> None:
    """Write a decision on the plan that a run has laid out; the run's owner goes on from there."""
    settings = load_settings()
    with open_store(settings) as store:
        row, plan = store.run(run), store.plan(run)
        if row is None:
            raise UnknownRun(f"There is no run {run!r}.", "See prudent history.")
        if plan is None:
            raise UnknownRun(f"Run {run} has no plan to decide on; it is {row.state}.", f"See prudent show {run}.")
        now = datetime.now(UTC)
        if digest is not None and not plan.digest.startswith(digest):
            raise ForeignApproval(
                f"The plan of run {run} has digest {plan.digest[:12]}, not {digest}.",
                f"Read it again with prudent show {run}, then decide on that one.",
            )
        earlier = store.decision(run, plan.digest)
        if earlier is not None:
            raise _said_already(earlier)
        if row.ended is not None:
            raise UnknownRun(f"Run {run} has ended already.", f"See prudent show {run}.")
        if now > plan.expires:
            raise ApprovalExpired(
                f"The time to decide on run {run} was over at {plan.expires:%H:%M:%S} UTC.",
                "Ask again; a new plan is made from the worker as it is then.",
            )
        said = Approval(
            run=run,
            digest=plan.digest,
            decision="approve" if decision == "approve" else "reject",
            by=login(),
            door="cli",
            at=now,
            expires=now + timedelta(seconds=plan.approve_within_seconds),
            reason=reason,
        )
        if not store.decide(said):
            earlier = store.decision(run, plan.digest)
            raise _said_already(earlier or said)
        alive = owner_lives(row.owner)
    told = (
        f"{decision}d".replace("rejectd", "rejected")
        + f": {plan.change.summary} on {plan.worker}, digest {plan.digest[:12]}"
    )
    if as_json:
        print_json({"run": run, "decision": said.decision, "digest": plan.digest, "owner_lives": alive})
        return
    out = console()
    out.print(told)
    if not alive:
        out.print(f"The process that made the plan is gone; carry it out with: prudent resume {run}")


def _said_already(earlier: Approval) -> SpentApproval:
    return SpentApproval(
        f"{earlier.by} has already said {earlier.decision} to this plan, at {earlier.at:%H:%M:%S} UTC.",
        f"A decision stands once it is given; see prudent show {earlier.run}.",
    )


def _open_runs(settings: Settings, run: str | None, *, take_over: bool) -> list[Request]:
    """Runs that have no record and whose owner is gone."""
    with open_store(settings) as store:
        rows = store.runs(open_only=True)
        if run is not None:
            row = store.run(run)
            if row is None:
                raise UnknownRun(f"There is no run {run!r}.", "See prudent history.")
            if row.ended is not None:
                raise UnknownRun(f"Run {run} has ended already.", f"See prudent show {run}.")
            if owner_lives(row.owner) and not (take_over and not same_machine(row.owner)):
                elsewhere = "" if same_machine(row.owner) else f"; if it is gone: prudent resume {run} --take-over"
                raise RunInFlight(
                    f"Run {run} is being carried by process {row.owner.pid} on {row.owner.host}.",
                    f"Let it finish{elsewhere}.",
                )
            return [row.request]
        return [row.request for row in reversed(rows) if not owner_lives(row.owner)]


def _asker(parts: Assembly, as_json: bool) -> Callable[[Plan], None]:
    """How the plan is put to whoever sits here: a prompt on a terminal, patience elsewhere."""
    if as_json or not sys.stdin.isatty() or not sys.stdout.isatty():
        return pause
    asked: set[str] = set()

    def prompt(plan: Plan) -> None:
        if plan.digest not in asked:
            asked.add(plan.digest)
            # What was typed before the card was shown is no answer to it.
            termios.tcflush(sys.stdin, termios.TCIFLUSH)
            sys.stdout.write("\nCarry it out? [y/N] ")
            sys.stdout.flush()
        if not select.select([sys.stdin], [], [], 0.3)[0]:
            return
        answer = sys.stdin.readline()
        now = datetime.now(UTC)
        yes = answer.strip().lower() in {"y", "yes"}
        parts.store.decide(
            Approval(
                run=plan.run,
                digest=plan.digest,
                decision="approve" if yes else "reject",
                by=login(),
                door="terminal",
                at=now,
                expires=now + timedelta(seconds=plan.approve_within_seconds),
            )
        )

    return prompt


def _leave(outcome: Outcome) -> None:
    """End with the code of what came of it."""
    raise typer.Exit(_code(outcome))


def _code(outcome: Outcome) -> int:
    """A run that was stopped says so, unless a person has to look: that is never hidden."""
    code = code_of(outcome.record.verdict)
    return INTERRUPTED if outcome.interrupted and code != EXIT_CODES["needs_human"] else code


def _gravity(code: int) -> int:
    """Which of several outcomes is told: a person who has to look before all, what was kept last."""
    return 1000 if code == EXIT_CODES["needs_human"] else code


def code_of(verdict: Verdict) -> int:
    """The exit code of a verdict."""
    if verdict.decision == "refused" and verdict.refusal in refusals():
        return refusals()[verdict.refusal].code
    return EXIT_CODES[verdict.decision]


def _taking_the_key(settings: Settings) -> dict[str, str]:
    """Our environment; the model's key is taken out of what commands on this machine inherit from us."""
    environ = dict(os.environ)
    if settings.reasoner is not None and settings.reasoner.api_key_env is not None:
        os.environ.pop(settings.reasoner.api_key_env, None)
    return environ


def _log_of(settings: Settings) -> Path:
    return Path(settings.store.path).with_name("prudent.log")


def _show(as_json: bool) -> Show:
    return JsonLines() if as_json else Terminal(console())


def _complain(sentence: str, kind: str, code: int) -> None:
    if "--json" in sys.argv:
        print_json({"kind": "refusal", "refusal": kind, "text": sentence, "exit_code": code})
    else:
        sys.stderr.write(f"prudent: {sentence}\n")
    sys.exit(code)
