"""What an installed engine's help text is worth, and how the words that started a worker tell how to ask it."""

from pathlib import Path

import pytest

from tools.engines.catalogue import knob_named
from tools.engines.explain import knob_lines
from tools.engines.help_text import command_of, read_help

RECORDINGS = Path(__file__).parents[2] / "data" / "recordings" / "sglang-0.5.14-h200"
USAGE = (RECORDINGS / "q_bad_flag" / "startup.log").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        ("python3 -m sglang.launch_server --tp 4", "python3 -m sglang.launch_server"),
        ("/v/bin/python3.12 -u -X dev -m sglang.launch_server", "/v/bin/python3.12 -u -X dev -m sglang.launch_server"),
        ("/v/bin/python /v/bin/sglang serve --tp 4", "/v/bin/python /v/bin/sglang serve"),
        ("/v/bin/python3 /v/bin/vllm serve /models/m --max-num-seqs 4", "/v/bin/python3 /v/bin/vllm serve"),
        ("python3 -m vllm.entrypoints.openai.api_server --model m", "python3 -m vllm.entrypoints.openai.api_server"),
        ("python3 /src/sglang/launch_server.py --tp 4", "python3 /src/sglang/launch_server.py"),
        ("sglang::scheduler", None),
        ("python3 -m http.server 80", None),
        ("python3 -c import\tsglang", None),
        ("python3 -m", None),
        ("/usr/bin/bash /srv/serve.sh", None),
        ("", None),
    ],
)
def test_the_words_that_started_it_are_known_up_to_its_flags(argv, command):
    """Module, script and console entry, with the interpreter's own flags; anything else is not guessed at."""
    assert command_of(argv.split(" ") if argv else ()) == (None if command is None else tuple(command.split(" ")))


def test_a_help_text_is_taken_at_its_word():
    """All its flags, and the sentence that says what was asked."""
    found = read_help(USAGE, None, version="0.5.14", running="0.5.14", argv=("python3", "--max-running-requests", "48"))

    assert "--cuda-graph-max-bs-decode" in found.flags
    assert "--cuda-graph-max-batch" not in found.flags
    assert found.basis.startswith("the --help of the installed 0.5.14, ")


def test_a_flag_that_the_worker_was_started_with_is_known_though_the_help_hides_it():
    """Where the very version runs; of another version nothing follows."""
    argv = ("python3", "--max-running-requests", "48", "--context-length=8192", "--hidden-one=3")

    same, other = (read_help(USAGE, None, version=v, running="0.5.14", argv=argv) for v in ("0.5.14", "0.5.20"))

    assert "--hidden-one" in same.flags
    assert "--hidden-one" not in other.flags


@pytest.mark.parametrize(
    ("text", "problem", "says"),
    [
        (None, "no end in time", "could not be asked: no end in time"),
        (None, None, "could not be asked: no answer"),
        ("Segmentation fault (core dumped)", None, "is no help text"),
        ("usage: x [-h] [--one] [--two]", None, "is no help text"),
        (" ".join(f"--flag-{letter}" for letter in "abcdefghijklmnopqrstuvwxyz") + " --help", None, "not even its own"),
        ("\x00\xff" * 4000, None, "is no help text"),
    ],
    ids=["late", "nothing", "crash", "short", "of something else", "bytes"],
)
def test_what_is_no_help_text_is_not_gone_by(text, problem, says):
    """Missing, slow or garbled: it says so, and the catalogue counts."""
    found = read_help(text, problem, version="0.5.14", running="0.5.14", argv=("python3", "--tp", "4", "--port", "1"))

    assert found.flags is None
    assert says in found.basis


def test_explaining_a_knob_says_what_the_installed_engine_lists():
    """Listed, not listed, or not asked; a variable is in no help text."""
    asked = read_help(USAGE, None, version="0.5.14", running="0.5.14", argv=())
    silent = read_help(None, "no end in time", version="0.5.14", running="0.5.14", argv=())
    knob = knob_named("sglang", "cuda-graph-max-bs")

    def line(installed):
        said = knob_lines(knob, "0.5.14", installed=installed)
        return next(each for each in said if each.startswith("  installed"))

    assert "--cuda-graph-max-bs-decode, --cuda-graph-max-bs in the --help of the installed 0.5.14" in line(asked)
    assert "no end in time" in line(silent)
    gone = asked.model_copy(update={"flags": frozenset({"--help"})})
    assert "not in the --help" in line(gone)
