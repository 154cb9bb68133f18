"""Memory by the engine's arithmetic."""

import pytest

from evals.lab.arguments import parse, resolve
from evals.lab.memory import allocate, captured_sizes, first_graph, static_buffers, token_bytes, truncated
from evals.lab.specimen import DEEPSEEK_V2_LITE, DEEPSEEK_V4_FLASH, QWEN3_8B

MODEL = ["--model-path", "/models/flash", "--tp", "4", "--mem-fraction-static", "0.82"]
FUSED = {"SGLANG_OPT_USE_TILELANG_INDEXER": "1"}


@pytest.mark.parametrize(
    ("top", "count", "end"),
    [
        (32, 8, [16, 24, 32]),
        (64, 12, [48, 56, 64]),
        (96, 16, [80, 88, 96]),
        (100, 17, [88, 96, 100]),
        (160, 24, [144, 152, 160]),
        (256, 36, [240, 248, 256]),
        (512, 52, [480, 496, 512]),
    ],
)
def test_capture_list(top, count, end):
    """The capture list has the length and the end that engine facts tabulate, an off-stride maximum included."""
    sizes = captured_sizes(top)

    assert len(sizes) == count
    assert sizes[-3:] == end
    assert sizes[:5] == [1, 2, 4, 8, 12]


def test_fewer_running_requests_cut_the_list():
    """A request pool below the largest batch drops what is larger and becomes the last bucket (recording q_mrr48)."""
    assert truncated(captured_sizes(96), 48) == [1, 2, 4, 8, 12, 16, 24, 32, 40, 48]
    assert truncated(captured_sizes(96), 50) == [1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 50]
    assert truncated(captured_sizes(96), 256) == captured_sizes(96)


@pytest.mark.parametrize(("top", "graphs", "free"), [(32, 0.36, 15.3), (96, 0.57, 15.0)])
def test_the_seeds_figures(top, graphs, free):
    """Capture to 32 leaves about 15.3 GB, capture to 96 takes 0.57 GB and leaves about 15."""
    launch = resolve(parse([*MODEL, "--cuda-graph-max-bs-decode", str(top)]), DEEPSEEK_V4_FLASH, seed=0)
    allocation = allocate(launch.arguments, DEEPSEEK_V4_FLASH)

    taken = static_buffers(top, DEEPSEEK_V4_FLASH) + first_graph(top, launch.arguments, DEEPSEEK_V4_FLASH, FUSED)
    taken += (len(launch.sizes) - 1) * DEEPSEEK_V4_FLASH.graph_each
    assert taken == pytest.approx(graphs, abs=0.005)
    assert allocation.before_capture - taken == pytest.approx(free, abs=0.1)
    assert allocation.tokens == pytest.approx(2.36e6, rel=0.01)


def test_the_fraction_moves_memory_from_slack_to_pool():
    """What a larger memory fraction gives the KV pool is missing after the pool stands, to the page."""
    small = allocate(resolve(parse(MODEL), DEEPSEEK_V4_FLASH, seed=0).arguments, DEEPSEEK_V4_FLASH)
    large = allocate(
        resolve(parse([*MODEL, "--mem-fraction-static", "0.87"]), DEEPSEEK_V4_FLASH, seed=0).arguments,
        DEEPSEEK_V4_FLASH,
    )

    assert small.after_pool - large.after_pool == pytest.approx(0.05 * DEEPSEEK_V4_FLASH.cards.free, abs=0.01)
    assert large.tokens > small.tokens


def test_weights_that_leave_nothing_are_refused():
    """A memory fraction below the weights' share is refused with the least that would do."""
    launch = resolve(parse([*MODEL, "--mem-fraction-static", "0.4"]), DEEPSEEK_V4_FLASH, seed=0)

    with pytest.raises(ValueError, match=r"under --mem-fraction-static=0.4. Raise --mem-fraction-static above 0.44"):
        allocate(launch.arguments, DEEPSEEK_V4_FLASH)


def test_without_the_fused_indexer_graphs_grow_with_the_context():
    """The indexer's fallback takes 9 GiB at 32 requests and a million tokens, as engine facts derive."""
    arguments = resolve(parse(MODEL), DEEPSEEK_V4_FLASH, seed=0).arguments

    fallback = first_graph(32, arguments, DEEPSEEK_V4_FLASH, {}) - first_graph(32, arguments, DEEPSEEK_V4_FLASH, FUSED)
    assert fallback == pytest.approx(9.0, abs=0.1)


def test_heads_are_shared_out_over_cards_and_latent_vectors_are_not():
    """A second card halves what a token takes of plain attention, and leaves multi-head latent attention as it is."""
    plain, latent = (
        [token_bytes(specimen, "auto", cards) for cards in (1, 2)] for specimen in (QWEN3_8B, DEEPSEEK_V2_LITE)
    )

    assert plain == [147_456, 73_728]
    assert latent == [31_104, 31_104]
    assert token_bytes(QWEN3_8B, "fp8_e4m3", 1) == 73_728
