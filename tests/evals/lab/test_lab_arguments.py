"""argv as a 0.5.14 takes it."""

from pathlib import Path

import pytest

from evals.lab.arguments import parse, resolve
from evals.lab.specimen import DEEPSEEK_V4_FLASH, QWEN3_8B

RECORDED = Path(__file__).parents[2] / "data" / "recordings" / "sglang-0.5.14-h200" / "q_bad_flag" / "startup.log"
MODEL = ["--model-path", "/models/flash", "--tp", "4"]


def test_an_unknown_flag_ends_as_recorded(capsys):
    """A flag that does not exist ends with status 2 and, to the byte, the text that the real engine printed."""
    with pytest.raises(SystemExit) as ended:
        parse([*MODEL, "--cuda-graph-max-batch", "96"])

    assert ended.value.code == 2
    recorded = RECORDED.read_text(encoding="utf-8")
    assert capsys.readouterr().err == recorded[recorded.index("usage: ") :]


def test_old_names_are_taken_with_a_warning(capsys):
    """The old spelling of the largest captured batch sets the new field and warns in bold yellow."""
    values = parse([*MODEL, "--cuda-graph-max-bs", "96"])

    assert values["cuda_graph_max_bs_decode"] == 96
    assert capsys.readouterr().err == (
        "\033[1;33m'--cuda-graph-max-bs' is deprecated and will be removed in a future release."
        " Use '--cuda-graph-max-bs-decode' instead.\033[0m\n"
    )


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["--cuda-graph-max-bs-decode", "96"], "cuda_graph_max_bs_decode", 96),
        (["--cuda-graph-bs-decode", "1", "2", "96"], "cuda_graph_bs_decode", [1, 2, 96]),
        (["--disable-overlap-sch"], "disable_overlap_schedule", True),
        (["--mem-frac=0.9"], "mem_fraction_static", 0.9),
        (["--tensor-parallel-size", "8"], "tp_size", 8),
        (["--max-running-requests", "48"], "max_running_requests", 48),
        (["--served-model-name", "x"], "served_model_name", "x"),
        (["--watchdog-timeout", "3600"], "watchdog_timeout", 3600.0),
        (["--attention-backend", "triton"], "attention_backend", "triton"),
        (["--max-running-requests", "48", "--max-running-requests", "64"], "max_running_requests", 64),
    ],
)
def test_flags_set_their_fields(words, field, value):
    """New names, abbreviations, equals signs, second names and repeated flags mean what argparse makes of them."""
    assert parse([*MODEL, *words])[field] == value


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--max-running-requests", "many"], "argument --max-running-requests: invalid int value: 'many'"),
        (["--schedule-policy", "best"], "argument --schedule-policy: invalid choice: 'best'"),
        (["--cuda-graph-max-b", "3"], "ambiguous option: --cuda-graph-max-b could match"),
        (["--port"], "argument --port: expected one argument"),
    ],
)
def test_wrong_values_end_with_status_two(words, sentence, capsys):
    """A wrong kind of value, an unknown choice, an ambiguous or empty flag is refused in argparse's words."""
    with pytest.raises(SystemExit) as ended:
        parse([*MODEL, *words])

    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_what_is_left_open_is_filled_in():
    """Unset arguments become what the engine chooses for this model on these cards."""
    launch = resolve(parse(MODEL), DEEPSEEK_V4_FLASH, seed=7)

    chosen = launch.arguments
    assert (chosen["max_running_requests"], chosen["page_size"], chosen["kv_cache_dtype"]) == (256, 256, "fp8_e4m3")
    assert chosen["attention_backend"] == "dsv4"
    # 97887 MiB: 512 + 8192 * 1.5 + 512 * 2 + 512 reserved.
    assert chosen["mem_fraction_static"] == 0.854
    assert launch.sizes[-1] == 512
    said = launch.dialect.shown(chosen)
    assert "cuda_graph_config=CudaGraphConfig(decode=PhaseConfig(backend='full', max_bs=512, bs=[1, 2," in said


def test_graphs_can_be_switched_off():
    """Each of the ways to switch decode graphs off leaves nothing to capture."""
    for words in (["--disable-cuda-graph"], ["--cuda-graph-backend-decode=disabled"], ["--disable-decode-cuda-graph"]):
        assert resolve(parse([*MODEL, *words]), DEEPSEEK_V4_FLASH, seed=0).sizes == []


def test_the_json_form_wins():
    """The graph configuration in JSON overrules the single flags."""
    words = ["--cuda-graph-max-bs-decode", "96", "--cuda-graph-config", '{"decode": {"max_bs": 24}}']

    assert resolve(parse([*MODEL, *words]), DEEPSEEK_V4_FLASH, seed=0).sizes == [1, 2, 4, 8, 12, 16, 24]


def test_contradictions_are_refused():
    """A hierarchical cache without a radix cache is refused in the engine's words."""
    values = parse([*MODEL, "--enable-hierarchical-cache", "--disable-radix-cache"])

    with pytest.raises(ValueError, match="enable-hierarchical-cache and disable-radix-cache are mutually exclusive"):
        resolve(values, DEEPSEEK_V4_FLASH, seed=0)


@pytest.mark.parametrize(
    "words",
    [
        ["--enable-hierarchical-cache"],
        ["--pp-size", "2"],
        ["--enable-dp-attention", "--dp-size", "2"],
        ["--cpu-offload-gb", "8"],
        ["--enable-symm-mem"],
        ["--disaggregation-mode", "decode"],
    ],
)
def test_some_settings_do_without_prefill_graphs(words):
    """What the engine cannot capture prefill together with switches it off by itself; decode stays."""
    launch = resolve(parse(["--model-path", "/models/qwen", *words]), QWEN3_8B, seed=0)

    assert launch.arguments["cuda_graph_config"]["prefill"]["backend"] == "disabled"
    assert launch.sizes
