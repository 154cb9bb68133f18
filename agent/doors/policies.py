"""`prudent policy`: whether a policy is sound, and what it will insist on, in words."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Annotated

import typer

from agent.doors.looks import load_settings
from agent.doors.terminal import console, print_json, shown
from agent.errors import OutOfBounds
from policies.explain import explain
from policies.load import load
from policies.schema import Policy
from tools.engines.catalogue import knobs

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Which = Annotated[
    str | None,
    typer.Argument(
        help="A shipped policy or a file that ends in .yaml; left out: those of the workers in the settings."
    ),
]

policy = typer.Typer(help="The law: what is checked, what is taken back, and what is allowed.", no_args_is_help=True)


@policy.command("check")
def check(which: Which = None, as_json: Json = False) -> None:
    """Read policies as a run would, and say what is wrong with its line, or that nothing is."""
    sound = [(called, _checked(called)) for called in _named(which)]
    if as_json:
        print_json([{"policy": called, "label": one.label, "criteria": len(one.criteria)} for called, one in sound])
        return
    for called, one in sound:
        console().print(shown(f"{called}: sound ({one.label}, {len(one.criteria)} criteria)"))


@policy.command("explain")
def explain_policy(which: Which = None, as_json: Json = False) -> None:
    """Say in words what a policy insists on, and why."""
    for called in _named(which):
        one = _checked(called)
        if as_json:
            print_json(one.model_dump(mode="json"))
            continue
        for line in explain(one):
            console().print(shown(line))


def _named(which: str | None) -> tuple[str, ...]:
    if which is not None:
        return (which,)
    return tuple(dict.fromkeys(worker.policy for worker in load_settings().workers.values()))


def _checked(called: str) -> Policy:
    """A policy whose names of knobs and of parts of the engine are ones that there are.

    Raises:
        BadSettings: it has a mistake.
        OutOfBounds: it names a knob or a part that no engine has; such a rule would never apply.
    """
    one = load(called)
    every = (*knobs("sglang"), *knobs("vllm"))
    _known(called, "limits.knobs", list(one.limits.knobs), {knob.name for knob in every})
    for name in one.ordered:
        parts = {knob.subsystem.casefold() for knob in every}
        asked = [part.casefold() for part in one.checks.rule(name).subsystems]
        _known(called, f"checks.{name}.subsystems", asked, parts)
    return one


def _known(called: str, where: str, names: Sequence[str], there: set[str]) -> None:
    for name in names:
        if name not in there:
            near = difflib.get_close_matches(name, there, n=1)
            meant = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(sorted(there)[:20])}."
            raise OutOfBounds(f"{called}: {where} names {name!r}, which no engine has.", meant)
