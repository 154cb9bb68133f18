"""An incident's fault model, in the words of incident files -> faults of the practice ground.

What has no scale (counts, shares, factors, flags, variables) is taken over. Memory is scaled: what filled the
incident's card fills the practice worker's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from evals.lab.faults.catalogue import FAULTS, check

FREE = 15.3
"""GiB that the practice worker's card has free after capture to 32 (seed)."""
TOKENS = 2_368_000
"""Tokens of its KV pool."""


class Described(NamedTuple):
    """What an incident says that bears on its fault."""

    parameters: Mapping[str, Any]
    """The parameters of its fault model."""
    change: Mapping[str, Any]
    """The change that brought it about."""


def of_incident(lab: Mapping[str, Any], change: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """The faults that an incident describes.

    Args:
        lab: Its `lab` part: `fault_model` and `params`.
        change: Its `change` part; where `old` and `new` are batch sizes, the old one fits and the new one does not.

    Returns:
        Each as `build` takes it.

    Raises:
        ValueError: no model of that name, or parameters that make no sense.
    """
    model = str(lab["fault_model"])
    parameters = dict(lab.get("params") or {})
    translate = _MODELS.get(model)
    if translate is not None:
        try:
            made = translate(Described(parameters, change or {}))
        except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError) as slip:
            raise ValueError(f"fault model {model!r} makes no sense with {parameters}: {slip!r}") from slip
    elif model.replace("_", "-") in FAULTS:
        name = model.replace("_", "-")
        known = FAULTS[name].all_parameters()
        made = [_spelled(name, **{key: value for key, value in parameters.items() if key in known})]
    else:
        near = get_close_matches(model, [*_MODELS, *(name.replace("-", "_") for name in FAULTS)], 1, 0.5)
        asked = f", do you mean {near[0]!r}" if near else ""
        raise ValueError(f"no fault model is called {model!r}{asked}; there are {', '.join(sorted(_MODELS))}")
    check(made)
    return tuple(made)


def _spelled(name: str, **parameters: object) -> str:
    given = [f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in parameters.items()]
    return f"{name}:{','.join(given)}" if given else name


def _range(value: object) -> tuple[float, float]:
    """Two ends, of a pair or of one number."""
    ends = [float(end) for end in value] if isinstance(value, Sequence) and not isinstance(value, str) else None
    return (min(ends), max(ends)) if ends else (float(str(value)), float(str(value)))


def _where(parameters: Mapping[str, Any]) -> dict[str, str]:
    """The condition that `active_if` or `only_if` puts in words."""
    text = str(parameters.get("active_if") or parameters.get("only_if") or "")
    clauses = {
        "graph": "captured>0",
        "spec": "speculative_algorithm!=unset",
        "prefix_cache": "disable_radix_cache!=1",
        "overlap": "overlap=1",
    }
    found = [clause for word, clause in clauses.items() if word in text]
    return {"when": "&".join(found)} if found else {}


def _startup(said: Described) -> list[str]:
    given: dict[str, object] = {}
    if "sampler_gb_per_1k_seqs" in said.parameters:
        scale = FREE / float(said.parameters.get("free_before_sampler_gb", 1.0))
        given = {"row": 0, "sampler": float(said.parameters["sampler_gb_per_1k_seqs"]) * scale}
    sizes = [str(said.change.get(end, "")) for end in ("old", "new")]
    if not given and all(size.isdigit() for size in sizes):
        given = {"row": FREE * 2 / sum(map(int, sizes))}
    mode = str(said.parameters.get("fail_mode", "exit"))
    if "hang_if_dp_attention" in mode:
        return [
            _spelled("startup-hang", **given, when="enable_dp_attention=1"),
            _spelled("startup-oom", **given, when="enable_dp_attention!=1"),
        ]
    return [_spelled("startup-hang" if "hang" in mode else "startup-oom", **given)]


def _late(said: Described) -> list[str]:
    fails: Mapping[Any, Any] = said.parameters.get("ctx_fail_at") or {}
    if not fails:
        return ["late-oom"]
    chunk, length = max((int(chunk), float(length)) for chunk, length in fails.items())
    return [_spelled("late-oom", token=FREE / (chunk * math.log1p(length / 1000)))]


def _corruption(said: Described) -> list[str]:
    where = _where(said.parameters)
    made = []
    if "after_tokens" in said.parameters or not {"or_context_over", "context_over"} & set(said.parameters):
        factor = 1 / float(said.parameters.get("throughput_multiplier", 1.0))
        made.append(
            _spelled(
                "token-corruption", after=said.parameters.get("after_tokens", 200), above=0, factor=factor, **where
            )
        )
    deep = said.parameters.get("or_context_over") or said.parameters.get("context_over")
    if deep:
        made.append(_spelled("depth-corruption", tokens=deep, **where))
    if "after_turns" in said.parameters:
        made.append(_spelled("turn-corruption", turn=said.parameters["after_turns"]))
    return made


