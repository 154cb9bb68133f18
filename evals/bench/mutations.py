"""Ways in which a good reply comes out wrong, each drawn anew for every reply.

Half of the kinds are held out: which ones was drawn by lot and not chosen, so that neither half is the easier one by
anybody's wish. Detectors may be improved by what is seen of the other half; what the held-out half says is reported.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any, Literal, NamedTuple

from evals.bench.transcripts import Scene, Spoken, arguments
from evals.lab.replies import prose

Change = Callable[[Scene, Random], "Spoken | None"]
"""A wrong reply in place of the good one; None: this scene offers no such mistake."""

LOT = "2026-11-29"
"""Seed of the draw that parts the kinds."""
MARKUP = '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="{name}">\n{written}</｜DSML｜invoke></｜DSML｜tool_calls>'
"""DeepSeek's tool-call markup, as it reaches a client whose server did not parse it."""
FOREIGN = "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生"
LOOKALIKE = str.maketrans("aceopxy", "асеорху")


class Mutation(NamedTuple):
    """One way to be wrong."""

    name: str
    """What a reader of the transcript would see."""
    kind: Literal["call", "text"]
    """What it is done to."""
    change: Change
    """How."""


def _calling(scene: Scene, name: str | None = None, written: str | None = None) -> Spoken:
    old_name, old = scene.good.calls[0]
    new = (old_name if name is None else name, old if written is None else written)
    return scene.good._replace(calls=(new, *scene.good.calls[1:]))


def _written(scene: Scene, document: object) -> Spoken:
    return _calling(scene, written=json.dumps(document, ensure_ascii=False))


def _with(scene: Scene, value: object) -> Spoken | None:
    """The right call with another value; None where that is the right one after all."""
    assert scene.turn is not None
    wanted = scene.turn.wanted
    if value == wanted.value:
        return None
    return _written(scene, {**arguments(scene.good), wanted.attribute: value})


def _value(scene: Scene) -> str:
    assert scene.turn is not None
    return scene.turn.wanted.value


def _another_fact(scene: Scene, chance: Random) -> Spoken | None:
    found = [fact[2] for fact in scene.facts if fact[2] != _value(scene)]
    return _with(scene, chance.choice(found)) if found else None


def _replaced(scene: Scene, chance: Random) -> Spoken | None:
    assert scene.turn is not None
    return _with(scene, chance.choice(sorted(scene.turn.replaced))) if scene.turn.replaced else None


def _of_another(scene: Scene, chance: Random) -> Spoken | None:
    return _with(scene, chance.choice(scene.others)) if scene.others else None


def _another_node(scene: Scene, chance: Random) -> Spoken | None:
    assert scene.turn is not None
    nodes = sorted({fact[1] for fact in scene.facts} - {scene.turn.wanted.subject})
    return _written(scene, {**arguments(scene.good), "node": chance.choice(nodes)}) if nodes else None


def _cut_json(scene: Scene, chance: Random) -> Spoken:
    written = scene.good.calls[0][1]
    return _calling(scene, written=written[: chance.randrange(1, len(written) - 1)])


def _tail(scene: Scene, chance: Random) -> Spoken:
    return _calling(scene, written=scene.good.calls[0][1] + chance.choice(("}", '"', "</｜DSML｜invoke>", " the", ",")))


def _other_tool(scene: Scene, chance: Random) -> Spoken:
    assert scene.turn is not None
    names = ["set_" + one for one in ("rack", "owner", "zone", "image") if one != scene.turn.wanted.attribute]
    return _calling(scene, chance.choice(names))


def _damaged_name(scene: Scene, chance: Random) -> Spoken:
    name = scene.good.calls[0][0]
    at = chance.randrange(len(name))
    return _calling(scene, name[:at] + name[at + 1 :])


def _folded(scene: Scene, _: Random) -> Spoken:
    *rest, (key, value) = arguments(scene.good).items()
    return _written(scene, {**dict(rest), f"{key}: {value}": ""})


def _one_sign(scene: Scene, chance: Random) -> Spoken | None:
    value = _value(scene)
    at = chance.randrange(3, len(value))
    return _with(scene, value[:at] + chance.choice("abcdefghjkmnpqrstuvwxyz23456789") + value[at + 1 :])


def _swapped(scene: Scene, chance: Random) -> Spoken | None:
    value = _value(scene)
    at = chance.randrange(3, len(value) - 1)
    return _with(scene, value[:at] + value[at + 1] + value[at] + value[at + 2 :])


def _exchanged(scene: Scene, _: Random) -> Spoken:
    (one, first), (other, second) = arguments(scene.good).items()
    return _written(scene, {one: second, other: first})


def _less(scene: Scene, chance: Random) -> Spoken:
    document = arguments(scene.good)
    del document[chance.choice(list(document))]
    return _written(scene, document)


