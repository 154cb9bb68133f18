"""How often the forecast covers what was measured, and how wide it is.

    python -m evals.bench.forecast --recordings tests/data/recordings/sglang-0.5.14-h200

Each recorded start is held out in turn and forecast from every other start of the same model, once from that start
alone and once with the remaining ones as history. `cover` counts the figures inside their interval, `width` is that of
free memory after capture. The recorded out-of-memory starts count as foreseen where the forecast does not say "fits".
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from agent.domain import Forecast
from tools.engines.catalogue import knobs
from tools.engines.facts import StartupFacts
from tools.engines.log_lines import lines_of
from tools.engines.memory_fraction import looks_default
from tools.engines.restart_time import restart_seconds
from tools.engines.sglang_capture import comparable
from tools.engines.sglang_configuration import of_start
from tools.engines.sglang_log import read_log
from tools.engines.sglang_memory import forecast

RECORDINGS = Path(__file__).parents[2] / "tests" / "data" / "recordings" / "sglang-0.5.14-h200"
FLOOR_GB = 6.0
"""Floor of free memory, as the shipped policy has it."""
WIDEST_GB = 1.0
"""How wide the forecast of free memory may be where the largest graph is all that changes."""
WIDEST_UP_TO = 96
"""The largest graph for which that holds."""


class Trial(NamedTuple):
    """One forecast of a start that was held out."""

    source: str
    """The start that it was made from."""
    target: str
    """The start that was forecast."""
    history: int
    """How many further starts it had."""
    covered: Mapping[str, bool]
    """For each figure that was measured and forecast, whether its interval holds it."""
    width_gb: float
    """Width of the interval of free memory."""
    fits: str
    """What the forecast said."""
    asked: tuple[str, ...]
    """Knobs that the change is about."""


def starts(recordings: Path = RECORDINGS) -> dict[str, StartupFacts]:
    """Every recorded start that came as far as its weights, by name."""
    found: dict[str, StartupFacts] = {}
    for path in sorted(recordings.glob("*/startup.log")):
        with path.open("rb") as stream:
            facts = read_log(lines_of(stream), version="0.5.14").facts
        if facts is not None and facts.weights_gb is not None:
            found[path.parent.name] = facts
    return found


def change_between(source: StartupFacts, target: StartupFacts) -> dict[str, str | None]:
    """The change that makes one start's launch the other's, by canonical knob name."""
    now, then = _launch(source), _launch(target)
    change = {name: then.get(name) for name in {*now, *then} if now.get(name) != then.get(name)}
    for knob in knobs("sglang"):
        field = knob.effective[0] if knob.effective else ""
        before, after = source.settings.get(field), target.settings.get(field)
        if knob.kind == "flag" and knob.subsystem not in _LAUNCHED and knob.name not in _STATED and before != after:
            change[knob.name] = {"True": "", "False": None}.get(after or "", after) if knob.value == "switch" else after
    return change


_STATED = frozenset(
    {
        "cuda-graph-max-bs",
        "cuda-graph-bs",
        "disable-cuda-graph",
        "disable-decode-cuda-graph",
        "cuda-graph-backend-decode",
        "cuda-graph-backend-prefill",
        "cuda-graph-max-bs-prefill",
        "cuda-graph-bs-prefill",
        "cuda-graph-config",
        "mem-fraction-static",
        "max-running-requests",
    }
)
"""Knobs whose printed setting may be the engine's own choice; `_launch` tells which were stated."""
_LAUNCHED = frozenset({"reporting", "parsing"})
"""Subsystems that no forecast depends on."""


def _launch(facts: StartupFacts) -> dict[str, str | None]:
    """What the launch stated of those knobs, as far as the printed settings tell it from what the engine resolved."""
    settings = facts.settings
    launch: dict[str, str | None] = {}
    if settings.get("disable_cuda_graph") == "True":
        launch["disable-cuda-graph"] = ""
    elif settings.get("cuda_graph_bs_decode"):
        launch["cuda-graph-bs"] = settings["cuda_graph_bs_decode"]
    elif settings.get("cuda_graph_max_bs_decode"):
        launch["cuda-graph-max-bs"] = settings["cuda_graph_max_bs_decode"]
    if settings.get("cuda_graph_backend_prefill") == "disabled":
        launch["cuda-graph-backend-prefill"] = "disabled"
    if settings.get("cuda_graph_max_bs_prefill"):
        launch["cuda-graph-max-bs-prefill"] = settings["cuda_graph_max_bs_prefill"]
    free = facts.free_before_weights_gb
    if free is None or not looks_default(of_start(facts), free):
        launch["mem-fraction-static"] = settings["mem_fraction_static"]
    launch["max-running-requests"] = settings.get("max_running_requests") or str(facts.max_running_requests or 4096)
    return launch


