"""The forecast covers what was measured, by being right and not by being wide."""

from pathlib import Path

import pytest

from evals.bench.forecast import main
from tools.engines.facts import Capture, StartupFacts
from tools.engines.log_lines import lines_of
from tools.engines.model_shape import read_shape
from tools.engines.sglang_log import read_log
from tools.engines.sglang_memory import capture_list, forecast

RECORDINGS = Path(__file__).parents[2] / "data" / "recordings" / "sglang-0.5.14-h200"
TO_96 = {"cuda-graph-max-bs": "96"}


def facts_of(name):
    """The recorded start."""
    with (RECORDINGS / name / "startup.log").open("rb") as stream:
        return read_log(lines_of(stream), version="0.5.14").facts


def row(found, name):
    """What is expected of a row."""
    return next(row.then for row in found.rows if row.name == name)


def covers(interval, value):
    """Whether an interval covers a value."""
    return interval is not None and interval.low <= value <= interval.high


@pytest.mark.parametrize(
    ("largest", "speculative", "count", "tail"),
    [
        (32, False, 8, (12, 16, 24, 32)),
        (64, False, 12, (40, 48, 56, 64)),
        (96, False, 16, (72, 80, 88, 96)),
        (100, False, 17, (80, 88, 96, 100)),
        (160, False, 24, (136, 144, 152, 160)),
        (256, False, 36, (232, 240, 248, 256)),
        (512, False, 52, (464, 480, 496, 512)),
        (32, True, 20, (26, 28, 30, 32)),
        (96, True, 31, (72, 80, 88, 96)),
        (256, True, 51, (232, 240, 248, 256)),
    ],
)
def test_the_capture_list_is_the_engines(largest, speculative, count, tail):
    """Number and last sizes as the engine's own source makes them."""
    sizes = capture_list(largest, speculative=speculative)

    assert len(sizes) == count
    assert sizes[-4:] == tail


@pytest.mark.parametrize("name", ["q_bs32", "q_bs96", "q_bs96_overlap", "q_mrr48", "q_oom_mf99", "m_bs32"])
def test_the_capture_list_is_what_a_real_engine_captured(name):
    """Cut at the running limit where that is below the maximum."""
    facts = facts_of(name)
    asked = int(facts.settings["cuda_graph_max_bs_decode"])

    assert capture_list(asked, max_running=facts.max_running_requests) == facts.decode_capture.sizes


def test_from_32_the_forecast_for_96_covers_what_96_measured():
    """Free memory, graphs, KV pool and seconds, and the free memory at most 1 GB wide."""
    found = forecast(facts=facts_of("q_bs32"), change=TO_96, floor_gb=6.0, start_seconds=[67.0])
    then = facts_of("q_bs96")

    assert covers(found.free_after_capture, then.free_after_capture_gb)
    assert found.free_after_capture.high - found.free_after_capture.low <= 1.0
    assert covers(row(found, "decode graphs"), then.decode_capture.gb)
    assert covers(row(found, "KV pool"), then.kv_gb)
    assert covers(row(found, "capture seconds"), then.decode_capture.seconds)
    assert covers(row(found, "captured sizes"), 16)
    assert covers(found.restart_seconds, 74.1)
    assert found.fits == "fits"


def test_of_another_kind_of_model_the_forecast_is_as_narrow():
    """MLA and experts, from 32 to 96: at most 1 GB wide, below what was free and above the floor."""
    found = forecast(facts=facts_of("m_bs32"), change=TO_96, floor_gb=6.0)

    assert found.free_after_capture.high - found.free_after_capture.low <= 1.0
    assert found.free_after_capture.low < 11.86
    assert found.fits == "fits"