def _renamed(scene: Scene, chance: Random) -> Spoken:
    document = arguments(scene.good)
    key = chance.choice(list(document))
    new = chance.choice((key + "s", key.upper(), key + "_name", "the " + key))
    return _written(scene, {new if name == key else name: value for name, value in document.items()})


def _twice(scene: Scene, chance: Random, *, right_last: bool) -> Spoken | None:
    assert scene.turn is not None
    wrong = [fact[2] for fact in scene.facts if fact[2] != _value(scene)]
    if not wrong:
        return None
    attribute, subject, value = scene.turn.wanted
    pair = [chance.choice(wrong), value] if right_last else [value, chance.choice(wrong)]
    keys = ", ".join(f'"{attribute}": {json.dumps(one)}' for one in pair)
    return _calling(scene, written=f'{{"node": "{subject}", {keys}}}')


def _second_call(scene: Scene, chance: Random) -> Spoken | None:
    assert scene.turn is not None
    found = [fact for fact in scene.facts if fact[2] != _value(scene)]
    if not found:
        return None
    attribute, subject, value = chance.choice(found)
    more = (f"set_{attribute}", json.dumps({"node": subject, attribute: value}))
    return scene.good._replace(calls=(*scene.good.calls, more))


def _earlier(scene: Scene, chance: Random) -> Spoken | None:
    found = [call for call in scene.earlier if call != scene.good.calls[0]]
    return scene.good._replace(calls=(chance.choice(found),)) if found else None


def _sentences(chance: Random, count: int) -> str:
    sentences = prose(chance)
    return " ".join(next(sentences) for _ in range(count))


def _silent(content: str, finish: Literal["stop", "length"] = "stop") -> Spoken:
    return Spoken(content, "", (), finish)


def _stuck_call(scene: Scene, chance: Random) -> Spoken:
    written = scene.good.calls[0][1]
    at = chance.randrange(2, len(written) - 2)
    whole = written[:at] + chance.choice(("!", "的", "0", " the")) * 200
    return _calling(scene, written=whole)._replace(finish="length")


def _before(scene: Scene, content: str) -> Spoken:
    return scene.good._replace(content=content)


def _inserted(text: str, what: str, chance: Random) -> str:
    at = chance.randrange(len(text))
    return text[:at] + what + text[at:]


def _markup(scene: Scene) -> str:
    name, written = scene.good.calls[0]
    return MARKUP.format(name=name, written=written)


