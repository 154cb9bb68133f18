"""A machine that has compiled nothing yet, and the same machine afterwards."""

import re
from random import Random

import pytest

from evals.lab.kernels import CompilingPace, Kernels
from evals.lab.pace import Noise
from evals.lab.private import Shelf
from evals.lab.specimen import DEEPSEEK_V2_LITE, QWEN3_8B

STILL = Noise(0.0, 0.0)


def pace_of(specimen, shelf, *, cold=True):
    """The pace of a start with capture to 32."""
    kernels = Kernels(shelf, specimen, cold=cold)
    return CompilingPace(specimen.curve, [8, 32], overlap=False, noise=STILL, chance=Random(0), kernels=kernels)


def test_the_first_start_is_slower_by_the_compilation(put_up):
    """The first start compiles before it captures, as the first of the five recorded ones; the second does not."""
    worker = put_up(faults=(), cold=True)
    worker.edit(("--watchdog-timeout 3600", "--watchdog-timeout 3000"))
    first, second = (
        float(seconds)
        for seconds in re.findall(r"TP0\] Capture target decode CUDA graph end\. elapsed=([\d.]+) s", worker.said())
    )

    assert first - second == pytest.approx(19.0, abs=0.1)


def test_a_pass_with_new_kernels_waits_for_them_once():
    """Prefill beyond 512 tokens and each class of eager batches stand once; captured and small passes never do."""
    shelf = Shelf(None)
    cold, warm = pace_of(DEEPSEEK_V2_LITE, shelf), pace_of(DEEPSEEK_V2_LITE, Shelf(None), cold=False)

    assert cold.prefill(384) == warm.prefill(384)
    assert cold.prefill(896) - warm.prefill(896) == pytest.approx(8.0)
    assert cold.prefill(3968) == warm.prefill(3968)
    assert cold.step(32) == warm.step(32)
    for batch in (64, 96):
        assert cold.step(batch).seconds - warm.step(batch).seconds == pytest.approx(8.0)
        assert cold.step(batch) == warm.step(batch)
    assert pace_of(DEEPSEEK_V2_LITE, shelf).step(64) == warm.step(64)


def test_a_dense_model_has_no_such_kernels():
    """The recorded dense shape ran its first bursts at full speed."""
    cold, warm = pace_of(QWEN3_8B, Shelf(None)), pace_of(QWEN3_8B, Shelf(None), cold=False)

    assert [cold.step(batch) for batch in (8, 64, 96)] == [warm.step(batch) for batch in (8, 64, 96)]
    assert cold.prefill(4096) == warm.prefill(4096)
