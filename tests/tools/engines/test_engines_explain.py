"""What an operator reads about a knob, and of a forecast at a glance."""

from pathlib import Path

import pytest

from tools.engines.catalogue import knob_named, knobs
from tools.engines.explain import knob_lines, memory_bar
from tools.engines.facts import StartupFacts
from tools.engines.log_lines import lines_of
from tools.engines.sglang_log import read_log
from tools.engines.sglang_memory import forecast

RECORDINGS = Path(__file__).parents[2] / "data" / "recordings" / "sglang-0.5.14-h200"


def test_a_knob_is_explained_for_this_worker():
    """Now, bounds, spelling of this version and its fate, couplings with their values, risk and source."""
    knob = knob_named("sglang", "cuda-graph-max-bs")

    said = "\n".join(
        knob_lines(knob, "0.5.14", written="32", values={"cuda-graph-max-bs": "32", "max-running-requests": "256"})
    )

    assert "now          32; in the script 32" in said
    assert "1..1024 requests" in said
    assert "--cuda-graph-max-bs-decode, --cuda-graph-max-bs (sglang 0.5.14)" in said
    assert "--cuda-graph-max-bs: deprecated 0.5.14, gone 0.5.20" in said
    assert "with max-running-requests = 256" in said
    assert "demands: sessions, throughput" in said


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_every_knob_can_be_explained(engine):
    """Whatever is known of it, it begins with its name and ends with its source."""
    for knob in knobs(engine):
        lines = knob_lines(knob, None)

        assert lines[0].startswith(knob.name)
        assert lines[-1].endswith(knob.source)


def test_the_bar_shows_what_stays_free_against_the_floor():
    """Most of it weights and pool, the floor marked inside of what is free."""
    with (RECORDINGS / "q_bs32" / "startup.log").open("rb") as stream:
        facts = read_log(lines_of(stream)).facts

    bar, legend = memory_bar(forecast(facts=facts, change={"cuda-graph-max-bs": "96"}, floor_gb=6.0), 6.0).split("\n")

    assert bar.count("K") > bar.count("W") > bar.count("G") > 0
    assert bar.index("?") < bar.index("|")
    assert "." in bar[bar.index("|") :]
    assert "6 GB" in legend


def test_there_is_no_bar_without_a_forecast():
    """Nothing known, nothing drawn."""
    empty = forecast(facts=StartupFacts(engine="sglang"), change={"cuda-graph-max-bs": "96"}, floor_gb=6.0)

    assert memory_bar(empty, 6.0) == ""