def _from_middle(text: str, rest: str) -> str:
    return text[: len(text) // 2] + rest


def _text(change: Callable[[str, Random], str]) -> Change:
    def changed(scene: Scene, chance: Random) -> Spoken:
        return scene.good._replace(content=change(scene.good.content, chance))

    return changed


def _paragraph(text: str, chance: Random) -> str:
    return _from_middle(text, (" " + _sentences(chance, 5)) * 12)


def _salad(text: str, chance: Random) -> str:
    words = text.split()
    chance.shuffle(words)
    return " ".join(words)


def _scrambled(text: str, chance: Random) -> str:
    return " ".join("".join(chance.sample(word, len(word))) for word in text.split())


def _foreign(chance: Random, count: int) -> str:
    return "".join(chance.choices(FOREIGN, k=count))


def _broken_letters(text: str, chance: Random) -> str:
    words = text.split()
    for at in chance.sample(range(len(words)), 12):
        words[at] = "Ã©" + words[at] + "â€™"
    return " ".join(words)


def _document(scene: Scene) -> dict[str, Any]:
    return arguments(scene.good)


MUTATIONS: tuple[Mutation, ...] = (
    Mutation("value of another fact", "call", _another_fact),
    Mutation("value that was replaced", "call", _replaced),
    Mutation("value of another session", "call", _of_another),
    Mutation("another node", "call", _another_node),
    Mutation("arguments cut off", "call", _cut_json),
    Mutation("more after the arguments", "call", _tail),
    Mutation("no arguments", "call", lambda scene, _: _written(scene, {})),
    Mutation("arguments of no text", "call", lambda scene, _: _calling(scene, written="")),
    Mutation("another tool", "call", _other_tool),
    Mutation("damaged tool name", "call", _damaged_name),
    Mutation("value folded into its key", "call", _folded),
    Mutation("one sign of the value", "call", _one_sign),
    Mutation("two signs swapped", "call", _swapped),
    Mutation("value cut short", "call", lambda scene, chance: _with(scene, _value(scene)[: chance.randrange(1, 9)])),
    Mutation("value said twice", "call", lambda scene, _: _with(scene, _value(scene) * 2)),
    Mutation("value in capitals", "call", lambda scene, _: _with(scene, _value(scene).upper())),
    Mutation("letters that look alike", "call", lambda scene, _: _with(scene, _value(scene).translate(LOOKALIKE))),
    Mutation("a blank before the value", "call", lambda scene, _: _with(scene, " " + _value(scene))),
    Mutation("node and value exchanged", "call", _exchanged),
    Mutation("an argument less", "call", _less),
    Mutation("a renamed argument", "call", _renamed),
    Mutation("an argument more", "call", lambda scene, _: _written(scene, {**_document(scene), "reason": "asked"})),
    Mutation("arguments as text in text", "call", lambda scene, _: _written(scene, scene.good.calls[0][1])),
    Mutation("arguments in a list", "call", lambda scene, _: _written(scene, [_document(scene)])),
    Mutation("null for the value", "call", lambda scene, _: _with(scene, None)),
    Mutation("one key twice, right last", "call", lambda scene, chance: _twice(scene, chance, right_last=True)),
    Mutation("one key twice, wrong last", "call", lambda scene, chance: _twice(scene, chance, right_last=False)),
    Mutation("the call twice", "call", lambda scene, _: scene.good._replace(calls=scene.good.calls * 2)),
    Mutation("a second call", "call", _second_call),
    Mutation("the call of an earlier turn", "call", _earlier),
    Mutation("words instead of a call", "call", lambda _, chance: _silent(_sentences(chance, 2))),
    Mutation("nothing at all", "call", lambda _, __: _silent("")),
    Mutation("reasoning without end", "call", lambda _, chance: Spoken("", _sentences(chance, 40), (), "length")),
    Mutation("a token over and over in the call", "call", _stuck_call),
    Mutation(
        "a token over and over before the call",
        "call",
        lambda scene, chance: _before(scene, chance.choice(("!", "的", " so", " the")) * 120),
    ),
    Mutation("replacement signs before the call", "call", lambda scene, _: _before(scene, "It \ufffd\ufffd is known.")),
    Mutation(
        "a control sign in the value",
        "call",
        lambda scene, _: _with(scene, _value(scene)[:5] + "\u0001" + _value(scene)[5:]),
    ),
    Mutation(
        "another session before the call",
        "call",
        lambda scene, chance: _before(scene, f"It is {chance.choice(scene.others)}.") if scene.others else None,
    ),
    Mutation("markup instead of a call", "call", lambda scene, _: _silent(_markup(scene))),
    Mutation("markup before the call", "call", lambda scene, _: _before(scene, _markup(scene))),
    Mutation(
        "a paragraph over and over before the call",
        "call",
        lambda scene, chance: scene.good._replace(reasoning=(_sentences(chance, 4) + " ") * 10),
    ),
    Mutation(
        "foreign script before the call",
        "call",
        lambda scene, chance: _before(scene, f"{_sentences(chance, 1)} {_foreign(chance, 30)} {_sentences(chance, 1)}"),
    ),
    Mutation("no text", "text", _text(lambda _, __: "")),
    Mutation("blanks only", "text", _text(lambda _, __: " \n" * 200)),
    Mutation(
        "one token from the middle on",
        "text",
        _text(lambda text, chance: _from_middle(text, chance.choice("!,的") * 500)),
    ),
    Mutation(
        "a word from the middle on",
        "text",
        _text(lambda text, chance: _from_middle(text, f" {chance.choice(text.split())}" * 300)),
    ),
    Mutation(
        "a sentence from the middle on",
        "text",
        _text(lambda text, chance: _from_middle(text, f" {_sentences(chance, 1)}" * 40)),
    ),
    Mutation("a paragraph from the middle on", "text", _text(_paragraph)),
    Mutation("a replacement sign", "text", _text(lambda text, chance: _inserted(text, "\ufffd", chance))),
    Mutation("a control sign", "text", _text(lambda text, chance: _inserted(text, "\u0002", chance))),
    Mutation("words in any order", "text", _text(_salad)),
    Mutation("letters in any order", "text", _text(_scrambled)),
    Mutation(
        "foreign script from the middle on",
        "text",
        _text(lambda text, chance: _from_middle(text, _foreign(chance, 600))),
    ),
    Mutation("letters decoded wrongly", "text", _text(_broken_letters)),
    Mutation("words without blanks", "text", _text(lambda text, _: _from_middle(text, text.replace(" ", "")))),
    Mutation("cut off in a word", "text", _text(lambda text, chance: text[: chance.randrange(200, 1500)].rstrip(" ."))),
    Mutation(
        "markup among the words", "text", _text(lambda text, chance: _inserted(text, "<｜DSML｜tool_calls>", chance))
    ),
    Mutation(
        "digits from the middle on",
        "text",
        _text(lambda text, chance: _from_middle(text, "".join(chance.choices("0123456789", k=1500)))),
    ),
)
"""Every kind, calls first."""


def halves() -> tuple[tuple[Mutation, ...], tuple[Mutation, ...]]:
    """The kinds that may be looked at, and those that are held out; of calls and of texts half each."""
    held: set[str] = set()
    for kind in ("call", "text"):
        names = sorted(one.name for one in MUTATIONS if one.kind == kind)
        held |= set(Random(f"{LOT}:{kind}").sample(names, len(names) // 2))
    return (
        tuple(one for one in MUTATIONS if one.name not in held),
        tuple(one for one in MUTATIONS if one.name in held),
    )
