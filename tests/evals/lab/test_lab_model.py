"""The model behind the loop errs now and then by itself, and says things in other words when it samples."""

from random import Random

import pytest

from evals.lab.bodies import chatted, prompted
from evals.lab.model import Model

TOOLS = [{"type": "function", "function": {"name": "set_rack", "parameters": {"properties": {"node": {}, "rack": {}}}}}]


def order(number, **more):
    """A conversation that orders a call."""
    text = f"The rack of n{number} is r{number}. The rack of m{number} is q{number}. Call set_rack for n{number}."
    return chatted({"messages": [{"role": "user", "content": text}], "tools": TOOLS, "temperature": 0, **more})


def wrong(model, count, **more):
    """Which of so many orders are answered wrongly."""
    chance = Random(5)
    answers = [model.answer(order(number, **more), chance) for number in range(count)]
    return [number for number, said in enumerate(answers) if said.given != said.meant]


def test_a_model_errs_as_often_as_it_is_said_to():
    """One call in five hundred comes out wrong at 0.2 %, the same ones at every asking; none does at 0."""
    model = Model(errors=0.002, seed=3)

    # 40 expected of 20,000: outside these bounds once in a million seeds.
    assert 12 <= len(wrong(model, 20_000)) <= 75
    assert wrong(model, 2000) == wrong(Model(errors=0.002, seed=3), 2000) != wrong(Model(0.002, seed=4), 2000)
    assert wrong(Model(), 2000) == []


def test_sampling_errs_more_often_and_differently():
    """At temperature 1 twice as many calls are wrong, others each time."""
    model = Model(errors=0.02, seed=3)

    cold, warm = wrong(model, 4000), wrong(model, 4000, temperature=1)

    assert 50 <= len(cold) <= 115
    assert 110 <= len(warm) <= 215
    assert not set(cold) <= set(warm)


def test_a_sampled_text_is_put_differently_each_time():
    """At temperature 0 a text is the same word for word; above, it differs, in length too; a call says the same."""
    ask = {"messages": [{"role": "user", "content": "Tell me about the scheduler."}]}
    model, chance = Model(), Random(1)

    cold = {model.answer(chatted({**ask, "temperature": 0}), chance).given for _ in range(20)}
    warm = [model.answer(chatted(ask), chance).given for _ in range(20)]
    calls = {model.answer(order(1, temperature=1), chance).given for _ in range(20)}

    assert len(cold) == 1
    assert len(set(warm)) == 20
    assert len({len(said.tokens) for said in warm}) > 5
    assert len(calls) == 1


def test_a_request_says_how_warm_and_of_which_adapter():
    """Temperature and adapter are read where either endpoint has them; below 0 is refused."""
    assert order(1, lora_path="a").adapter == order(1, model="deepseek-v4-flash:a").adapter == "a"
    assert order(1).adapter == order(1, model="deepseek-v4-flash").adapter == ""
    assert prompted({"text": "Hello there", "sampling_params": {"temperature": 0.5}}).temperature == 0.5
    assert prompted({"text": "Hello there", "temperature": 0}).temperature == 0
    assert prompted({"text": "Hello there"}).temperature == 1
    with pytest.raises(ValueError, match=r"temperature must be non-negative, got -1.0."):
        order(1, temperature=-1)