def test_it_foresees_the_worker_that_dies_of_its_first_real_batch():
    """Capture would fit and health would answer; what is left does not hold one full prefill."""
    change = {
        "mem-fraction-static": "0.99",
        "cuda-graph-max-bs": "256",
        "cuda-graph-backend-prefill": "disabled",
    }
    then = facts_of("q_oom_mf99")

    for floor in (6.0, 0.5):
        found = forecast(facts=facts_of("q_bs32"), change=change, floor_gb=floor)

        assert covers(found.free_after_capture, then.free_after_capture_gb)
        assert found.free_after_capture.high > 0
        assert covers(row(found, "KV pool"), then.kv_gb)
        assert found.fits in ("does not fit", "unsure")
        assert "first full prefill" in found.why


def test_a_start_that_died_so_makes_the_next_forecast_sure():
    """Once a start with 0.71 GB left has died of its first batches, that is known to be too little."""
    change = {"mem-fraction-static": "0.99", "cuda-graph-max-bs": "256", "cuda-graph-backend-prefill": "disabled"}

    found = forecast(facts=facts_of("q_bs32"), history=[facts_of("q_oom_mf99")], change=change, floor_gb=0.05)

    assert row(found, "first full prefill").low >= 0.71
    assert found.fits != "fits"


def test_each_start_that_is_held_out_is_covered(capsys):
    """From every other start of its kind: free memory within, plain changes at most 1 GB wide, deaths foreseen."""
    assert main([]) == 0

    table = capsys.readouterr().out.split("with the others as history")[1]
    assert "NO" not in table
    assert table.count("q_oom_mf99") >= 10


SEED = StartupFacts(
    engine="sglang",
    model_type="DeepseekV4ForCausalLM",
    settings={"max_queued_requests": "32"},
    captures=(Capture(phase="decode", backend="full", sizes=(1, 2, 4, 8, 12, 16, 24, 32), gb=3.91),),
    kv_tokens=2_360_000,
    kv_gb=40.0,
    max_running_requests=256,
    free_after_capture_gb=15.26,
)


def test_the_seeds_own_numbers():
    """3.91 GB of graphs at 32 and 15.26 GB free; at 96 it became 0.57 GB, about 15 GB, 15 s and 16 graphs."""
    found = forecast(facts=SEED, change=TO_96, floor_gb=6.0, start_seconds=[72.0])

    for about in (14.9, 15.0, 15.1):
        assert covers(found.free_after_capture, about)
    assert found.free_after_capture.high - found.free_after_capture.low <= 1.0
    assert covers(row(found, "decode graphs"), 0.57)
    assert covers(row(found, "capture seconds"), 15.0)
    assert covers(row(found, "captured sizes"), 16)
    assert covers(found.restart_seconds, 75.0)
    assert found.fits == "fits"
    assert "can fall" in found.why
    assert "other capture settings" in found.why


def test_a_figure_that_came_again_is_not_said_to_fall():
    """Two starts of one list with the same graphs: the cost is there to stay."""
    found = forecast(facts=SEED, history=[SEED], change=TO_96, floor_gb=6.0)

    assert row(found, "decode graphs").low >= 3.8
    assert "can fall" not in found.why


DSV4 = SEED.model_copy(update={"context_length": 393_216})


@pytest.mark.parametrize(
    ("variables", "low", "high"),
    [
        (None, 0.0, 6.8),
        ({"SGLANG_OPT_USE_TILELANG_INDEXER": "1"}, 0.0, 0.0),
        ({"SGLANG_FP8_PAGED_MQA_LOGITS_TORCH": "1"}, 4.0, 6.8),
    ],
    ids=["not known", "fused", "torch"],
)
def test_a_buffer_of_batch_times_context_is_not_forgotten(variables, low, high):
    """The torch indexer at 393,216 tokens takes 3.4 GB at 32 and 10.2 at 96, unless the environment leaves it out."""
    without = forecast(facts=SEED, change=TO_96, floor_gb=6.0).free_after_capture
    found = forecast(facts=DSV4, change=TO_96, floor_gb=6.0, variables=variables)

    assert without.high - found.free_after_capture.high == pytest.approx(low, abs=0.2)
    assert without.low - found.free_after_capture.low == pytest.approx(high, abs=0.2)
    assert covers(found.free_after_capture, 15.0) is (low == 0.0)
    assert ("torch indexer" in found.why) is (high > 0.0)


