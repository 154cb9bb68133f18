"""How often the forecast of vLLM covers what a practice worker measures, and how wide it is.

    python -m evals.bench.forecast_vllm

No vLLM was recorded, so the starts are those of a practice worker that accounts for memory as 0.24.0 does: it is
started at several settings, one after the other, and its log is read as a real one. Each start is held out in turn and
forecast from every other, from that one alone and with the rest as history. What it shows is that figures are read and
carried rightly; how well the priors fit a real GPU, it cannot show.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from evals.lab import ground
from tools.engines.engine import engine_of
from tools.engines.facts import StartupFacts
from tools.engines.log_lines import lines_of

FLOOR_GB = 6.0
"""Floor of free memory, as the shipped policy has it."""
WIDEST_GB = 1.0
"""How wide the forecast of free memory may be, up to graphs of `WIDEST_UP_TO`."""
WIDEST_UP_TO = 96
"""The largest graph for which that holds."""
SETTINGS: Mapping[str, Mapping[str, str | None]] = {
    "captured to 32": {},
    "captured to 96": {"max-cudagraph-capture-size": "96"},
    "captured to 256": {"max-cudagraph-capture-size": "256"},
    "64 at once": {"max-num-seqs": "64"},
    "512 at once": {"max-num-seqs": "512"},
    "share of 0.80": {"gpu-memory-utilization": "0.80"},
    "share of 0.90": {"gpu-memory-utilization": "0.90"},
    "eager": {"enforce-eager": ""},
}
"""What is written over the practice worker's script for each start."""
BASE: Mapping[str, str | None] = {
    "max-cudagraph-capture-size": "32",
    "max-num-seqs": "256",
    "gpu-memory-utilization": "0.85",
    "enforce-eager": None,
}
"""What it says by itself."""
_READY_SECONDS = 120.0


class Trial(NamedTuple):
    """One forecast of a start that was held out."""

    source: str
    """The start that it was made from."""
    target: str
    """The start that was forecast."""
    covered: Mapping[str, bool]
    """For each figure that was measured and forecast, whether its interval holds it."""
    width_gb: float
    """Width of the interval of free memory."""
    fits: str
    """What the forecast said."""


def starts(directory: Path, names: Sequence[str], seed: int) -> dict[str, StartupFacts]:
    """Start a practice worker at each of the settings and read its log.

    Raises:
        GroundError: it did not come up.
    """
    made = ground.up(directory, engine="vllm", faults=(), seed=seed)
    try:
        script = made.script.read_text(encoding="utf-8")
        settings = tomllib.loads(made.settings.read_text(encoding="utf-8"))
        for name in names:
            made.script.write_text(_written(script, SETTINGS[name]), encoding="utf-8")
            subprocess.run(settings["workers"]["decode"]["service"]["restart"], check=True, capture_output=True)
            _await_ready(directory)
        with made.log.open("rb") as stream:
            log = engine_of("vllm").read_log(lines_of(stream), earlier=len(names))
    finally:
        ground.down(directory)
    found = [*log.earlier, log.facts][-len(names) :]
    return {name: facts for name, facts in zip(names, found, strict=True) if facts is not None}


def _written(script: str, settings: Mapping[str, str | None]) -> str:
    for name, value in settings.items():
        now = BASE[name]
        if now is None:
            script = script.replace("    --max-num-seqs", f"    --{name} \\\n    --max-num-seqs")
        else:
            script = script.replace(f"--{name} {now}", f"--{name} {value}")
    return script


def _await_ready(directory: Path) -> None:
    until = time.monotonic() + _READY_SECONDS
    while not ground.status(directory).ready:
        if time.monotonic() > until:
            raise ground.GroundError("the worker did not come up")
        time.sleep(0.1)


def trials(measured: Mapping[str, StartupFacts], *, with_history: bool) -> list[Trial]:
    """Forecast every start from every other."""
    found = []
    for target, then in measured.items():
        for source, now in measured.items():
            if source == target:
                continue
            rest = [facts for name, facts in measured.items() if name not in (source, target)] if with_history else []
            before, after = {**BASE, **SETTINGS[source]}, {**BASE, **SETTINGS[target]}
            change = {name: value for name, value in after.items() if value != before[name]}
            made = engine_of("vllm").forecast(facts=now, history=rest, change=change, floor_gb=FLOOR_GB)
            rows = {row.name: row.then for row in made.rows}
            capture = then.decode_capture
            figures = {
                "KV pool": then.kv_gb,
                "decode graphs": None if capture is None else capture.gb,
                "free after capture": then.free_after_capture_gb,
            }
            covered = {
                name: rows[name].low <= value <= rows[name].high
                for name, value in figures.items()
                if value is not None and name in rows
            }
            free = made.free_after_capture
            found.append(Trial(source, target, covered, 0.0 if free is None else free.high - free.low, made.fits))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables.

    Returns:
        1 where free memory is missed or its interval is too wide.
    """
    parser = argparse.ArgumentParser(description="hold out each start of a practice vLLM and forecast it")
    parser.add_argument("--seed", type=int, default=5, help="seed of the practice worker")
    parser.add_argument("--only", nargs="*", choices=list(SETTINGS), default=list(SETTINGS), help="which starts")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="prudent-vllm-") as folder:
        measured = starts(Path(folder) / "lab", asked.only, asked.seed)
    failed = False
    for with_history in (False, True):
        found = trials(measured, with_history=with_history)
        print("with the others as history" if with_history else "from one start alone")
        print(f"  {'from':<16} {'to':<16} {'KV':>5} {'graphs':>7} {'free':>5} {'width GB':>9}  says")
        for trial in found:
            marks = [
                {True: "yes", False: "NO", None: "-"}[trial.covered.get(name)]
                for name in ("KV pool", "decode graphs", "free after capture")
            ]
            print(
                f"  {trial.source:<16} {trial.target:<16} {marks[0]:>5} {marks[1]:>7} {marks[2]:>5} "
                f"{trial.width_gb:9.2f}  {trial.fits}"
            )
            capture = measured[trial.target].decode_capture
            narrow = capture is None or max(capture.sizes) <= WIDEST_UP_TO
            too_wide = narrow and trial.width_gb > WIDEST_GB
            failed = failed or not trial.covered.get("free after capture", True) or too_wide
        hits = [hit for trial in found for hit in trial.covered.values()]
        width = fmean(trial.width_gb for trial in found)
        print(f"  covered {sum(hits)} of {len(hits)}, mean width {width:.2f} GB\n")
    print("FAILED" if failed else "within what is asked")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
