"""The rules reasoner, as an operator's words meet it."""

from datetime import UTC, datetime
from typing import NamedTuple

import pytest

from agent.domain import Change, Evidence, Precedent, Request, Setting
from agent.errors import ModelSlip
from agent.reasoning.grounding import check_risk, check_understanding
from agent.reasoning.reasoner import Tool, Understanding, Wish
from agent.reasoning.rules import Rules
from tools.engines.catalogue import knobs

KNOBS = knobs("sglang")
GRAPHS, OVERLAP = "cuda-graph-max-bs", "disable-overlap-schedule"
STREAMS, RUNNING, MEMORY = "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP", "max-running-requests", "mem-fraction-static"


class Case(NamedTuple):
    """Words, and the one wish that they are."""

    text: str
    knob: str
    verb: str
    value: float | None = None
    was: float | None = None
    unless_unsafe: bool = False


WISHES = [
    Case("bump cuda graphs to 96", GRAPHS, "raise", 96),
    Case("can you bump cuda graphs to 96?", GRAPHS, "raise", 96),
    Case("Could you please raise the CUDA graph max batch to 96", GRAPHS, "raise", 96),
    Case("go and bump cuda graphs to 96", GRAPHS, "raise", 96),
    Case("set cuda graphs from 32 to 96", GRAPHS, "set", 96, 32),
    Case("bump cuda-graph-max-bs 32->96", GRAPHS, "raise", 96, 32),
    Case("cuda-graph-max-bs=96", GRAPHS, "set", 96),
    Case("set --cuda-graph-max-bs-decode 96", GRAPHS, "set", 96),
    Case("put cuda graphs back to 32", GRAPHS, "set", 32),
    Case("drop cuda graphs to 64 unless that's risky", GRAPHS, "lower", 64, unless_unsafe=True),
    Case("raise max running requests by 32", RUNNING, "raise_by", 32),
    Case("lower the memory fraction to 85%", MEMORY, "lower", 0.85),
    Case("set mem-fraction-static 0.85", MEMORY, "set", 0.85),
    Case("turn the overlap scheduler on", OVERLAP, "turn_on"),
    Case("turn on the overlap scheduler, skip that one if it's unsafe", OVERLAP, "turn_on", unless_unsafe=True),
    Case("Turn on the overlap scheduler. Skip #2 for now if it's unsafe.", OVERLAP, "turn_on", unless_unsafe=True),
    Case("enable the overlap schedule, but only if it is safe", OVERLAP, "turn_on", unless_unsafe=True),
    Case("disable overlap schedule", OVERLAP, "turn_off"),
    Case("get rid of the overlap scheduler", OVERLAP, "turn_off"),
    Case("turn on disable-overlap-schedule", OVERLAP, "set"),
    Case("remove --disable-overlap-schedule", OVERLAP, "unset"),
    Case("SGLANG_OPT_USE_MULTI_STREAM_OVERLAP=0", STREAMS, "turn_off"),
    Case("turn multi-stream overlap off", STREAMS, "turn_off"),
]


def _request(text: str, worker: str = "decode") -> Request:
    return Request(run="r-test", text=text, worker=worker, door="cli", by="ada", at=datetime.now(UTC))


def _understand(text: str, tools: tuple[Tool, ...] = ()) -> Understanding:
    return Rules().understand(_request(text), KNOBS, tools)


@pytest.mark.parametrize("case", WISHES, ids=[case.text for case in WISHES])
def test_words_become_one_wish(case: Case):
    """What operators say about the five knobs is understood, and stands the checks that a model's answer must stand."""
    meant = _understand(case.text)

    assert meant.kind == "change"
    wish = meant.wishes[0]
    assert (wish.knob, wish.verb, wish.value, wish.was) == (case.knob, case.verb, case.value, case.was)
    assert meant.unless_unsafe == case.unless_unsafe
    check_understanding(meant, _request(case.text), KNOBS, ())


@pytest.mark.parametrize(
    "text",
    [
        "bump cuda graphs",
        "turn cuda graphs off",
        "cuda graphs",
        "bump cuda graphs to 96 and turn on the overlap scheduler",
        "bump cuda graphs to 96 and restart prefill",
        "bump cuda graphs to 96 but keep 32 on tuesdays",
        "bump cuda graphs to 96 on the prefill worker",
        "set cuda graphs back to 32 if throughput drops",
        "bump cuda graphs to 96 but not today",
        "bump cuda graphs to 96 tomorrow",
        "bump cuda graphs to 96 on all workers",
        "what would happen if we set cuda graphs to 96?",
        "should we bump cuda graphs to 96?",
        "set cuda graphs to 64 and set cuda graphs to 96",
    ],
)
def test_what_could_mean_several_things_is_asked(text: str):
    """A missing value, two settings, a half that is not understood or another worker end in a question with choices."""
    meant = _understand(text)

    assert meant.kind == "unclear"
    assert meant.says
    assert meant.choices