def test_a_worker_that_measured_less_than_the_buffer_cannot_have_it():
    """At a million tokens it would have taken 9 GB at 32; 3.91 were measured."""
    million = SEED.model_copy(update={"context_length": 1_048_576})

    assert covers(forecast(facts=million, change=TO_96, floor_gb=6.0).free_after_capture, 15.0)
    assert "torch indexer" not in forecast(facts=million, change=TO_96, floor_gb=6.0).why


def test_the_queue_is_spoken_of():
    """Queue limit, admission, and the pool at full concurrency, with numbers."""
    said = " ".join(forecast(facts=SEED, change=TO_96, floor_gb=6.0).queue)

    assert "33 to 96" in said
    assert "97 to 256" in said
    assert "32 waiting requests" in said
    assert "With 256 running, each may hold 9,218 tokens" in said


def test_history_makes_the_forecast_narrower():
    """Starts on both sides of what is asked leave no room for a prior."""
    alone = forecast(facts=facts_of("q_mrr48"), change={"max-running-requests": "4096"}, floor_gb=6.0)
    with_past = forecast(
        facts=facts_of("q_mrr48"),
        history=[facts_of("q_bs32"), facts_of("q_bs96_overlap"), facts_of("q_oom_mf99")],
        change={"max-running-requests": "4096"},
        floor_gb=6.0,
    )

    def width(found):
        return found.free_after_capture.high - found.free_after_capture.low

    assert width(with_past) < width(alone)
    assert covers(with_past.free_after_capture, facts_of("q_bs96_overlap").free_after_capture_gb)


def test_a_running_limit_below_the_largest_graph_cuts_the_list_and_frees_its_table():
    """Measured: 10 graphs, 0.10 GB, 12.40 GB free."""
    found = forecast(facts=facts_of("q_bs96_overlap"), change={"max-running-requests": "48"}, floor_gb=6.0)
    then = facts_of("q_mrr48")

    assert covers(found.free_after_capture, then.free_after_capture_gb)
    assert covers(row(found, "decode graphs"), then.decode_capture.gb)
    assert covers(row(found, "captured sizes"), 10)
    assert any("ends at 48, not at 96" in sentence for sentence in found.queue)


@pytest.mark.parametrize("change", [{"disable-overlap-schedule": None}, {"max-queued-requests": "64"}])
def test_a_knob_that_takes_no_gpu_memory_leaves_it(change):
    """A restart, and what was free stays free."""
    found = forecast(facts=facts_of("q_bs96"), change=change, floor_gb=6.0, start_seconds=[70.0, 74.0])

    assert covers(found.free_after_capture, 11.32)
    assert found.free_after_capture.high - found.free_after_capture.low <= 0.1
    assert covers(found.restart_seconds, 72.0)


def test_a_start_without_prefill_capture_is_shorter():
    """Recorded: 74.1 s with it, 45.5 to 73 s without."""
    found = forecast(
        facts=facts_of("q_bs96"), change={"cuda-graph-backend-prefill": "disabled"}, floor_gb=6.0, start_seconds=[74.1]
    )

    for seconds in (47.0, 52.5, 54.5, 57.5):
        assert covers(found.restart_seconds, seconds)


def test_a_damaged_figure_does_not_fill_memory():
    """A log that names a largest batch of a quadrillion is forecast from like any other."""
    damaged = SEED.model_copy(update={"settings": {"cuda_graph_max_bs": "1000000000000000"}})

    assert forecast(facts=damaged, change={"max-running-requests": None}, floor_gb=6.0).rows
    assert len(capture_list(10**15)) < 5000


def test_what_is_not_worked_out_is_said_to_be_unsure():
    """Figures measured with other kernels do not carry over, so there is no number."""
    found = forecast(facts=facts_of("q_bs96"), change={"attention-backend": "fa3"}, floor_gb=6.0)

    assert found.free_after_capture is None
    assert found.fits == "unsure"


