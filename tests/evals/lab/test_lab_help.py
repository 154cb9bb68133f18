"""Asking an installed practice engine what it takes is a question and no start."""

import subprocess

import pytest

from evals.lab import private
from tools.engines.engine import engine_of

COMMANDS = {
    "sglang": ("python3", "-m", "sglang.launch_server"),
    "vllm": ("vllm", "serve"),
}


def asked(worker, *words):
    """What a command printed in the environment of the script, and its exit status."""
    opt = worker.directory / "opt"
    environ = {"PATH": f"{opt / 'venv' / 'bin'}:/usr/bin:/bin", "PYTHONPATH": str(opt / "sglang")}
    done = subprocess.run(words, env=environ, cwd=worker.directory, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("engine", "version", "flag", "gone"),
    [
        ("sglang", "0.5.14", "--cuda-graph-max-bs-decode", "--cudagraph-capture-sizes"),
        ("sglang", "0.5.13", "--cuda-graph-max-bs", "--cuda-graph-max-bs-decode"),
        ("sglang", "0.5.20", "--cuda-graph-max-bs-decode", "--piecewise-cuda-graph-tokens"),
        ("vllm", "0.24.0", "--max-cudagraph-capture-size", "--cuda-graph-max-bs"),
    ],
)
def test_help_names_the_flags_of_the_version(put_up, engine, version, flag, gone):
    """The questions that the product asks are answered with every flag, and nothing is counted as a start."""
    worker = put_up(engine=engine, version=version, faults=(), wait=False)
    boots = worker.directory / private.FOLDER / "boots"
    worker.supervise("stop")
    before = boots.read_text(encoding="utf-8") if boots.exists() else ""
    question = engine_of(engine).help_questions(COMMANDS[engine])[0]
    status, said = asked(worker, *question)

    assert status == 0
    words = {word.strip("[],") for word in said.split()}
    assert flag in words
    assert gone not in words
    assert (boots.read_text(encoding="utf-8") if boots.exists() else "") == before


def test_vllm_tells_its_version(put_up):
    """`vllm --version` prints it, and plain help names the ways to ask for more."""
    worker = put_up(engine="vllm", faults=(), wait=False)

    assert asked(worker, "vllm", "--version") == (0, "0.24.0\n")
    assert "--help=all" in asked(worker, "vllm", "serve", "--help")[1]
