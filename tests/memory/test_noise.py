"""What a worker's own history says of its noise."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from agent.domain import HostState, Plan, Step
from memory.noise import chi_square_quantile
from memory.store import Store


def history(
    store: Store, nouns: Any, boots: int, *, boot_sd: float, run_sd: float, runs: int = 3, seed: int = 1
) -> None:
    """Rolled-back runs, each with a boot before and a boot after, on one configuration."""
    chance = random.Random(seed)
    for place in range(boots // 2):
        readings = []
        for phase in ("baseline", "restored"):
            shift = chance.gauss(0, boot_sd)
            for concurrency, level in ((32, 561.0), (64, 657.0)):
                values = [level * 2.718281828 ** (shift + chance.gauss(0, run_sd)) for _ in range(runs)]
                readings.append(nouns.throughput(phase, concurrency, *values))
        run = f"r-{place}"
        store.keep_readings(run, readings)
        execution = nouns.execution(nouns.process(2 * place), nouns.process(2 * place + 1))
        store.append(nouns.record(run, execution=execution))


def test_with_little_history_there_is_no_noise(store: Store, nouns: Any) -> None:
    """Nothing, or two boots, say nothing; another worker's history is not ours."""
    assert store.noise("decode") is None
    history(store, nouns, 2, boot_sd=0.02, run_sd=0.02)
    assert store.noise("decode") is None
    assert store.noise("prefill") is None


def test_noise_is_found_and_never_made_smaller_than_it_is(store: Store, nouns: Any) -> None:
    """With forty boots both noises come out near the truth, on its upper side, with their basis in words."""
    history(store, nouns, 40, boot_sd=0.026, run_sd=0.025)
    noise = store.noise("decode")
    assert noise is not None
    assert 0.024 < noise.boot_sd < 0.040
    assert 0.024 < noise.run_sd < 0.031
    assert "40 boots of 1 configuration" in noise.basis
    assert "32, 64" in noise.basis


@pytest.mark.parametrize("seed", range(5))
def test_few_boots_give_a_wide_noise(store: Store, nouns: Any, seed: int) -> None:
    """Four boots are raised by the upper bound, so that the truth is seldom above what is said."""
    history(store, nouns, 4, boot_sd=0.02, run_sd=0.02, seed=seed)
    noise = store.noise("decode")
    assert noise is not None
    assert noise.run_sd > 0.015


def test_runs_of_different_configurations_are_not_mixed(store: Store, nouns: Any) -> None:
    """Four boots of four different argument lists say nothing about the noise of any of them."""
    for place in range(2):
        readings = [nouns.throughput(phase, 32, 500.0, 510.0) for phase in ("baseline", "restored")]
        store.keep_readings(f"r-{place}", readings)
        before = nouns.process(2 * place, argv=("sglang", "--a", str(place)))
        after = nouns.process(2 * place + 1, argv=("sglang", "--b", str(place)))
        store.append(nouns.record(f"r-{place}", execution=nouns.execution(before, after)))
    assert store.noise("decode") is None


def test_a_candidate_is_no_evidence_of_the_old_configurations_noise(store: Store, nouns: Any) -> None:
    """Readings with the change, and those of a restored phase that the journal does not confirm, do not count."""
    for place in range(3):
        readings = [nouns.throughput(phase, 32, 500.0, 510.0) for phase in ("baseline", "candidate", "restored")]
        store.keep_readings(f"r-{place}", readings)
        execution = nouns.execution(nouns.process(1), nouns.process(10 + place), state="committed")
        store.append(nouns.record(f"r-{place}", execution=execution))
    assert store.noise("decode") is None


@pytest.mark.parametrize(
    ("probability", "df", "quantile"),
    [(0.05, 2, 0.102587), (0.05, 10, 3.940299), (0.20, 4, 1.648777), (0.95, 1, 3.841459), (0.5, 100, 99.334129)],
)
def test_chi_square_quantiles_are_those_of_the_tables(probability: float, df: int, quantile: float) -> None:
    """Quantiles agree with published tables."""
    assert chi_square_quantile(probability, df) == pytest.approx(quantile, abs=1e-5)


@pytest.mark.parametrize(
    ("df", "student"), [(2, 2.919986), (3, 2.353363), (4, 2.131847), (10, 1.812461), (30, 1.697261)]
)
def test_the_bound_covers_what_students_t_would_ask(df: int, student: float) -> None:
    """The factor on the noise is at least the one by which Student's t exceeds the normal quantile at 95 %."""
    assert (df / chi_square_quantile(0.20, df)) ** 0.5 >= student / 1.644854


def test_each_start_of_the_old_setting_is_a_boot_of_its_own(
    store: Store, nouns: Any, plan: Callable[..., Plan]
) -> None:
    """A baseline that was started again while a change was verified is another boot, not more runs of the first."""
    steps = [("edit", "edit_script"), ("new", "restart")]
    for number in (1, 2):
        steps += [(f"back-{number}", "restore_script"), (f"old-{number}", "restart")]
        steps += [(f"forth-{number}", "edit_script"), (f"new-{number}", "restart")]
    state = HostState()
    made = plan("r-1", watchdog_seconds=60.0).model_copy(
        update={
            "steps": tuple(
                Step.model_validate(
                    {"id": id_, "action": action, "what": "", "before": state, "after": state, "undo": ""}
                )
                for id_, action in steps
            )
        }
    )
    journal = [
        {"seq": place, "at": 0.0, "event": "done", "step": f"old-{number}", "detail": {"process": process}}
        for place, number in enumerate((1, 2))
        for process in [{"pid": 70 + number, "start_ticks": 700 + number, "boot_id": "boot-1"}]
    ]
    execution = nouns.execution(nouns.process(1), nouns.process(99), state="committed")
    execution = type(execution).model_validate({**execution.model_dump(), "journal": journal})
    levels = {1: 500.0, 2: 560.0, 3: 620.0}
    readings = tuple(
        nouns.throughput("baseline", 32, level, level * 1.01).model_copy(update={"boot": boot})
        for boot, level in levels.items()
    )
    store.keep_readings("r-1", readings)
    store.append(nouns.record("r-1", execution=execution, plan=made, readings=readings))

    noise = store.noise("decode")

    assert noise is not None
    assert "3 boots of 1 configuration" in noise.basis
    assert noise.boot_sd > 0.1
    assert noise.run_sd < 0.03