@pytest.mark.parametrize(
    "text",
    [
        "",
        "make me a sandwich",
        "restart the worker",
        "don't bump cuda graphs to 96",
        "never touch the overlap scheduler",
        "do not set max running requests to 12",
        "; rm -rf / #",
        "bump it",
    ],
)
def test_what_is_not_understood_is_said(text: str):
    """A negation, a sandwich and a shell line change nothing and get a sentence."""
    meant = _understand(text)

    assert meant.kind == "foreign"
    assert meant.says


@pytest.mark.parametrize("text", ["roll back the last change", "undo that change please", "revert", "Roll back."])
def test_taking_back_is_recognised(text: str):
    """The last change can be taken back in a few words."""
    assert _understand(text).kind == "roll_back"


def test_a_claim_is_kept_apart_from_the_wish():
    """What a person says about the worker is a claim to be measured, not part of the change."""
    meant = _understand("token pool is pretty healthy now, can you bump cuda graphs to 96?")

    assert meant.claims == ("token pool is pretty healthy now",)
    assert meant.wishes[0].value == 96


def test_a_question_is_answered_from_what_the_tools_find():
    """A question names its evidence; without any it says so instead of guessing."""
    fact = Evidence(id="e1", what="max-running-requests in force: 256", source="server info", at=datetime.now(UTC))
    tool = Tool("effective_values", "", {}, lambda _: [fact])

    meant = _understand("what are the current max parallel requests?", (tool,))

    assert meant.kind == "question"
    assert "256" in str(meant.answer)
    assert meant.cites == ("e1",)
    check_understanding(meant, _request("what are the current max parallel requests?"), KNOBS, [fact])


class Slip(NamedTuple):
    """An answer that a weak model might give, and the request that it does not fit."""

    text: str
    answer: Understanding


def _wish(knob: str, verb: str, words: str, value: float | None = None) -> Understanding:
    wish = Wish.model_validate({"knob": knob, "verb": verb, "words": words, "value": value})
    return Understanding(kind="change", wishes=(wish,), by="weak")


SLIPS = {
    "a knob that the request does not name": Slip(
        "set the tensor parallel size to 4",
        _wish("chunked-prefill-size", "set", "set the tensor parallel size to 4", 4),
    ),
    "a value that the request does not state": Slip(
        "bump cuda graphs to 96", _wish(GRAPHS, "raise", "bump cuda graphs to 96", 128)
    ),
    "an inverted switch": Slip(
        "get rid of the overlap scheduler", _wish(OVERLAP, "turn_on", "get rid of the overlap scheduler")
    ),
    "a change made of a question": Slip(
        "is the overlap scheduler on?", _wish(OVERLAP, "turn_on", "the overlap scheduler on")
    ),
    "a change made of a refusal": Slip(
        "don't bump cuda graphs to 96", _wish(GRAPHS, "raise", "bump cuda graphs to 96", 96)
    ),
    "words that nobody said": Slip("bump cuda graphs to 96", _wish(GRAPHS, "raise", "raise it to 96", 96)),
    "a number without evidence": Slip(
        "what is max running requests?", Understanding(kind="question", answer="It is 512.", cites=("e1",), by="weak")
    ),
    "a roll back that nobody asked for": Slip("bump cuda graphs to 96", Understanding(kind="roll_back", by="weak")),
}


@pytest.mark.parametrize("slip", SLIPS.values(), ids=list(SLIPS))
def test_a_models_answer_must_fit_the_request(slip: Slip):
    """Whatever a model proposes beyond the request's own words and the evidence is sent back with advice."""
    fact = Evidence(id="e1", what="max-running-requests in force: 256", source="server info", at=datetime.now(UTC))

    with pytest.raises(ModelSlip):
        check_understanding(slip.answer, _request(slip.text), KNOBS, [fact])


@pytest.mark.parametrize("count", range(12))
def test_what_the_rules_say_of_a_risk_stands_their_own_checks(count: int):
    """However many precedents there are, the rules are not replaced by themselves for a number that nobody measured."""
    setting = Setting(
        knob="disable-overlap-schedule", kind="flag", spelling="--disable-overlap-schedule", old="", new=None
    )
    change = Change(worker="decode", operation="set", settings=(setting,), summary="overlap scheduler on")
    seen = (Evidence(id="e", what="the overlap scheduler is off", source="server info", at=datetime.now(UTC)),)
    precedents = tuple(
        Precedent(id=f"p-{'x' * number}", source="incident", what="It stood still.", why="same knob")
        for number in range(count)
    )

    risk = Rules().assess_risk(change, knobs("sglang"), seen, precedents, ())

    check_risk(risk, change, seen, precedents)
