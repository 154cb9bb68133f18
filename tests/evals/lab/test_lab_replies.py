"""What the worker understands, and what it answers."""

import json
from random import Random

import pytest

from evals.lab.conversation import Fact, facts_in, order_in, understand
from evals.lab.replies import reply, spoilt


def tool(name, *parameters):
    """A function with these parameters."""
    properties = {parameter: {"type": "string"} for parameter in parameters}
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


def called(made):
    """Name and arguments of the call, from its tokens."""
    written = "".join(token.text for token in made.tokens if token.kind == "arguments")
    return "".join(token.text for token in made.tokens if token.kind == "name"), json.loads(written)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("The rack of node-7 is R12.", [("rack", "node-7", "R12")]),
        ("Good morning. The power budget of cell 4 is 12.5 kW. Bye.", [("power budget", "cell 4", "12.5 kW")]),
        ("We met at noon, and the owner of db.internal is Ada Lovelace.", [("owner", "db.internal", "Ada Lovelace")]),
        ("The address of n1 is 10.0.3.7. The rack of n1 is r9.", [("address", "n1", "10.0.3.7"), ("rack", "n1", "r9")]),
        ("The pump in the hall is loud. Is the rack of n1 full?", []),
    ],
)
def test_facts_are_read_from_plain_english(text, facts):
    """Statements are found amid filler, with blanks and dots in names and values."""
    assert facts_in(text) == [Fact(*fact) for fact in facts]


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("Call set_rack for node-7.", ("set_rack", "node-7")),
        ("The rack of n1 is r9. Now call set_owner for db.internal.", ("set_owner", "db.internal")),
        ("Call set_rack for n1. No, wait. Call set_owner for n2.", ("set_owner", "n2")),
        ("Call me later.", None),
    ],
)
def test_the_last_order_counts(text, order):
    """The last order of a text is the one that is carried out."""
    assert order_in(text) == order


def test_the_latest_statement_counts():
    """A call carries the value stated last, over several turns and results of earlier calls."""
    messages = [
        {"role": "system", "content": "You operate a cluster by calling tools."},
        {"role": "user", "content": "The rack of n1 is r1. The rack of n2 is r2. Call set_rack for n2."},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "set_rack", "arguments": "{}"}}]},
        {"role": "tool", "content": "ok", "tool_call_id": "x"},
        {"role": "user", "content": [{"type": "text", "text": "The rack of n1 is r8. Call set_rack for n1."}]},
    ]

    made = reply(understand(messages, [tool("set_owner", "node", "owner"), tool("set_rack", "rack", "node")]))

    assert called(made) == ("set_rack", {"node": "n1", "rack": "r8"})


def test_an_order_that_cannot_be_followed_is_answered_in_words():
    """Without the fact, without the tool or without an order, text comes back and nothing is called."""
    for text in ("Call set_rack for n9.", "The rack of n9 is r1. Call set_roof for n9.", "How is the weather in Oslo?"):
        made = reply(understand([{"role": "user", "content": text}], [tool("set_rack", "node", "rack")]))

        assert made.call is None
        assert "".join(token.text for token in made.tokens).strip()


def test_a_spoilt_reply_is_never_the_right_one():
    """Whichever way a call is spoilt, it is not what was ordered; each way comes up."""
    text = "The rack of n1 is r1. The rack of n2 is r2. The owner of n1 is kim. Call set_rack for n1."
    conversation = understand([{"role": "user", "content": text}], [tool("set_rack", "node", "rack")])
    right = reply(conversation)
    chance = Random(4)

    ways = set()
    for _ in range(300):
        wrong = spoilt(conversation, right, chance, ("r77", "r78"))
        if wrong.call is None:
            ways.add("words")
            continue
        try:
            name, arguments = called(wrong)
        except ValueError:
            ways.add("broken")
            continue
        assert (name, arguments) != called(right)
        ways.add("foreign" if arguments["rack"] in {"r77", "r78"} else "other")
    assert ways == {"words", "broken", "foreign", "other"}
