"""Planning an edit: what becomes of the file, what is told about it, and why some edits are refused."""

from __future__ import annotations

import pytest

from agent.errors import AmbiguousLaunch, EditRefused, Refused, UnreadableScript
from tools.serve_script.edit import plan_edit, plan_edits, value_of
from tools.serve_script.handover import handover
from tools.serve_script.launches import Target
from tools.serve_script.prove import prove
from tools.serve_script.read import Reading

SCRIPT = b"""#!/usr/bin/env bash
set -euo pipefail
# decode worker, see the plan
export SGLANG_OPT_USE_MULTI_STREAM_OVERLAP=0
export SGLANG_LOG_LEVEL=info

exec python3 -m sglang.launch_server \\
    --model-path /models/v4 \\
    --cuda-graph-max-bs 32 \\
    --max-running-requests 256 \\
    --disable-overlap-schedule
"""
MAX_BS = ["--cuda-graph-max-bs-decode", "--cuda-graph-max-bs"]


def test_the_spelling_of_the_file_is_kept() -> None:
    """A knob that the file spells the old way is set under its old name."""
    edit = plan_edit(SCRIPT, path="d/serve.sh", kind="flag", names=MAX_BS, operation="set", value="96")

    assert edit.content == SCRIPT.replace(b"bs 32", b"bs 96")
    assert (edit.spelling, edit.old, edit.lines) == ("--cuda-graph-max-bs", "32", (9,))
    assert edit.explanation == "Line 9: --cuda-graph-max-bs 32 becomes 96."
    assert edit.diff.splitlines()[:3] == ["--- a/d/serve.sh", "+++ b/d/serve.sh", "@@ -6,7 +6,7 @@"]
    assert [line for line in edit.diff.splitlines()[3:] if line[0] in "+-"] == [
        "-    --cuda-graph-max-bs 32 \\",
        "+    --cuda-graph-max-bs 96 \\",
    ]


def test_a_switch_is_taken_out_and_put_back() -> None:
    """Taking a switch off the last line and adding it again leads to the same command line."""
    names = ["--disable-overlap-schedule"]

    without = plan_edit(SCRIPT, path="serve.sh", kind="flag", names=names, operation="unset", value=None)
    again = plan_edit(without.content, path="serve.sh", kind="flag", names=names, operation="set", value=None)

    assert without.content == SCRIPT.replace(b" \\\n    --disable-overlap-schedule", b"")
    assert again.content == SCRIPT


def test_setting_what_is_absent_adds_it() -> None:
    """`set` adds a flag that is not there, in the style of its neighbours; `replace` refuses to."""
    names = ["--mem-fraction-static"]

    edit = plan_edit(SCRIPT, path="serve.sh", kind="flag", names=names, operation="set", value="0.85")

    assert edit.old is None
    assert edit.content == SCRIPT[:-1] + b" \\\n    --mem-fraction-static 0.85\n"
    with pytest.raises(EditRefused) as refusal:
        plan_edit(SCRIPT, path="serve.sh", kind="flag", names=names, operation="replace", value="0.85")
    assert getattr(refusal.value, "kind", None) == "absent"


def test_a_variable_is_set_in_its_export() -> None:
    """A variable is changed where the file exports it."""
    name = "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP"

    edit = plan_edit(SCRIPT, path="serve.sh", kind="env", names=[name], operation="set", value="1")

    assert edit.content == SCRIPT.replace(b"OVERLAP=0", b"OVERLAP=1")


def test_two_changes_are_proven_together() -> None:
    """Edits on top of each other are one proof, which knows all of what was intended."""
    first = plan_edit(SCRIPT, path="serve.sh", kind="flag", names=MAX_BS, operation="set", value="96")
    second = plan_edit(first.content, path="serve.sh", kind="env", names=["NEW_ONE"], operation="set", value="1")
    third = plan_edit(
        second.content,
        path="serve.sh",
        kind="flag",
        names=["--disable-overlap-schedule"],
        operation="unset",
        value=None,
    )
    intents = [first.intent, second.intent, third.intent]

    proof = prove(SCRIPT, third.content, path="serve.sh", intended=intents)
    short = prove(SCRIPT, third.content, path="serve.sh", intended=intents[:2])

    assert proof.outcome in ("proven", "no-sandbox"), proof
    assert short.outcome in ("other-difference", "no-sandbox"), short


def test_bytes_of_any_encoding_come_out_as_they_went_in() -> None:
    """A file that is not UTF-8, or has no final line end, keeps both."""
    content = b"# caf\xe9 \xff\x00\nvllm serve /m --seed 1 --served-model-name \xc3\xa9"

    edit = plan_edit(content, path="x.sh", kind="flag", names=["--seed"], operation="set", value="\u00e9t\u00e9")

    assert edit.content == content.replace(b"--seed 1", "--seed \u00e9t\u00e9".encode())
    assert "\\xe9" in edit.diff


def test_the_places_of_a_value_are_offered_in_order() -> None:
    """The assignment first, which keeps the file honest, then the use."""
    content = b"MAX=${MAX:-32}\nvllm serve /m --max-num-seqs $MAX\n"

    first, second = plan_edits(content, path="x.sh", kind="flag", names=["--max-num-seqs"], operation="set", value="96")

    assert first.content == content.replace(b"32", b"96")
    assert second.content == content.replace(b"seqs $MAX", b"seqs 96")
    assert first.notes == ("It is a default: MAX from whoever runs the file still wins.",)


