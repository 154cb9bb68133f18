"""Every kind of fault by name, and how a case spells one: `NAME` or `NAME:parameter=value,parameter=value`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from random import Random

from evals.lab.arguments import recorded
from evals.lab.faults.applying import (
    ClampedValue,
    IgnoredValue,
    MangledArgv,
    RejectedFlag,
    SideEffect,
    StaleRestart,
)
from evals.lab.faults.condition import Conditions, rule
from evals.lab.faults.fault import Fault, Parameter
from evals.lab.faults.garbling import (
    AdapterCorruption,
    DepthCorruption,
    GraphCorruption,
    QualityShift,
    TokenCorruption,
    ToolCallDecay,
    ToolCallMangle,
    TurnCorruption,
)
from evals.lab.faults.leaking import LateOom, MemoryLeak, SlotLeak
from evals.lab.faults.misreporting import FalseNegativeHealth, ProbePileUp
from evals.lab.faults.pairing import StaleBootstrap
from evals.lab.faults.slowing import StickySlowdown, ThroughputCliff, ThroughputDrop
from evals.lab.faults.standstill import AbortWedge, CountWedge, DirtyRestart, FullBatchWedge, Livelock
from evals.lab.faults.starting import (
    AbortOnCombination,
    CoTenant,
    LateStart,
    SecondStart,
    StartupHang,
    StartupOom,
    SupervisorLoop,
)
from evals.lab.faults.together import Faults
from evals.lab.private import Shelf
from evals.lab.vllm_0_24.arguments import defaults

FAULTS: Mapping[str, type[Fault]] = {
    "abort-on-combination": AbortOnCombination,
    "abort-wedge": AbortWedge,
    "adapter-corruption": AdapterCorruption,
    "clamped-value": ClampedValue,
    "co-tenant": CoTenant,
    "depth-corruption": DepthCorruption,
    "dirty-restart": DirtyRestart,
    "false-negative-health": FalseNegativeHealth,
    "graph-corruption": GraphCorruption,
    "ignored-value": IgnoredValue,
    "late-oom": LateOom,
    "livelock": Livelock,
    "mangled-argv": MangledArgv,
    "memory-leak": MemoryLeak,
    "probe-pile-up": ProbePileUp,
    "quality-shift": QualityShift,
    "rejected-flag": RejectedFlag,
    "second-start-crash": SecondStart,
    "side-effect": SideEffect,
    "slot-leak": SlotLeak,
    "slow-start": LateStart,
    "stale-bootstrap": StaleBootstrap,
    "stale-restart": StaleRestart,
    "startup-hang": StartupHang,
    "startup-oom": StartupOom,
    "sticky-slowdown": StickySlowdown,
    "supervisor-loop": SupervisorLoop,
    "throughput-cliff": ThroughputCliff,
    "throughput-drop": ThroughputDrop,
    "token-corruption": TokenCorruption,
    "tool-call-decay": ToolCallDecay,
    "tool-call-mangle": ToolCallMangle,
    "turn-corruption": TurnCorruption,
    "wedge-after-requests": CountWedge,
    "wedge-at-full-batch": FullBatchWedge,
}
"""Every kind by the name that a case gives it."""
DEFAULT_FAULTS = ("graph-corruption", "abort-wedge")
"""What both seeds need."""


def check(names: Sequence[str]) -> None:
    """Refuse faults that cannot be made.

    Raises:
        ValueError: no fault of that name, no such parameter, or a value out of bounds.
    """
    for spelled in names:
        read(spelled)


def build(names: Sequence[str], seed: str, shelf: Shelf) -> Faults:
    """Make the faults that a private file names.

    Args:
        names: Each `NAME` or `NAME:parameter=value,...`.
        seed: Seed of every draw; each fault draws from a source of its own.
        shelf: What they remember from start to start.

    Raises:
        ValueError: as `check`.
    """
    made = []
    for number, spelled in enumerate(names):
        kind, given = read(spelled)
        made.append(kind(given, Random(f"{seed}/{number}/{spelled}"), shelf))
    return Faults(made)


def read(spelled: str) -> tuple[type[Fault], dict[str, float | str]]:
    """The kind and every parameter of a fault as a case spells it.

    Raises:
        ValueError: as `check`.
    """
    name, _, rest = spelled.partition(":")
    kind = FAULTS.get(name)
    if kind is None:
        near = get_close_matches(name, FAULTS, 1, 0.5)
        asked = f", do you mean {near[0]!r}" if near else ""
        raise ValueError(f"no fault is called {name!r}{asked}; there are {', '.join(sorted(FAULTS))}")
    known = kind.all_parameters()
    given = {key: parameter.default for key, parameter in known.items()}
    for pair in filter(None, rest.split(",")):
        key, sign, value = pair.partition("=")
        if key not in known:
            near = get_close_matches(key, known, 1, 0.4)
            asked = f", do you mean {near[0]!r}" if near else ""
            raise ValueError(f"fault {spelled!r}: {name} has no parameter {key!r}{asked}; it takes {_takes(known)}")
        if not sign:
            raise ValueError(f"fault {spelled!r}: {key} needs a value, as in {key}={known[key].default or '...'}")
        given[key] = _value(spelled, key, value, known[key])
    arguments = rule(str(given["when"])).arguments
    if arguments:
        _know(spelled, arguments)
    return kind, given


def _know(spelled: str, arguments: frozenset[str]) -> None:
    """Refuse a condition about something that neither engine has."""
    known = {*recorded()["server_args"], *defaults()}
    for argument in sorted(arguments - known):
        near = get_close_matches(argument, {*known, *Conditions._fields}, 1, 0.5)
        asked = f", do you mean {near[0]!r}" if near else ""
        raise ValueError(f"fault {spelled!r}: {argument!r} is nothing that a condition can be about{asked}")


def _value(spelled: str, key: str, value: str, parameter: Parameter) -> float | str:
    if isinstance(parameter.default, str):
        if parameter.choices and value not in parameter.choices:
            raise ValueError(f"fault {spelled!r}: {key} is {parameter.bounds}, not {value!r}")
        return value
    try:
        number = float(value)
    except ValueError:
        raise ValueError(f"fault {spelled!r}: {key} is a number, {parameter.bounds}, not {value!r}") from None
    if not parameter.least <= number <= parameter.most:
        raise ValueError(f"fault {spelled!r}: {key} is {parameter.bounds}, not {number:g}")
    return number


def _takes(known: Mapping[str, Parameter]) -> str:
    return ", ".join(f"{key} ({parameter.bounds})" for key, parameter in known.items())


def listing() -> str:
    """Every kind with its sentence, and its parameters with default, bounds and meaning."""
    lines = []
    for name, kind in sorted(FAULTS.items()):
        lines.append(f"{name}: {kind.meaning}")
        for key, parameter in kind.all_parameters().items():
            default = parameter.default if parameter.default != "" else "nothing"
            shown = f"{default:g}" if isinstance(default, float) else default
            lines.append(f"    {key}={shown}  ({parameter.bounds}) {parameter.meaning}")
    return "\n".join(lines) + "\n"
