"""What a reasoner's answer must satisfy before anybody uses it: the request's own words, the catalogue, the evidence.

The same checks run twice: inside a model's loop, where a failure goes back as advice, and in the node that asked, where
a failure ends the matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from agent.domain import Change, Evidence, Knob, Precedent, Request, Risk
from agent.errors import ModelSlip
from agent.reasoning import phrases
from agent.reasoning.reasoner import Understanding, Wish

_DIGITS = re.compile(r"\d+(?:\.\d+)?")
_ON = re.compile(r"\b(?:on|enable|activate|re-enable|start using)\b")
_OFF = re.compile(r"\b(?:off|disable|deactivate|get rid of|remove|kill|stop using|without)\b")


def check_understanding(
    understanding: Understanding, request: Request, knobs: Sequence[Knob], evidence: Sequence[Evidence]
) -> None:
    """Check that an understanding says no more than the request and the evidence do.

    Raises:
        ModelSlip: it does; the text is advice on what to put right.
    """
    text = phrases.normal(request.text)
    if understanding.kind == "change":
        if len(understanding.wishes) != 1:
            raise ModelSlip("A change has exactly one wish; for several, report kind 'unclear' with the choices.")
        if phrases.negated(text):
            raise ModelSlip("The request says what not to do; report kind 'foreign'.")
        if phrases.is_question(text):
            raise ModelSlip("The request asks a question; report kind 'question' and change nothing.")
        condition = phrases.loose_condition(phrases.split_condition(text)[0])
        if condition is not None:
            raise ModelSlip(f"The request has a condition ({condition!r}) that a change cannot hold; report 'unclear'.")
        _check_wish(understanding.wishes[0], text, knobs)
    elif understanding.kind == "question":
        _check_answer(understanding, evidence)
    elif understanding.kind == "roll_back" and not phrases.is_roll_back(text):
        raise ModelSlip("The request does not ask to take the last change back; report what it does ask.")
    elif understanding.kind == "unclear" and not understanding.says:
        raise ModelSlip("An unclear request needs one sentence in 'says'.")


def check_risk(risk: Risk, change: Change, evidence: Sequence[Evidence], precedents: Sequence[Precedent]) -> None:
    """Check that a risk rests on what was observed and that its numbers stand there.

    Raises:
        ModelSlip: it does not; the text is advice on what to put right.
    """
    texts = {fact.id: fact.what for fact in evidence}
    texts |= {p.id: f"{p.what} {p.why} {p.lesson or ''}" for p in precedents}
    if not risk.ways:
        raise ModelSlip("Name at least one way in which the change can fail.")
    for way in risk.ways:
        unknown = [cited for cited in way.because if cited not in texts]
        if unknown or not way.because:
            raise ModelSlip(f"Cite ids that exist ({', '.join(texts) or 'none'}); {unknown or 'none'} do not.")
        _check_numbers(way.what, [change.summary, *(texts[cited] for cited in way.because)])
    counted = f"{len(precedents)} precedents"
    _check_numbers(risk.summary, [change.summary, counted, *texts.values()])


def _check_wish(wish: Wish, text: str, knobs: Sequence[Knob]) -> None:
    knob = next((knob for knob in knobs if knob.name == wish.knob), None)
    if knob is None:
        raise ModelSlip(f"There is no setting {wish.knob!r} in the list.")
    if all(mention.knob.name != knob.name for mention in phrases.mentions(text, knobs)):
        raise ModelSlip(f"The request does not name {wish.knob!r}; report kind 'unclear' if it may mean it.")
    if phrases.normal(wish.words) not in text or not wish.words.strip():
        raise ModelSlip("'words' must be copied verbatim from the request.")
    stated = {number.value for number in phrases.numbers(text, phrases.mentions(text, knobs))}
    stated |= {value / 100 for value in stated}
    for value in (wish.value, wish.was):
        if value is not None and value not in stated:
            raise ModelSlip(f"The request states no {value:g}.")
    if knob.value != "switch" and wish.verb in {"turn_on", "turn_off"}:
        raise ModelSlip(f"{knob.name!r} takes a value, it is not a switch.")
    if knob.value != "switch" and wish.verb != "unset" and wish.value is None:
        raise ModelSlip(f"{knob.name!r} needs a value; report kind 'unclear' where the request states none.")
    if wish.verb == "turn_on" and _OFF.search(text) and not _ON.search(text):
        raise ModelSlip("The request says off, not on.")
    if wish.verb == "turn_off" and _ON.search(text) and not _OFF.search(text):
        raise ModelSlip("The request says on, not off.")
    if knob.value == "switch" and wish.verb not in {"turn_on", "turn_off", "set", "unset"}:
        raise ModelSlip(f"{knob.name!r} is a switch: turn_on or turn_off.")
    if knob.inverted and wish.verb in {"set", "unset"} and not _literal(text, knob, knobs):
        raise ModelSlip(f"Say turn_on or turn_off for what operators call {knob.words[0]!r}.")


def _literal(text: str, knob: Knob, knobs: Sequence[Knob]) -> bool:
    return any(m.knob.name == knob.name and m.literal for m in phrases.mentions(text, knobs))


def _check_answer(understanding: Understanding, evidence: Sequence[Evidence]) -> None:
    known = {fact.id: fact for fact in evidence}
    missing = [cited for cited in understanding.cites if cited not in known]
    if missing or not understanding.cites:
        raise ModelSlip(f"Cite the evidence that the answer rests on by id; known are {', '.join(known) or 'none'}.")
    if not understanding.answer:
        raise ModelSlip("A question needs an answer.")
    _check_numbers(understanding.answer, [known[cited].what for cited in understanding.cites])


def _check_numbers(text: str, sources: Iterable[str]) -> None:
    allowed = {float(number) for source in sources for number in _DIGITS.findall(source)}
    strange = [number for number in _DIGITS.findall(text) if float(number) not in allowed]
    if strange:
        raise ModelSlip(f"{', '.join(strange)} stands in nothing that was cited; leave it out or cite where it stands.")
