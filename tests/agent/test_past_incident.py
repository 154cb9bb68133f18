"""The team's own incidents: made from a run, met again by every later change of the same settings."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from evals.lab import ground
from memory.sqlite import SqliteStore

HISTORY = Path(__file__).parent.parent / "data" / "memory" / "first-version.sqlite"
"""Both seed stories: the captured batch, which was kept, and the overlap scheduler, which was deferred."""
DEFERRED, KEPT = "r-b99dry", "r-gdvdnh"
SETTINGS = """
[workers.decode]
host = "local"
engine = "sglang"
script = "serve.sh"
log = "worker.log"
control = "http://127.0.0.1:9"
[workers.decode.service]
kind = "command"
restart = ["false"]
pid = ["false"]
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with settings and the two seed stories, and no worker."""
    (tmp_path / "prudent.toml").write_text(SETTINGS)
    (tmp_path / ".prudent").mkdir()
    shutil.copy(HISTORY, tmp_path / ".prudent" / "prudent.sqlite")
    return tmp_path


def prudent(place: Path, *argv: str) -> tuple[int, str]:
    """Run a command there; its status and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "agent.doors", *argv],
        env={**os.environ, "PRUDENT_SETTINGS": str(place / "prudent.toml"), "COLUMNS": "110"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_run_that_failed_makes_an_incident_with_its_signature(place):
    """What broke, the settings, the engine's version and what was seen come from the record; its text is tainted."""
    status, said = prudent(place, "incident", "add", DEFERRED, "--title", "Overlap hung the worker", "--json")
    assert status == 0, said
    made = json.loads(said)

    assert made["knobs"] == ["disable-overlap-schedule"]
    assert made["signature"]
    assert made["since"] == "0.5.14"
    assert made["demands"]
    assert (made["outcome"], made["certainty"], made["tainted"]) == ("harmed", "suspected", True)
    assert made["reference"] == f"prudent show {DEFERRED}"

    status, listed = prudent(place, "incident", "list")
    assert (status, "Overlap hung" in listed) == (0, True), listed
    status, shown = prudent(place, "incident", "show", made["id"])
    assert (status, "shows again as" in shown, "disable-overlap-schedule" in shown) == (0, True, True), shown
    store = SqliteStore(place / ".prudent" / "prudent.sqlite")
    assert [one.tainted for one in store.incidents()] == [True]
    store.close()


def test_the_same_incident_twice_is_one_and_another_needs_a_name(place):
    """Adding it again changes nothing; another one under its id is refused with the remedy."""
    assert prudent(place, "incident", "add", DEFERRED)[0] == 0
    assert prudent(place, "incident", "add", DEFERRED)[0] == 0
    status, said = prudent(place, "incident", "add", DEFERRED, "--lesson", "Something else.")
    assert (status, "--id" in said) == (21, True), said
    assert prudent(place, "incident", "add", DEFERRED, "--lesson", "Something else.", "--id", "second")[0] == 0
    assert len(json.loads(prudent(place, "incident", "list", "--json")[1])) == 2


@pytest.mark.parametrize(
    ("argv", "status", "says"),
    [
        (("r-nobody",), 37, "See prudent history"),
        (("r-left",), 37, "has no record yet"),
        ((DEFERRED, "--knob", "mem-fraction"), 38, "Did you mean mem-fraction-static"),
        ((DEFERRED, "--check", "vibes"), 24, "It is one of sessions"),
        ((DEFERRED, "--versions", "new"), 24, "0.5.12..0.5.15"),
        ((DEFERRED, "--outcome", "sad"), 24, "It is one of harmed"),
        ((DEFERRED, "--certainty", "sure"), 24, "certainty"),
        ((DEFERRED, "--id", "Not An Id"), 24, "small letters"),
        ((DEFERRED, "--id", "overlap-scheduler-abort-wedge"), 21, "--id"),
    ],
)
def test_bad_input_is_one_sentence_with_the_remedy(place, argv, status, says):
    """A run that is not there, or an option that means nothing, ends with a code and no traceback."""
    ended, said = prudent(place, "incident", "add", *argv)
    assert (ended, says in " ".join(said.split()), "Traceback" in said) == (status, True, False), said


def test_what_an_operator_adds_is_kept(place):
    """More settings, more checks, a range of versions and a lesson stand in the incident."""
    argv = ("--knob", "mem-fraction-static", "--check", "soak", "--versions", "0.5.12..0.5.16", "--lesson", "Soak it.")
    status, said = prudent(place, "incident", "add", KEPT, *argv, "--outcome", "false alarm", "--json")
    assert status == 0, said
    made = json.loads(said)
    assert made["knobs"] == ["cuda-graph-max-bs", "mem-fraction-static"]
    assert (made["since"], made["until"], made["demands"]) == ("0.5.12", "0.5.16", ["soak"])
    assert (made["lesson"], made["outcome"]) == ("Soak it.", "false alarm")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_later_plan_shows_it_and_demands_its_checks(quick):
    """The same request makes a plan without the check, and with it once the team has written down what happened."""
    ground_store = quick.ground.settings.parent / ".prudent" / "prudent.sqlite"
    ground_store.parent.mkdir(exist_ok=True)
    shutil.copy(HISTORY, ground_store)
    before = _plan(quick.ask("set max running requests to 96", decide=("reject",)))
    argv = ("--knob", "max-running-requests", "--check", "aborts", "--id", "team-own", "--title", "Ours")
    assert quick.say("incident", "add", KEPT, *argv, "--outcome", "harmed").status == 0

    after = _plan(quick.ask("set max running requests to 96", decide=("reject",)))

    assert "team-own" not in {one["id"] for one in before["precedents"]}
    ours = next(one for one in after["precedents"] if one["id"] == "team-own")
    assert (ours["source"], ours["tainted"], ours["demands"]) == ("incident", True, ["aborts"])
    assert "same knob: max-running-requests" in ours["why"]
    assert "aborts" not in {check["name"] for check in before["checks"]}
    assert "aborts" in {check["name"] for check in after["checks"]}
    assert ground.status(quick.ground.directory).ready


def _plan(said):
    return next(event["plan"] for event in said.events if event["kind"] == "plan")