def test_without_a_start_nothing_is_forecast():
    """Nothing known, nothing claimed."""
    found = forecast(facts=StartupFacts(engine="sglang"), change=TO_96, floor_gb=6.0)

    assert found.free_after_capture is None
    assert found.restart_seconds is None
    assert found.fits == "unsure"


@pytest.mark.parametrize("name", ["q_bs32", "q_bs96", "q_eager", "m_bs32"])
def test_every_number_has_a_basis(name):
    """Never a bare number: each interval says what it rests on, and its low end is not above its high end."""
    found = forecast(facts=facts_of(name), change={"cuda-graph-max-bs": "64"}, floor_gb=6.0, start_seconds=[60.0])

    for each in found.rows:
        assert each.then.basis
        assert each.then.low <= each.then.high


def test_every_recorded_restart_makes_the_next_one_surer():
    """Restarts that take about as long as each other: each one narrows the interval, and none leaves it."""
    measured = [57.5, 54.5, 60.0, 52.5, 58.0, 56.0, 59.0, 55.0]
    found = [
        forecast(facts=facts_of("q_bs96"), change={}, floor_gb=6.0, start_seconds=measured[:count]).restart_seconds
        for count in range(1, len(measured) + 1)
    ]
    widths = [interval.high - interval.low for interval in found]

    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.7 * widths[0]
    assert all(covers(interval, seconds) for interval, seconds in zip(found, measured[1:], strict=False))


def test_captures_of_two_sizes_tell_what_a_third_costs():
    """Known at 32 and at 96, the graphs at 256 are forecast narrower than from 32 alone, and rightly."""
    to_256 = {"cuda-graph-max-bs": "256", "cuda-graph-backend-prefill": "disabled"}
    then = facts_of("q_oom_mf99").decode_capture

    alone = row(forecast(facts=facts_of("q_bs32"), change=to_256, floor_gb=6.0), "decode graphs")
    both = row(
        forecast(facts=facts_of("q_bs32"), history=[facts_of("q_bs96")], change=to_256, floor_gb=6.0), "decode graphs"
    )

    assert both.high - both.low < alone.high - alone.low
    assert covers(both, then.gb)
    assert covers(alone, then.gb)


QWEN = read_shape(b'{"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "vocab_size": 151936}')
LITE = read_shape(
    b'{"hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_shared_experts": 2,'
    b' "num_experts_per_tok": 6, "num_hidden_layers": 27, "vocab_size": 102400}'
)


def test_with_the_models_sizes_the_logits_and_the_peak_are_rows_too():
    """One fp32 row of the vocabulary for each captured request, and up to two copies: 0.05 to 0.11 GB at 96."""
    found = forecast(facts=facts_of("q_bs32"), change=TO_96, floor_gb=6.0, shape=QWEN)
    logits, peak, graphs = (row(found, name) for name in ("of them logits", "peak while capturing", "decode graphs"))

    assert covers(logits, 96 * 151_936 * 4 / 2**30)
    assert logits.high <= graphs.high
    assert peak.high >= graphs.high
    assert covers(graphs, facts_of("q_bs96").decode_capture.gb)


@pytest.mark.parametrize(
    ("shape", "source", "measured"), [(QWEN, "q_bs96_overlap", 1.29), (LITE, "m_bs32", None)], ids=["dense", "experts"]
)
def test_prefill_graphs_that_were_never_captured_follow_from_the_models_widths(shape, source, measured):
    """Narrower than the fleet prior, and right where it was recorded."""
    change = {"cuda-graph-backend-prefill": None}

    prior = row(forecast(facts=facts_of(source), change=change, floor_gb=6.0), "prefill graphs")
    known = row(forecast(facts=facts_of(source), change=change, floor_gb=6.0, shape=shape), "prefill graphs")

    assert known.high < prior.high
    assert measured is None or covers(known, measured)