def trials(recorded: Mapping[str, StartupFacts], *, with_history: bool) -> list[Trial]:
    """Forecast every held-out start from every other of its kind that came up."""
    found = []
    for target, then in recorded.items():
        for source, now in recorded.items():
            if source == target or not comparable(now, then) or not _usable(now):
                continue
            rest = [facts for name, facts in recorded.items() if name not in (source, target)] if with_history else []
            change = change_between(now, then)
            made = forecast(facts=now, history=rest, change=change, floor_gb=FLOOR_GB)
            found.append(_trial(source, target, tuple(sorted(change)), len(rest), made, then))
    return found


def _usable(facts: StartupFacts) -> bool:
    return facts.free_after_capture_gb is not None and facts.cause is None


def _trial(source: str, target: str, asked: tuple[str, ...], history: int, made: Forecast, then: StartupFacts) -> Trial:
    rows = {row.name: row.then for row in made.rows}
    capture = then.decode_capture
    measured = {
        "KV pool": then.kv_gb,
        "decode graphs": None if capture is None else capture.gb,
        "free after capture": then.free_after_capture_gb if made.free_after_capture is not None else None,
        "capture seconds": None if capture is None else capture.seconds,
    }
    covered = {
        name: rows[name].low <= value <= rows[name].high
        for name, value in measured.items()
        if value is not None and name in rows
    }
    free = made.free_after_capture
    return Trial(source, target, history, covered, 0.0 if free is None else free.high - free.low, made.fits, asked)


def restart_trials(recordings: Path = RECORDINGS) -> list[bool]:
    """Each of the recorded boots of one configuration, forecast from the others."""
    path = recordings / "repeated-boots.json"
    if not path.exists():
        return []
    boots = json.loads(path.read_text(encoding="utf-8"))["boots"]
    seconds = [float(boot["ready_s"]) for boot in boots]
    covered = []
    for index, held_out in enumerate(seconds):
        rest = seconds[:index] + seconds[index + 1 :]
        found = restart_seconds(StartupFacts(engine="sglang"), rest, [])
        covered.append(found is not None and found.low <= held_out <= found.high)
    return covered


def raises(recorded: Mapping[str, StartupFacts]) -> dict[str, float]:
    """Width of the free memory, GB, where each start with graphs below 96 is forecast for 96 from itself alone."""
    widths = {}
    for name, facts in recorded.items():
        capture = facts.decode_capture
        if not _usable(facts) or capture is None or max(capture.sizes, default=96) >= 96:
            continue
        free = forecast(facts=facts, change={"cuda-graph-max-bs": "96"}, floor_gb=FLOOR_GB).free_after_capture
        if free is not None:
            widths[name] = free.high - free.low
    return widths


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables.

    Returns:
        1 where free memory is missed, a plain change of the largest graph is too wide, or a death was not foreseen.
    """
    parser = argparse.ArgumentParser(description="hold out each recorded start and forecast it")
    parser.add_argument("--recordings", type=Path, default=RECORDINGS, help="folder of starts, one folder each")
    recordings = parser.parse_args(arguments).recordings
    recorded = starts(recordings)
    failed = False
    for with_history in (False, True):
        found = trials(recorded, with_history=with_history)
        print("with the others as history" if with_history else "from one start alone")
        failed = _print_trials(found, recorded) or failed
    widths = raises(recorded)
    for name, width in widths.items():
        print(f"{name} to 96, from that start alone: {width:.2f} GB wide")
    boots = restart_trials(recordings)
    print(f"restart seconds, each of {len(boots)} boots from the others: covered {sum(boots)}")
    failed = failed or any(width > WIDEST_GB for width in widths.values())
    print("FAILED" if failed else "within what is asked")
    return 1 if failed else 0


def _print_trials(found: Sequence[Trial], recorded: Mapping[str, StartupFacts]) -> bool:
    """Print one table; True where it holds a miss, a width too large, or a death that was called fit."""
    failed = False
    print(f"  {'from':<16} {'to':<16} {'KV':>5} {'graphs':>7} {'free':>5} {'secs':>5} {'width GB':>9}  says")
    names = ("KV pool", "decode graphs", "free after capture", "capture seconds")
    for trial in found:
        marks = [_mark(trial.covered.get(name)) for name in names]
        print(
            f"  {trial.source:<16} {trial.target:<16} {marks[0]:>5} {marks[1]:>7} {marks[2]:>5} {marks[3]:>5} "
            f"{trial.width_gb:9.2f}  {trial.fits}"
        )
        died = recorded[trial.target].cause is not None
        capture = recorded[trial.target].decode_capture
        plain = trial.asked == ("cuda-graph-max-bs",) and capture is not None and max(capture.sizes) <= WIDEST_UP_TO
        too_wide = plain and trial.width_gb > WIDEST_GB
        missed = not trial.covered.get("free after capture", True)
        failed = failed or missed or too_wide or (died and trial.fits == "fits")
    hits = [hit for trial in found for hit in trial.covered.values()]
    width = fmean(trial.width_gb for trial in found) if found else 0.0
    print(f"  covered {sum(hits)} of {len(hits)}, mean width {width:.2f} GB\n")
    return failed


def _mark(covered: bool | None) -> str:
    return "-" if covered is None else "yes" if covered else "NO"


if __name__ == "__main__":
    sys.exit(main())
