"""Before any edit: would this exact engine version take the launch as it is written."""

# ruff: noqa: E501 - a case reads best on one line

from pathlib import Path

import pytest

from tools.engines.catalogue import knobs, spellings
from tools.engines.contract import check_contract
from tools.engines.help_text import Installed, flags_in_help
from tools.engines.log_lines import lines_of
from tools.engines.sglang_log import read_log

RECORDINGS = Path(__file__).parents[2] / "data" / "recordings" / "sglang-0.5.14-h200"


def facts_of(name):
    """A recorded start."""
    with (RECORDINGS / name / "startup.log").open("rb") as stream:
        return read_log(lines_of(stream)).facts


USAGE = (RECORDINGS / "q_bad_flag" / "startup.log").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("version", "spelling", "kind", "refuse"),
    [
        ("0.5.13", "--cuda-graph-max-bs", None, False),
        ("0.5.14", "--cuda-graph-max-bs", "deprecated", False),
        ("0.5.14", "--cuda-graph-max-bs-decode", None, False),
        ("0.5.13", "--cuda-graph-max-bs-decode", "too_new", True),
        ("0.5.20", "--cuda-graph-max-bs", "ambiguous", True),
        ("0.5.20", "--cuda-graph-max-bs-decode", None, False),
        (None, "--cuda-graph-max-bs", None, False),
        ("0.5.14", "--cuda_graph_max_bs", "unknown", True),
    ],
)
def test_a_spelling_is_held_against_the_exact_version(version, spelling, kind, refuse):
    """Known, deprecated, too new, or gone and thereby ambiguous."""
    remarks = check_contract(
        "sglang", version, launch={"cuda-graph-max-bs": "96"}, spelled={"cuda-graph-max-bs": spelling}
    )

    assert [(remark.kind, remark.refuse) for remark in remarks] == ([] if kind is None else [(kind, refuse)])


def test_the_removed_flag_names_what_the_parser_would_name():
    """It would be ambiguous between the two flags that begin like it."""
    (remark,) = check_contract(
        "sglang", "0.5.23", launch={"cuda-graph-max-bs": "96"}, spelled={"cuda-graph-max-bs": "--cuda-graph-max-bs"}
    )

    assert "--cuda-graph-max-bs-decode or --cuda-graph-max-bs-prefill" in remark.says
    assert "removed in 0.5.20" in remark.says


def test_the_installed_engines_own_help_is_believed():
    """The recorded usage of 0.5.14 knows the old and the new flag and not the one that was refused."""
    known = flags_in_help(USAGE)

    assert len(known) > 400
    assert {"--cuda-graph-max-bs", "--cuda-graph-max-bs-decode", "--mem-fraction-static", "-h"} <= known
    assert "--cuda-graph-max-batch" not in known
    asked = Installed(version="0.5.14", flags=known, basis="the --help of the installed 0.5.14")
    remark, basis = check_contract(
        "sglang",
        "0.5.14",
        launch={},
        spelled={"--cuda-graph-max-batch": "--cuda-graph-max-batch"},
        installed=asked,
    )
    assert (remark.kind, remark.refuse) == ("unknown", True)
    assert "--cuda-graph-max-bs" in remark.says
    assert (basis.kind, basis.refuse) == ("asked", False)


def test_a_flag_that_the_help_lists_may_be_deprecated_all_the_same():
    """The catalogue knows what the help does not say."""
    asked = Installed(version="0.5.14", flags=flags_in_help(USAGE), basis="the --help of the installed 0.5.14")

    remarks = check_contract(
        "sglang",
        "0.5.14",
        launch={"cuda-graph-max-bs": "96"},
        spelled={"cuda-graph-max-bs": "--cuda-graph-max-bs"},
        installed=asked,
    )

    assert [(remark.kind, remark.refuse) for remark in remarks] == [("deprecated", False), ("asked", False)]


@pytest.mark.parametrize("changed", [(), ("max-running-requests",)])
def test_what_is_installed_counts_and_not_what_runs(changed):
    """The next start is the installed version's: it has dropped the flag, though the running one was started with it."""
    asked = Installed(version="0.5.20", basis="the --help of the installed 0.5.20 could not be asked: no end in time")

    remarks = check_contract(
        "sglang",
        "0.5.14",
        launch={"cuda-graph-max-bs": "96", "max-running-requests": "256"},
        spelled={"cuda-graph-max-bs": "--cuda-graph-max-bs", "max-running-requests": "--max-running-requests"},
        changed=changed,
        installed=asked,
    )

    assert [(remark.kind, remark.refuse) for remark in remarks] == [
        ("ambiguous", True),
        ("other_version", False),
        ("not_asked", False),
    ]
    assert "0.5.20 is installed while 0.5.14 runs" in remarks[1].says
    assert "no end in time" in remarks[2].says


def test_every_flag_of_the_catalogue_for_0_5_14_is_one_that_0_5_14_has():
    """The recorded usage text lists each flag once; further aliases of the parallel sizes are not in it."""
    known = flags_in_help(USAGE)
    missing = [
        spelling
        for knob in knobs("sglang")
        if knob.kind == "flag"
        for spelling in spellings(knob, "0.5.14")
        if spelling not in known
    ]

    assert set(missing) <= {
        f"--{name}"
        for name in (
            "tensor-parallel-size",
            "tp",
            "data-parallel-size",
            "dp",
            "expert-parallel-size",
            "ep",
            "pipeline-parallel-size",
        )
    }


