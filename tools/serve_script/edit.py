"""Plan the change of one flag or one variable of one launch, or refuse with a reason. The front door for editing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal

from tools.serve_script.diff import diff
from tools.serve_script.flag_plan import FlagPlan
from tools.serve_script.intents import Edit, Found, Intent, Operation
from tools.serve_script.launches import Launch, LineOf, Target
from tools.serve_script.names import Grammar, normal
from tools.serve_script.options import grammar as engine_grammar
from tools.serve_script.planning import in_force, is_flag, known
from tools.serve_script.read import Reading, read_file
from tools.serve_script.refusals import ScriptRefused
from tools.serve_script.secrets import mask
from tools.serve_script.select import choose
from tools.serve_script.text import inward, outward, plain, shown
from tools.serve_script.variable_plan import VariablePlan


def value_of(
    content: bytes,
    *,
    path: str,
    names: Sequence[str],
    kind: Literal["flag", "env"],
    target: Target | None = None,
    reading: Reading | None = None,
) -> Found:
    """Ask what the file says about a flag or variable.

    Args:
        content: The file.
        path: Its path, for its kind and for messages.
        names: All spellings of the knob, the preferred first.
        kind: Flag or environment variable.
        target: Which launch, where there are several.
        reading: How to read the file, where its path does not say it all.

    Raises:
        ScriptUnreadable: the file starts no server.
        LaunchAmbiguous: it starts several and `target` does not say which.
        ScriptRefused: the value is worked out when the file runs, or several stand under conditions.
    """
    launches = _plainly_read(content, path) if reading is None else read_file(content, path=path, reading=reading)
    line_of = LineOf(content)
    chosen = choose(launches, target)
    options = _grammar(reading or Reading(), launches[chosen[0]])
    answers = {_found(launches[i], names, kind, path, options, line_of) for i in chosen}
    if len(answers) > 1:
        raise ScriptRefused(
            "several-values", f"The branches of {path} give {names[0]} different values.", "Say which launch is meant."
        )
    return answers.pop()


@lru_cache(maxsize=4)
def _plainly_read(content: bytes, path: str) -> tuple[Launch, ...]:
    """The launches of a file: a plan asks the same one about every knob of the catalogue."""
    return read_file(content, path=path, reading=Reading())


def _grammar(reading: Reading, launch: Launch) -> Grammar:
    """What is known of the options: as handed in, or else all that we know of the engine."""
    if reading.grammar != Grammar():
        return reading.grammar
    return engine_grammar("vllm" if launch.engine == "vllm" else "sglang")


def _found(launch: Launch, names: Sequence[str], kind: str, path: str, grammar: Grammar, line_of: LineOf) -> Found:
    if kind == "env":
        variable = next((v for v in launch.env if v.name in names), None)
        if variable is None:
            return Found(None, None, None, f"{path} does not set {names[0]}.")
        known(variable.runs, variable.name, variable.line)
        told = mask(f"{variable.name}={shown(variable.text)}")
        return Found(outward(variable.text), variable.name, variable.line, f"{path} line {variable.line}: {told}")
    flags = [flag for flag in launch.flags(line_of) if is_flag(flag, names, grammar)]
    if not flags:
        return Found(None, None, None, f"{path} does not give {names[0]}.")
    flag = in_force(flags)
    for runs in flag.values:
        known(runs, flag.name, flag.line)
    value = "" if normal(flag.name) in grammar.switches else " ".join(plain(runs) for runs in flag.values)
    told = mask(f"{flag.name} {shown(value)}".strip())
    return Found(outward(value), flag.name, flag.line, f"{path} line {flag.line}: {told}")


def plan_edit(
    content: bytes,
    *,
    path: str,
    kind: Literal["flag", "env"],
    names: Sequence[str],
    operation: Operation,
    value: str | Sequence[str] | None,
    target: Target | None = None,
    reading: Reading | None = None,
) -> Edit:
    """Plan the change of one flag or variable; the best of `plan_edits`.

    Raises:
        ScriptRefused: it cannot be done safely; the kind says why.
        ScriptUnreadable: the file starts no server, or is not a file of its kind.
        LaunchAmbiguous: it starts several and `target` does not say which.
    """
    return next(_planned(content, path, kind, tuple(names), operation, value, target, reading or Reading()))


def plan_edits(
    content: bytes,
    *,
    path: str,
    kind: Literal["flag", "env"],
    names: Sequence[str],
    operation: Operation,
    value: str | Sequence[str] | None,
    target: Target | None = None,
    reading: Reading | None = None,
) -> tuple[Edit, ...]:
    """Plan a change in every way that reading the file finds right, the most natural first.

    Args:
        content: The file.
        path: Its path, for its kind and for messages.
        kind: Flag or environment variable.
        names: All spellings of the knob, the preferred first.
        operation: What to do.
        value: The new value; a sequence for a flag with several values; None or empty for a switch.
        target: Which launch, where there are several.
        reading: How to read the file, where its path does not say it all.

    Raises:
        ScriptRefused: it cannot be done safely; the kind says why.
        ScriptUnreadable: the file starts no server, or is not a file of its kind.
        LaunchAmbiguous: it starts several and `target` does not say which.
    """
    return tuple(_planned(content, path, kind, tuple(names), operation, value, target, reading or Reading()))


def _planned(
    content: bytes,
    path: str,
    kind: Literal["flag", "env"],
    names: tuple[str, ...],
    operation: Operation,
    value: str | Sequence[str] | None,
    target: Target | None,
    reading: Reading,
) -> Iterator[Edit]:
    """Yield the edits that read right; at least one."""
    launches = read_file(content, path=path, reading=reading)
    chosen = choose(launches, target)
    for i in chosen:
        blocked = launches[i].blocked
        if blocked is not None:
            raise ScriptRefused(blocked.kind, blocked.sentence, blocked.remedy, line=launches[i].line)
    given = () if operation == "unset" or value is None else (value,) if isinstance(value, str) else tuple(value)
    values = tuple(inward(item) for item in given)
    reading = reading._replace(grammar=_grammar(reading, launches[chosen[0]]))
    plan: FlagPlan | VariablePlan
    if kind == "env":
        plan = VariablePlan(content, path, launches, names, reading)
        plan.change(chosen, operation, "".join(values))
    else:
        plan = FlagPlan(content, path, launches, names, reading)
        words = tuple(v for v in values if v != "" or len(values) > 1)
        plan.change(chosen, operation, words, listed=not isinstance(value, str))
    some = False
    for edit in plan.edits:
        if plan.reads_right(edit, chosen):
            some = True
            yield edit
    if not some:
        raise plan.refusal or ScriptRefused(
            "quoting", f"{names[0]} cannot be changed where it is written.", "Change it by hand."
        )


__all__ = ["Edit", "Found", "Intent", "Operation", "diff", "plan_edit", "plan_edits", "value_of"]
