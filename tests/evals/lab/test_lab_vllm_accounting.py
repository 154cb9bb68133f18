"""What vLLM's arguments come to: flags, capture lists, and where the memory of a card goes."""

import pytest

from evals.lab.specimen import DEEPSEEK_V4_FLASH, QWEN3_8B
from evals.lab.vllm_0_24.arguments import named, parse, parser, resolve
from evals.lab.vllm_0_24.log import VllmLog
from evals.lab.vllm_0_24.memory import allocate, estimated_graphs, graph_costs
from tools.engines.catalogue import knobs
from tools.engines.engine import engine_of
from tools.engines.vllm_sizes import capture_list, default_largest


def launched(*words, specimen=QWEN3_8B):
    """The launch of `vllm serve /models/m` with these words."""
    return resolve(named(parse(["serve", "/models/m", *words]), VllmLog(1)), specimen)


@pytest.mark.parametrize("seqs", [1, 4, 16, 32, 64, 128, 200, 256, 512])
def test_the_default_list_is_the_one_that_the_product_expects(seqs):
    """Two readings of the engine's rule agree, and full graphs stop at the requests of one step."""
    capture = launched("--max-num-seqs", str(seqs)).capture

    assert tuple(capture.sizes) == capture_list(default_largest(seqs))
    assert max(capture.full) <= seqs
    assert capture.piecewise == capture.sizes


ONLY_DECODE = '{"cudagraph_mode": "FULL_DECODE_ONLY"}'


@pytest.mark.parametrize(
    ("words", "mode", "sizes", "full"),
    [
        (["--enforce-eager"], "NONE", [], []),
        (["-O0"], "NONE", [], []),
        (["-O1", "--max-cudagraph-capture-size", "8"], "PIECEWISE", [1, 2, 4, 8], []),
        (["-cc", ONLY_DECODE, "--cudagraph-capture-sizes", "1", "8"], "FULL_DECODE_ONLY", [1, 8], [1, 8]),
        (
            ["--compilation_config.cudagraph_capture_sizes+", "8,2", "--max-num-seqs=4"],
            "FULL_AND_PIECEWISE",
            [2, 8],
            [2],
        ),
    ],
)
def test_modes_and_lists_can_be_given_in_each_way(words, mode, sizes, full):
    """Flags, levels, JSON and dotted keys say the same things."""
    capture = launched(*words).capture

    assert (capture.mode, capture.sizes, capture.full) == (mode, sizes, full)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--max-num-seqs", "256", "--max-num-batched-tokens", "128"], r"max_num_batched_tokens \(128\) must be"),
        (["--max-model-len", "1000000"], r"User-specified max_model_len \(1000000\) is greater than the derived"),
        (["--max-model-len", "20k", "--no-enable-chunked-prefill"], r"is smaller than max_model_len \(20000\)"),
        (["--max-cudagraph-capture-size", "8", "-cc", '{"max_cudagraph_capture_size": 8}'], "are mutually exclusive"),
        (["-cc", '{"cudagraph_mode": "SOME"}'], "Invalid cudagraph_mode: SOME"),
    ],
)  # fmt: skip
def test_combinations_that_make_no_sense_are_refused(words, says):
    """In the engine's words."""
    with pytest.raises(ValueError, match=says):
        launched(*words)


def test_every_spelling_of_the_catalogue_is_taken():
    """Two readings of the engine's flags agree."""
    known = {*parser()._option_string_actions, "-O"}
    spelled = {spelling.text for knob in knobs("vllm") if knob.kind == "flag" for spelling in knob.spellings}

    assert spelled <= known


def test_the_pool_is_what_the_share_leaves():
    """Total times share, less weights, libraries, activations and the estimate of the graphs, in whole blocks."""
    launch = launched("--max-num-seqs", "64", "--gpu-memory-utilization", "0.9")
    made = allocate(launch, QWEN3_8B, {})

    assert made.pool == pytest.approx(139.80 * 0.9 - made.weights - made.outside - made.peak - made.estimate)
    assert made.tokens == made.blocks * 16
    assert 0 <= made.pool - made.tokens * QWEN3_8B.bytes_per_token / 2**30 < 16 * QWEN3_8B.bytes_per_token / 2**30


def test_without_graphs_the_pool_gains_what_they_would_take():
    """Eager execution estimates nothing."""
    words = ("--max-num-seqs", "64")
    eager, captured = (allocate(launched(*words, *more), QWEN3_8B, {}) for more in (("--enforce-eager",), ()))

    assert eager.estimate == 0
    assert eager.pool - captured.pool == pytest.approx(captured.estimate)


def test_the_estimate_is_near_what_capture_takes():
    """It counts the worse mode; capture pays for both in one pool, so that it comes out a little more."""
    launch = launched("--max-num-seqs", "256", "--tensor-parallel-size", "4", specimen=DEEPSEEK_V4_FLASH)
    estimate = estimated_graphs(launch, DEEPSEEK_V4_FLASH)
    actual = sum(cost for _, _, cost in graph_costs(launch, DEEPSEEK_V4_FLASH))

    assert estimate < actual < 1.5 * estimate


@pytest.fixture(scope="module")
def worker(put_up):
    """A worker with debug lines."""
    made = put_up(engine="vllm", faults=(), wait=False)
    made.edit(("exec vllm", "export VLLM_LOGGING_LEVEL=DEBUG\nexec vllm"))
    return made


def facts_of(worker):
    """What the product reads from its log."""
    return engine_of("vllm").read_log(worker.said().encode().split(b"\n")).facts


def test_debug_lines_say_what_the_card_has(worker):
    """At level DEBUG the log has total and free memory, which production logs do not."""
    facts = facts_of(worker)

    assert facts.gpu_total_gb == 94.97
    assert facts.free_before_weights_gb == 94.48


def test_graphs_that_nobody_reserved_for_run_out_of_memory(worker, until):
    """Without the estimate and with nearly all memory given away capture fails, and the product calls it that."""
    begun = len(worker.said())
    worker.edit(
        ("exec vllm", "export VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0\nexec vllm"),
        ("--gpu-memory-utilization 0.85", "--gpu-memory-utilization 0.993 --kv-cache-memory-bytes 55600000000"),
        ready=False,
    )
    until(lambda: "CUDA out of memory" in worker.said()[begun:])
    until(lambda: (cause := facts_of(worker).cause) is not None and cause.kind == "oom_at_capture")