def test_a_file_of_flags_is_edited() -> None:
    """A YAML file that a launch reads with --config is a launch file too."""
    content = b"# flags\nmodel: /m\nmax-num-seqs: 64  # why\nenable-prefix-caching: true\n"
    ask = {"path": "settings.yaml", "kind": "flag", "names": ["--max-num-seqs"]}

    edit = plan_edit(content, operation="set", value="96", **ask)  # type: ignore[arg-type]
    gone = plan_edit(content, operation="unset", value=None, **ask)  # type: ignore[arg-type]

    assert edit.content == content.replace(b"64", b"96")
    assert gone.content == content.replace(b"max-num-seqs: 64  # why\n", b"")


@pytest.mark.parametrize(
    ("content", "target", "error", "kind", "line"),
    [
        (b"vllm serve /a --seed 1 &\nvllm serve /b --seed 1 &\n", None, AmbiguousLaunch, "ambiguous-launch", 1),
        (b"vllm serve /a --port 1 --seed 1\n", Target(port=2), EditRefused, "no-such-launch", None),
        (b"echo nothing\n", None, UnreadableScript, "no-launch", None),
        (b"\nvllm serve /a \\\r\n --seed 1\r\n", None, UnreadableScript, "carriage-returns", 2),
        (b"\n\nvllm serve /a --seed $((1+1))\n", None, EditRefused, "computed", 3),
        (b"vllm serve /a --seed $1\n", None, EditRefused, "from-arguments", 1),
        (b"A='vllm serve /a --seed 1'\neval \"$A\"\n", None, EditRefused, "eval", 2),
        (b"vllm serve /a \\\n # x\n --seed 1\n", None, EditRefused, "not-in-command", 3),
        (b"vllm serve /a --seed 2\n", None, EditRefused, "already-so", 1),
        (b"vllm serve /a --port 1\n", None, EditRefused, "absent", 1),
        (b"ssh h 'vllm serve /a --served-model-name \"x $A\" --seed `date`'\n", None, EditRefused, "computed", 1),
    ],
)
def test_a_refusal_has_a_kind_a_line_a_sentence_and_a_remedy(
    content: bytes, target: Target | None, error: type[Refused], kind: str, line: int | None
) -> None:
    """Whatever is refused is refused as what it is, with what a person could do."""
    with pytest.raises(error) as refusal:
        plan_edit(content, path="x.sh", kind="flag", names=["--seed"], operation="replace", value="2", target=target)

    assert getattr(refusal.value, "kind", None) == kind
    assert getattr(refusal.value, "line", None) == line
    assert refusal.value.sentence.endswith(".")
    assert refusal.value.remedy.endswith(".")


@pytest.mark.parametrize(
    "hostile", ["; rm -rf /", "$(reboot)", "`id`", "a\nb", "' || true '", '"x', "-1", "--port", "*", ""]
)
def test_a_hostile_value_is_one_word_or_refused(hostile: str) -> None:
    """Whatever the value, the server gets it as one word, or the edit is refused."""
    content = b"vllm serve /m --served-model-name x --port 1\n"
    try:
        edit = plan_edit(
            content, path="x.sh", kind="flag", names=["--served-model-name"], operation="set", value=hostile
        )
    except Refused:
        return

    proof = prove(content, edit.content, path="x.sh", intended=edit.intent)

    assert proof.outcome in ("proven", "no-sandbox"), (edit.content, proof)


def test_kinds_that_no_service_restarts_are_planned_all_the_same() -> None:
    """Compose and Kubernetes files are read, planned and told like any other."""
    content = b"services:\n  a:\n    image: x\n    command: vllm serve /m --seed 1\n"

    edit = plan_edit(
        content, path="compose.yaml", kind="flag", names=["--seed"], operation="set", value="2", reading=Reading()
    )
    told = handover("compose", "my compose.yaml")

    assert edit.content == content.replace(b"--seed 1", b"--seed 2")
    assert told is not None
    assert "applied nothing" in told.sentence
    assert told.commands[-1] == "docker compose -f 'my compose.yaml' up -d"
    assert handover("bash", "serve.sh") is None


def test_a_refusal_tells_no_secret() -> None:
    """Setting a key to what it is already says so without the key."""
    content = b"vllm serve /m --api-key tops3cret\n"

    with pytest.raises(EditRefused) as refusal:
        plan_edit(content, path="x.sh", kind="flag", names=["--api-key"], operation="set", value="tops3cret")

    assert getattr(refusal.value, "kind", None) == "already-so"
    assert "tops3cret" not in str(refusal.value)


def test_what_follows_a_switch_is_no_value_of_it() -> None:
    """A switch before the model is a switch, though a word follows."""
    content = b"vllm serve --enforce-eager /m --port 1\n"
    ask = {"path": "x.sh", "kind": "flag", "names": ["--enforce-eager"]}

    found = value_of(content, **ask)  # type: ignore[arg-type]
    edit = plan_edit(content, operation="unset", value=None, **ask)  # type: ignore[arg-type]

    assert found.value == ""
    assert edit.content == b"vllm serve /m --port 1\n"