@pytest.mark.parametrize(
    ("launch", "knob", "kind"),
    [
        ({"cuda-graph-max-bs": "96", "max-running-requests": "48"}, "cuda-graph-max-bs", "truncated"),
        ({"cuda-graph-max-bs": "96", "max-running-requests": "256", "dp-size": "4"}, "cuda-graph-max-bs", "truncated"),
        ({"cuda-graph-max-bs": "96", "disable-cuda-graph": ""}, "cuda-graph-max-bs", "ignored"),
        ({"cuda-graph-max-bs": "96", "cuda-graph-bs": "1 2 4 64"}, "cuda-graph-max-bs", "ignored"),
        (
            {"cuda-graph-max-bs": "96", "cuda-graph-config": '{"decode": {"max_bs": 32}}'},
            "cuda-graph-max-bs",
            "ignored",
        ),
        ({"max-running-requests": "256", "dp-size": "4"}, "max-running-requests", "clamped"),
        ({"enable-hierarchical-cache": "", "disable-radix-cache": ""}, "enable-hierarchical-cache", "contradicts"),
        (
            {"enable-hierarchical-cache": "", "disaggregation-mode": "decode"},
            "enable-hierarchical-cache",
            "contradicts",
        ),
        ({"hicache-ratio": "2"}, "hicache-ratio", "ignored"),
        ({"max-queued-requests": "32", "disaggregation-mode": "decode"}, "max-queued-requests", "ignored"),
        ({"pp-size": "2"}, "disable-overlap-schedule", "ignored"),
        ({"moe-a2a-backend": "deepep", "max-running-requests": "256"}, "max-running-requests", "contradicts"),
        ({"watchdog-timeout": "30"}, "watchdog-timeout", "contradicts"),
        ({"SGLANG_OPT_USE_MULTI_STREAM_OVERLAP": "0"}, "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP", "not_read"),
        ({"mem-fraction-static": "1.5"}, "mem-fraction-static", "bad_value"),
        ({"max-total-tokens": "999999999"}, "max-total-tokens", "ignored"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else value,
)
def test_settings_that_bear_on_each_other_are_seen_before_the_edit(launch, knob, kind):
    """With the start of a real worker (DeepSeek-V2-Lite, capture 23.6 s, 3.4 million KV tokens)."""
    remarks = check_contract("sglang", "0.5.14", launch=launch, spelled={}, facts=facts_of("m_bs32"))

    assert (knob, kind) in [(remark.knob, remark.kind) for remark in remarks]
    assert all(remark.refuse == (remark.kind in ("contradicts", "bad_value")) for remark in remarks)


def test_a_launch_as_the_seeds_have_it_raises_no_remark():
    """What is right is left alone."""
    launch = {
        "cuda-graph-max-bs": "96",
        "max-running-requests": "256",
        "mem-fraction-static": "0.85",
        "disable-overlap-schedule": "",
        "tp-size": "4",
        "enable-metrics": "",
    }
    spelled = {"cuda-graph-max-bs": "--cuda-graph-max-bs-decode", "tp-size": "--tp"}

    assert check_contract("sglang", "0.5.14", launch=launch, spelled=spelled) == ()


def test_remarks_on_what_is_not_being_changed_stay_away():
    """A deprecated flag elsewhere in the script is no reason to hold a change up."""
    launch = {"hicache-ratio": "2", "max-running-requests": "128"}

    assert not check_contract("sglang", "0.5.14", launch=launch, spelled={}, changed=("max-running-requests",))


@pytest.mark.parametrize(
    ("launch", "knob", "kind"),
    [
        ({"max-cudagraph-capture-size": "96", "cudagraph-capture-sizes": "1 2 64"}, "max-cudagraph-capture-size", "contradicts"),
        ({"max-cudagraph-capture-size": "96", "enforce-eager": ""}, "max-cudagraph-capture-size", "ignored"),
        ({"max-cudagraph-capture-size": "512", "max-num-batched-tokens": "256"}, "max-cudagraph-capture-size", "clamped"),
        ({"enable-auto-tool-choice": ""}, "enable-auto-tool-choice", "contradicts"),
        ({"gpu-memory-utilization": "0.9", "kv-cache-memory-bytes": "20G"}, "gpu-memory-utilization", "ignored"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else value,
)  # fmt: skip
def test_vllm_has_couplings_of_its_own(launch, knob, kind):
    """Two sizes that disagree, a list beside eager mode, a bound, a parser that is missing."""
    remarks = check_contract("vllm", "0.24.0", launch=launch, spelled={})

    assert (knob, kind) in [(remark.knob, remark.kind) for remark in remarks]


def test_a_name_that_nobody_knows_points_to_the_nearest():
    """A typing mistake names what was meant, perhaps."""
    (remark,) = check_contract("sglang", "0.5.14", launch={}, spelled={"x": "--max-runing-requests"})

    assert remark.kind == "unknown"
    assert "--max-running-requests" in remark.says
