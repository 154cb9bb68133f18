"""The forecast of vLLM on starts that a practice worker really made."""

import pytest

from evals.bench.forecast_vllm import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_starts_of_a_practice_vllm_are_covered_when_held_out(capsys):
    """Free memory and pool within, and narrow: another captured range, another memory share, and no graphs at all."""
    assert main(["--only", "captured to 32", "captured to 96", "share of 0.90", "eager"]) == 0

    said = capsys.readouterr().out
    assert " NO" not in said
    assert said.count("yes") >= 50
    assert said.rstrip().endswith("within what is asked")