def test_a_first_prefill_by_the_models_widths_covers_what_a_worker_died_of():
    """0.71 GB were too little for a chunk of 8,192 tokens."""
    change = {"mem-fraction-static": "0.99", "cuda-graph-max-bs": "256", "cuda-graph-backend-prefill": "disabled"}

    found = forecast(facts=facts_of("q_bs96_overlap"), change=change, floor_gb=0.1, shape=QWEN)

    assert row(found, "first full prefill").high > 0.71
    assert found.fits != "fits"


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{", b'{"hidden_size": true, "vocab_size": -4}', b"\xff" * 90, b"[" * 100_000]
)
def test_a_config_that_says_nothing_useful_is_no_shape(text):
    """Prior stands, nothing breaks."""
    shape = read_shape(text)

    assert shape is None or shape.activation_bytes is None
    assert forecast(facts=facts_of("q_bs32"), change=TO_96, floor_gb=6.0, shape=shape).fits == "fits"


def test_a_memory_fraction_that_is_taken_out_becomes_the_engines_own():
    """From 0.99 back to what it chooses for this GPU, which the other starts have: the pool shrinks by 11 to 12 GB."""
    change = {"mem-fraction-static": None, "cuda-graph-max-bs": "96"}
    then = facts_of("q_bs96_overlap")

    found = forecast(facts=facts_of("q_oom_mf99"), change=change, floor_gb=6.0)

    assert covers(found.free_after_capture, then.free_after_capture_gb)
    assert covers(row(found, "KV pool"), then.kv_gb)
    assert found.free_after_capture.high - found.free_after_capture.low <= 1.0


def test_a_limit_on_the_pool_that_is_taken_out_gives_the_pool_what_memory_allows():
    """The measured pool was the limit's; what the weights leave inside of the memory fraction is the engine's."""
    full = facts_of("q_bs32")
    cut = full.model_copy(
        update={
            "settings": {**full.settings, "max_total_tokens": "100000"},
            "kv_tokens": 100_000,
            "kv_gb": 13.73,
            "free_after_capture_gb": full.free_after_capture_gb + 97.03,
        }
    )

    found = forecast(facts=cut, change={"max-total-tokens": None}, floor_gb=6.0, stated={"mem-fraction-static"})

    assert covers(row(found, "KV pool"), full.kv_gb)
    assert row(found, "KV pool").high - row(found, "KV pool").low <= 0.2
    assert covers(found.free_after_capture, full.free_after_capture_gb)
    unknown = cut.model_copy(update={"free_after_weights_gb": None})
    assert forecast(facts=unknown, change={"max-total-tokens": None}, floor_gb=6.0).fits == "unsure"


def test_a_list_of_sizes_goes_before_a_largest_size():
    """Given both, the list counts; without either, the engine chooses by the GPU."""
    facts = facts_of("q_bs32")

    def largest(change):
        return row(forecast(facts=facts, change=change, floor_gb=6.0), "captured sizes").basis

    assert "up to 50" in largest({"cuda-graph-max-bs": "96", "cuda-graph-bs": "1 2 4 50"})
    assert "up to 50" in largest({"cuda-graph-bs": "1 2 4 50", "cuda-graph-max-bs": "96"})
    assert "up to 96" in largest({"cuda-graph-bs": None, "cuda-graph-max-bs": "96"})
    assert "up to 256" in largest({"cuda-graph-max-bs": None, "cuda-graph-bs": None})


@pytest.mark.parametrize(("floor", "fits"), [(6.0, "fits"), (11.4, "unsure"), (12.0, "does not fit")])
def test_the_headroom_at_risk_is_a_row(floor, fits):
    """Free memory less the floor: its low end below zero is what may be missing."""
    found = forecast(facts=facts_of("q_bs32"), change=TO_96, floor_gb=floor)
    headroom, free = row(found, "headroom"), found.free_after_capture

    assert headroom.low == pytest.approx(free.low - floor, abs=0.011)
    assert headroom.high == pytest.approx(free.high - floor, abs=0.011)
    assert found.fits == fits
