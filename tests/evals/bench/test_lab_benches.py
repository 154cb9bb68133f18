"""The benches of the practice ground run, and their arithmetic is right."""

import random

import pytest

from evals.bench.lab_curve import burst, likely, recorded_start
from evals.bench.lab_timing import measure
from evals.lab import private
from evals.lab.pace import NOISES, noise_of


def test_where_sample_deviations_lie():
    """The range is chi-square's: with four degrees of freedom 0.42 to 1.54 times the true deviation."""
    low, high = likely(0.02, 4)

    assert low == pytest.approx(0.02 * (0.7107 / 4) ** 0.5, rel=0.02)
    assert high == pytest.approx(0.02 * (9.4877 / 4) ** 0.5, rel=0.02)


@pytest.mark.parametrize(("text", "noise"), [*NOISES.items(), ("0.01,0.2", (0.01, 0.2))])
def test_noise_has_names(text, noise):
    """Noise is spelled by name or as two shares."""
    assert noise_of(text) == noise


@pytest.mark.parametrize("text", ["loud", "1", "0.1,0.2,0.3", "-1,0", "0.1,2", ""])
def test_what_is_no_noise_is_said(text):
    """Anything else is refused."""
    with pytest.raises(ValueError, match="noise is"):
        noise_of(text)


@pytest.mark.slow
def test_timing_looks_at_every_token_of_a_whole_batch():
    """Tokens come from stretches in which all streams ran, at about the curve's rate, and for a share of one core."""
    found = measure(8, 8.0)

    assert found.tokens == found.steps * 8 > 0
    assert 0 < found.p50_ms <= found.p99_ms <= found.most_ms
    assert 0 < found.core_share < 1
    assert found.nominal == pytest.approx(2 * 280, rel=0.001)


@pytest.mark.slow
def test_a_recorded_shape_serves_at_its_own_pace(tmp_path):
    """A burst against the recorded dense shape is its curve's, not the seeds' worker's, which is ten times slower."""
    nature = private.Nature(boot_noise=0.0, run_noise=0.0, start_speed=400.0, serve_speed=0.5)
    argv = ["--cuda-graph-max-bs", "32", "--disable-overlap-schedule"]
    with recorded_start(tmp_path / "lab", "qwen3-8b", argv, nature) as port:
        rate = burst(port, 8, 0.5, random.Random(1))

    assert 400 < rate < 1300
