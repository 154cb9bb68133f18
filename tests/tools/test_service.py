from __future__ import annotations

import pytest
from pydantic import ValidationError

from agent.domain import Process
from agent.errors import NoAnswer
from tools.service import CommandService, Progress, SystemdService, wait_ready

STARTED = Process(pid=7, start_ticks=100, boot_id="b", argv=("engine",))
OTHER = Process(pid=8, start_ticks=900, boot_id="b", argv=("engine",))
SILENT = NoAnswer("local", ("pid",), None, "timed out")


def follow(story, *, deadline=100.0, patience=30.0):
    """Follow a start that is told second by second as (process, progress); the last line goes on for ever."""
    at = 0.0
    told: list[str] = []

    def line():
        return story[min(int(at), len(story) - 1)]

    def ask(part):
        answer = line()[part]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sleep(seconds: float) -> None:
        nonlocal at
        at += seconds

    waited = wait_ready(
        STARTED.identity,
        main=lambda: ask(0),
        progress=lambda: ask(1),
        deadline=deadline,
        patience=patience,
        clock=lambda: at,
        sleep=sleep,
        tell=told.append,
        pause=1.0,
    )
    return waited, told


def test_a_start_is_followed_to_ready() -> None:
    """Each new word of the engine is told once, and the wait ends when the engine is up."""
    story = [(STARTED, Progress(False, word)) for word in ("loading", "loading", "capturing 1/9", "capturing 9/9")]
    waited, told = follow([*story, (STARTED, Progress(True, "fired up"))])
    assert waited.outcome == "ready"
    assert waited.seconds == 4
    assert waited.process == STARTED
    assert told == ["loading", "capturing 1/9", "capturing 9/9"]


@pytest.mark.parametrize(("process", "says"), [(None, "ended"), (OTHER, "replaced by pid 8")])
def test_a_process_that_is_gone_is_never_ready(process, says) -> None:
    """An endpoint that answers while the process that was started is gone or another one is not the worker."""
    waited, _ = follow([(STARTED, Progress(False, "loading")), (process, Progress(True, "fired up"))])
    assert waited.outcome == "died"
    assert says in waited.says
    assert waited.process == process


def test_a_start_that_says_it_failed_is_over() -> None:
    """The engine's own last word ends the wait at once."""
    waited, _ = follow([(STARTED, Progress(False, "capturing", failed="CUDA out of memory"))])
    assert (waited.outcome, waited.says, waited.seconds) == ("failed", "CUDA out of memory", 0)


def test_a_start_without_progress_is_stuck() -> None:
    """The same word for longer than the patience ends the wait, long before the deadline."""
    waited, _ = follow([(STARTED, Progress(False, "loading"))], patience=10)
    assert waited.outcome == "stuck"
    assert waited.seconds == 10
    assert "loading" in waited.says


def test_progress_for_ever_ends_at_the_deadline() -> None:
    """A start that always says something new is still bounded."""
    waited, _ = follow([(STARTED, Progress(False, f"{number}")) for number in range(200)], deadline=50, patience=10)
    assert waited.outcome == "deadline"
    assert waited.seconds == 50


def test_a_host_that_hiccups_is_asked_again() -> None:
    """No answer is neither death nor progress: the wait goes on and says so; silence is no failure."""
    hiccup = (SILENT, Progress(False, "loading"))
    waited, told = follow(
        [(STARTED, Progress(False, "loading")), hiccup, hiccup, (STARTED, Progress(True, "fired up"))]
    )
    assert waited.outcome == "ready"
    assert any("no answer" in line for line in told)
    waited, _ = follow([(STARTED, SILENT)], patience=10)
    assert waited.outcome == "unheard"
    waited, _ = follow([(STARTED, SILENT)], deadline=10, patience=50)
    assert waited.outcome == "unheard"


def test_a_service_without_its_commands_is_no_service() -> None:
    """Both commands have words, limits are above zero, and unknown keys are refused."""
    good = {"restart": ("systemctl", "restart", "decode"), "pid": ("pidof", "decode")}
    assert CommandService(**good).kind == "command"
    for bad in ({"restart": ()}, {"pid": ()}, {"restart_seconds": 0}, {"unit": "decode"}, {"kind": "magic"}):
        with pytest.raises(ValidationError):
            CommandService(**{**good, **bad})


def test_a_unit_is_named_as_systemd_names_units() -> None:
    """Names that systemd would take for an option, a path or several words are refused before anything is asked."""
    assert SystemdService(unit="sglang@decode-1.service").scope == "system"
    assert SystemdService(unit=r"dev-disk\x2d1.service", scope="user").kind == "systemd"
    for bad in ("", "--now", "../etc/passwd.service", "a b.service", "x" * 256, "decode.service\n"):
        with pytest.raises(ValidationError):
            SystemdService(unit=bad)
