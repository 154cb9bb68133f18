"""How long a decode step takes, and how that varies."""

from random import Random
from statistics import mean, stdev

import pytest

from evals.lab.memory import captured_sizes
from evals.lab.pace import SEED, Noise, Pace

SILENT = Noise(0.0, 0.0)


def pace(top, *, overlap=False, noise=SILENT, seed=1):
    """A worker that captured up to that batch size; 0: nothing."""
    return Pace(SEED, captured_sizes(top) if top else (), overlap=overlap, noise=noise, chance=Random(seed))


@pytest.mark.parametrize(
    ("batch", "top", "rate"), [(1, 32, 53), (8, 32, 280), (32, 32, 561), (64, 32, 657), (64, 96, 711)]
)
def test_the_seeds_rates(batch, top, rate):
    """A step's tokens over its time are the seeds' tokens per second."""
    assert batch / pace(top).step(batch).seconds == pytest.approx(rate)


def test_a_batch_is_padded_to_its_bucket():
    """Nine requests take as long as twelve, thirty-three as long as forty, where forty is captured."""
    worker = pace(96)

    assert worker.step(9) == worker.step(12)
    assert worker.step(33) == worker.step(40)
    assert worker.step(32) < worker.step(33)


def test_above_the_captured_range_it_is_eager():
    """The step beyond the largest bucket is eager and slower than the same step captured, at every size."""
    for batch in range(33, 97):
        eager, captured = pace(32).step(batch), pace(96).step(batch)
        assert (eager.captured, captured.captured) == (False, True)
        assert eager.seconds > captured.seconds


def test_more_requests_never_take_less_time():
    """Steps grow with the batch, captured and eager, to far beyond the points that are known."""
    for top in (0, 32, 96, 256):
        times = [pace(top).step(batch).seconds for batch in range(1, 300)]
        assert times == sorted(times)


def test_the_overlap_scheduler_saves_five_to_seven_percent():
    """With overlap on, a step is 5 to 7 % faster, the more the larger the batch."""
    gains = [pace(96).step(batch).seconds / pace(96, overlap=True).step(batch).seconds for batch in (1, 32, 64, 96)]

    assert gains == sorted(gains)
    assert gains[0] == pytest.approx(1.05)
    assert gains[-1] == pytest.approx(1.07)


def test_noise_is_as_large_as_it_says():
    """Boots and bursts scatter by the given relative deviations; the same seed gives the same worker."""
    boots = [pace(96, noise=Noise(0.02, 0.0), seed=seed).step(64).seconds for seed in range(800)]
    worker = pace(96, noise=Noise(0.0, 0.01))
    bursts = []
    for _ in range(800):
        worker.next_run()
        bursts.append(worker.step(64).seconds)

    assert stdev(boots) / mean(boots) == pytest.approx(0.02, rel=0.15)
    assert stdev(bursts) / mean(bursts) == pytest.approx(0.01, rel=0.15)
    assert pace(96, noise=Noise(0.02, 0.0), seed=5).step(64) == pace(96, noise=Noise(0.02, 0.0), seed=5).step(64)
