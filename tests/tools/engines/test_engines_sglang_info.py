"""What the engine reports against what was meant and what was."""

import json
from pathlib import Path

import pytest

from tools.engines.catalogue import in_force, knobs
from tools.engines.drift import compare
from tools.engines.log_lines import lines_of
from tools.engines.sglang_info import effective, graph_gb, version
from tools.engines.sglang_log import read_log

RECORDINGS = Path(__file__).parents[2] / "data" / "recordings" / "sglang-0.5.14-h200"
KNOBS = knobs("sglang")


def info_of(name):
    """The recorded answer of /server_info."""
    return json.loads((RECORDINGS / name / "server_info.json").read_text(encoding="utf-8"))


def facts_of(name):
    """The recorded start."""
    with (RECORDINGS / name / "startup.log").open("rb") as stream:
        return read_log(lines_of(stream)).facts


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("q_bs32", {"cuda-graph-max-bs": "32", "disable-overlap-schedule": "on", "max-running-requests": "4096"}),
        ("q_bs96", {"cuda-graph-max-bs": "96", "disable-overlap-schedule": "on", "mem-fraction-static": "0.906"}),
        ("q_bs96_overlap", {"cuda-graph-max-bs": "96", "disable-overlap-schedule": "off"}),
        ("q_mrr48", {"max-running-requests": "48", "cuda-graph-backend-prefill": "disabled"}),
        ("q_oom_mf99", {"mem-fraction-static": "0.99", "cuda-graph-max-bs": "256"}),
        ("m_bs32", {"cuda-graph-max-bs": "32", "context-length": "8192", "enable-metrics": "on"}),
    ],
)
def test_values_in_force_are_those_of_the_recorded_start(name, expected):
    """By canonical knob name, in one text form, wherever the engine hides them."""
    values = effective(info_of(name), KNOBS)

    assert {knob: values.get(knob) for knob in expected} == expected
    assert not [knob.name for knob in KNOBS if knob.kind == "env" and knob.name in values]


def test_the_flat_form_of_older_versions_means_the_same():
    """0.5.13 has no nested capture settings."""
    flat = {
        "cuda_graph_max_bs": 96,
        "cuda_graph_bs": [1, 2, 96],
        "disable_cuda_graph": False,
        "max_running_requests": 128,
        "disable_overlap_schedule": True,
        "mem_fraction_static": 0.85,
        "version": "0.5.13",
    }

    values = effective(flat, KNOBS)

    assert values["cuda-graph-max-bs"] == "96"
    assert values["cuda-graph-bs"] == "1,2,96"
    assert values["max-running-requests"] == "128"
    assert values["disable-overlap-schedule"] == "on"
    assert version(flat) == "0.5.13"


def test_capture_that_is_off_reports_no_largest_batch():
    """The engine still lists 256 sizes; none of them is captured."""
    values = effective(info_of("q_eager"), KNOBS)

    assert "cuda-graph-max-bs" not in values
    assert values["disable-cuda-graph"] == "on"


def test_a_capture_list_that_was_cut_shows_only_with_the_log():
    """With 48 running requests the engine still reports 96 and captured 48."""
    info, facts = info_of("q_mrr48"), facts_of("q_mrr48")

    assert effective(info, KNOBS)["cuda-graph-max-bs"] == "96"
    assert effective(info, KNOBS, facts=facts)["cuda-graph-max-bs"] == "48"


def test_a_change_that_took_leaves_no_finding():
    """32 to 96, and nothing else moved."""
    meant = {knob.name: in_force(knob, "96") for knob in KNOBS if knob.name == "cuda-graph-max-bs"}

    found = compare(
        meant,
        effective(info_of("q_bs96"), KNOBS, facts=facts_of("q_bs96")),
        effective(info_of("q_bs32"), KNOBS, facts=facts_of("q_bs32")),
        knobs=KNOBS,
        changed=("cuda-graph-max-bs", "cuda-graph-bs"),
    )

    assert not found


def test_a_knob_that_did_not_take_is_found():
    """The worker still runs with 32, as if nothing had been edited."""
    last = effective(info_of("q_bs32"), KNOBS)

    found = compare({"cuda-graph-max-bs": "96"}, last, last, knobs=KNOBS, changed=("cuda-graph-max-bs",))

    assert [(drift.knob, drift.kind) for drift in found] == [("cuda-graph-max-bs", "did_not_take")]
    assert found[0].says == "cuda-graph-max-bs was asked to be 96 and is 32 as before."


def test_values_that_moved_without_being_asked_are_found_and_explained():
    """Prefill capture went off between the two starts, and the memory fraction moved with it."""
    found = compare(
        {"cuda-graph-backend-prefill": "disabled"},
        effective(info_of("q_bs96_overlap"), KNOBS),
        effective(info_of("q_bs96"), KNOBS),
        knobs=KNOBS,
        changed=("cuda-graph-backend-prefill",),
    )
    moved = {drift.knob: drift for drift in found}

    assert {drift.kind for drift in found} == {"moved"}
    assert moved["mem-fraction-static"].side_effect_of == "cuda-graph-backend-prefill"
    assert (moved["disable-overlap-schedule"].before, moved["disable-overlap-schedule"].effective) == ("on", "off")
    assert moved["disable-overlap-schedule"].side_effect_of is None


@pytest.mark.parametrize(("was", "is_now", "found"), [("3021", "3019", 0), ("3021", "2800", 1), ("96", "95", 1)])
def test_a_limit_that_the_pool_sets_may_differ_a_little_between_starts(was, is_now, found):
    """A resolved running limit follows the free memory of the boot; a small captured size does not."""
    drifts = compare({}, {"max-running-requests": is_now}, {"max-running-requests": was}, knobs=KNOBS)

    assert len(drifts) == found


def test_what_the_engine_does_not_report_is_not_taken_for_proven():
    """Silence about a knob that was asked for is a finding."""
    found = compare({"cuda-graph-max-bs": "96"}, {}, {}, knobs=KNOBS)

    assert [drift.kind for drift in found] == ["not_reported"]


@pytest.mark.parametrize("info", [{}, {"internal_states": []}, {"internal_states": "x"}, {"cuda_graph_config": None}])
def test_a_strange_answer_reports_nothing(info):
    """Whatever came over HTTP, nothing is invented and nothing raises."""
    assert effective(info, KNOBS) == {}
    assert graph_gb(info) is None
    assert version(info) is None


def test_the_engine_counts_its_graphs():
    """GB of graphs without reading a log."""
    assert graph_gb(info_of("q_bs96")) == 0.18
