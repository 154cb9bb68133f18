"""How often the forecast covers what was measured, and how wide it is.

    python -m evals.bench.forecast

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
from tools.engines.facts import StartupFacts
from tools.engines.log_lines import lines_of
from tools.engines.restart_time import restart_seconds
from tools.engines.sglang_capture import comparable
from tools.engines.sglang_log import read_log
from tools.engines.sglang_memory import forecast

RECORDINGS = Path(__file__).parents[2] / "tests" / "data" / "recordings" / "sglang-0.5.14-h200"
FLOOR_GB = 6.0
"""Floor of free memory, as the shipped policy has it."""
WIDEST_GB = 1.0
"""How wide the forecast of free memory may be where the largest graph is all that changes."""


class Trial(NamedTuple):
    """One forecast of a start that was held out."""

    source: str
    """The start that it was made from."""
    target: str
    """The start that was forecast."""
    history: int
    """How many further starts it had."""
    covered: Mapping[str, bool]
    """For each figure that was measured, whether its interval holds it."""
    width_gb: float
    """Width of the interval of free memory."""
    fits: str
    """What the forecast said."""
    asked: tuple[str, ...]
    """Knobs that the change is about."""


def starts() -> dict[str, StartupFacts]:
    """Every recorded start that came as far as its weights, by name."""
    found: dict[str, StartupFacts] = {}
    for path in sorted(RECORDINGS.glob("*/startup.log")):
        with path.open("rb") as stream:
            facts = read_log(lines_of(stream), version="0.5.14").facts
        if facts is not None and facts.weights_gb is not None:
            found[path.parent.name] = facts
    return found


def change_between(source: StartupFacts, target: StartupFacts) -> dict[str, str | None]:
    """The change that makes one start's launch the other's, by canonical knob name."""
    now, then = _launch(source), _launch(target)
    return {name: then.get(name) for name in {*now, *then} if now.get(name) != then.get(name)}


def _launch(facts: StartupFacts) -> dict[str, str | None]:
    """What the launch stated, as far as the printed settings tell it from what the engine resolved."""
    settings = facts.settings
    launch: dict[str, str | None] = {}
    if settings.get("disable_cuda_graph") == "True":
        launch["disable-cuda-graph"] = ""
    elif settings.get("cuda_graph_max_bs_decode"):
        launch["cuda-graph-max-bs"] = settings["cuda_graph_max_bs_decode"]
    if settings.get("cuda_graph_backend_prefill") == "disabled":
        launch["cuda-graph-backend-prefill"] = "disabled"
    if float(settings["mem_fraction_static"]) > 0.95:
        launch["mem-fraction-static"] = settings["mem_fraction_static"]
    launch["max-running-requests"] = settings.get("max_running_requests") or str(facts.max_running_requests or 4096)
    if settings.get("disable_overlap_schedule") == "True":
        launch["disable-overlap-schedule"] = ""
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
        "free after capture": then.free_after_capture_gb,
        "capture seconds": None if capture is None else capture.seconds,
    }
    covered = {
        name: name in rows and rows[name].low <= value <= rows[name].high
        for name, value in measured.items()
        if value is not None
    }
    free = made.free_after_capture
    return Trial(source, target, history, covered, 0.0 if free is None else free.high - free.low, made.fits, asked)


def restart_trials() -> list[bool]:
    """Each of five recorded boots of one configuration, forecast from the other four."""
    boots = json.loads((RECORDINGS / "repeated-boots.json").read_text(encoding="utf-8"))["boots"]
    seconds = [float(boot["ready_s"]) for boot in boots]
    covered = []
    for index, held_out in enumerate(seconds):
        rest = seconds[:index] + seconds[index + 1 :]
        found = restart_seconds(StartupFacts(engine="sglang"), rest, [])
        covered.append(found is not None and found.low <= held_out <= found.high)
    return covered


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables.

    Returns:
        1 where free memory is missed, a plain change of the largest graph is too wide, or a death was not foreseen.
    """
    argparse.ArgumentParser(description="hold out each recorded start and forecast it").parse_args(arguments)
    recorded = starts()
    failed = False
    for with_history in (False, True):
        found = trials(recorded, with_history=with_history)
        print(f"{'with the others as history' if with_history else 'from one start alone'}")
        print(f"  {'from':<16} {'to':<16} {'KV':>5} {'graphs':>7} {'free':>5} {'secs':>5} {'width GB':>9}  says")
        for trial in found:
            marks = [
                _mark(trial.covered.get(name))
                for name in ("KV pool", "decode graphs", "free after capture", "capture seconds")
            ]
            print(
                f"  {trial.source:<16} {trial.target:<16} {marks[0]:>5} {marks[1]:>7} {marks[2]:>5} {marks[3]:>5} "
                f"{trial.width_gb:9.2f}  {trial.fits}"
            )
            died = recorded[trial.target].cause is not None
            too_wide = trial.asked == ("cuda-graph-max-bs",) and trial.width_gb > WIDEST_GB
            failed = (
                failed
                or not trial.covered.get("free after capture", True)
                or too_wide
                or (died and trial.fits == "fits")
            )
        hits = [hit for trial in found for hit in trial.covered.values()]
        print(f"  covered {sum(hits)} of {len(hits)}, mean width {fmean(trial.width_gb for trial in found):.2f} GB\n")
    alone = forecast(facts=recorded["m_bs32"], change={"cuda-graph-max-bs": "96"}, floor_gb=FLOOR_GB).free_after_capture
    assert alone is not None
    print(
        f"m_bs32 to 96 (no recording to compare with): {alone.low:.2f} to {alone.high:.2f} GB, "
        f"{alone.high - alone.low:.2f} wide"
    )
    boots = restart_trials()
    print(f"restart seconds, each of {len(boots)} boots from the other {len(boots) - 1}: covered {sum(boots)}")
    failed = failed or alone.high - alone.low > WIDEST_GB
    print("FAILED" if failed else "within what is asked")
    return 1 if failed else 0


def _mark(covered: bool | None) -> str:
    return "-" if covered is None else "yes" if covered else "NO"


if __name__ == "__main__":
    sys.exit(main())
