"""The knob catalogue says what an operator may set, and how each version spells it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.engines.catalogue import canonical, check_value, in_force, knob_named, knobs, spellings


@pytest.mark.parametrize(("engine", "least"), [("sglang", 40), ("vllm", 25)])
def test_the_catalogue_is_complete_and_consistent(engine, least):
    """Names, spellings and words belong to one knob each; couplings name knobs that are there; each has a source."""
    catalogue = knobs(engine)
    names = [knob.name for knob in catalogue]
    texts = [spelling.text for knob in catalogue for spelling in knob.spellings]
    words = [word for knob in catalogue for word in knob.words]

    assert least <= len(catalogue)
    assert len(set(names)) == len(names)
    assert len(set(texts)) == len(texts)
    assert len(set(words)) == len(words)
    assert all(word == word.lower().strip() for word in words)
    assert {couple for knob in catalogue for couple in knob.couples} <= set(names)
    assert all(knob.source and knob.meaning.endswith(".") and knob.spellings for knob in catalogue)
    assert all(knob.unit or knob.value != "integer" or "port" in knob.name for knob in catalogue)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_bare_word_that_fits_two_knobs_is_given_to_none(engine):
    """`overlap` alone could be the scheduler or the streams, so nobody answers to it."""
    assert not [knob.name for knob in knobs(engine) if "overlap" in knob.words]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("--cuda-graph-max-bs", "cuda-graph-max-bs"),
        ("--cuda-graph-max-bs-decode", "cuda-graph-max-bs"),
        ("cuda_graph_max_bs", "cuda-graph-max-bs"),
        ("SGLANG_OPT_USE_MULTI_STREAM_OVERLAP", "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP"),
        ("sglang-opt-use-multi-stream-overlap", "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP"),
        ("--tp", "tp-size"),
        ("mem_fraction_static", "mem-fraction-static"),
    ],
)
def test_a_knob_answers_to_every_spelling(text, name):
    """With or without dashes, underscores or capitals, old spelling or new."""
    found = knob_named("sglang", text)

    assert found is not None
    assert name == found.name


def test_an_unknown_name_is_no_knob():
    """A flag that the engine does not have is not guessed at."""
    assert knob_named("sglang", "--cuda-graph-max-batch") is None
    assert knob_named("sglang", "") is None


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.5.2", ("--cuda-graph-max-bs",)),
        ("0.5.13", ("--cuda-graph-max-bs",)),
        ("0.5.14", ("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs")),
        ("0.5.14.post1", ("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs")),
        ("v0.5.19", ("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs")),
        ("0.5.20", ("--cuda-graph-max-bs-decode",)),
        ("0.6.0", ("--cuda-graph-max-bs-decode",)),
        (None, ("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs")),
    ],
)
def test_each_version_has_its_own_spellings(version, expected):
    """The renamed flag is the specimen: before, both for a while, and then only the new name."""
    knob = knob_named("sglang", "cuda-graph-max-bs")
    assert knob is not None

    assert expected == spellings(knob, version)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("cuda-graph-max-bs", "96", None),
        ("cuda-graph-max-bs", "0", "outside 1..1024 requests"),
        ("cuda-graph-max-bs", "4096", "outside 1..1024 requests"),
        ("cuda-graph-max-bs", "9" * 400, "not an integer"),
        ("cuda-graph-max-bs", "ninety", "not an integer"),
        ("cuda-graph-max-bs", "96.5", "not an integer"),
        ("cuda-graph-max-bs", "", "needs a value"),
        ("cuda-graph-max-bs", "96; rm -rf /", "not an integer"),
        ("cuda-graph-max-bs", "96\n--port 1", "line break"),
        ("cuda-graph-max-bs", "٩٦", "not an integer"),
        ("mem-fraction-static", "0.9", None),
        ("mem-fraction-static", "1.2", "outside 0.1..0.99"),
        ("mem-fraction-static", "nan", "not a number"),
        ("mem-fraction-static", "1e-999", "not a number"),
        ("disable-overlap-schedule", "", None),
        ("disable-overlap-schedule", "true", "takes no value"),
        ("SGLANG_OPT_USE_MULTI_STREAM_OVERLAP", "0", None),
        ("SGLANG_OPT_USE_MULTI_STREAM_OVERLAP", "maybe", "neither 0 nor 1"),
        ("cuda-graph-bs", "1 2 4 8", None),
        ("cuda-graph-bs", "1 2 x", "not an integer"),
        ("cuda-graph-config", '{"decode": {"max_bs": 96}}', None),
        ("cuda-graph-config", "{decode: 96}", "no JSON"),
    ],
)
def test_a_bad_value_is_said_in_one_sentence(name, text, says):
    """What is wrong and what the bounds are, before anything is written."""
    knob = knob_named("sglang", name)
    assert knob is not None

    problem = check_value(knob, text)

    if says is None:
        assert problem is None
    else:
        assert problem is not None
        assert says in problem
        assert problem.endswith(".")


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=60) | st.just("[" * 100_000) | st.just("-" * 5000), index=st.integers(0, 1000))
def test_any_text_is_judged(text, index):
    """Whatever somebody types, the answer is fine or one sentence, for every knob."""
    catalogue = knobs("sglang") + knobs("vllm")
    knob = catalogue[index % len(catalogue)]

    problem = check_value(knob, text)

    assert problem is None or problem.endswith(".")
    assert isinstance(canonical(knob, text), str)


@pytest.mark.parametrize(
    ("name", "written", "expected"),
    [
        ("disable-overlap-schedule", "", "on"),
        ("disable-overlap-schedule", None, "off"),
        ("cuda-graph-max-bs", "096", "96"),
        ("cuda-graph-max-bs", None, None),
        ("mem-fraction-static", "0.900", "0.9"),
        ("SGLANG_OPT_USE_MULTI_STREAM_OVERLAP", "false", "off"),
        ("cuda-graph-bs", "1 2 4", "1,2,4"),
    ],
)
def test_one_value_has_one_text(name, written, expected):
    """However a script writes a value, it reads as the engine's report of it does."""
    knob = knob_named("sglang", name)
    assert knob is not None

    assert expected == in_force(knob, written)
