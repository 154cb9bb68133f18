"""`prudent lab`: the practice ground from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from evals.lab import ground

PRUDENT = (sys.executable, "-m", "agent.doors")


def lab(*words, check=True):
    """Run a sub-command to its end."""
    done = subprocess.run([*PRUDENT, "lab", *words], capture_output=True, text=True, timeout=240, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done


@pytest.fixture
def place(tmp_path):
    """Where a ground may stand; it is down afterwards."""
    yield str(tmp_path / "lab")
    ground.down(tmp_path / "lab")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "engine", "beside"),
    [
        (["--topology", "pd", "--sound", "--seed", "3", "--noise", "0.01,0.02"], "sglang", ["prefill", "router"]),
        (["--engine", "vllm", "--noise", "measured", "--fault", "slot-leak"], "vllm", []),
    ],
)
def test_up_status_down(place, words, engine, beside):
    """A worker or a pair comes up as it was wished for, says how it is doing, and goes down once."""
    made = json.loads(lab("up", "-d", place, "--start-speed", "200", "--json", *words).stdout)
    worker = tomllib.loads(Path(made["settings"]).read_text(encoding="utf-8"))["workers"]["decode"]
    status = json.loads(lab("status", "-d", place, "--json").stdout)

    assert worker["engine"] == engine
    assert worker["entry"] == made["entry"]
    assert (status["state"], status["ready"], status["port"]) == ("running", True, int(made["port"]))
    assert [name for name, _, _ in status["beside"]] == beside
    assert "Stopped." in lab("down", "-d", place).stdout
    assert "state: stopped" in lab("status", "-d", place).stdout


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--fault", "slot-leek"], 24, "do you mean 'slot-leak'"),
        (["--fault", "stale-bootstrap"], 24, "takes a pair"),
        (["--version", "9"], 24, "Sglang 9 is not known here; there are 0.5.14"),
        (["--noise", "loud"], 24, "Noise is one of none, slight, measured"),
        (["--engine", "vllm", "--topology", "pd"], 24, "a pair is made of sglang"),
        (["--engine", "llama"], 2, "llama"),
    ],
)
def test_a_wish_that_cannot_be_met_is_a_sentence(place, words, status, said):
    """What is not there is said with what is, by an exit code of its own, and nothing is written."""
    done = lab("up", "-d", place, *words, check=False)

    assert done.returncode == status
    assert said.lower() in done.stderr.lower().replace("\n", " ")
    assert "Traceback" not in done.stderr
    assert not Path(place).exists()
