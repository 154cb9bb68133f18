"""A knob in lines that an operator can read, and a forecast as one bar."""

from __future__ import annotations

from collections.abc import Mapping

from agent.domain import Forecast, Knob
from tools.engines.catalogue import bounds, spellings
from tools.engines.help_text import Installed

_WIDTH = 60


def knob_lines(
    knob: Knob,
    version: str | None,
    *,
    written: str | None = None,
    values: Mapping[str, str] | None = None,
    installed: Installed | None = None,
) -> tuple[str, ...]:
    """Everything that is known of a knob, and of it on one worker where that is given.

    Args:
        knob: The knob.
        version: The engine's version; None: not known.
        written: Its text in the serve script; None: absent, or not asked.
        values: Values in force by knob name; None: not asked.
        installed: The engine that the next start would run; None: not asked.
    """
    accepted = spellings(knob, version)
    lines = [f"{knob.name} ({knob.engine}, {knob.kind}): {knob.meaning}"]
    if values is not None:
        script = "not in the script" if written is None else f"in the script {written or 'present'}"
        lines.append(f"  now          {values.get(knob.name, 'not reported')}; {script}")
    kind = f"{knob.value}, {bounds(knob)}" if bounds(knob) else knob.value
    lines.append(f"  value        {kind}; default: {knob.default or 'not said'}")
    if accepted:
        lines.append(f"  written      {', '.join(accepted)}{f' ({knob.engine} {version})' if version else ''}")
    else:
        lines.append(f"  written      {knob.engine} {version} does not know it")
    for spelling in knob.spellings:
        life = [
            f"{word} {at}"
            for word, at in (("since", spelling.since), ("deprecated", spelling.deprecated), ("gone", spelling.until))
            if at is not None
        ]
        if life:
            lines.append(f"               {spelling.text}: {', '.join(life)}")
    if installed is not None:
        lines.append(f"  installed    {_listed(knob, installed)}")
    if knob.logged:
        lines.append(f"  in the log   {knob.logged}")
    if knob.coupling and knob.coupling != "None.":
        lines.append(f"  coupling     {knob.coupling}")
    for name in knob.couples:
        value = "" if values is None or name not in values else f" = {values[name]}"
        lines.append(f"               with {name}{value}")
    demands = ", ".join(knob.demands) or "none beyond the start"
    lines.append(f"  risk         {knob.risk} ({knob.subsystem}); a change demands: {demands}")
    lines.append(f"  source       {knob.source}")
    return tuple(lines)


def _listed(knob: Knob, installed: Installed) -> str:
    if knob.kind == "env" or installed.flags is None:
        return installed.basis
    there = [spelling.text for spelling in knob.spellings if spelling.text in installed.flags]
    return f"{', '.join(there) if there else 'not'} in {installed.basis}"


def memory_bar(forecast: Forecast, floor_gb: float, *, width: int = _WIDTH) -> str:
    """The GPU's memory after the change as one bar: weights, pool, graphs, what may go either way, what stays free.

    Args:
        forecast: The forecast.
        floor_gb: The floor of free memory, which is marked by `|`.
        width: Characters.

    Returns:
        The bar and its legend on the next line; empty where free memory is not forecast.
    """
    free = forecast.free_after_capture
    if free is None:
        return ""
    rows = {row.name: row.then for row in forecast.rows}
    parts = [
        (letter, rows[name].low)
        for letter, name in (("W", "weights"), ("K", "KV pool"), ("P", "prefill graphs"), ("G", "decode graphs"))
        if name in rows
    ]
    low, high = max(0.0, free.low), max(0.0, free.high)
    parts += [("?", high - low), (".", low)]
    total = sum(size for _, size in parts) or 1.0
    bar = "".join(letter * _cells(size, total, width) for letter, size in parts)
    mark = max(0, min(len(bar) - 1, len(bar) - 1 - round(floor_gb / total * width)))
    bar = f"{bar[:mark]}|{bar[mark + 1 :]}"
    legend = "W weights, K KV pool, P prefill graphs, G decode graphs, ? either way, . free"
    return f"[{bar}] {total:.1f} GB\n{legend}; | is where the floor of {floor_gb:g} GB begins"


def _cells(size: float, total: float, width: int) -> int:
    return 0 if size <= 0 else max(1, round(size / total * width))