def _wedge(said: Described) -> list[str]:
    health = int(bool(said.parameters.get("health_ok", True)))
    avoided = str(said.parameters.get("avoided_by", ""))
    when = "overlap=1" if "overlap" in avoided or "overlap" in str(said.change.get("knob", "")) else ""
    made = []
    side = str(said.parameters.get("side_effect_knob", ""))
    if side:
        setting, _, value = side.partition("=")
        made.append(_spelled("side-effect", setting=f"--{setting.replace('_', '-')}", value=value or "true"))
    if re.search(r"full|at_batch", str(said.parameters.get("trigger", ""))):
        return [*made, _spelled("wedge-at-full-batch", health=health)]
    given: dict[str, object] = {"least": 2, "most": 2}
    if "after_requests" in said.parameters:
        low, high = _range(said.parameters["after_requests"])
        given = {"least": max(low, 2.0), "most": max(high, 2.0)}
    if "after_minutes" in said.parameters:
        given["seconds"] = _range(said.parameters["after_minutes"])[0] * 60
    if "constrained" in str(said.parameters.get("trigger", "")):
        given["tools"] = 1
    return [*made, _spelled("wedge-after-requests", **given, health=health, when=when)]


def _neighbour(said: Described) -> list[str]:
    low, high = _range(said.parameters.get("neighbour_delta_gb", [-7, 0]))
    made = [_spelled("co-tenant", gib=-low)] if low < 0 else []
    if high > 0 and said.parameters.get("assert_if_free_grows", True):
        made.append(_spelled("co-tenant", gib=0, frees=high, share=0.25))
    return made


def _clamp(said: Described) -> list[str]:
    numbers = [float(number) for number in re.findall(r"\d+", str(said.parameters.get("effective", "256")))]
    places = max(int(numbers[0] / numbers[1]) if len(numbers) > 1 else int(numbers[0]), 1)
    return [_spelled("clamped-value", tokens=TOKENS // places, quiet=int(not said.parameters.get("log_line", True)))]


def _ignored(said: Described) -> list[str]:
    kind, _, name = str(said.parameters["setting"]).rpartition(":")
    plain = kind == "env" or name.startswith("--")
    return [_spelled("ignored-value", setting=name if plain else f"--{name.replace('_', '-')}")]


def _mangled(said: Described) -> list[str]:
    modes = said.parameters.get("mode") or ["reject"]
    first = modes if isinstance(modes, str) else modes[0]
    return [_spelled("mangled-argv", way="drop" if "drop" in first else "quote" if "quote" in first else "strip")]


def _dirty(said: Described) -> list[str]:
    low, high = _range(said.parameters.get("hang_after_requests", [80, 140]))
    health = int(bool(said.parameters.get("health_ok", True)))
    return [_spelled("dirty-restart", window=said.parameters.get("window_s", 30), least=low, most=high, health=health)]


def _scale(said: Described) -> list[str]:
    factor = 1 / float(said.parameters.get("factor", 0.3))
    return [_spelled("throughput-drop", factor=factor, compiling=said.parameters.get("jit_warmup_requests", 0))]


_MODELS: Mapping[str, Callable[[Described], list[str]]] = {
    "abort_on_combo": lambda _: ["abort-on-combination"],
    "argv_mangled": _mangled,
    "clamp_value": _clamp,
    "cotenant_profile": _neighbour,
    "dirty_restart": _dirty,
    "flag_rejected": lambda said: [_spelled("rejected-flag", flag=flag) for flag in said.parameters["removed"]],
    "graph_fallback_hysteresis": lambda said: [
        _spelled("throughput-cliff", factor=float(said.parameters.get("eager_slowdown", 4.0)))
    ],
    "health_false_negative": lambda said: [
        _spelled("false-negative-health", backlog=said.parameters.get("when_prefill_backlog_tokens_over", 400_000))
    ],
    "ignored_setting": _ignored,
    "output_corruption": _corruption,
    "quality_shift": lambda said: [
        _spelled("quality-shift", share=abs(float(said.parameters.get("reasoning_delta_points", 17))) / 100)
    ],
    "rss_leak": lambda said: [
        _spelled(
            "memory-leak", kib=float(said.parameters.get("mb_per_1k_requests", 350)) * 1.024, **_where(said.parameters)
        )
    ],
    "runtime_oom_on_long_prefill": _late,
    "slot_leak": lambda said: [
        _spelled("slot-leak", share=float(said.parameters.get("leak_per_1k_requests", 200)) / 1000)
    ],
    "stale_config_on_restart": lambda _: ["stale-restart"],
    "startup_oom": _startup,
    "sticky_slowdown_after_overload": lambda said: [
        _spelled("sticky-slowdown", factor=1 / float(said.parameters.get("factor_after", 0.14)))
    ],
    "supervisor_loop": lambda said: [
        _spelled("supervisor-loop", leak=float(said.parameters.get("host_leak_gb_per_start", 2.5)))
    ],
    "throughput_scale": _scale,
    "toolcall_mangle": lambda said: [
        _spelled(
            "tool-call-mangle", share=sum(float(v) for k, v in said.parameters.items() if k.startswith("p_")) or 0.36
        )
    ],
    "wedge": _wedge,
}
