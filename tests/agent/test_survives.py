"""What happens to a worker in the field: odd words, long logs, settings that come back, disks that fill up late."""

import json
import subprocess
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_odd_words_are_recorded_and_shown_as_they_are(quick):
    """Markup, control characters and bytes that are no text neither break the history nor change what it shows."""
    for words in ("bump cuda graphs [/] [bold]", "bump \x1b[31m it", "cuda graphs 🚀", "x" * 20_000):
        assert quick.ask(words, decide=()).status in {13, 38}
    raw = subprocess.run(
        [*quick.command, "ask", b"bump \xff\xfe graphs"],
        env=quick.environ,
        capture_output=True,
        timeout=60,
        check=False,
    )

    history = quick.say("history")

    assert raw.returncode in {13, 38}
    assert history.status == 0
    assert "[/] [bold]" in history.out
    assert "\x1b" not in history.out
    assert len(quick.say("history", "--json").document["records"]) == 5


def test_a_start_is_found_however_long_ago_it_was(quick):
    """A worker that has logged for days still has a start to forecast from and to judge the next one by."""
    line = b"[2026-11-29 12:00:00 TP0] Decode batch, #running-req: 8, #token: 900, token usage: 0.01, "
    line += b"cuda graph: True, gen throughput (token/s): 280.00, #queue-req: 0\n"
    with quick.ground.log.open("ab") as log:
        log.write(line * (6_000_000 // len(line)))

    forecast = quick.say("forecast", "--set", "cuda-graph-max-bs=96", "--json").document

    assert forecast["fits"] == "fits"
    assert forecast["free_after_capture"]["low"] > 14


def test_a_log_without_a_start_is_said_before_anybody_is_asked(quick):
    """What could not be proven afterwards is refused before a plan is made."""
    quick.settle('log = "run/worker.log"', 'log = "run/elsewhere.log"')

    said = quick.ask("bump cuda graphs to 96", decide=())

    assert said.status == 40
    assert "elsewhere.log" in said.record["verdict"]["why"]
    assert said.record["plan"] is None


def test_a_setting_can_go_and_come_back(quick):
    """A flag is taken out and kept out, since the engine's default is the same; then the change is rolled back."""
    gone = quick.ask("remove --max-running-requests")
    assert (gone.status, gone.record["verdict"]["state"]) == (0, "new"), gone.record["verdict"]
    assert b"--max-running-requests" not in quick.ground.script.read_bytes()
    assert "--max-running-requests" not in quick.argv()

    for words in (("show", gone.record["run"]), ("history",)):
        seen = quick.say(*words)
        assert (seen.status, gone.record["run"] in seen.out) == (0, True), seen.err
    assert "identity" in quick.say("show", gone.record["run"]).out

    back = quick.ask("roll back the last change")

    assert (back.status, back.record["change"]["undoes"]) == (0, gone.record["run"]), back.record["verdict"]
    assert quick.argv()[quick.argv().index("--max-running-requests") + 1] == "256"


def test_a_disk_that_fills_up_under_an_open_change_is_never_called_untouched(quick, tmp_path: Path):
    """The agent dies after the restart and the disk is full: resume calls a person, and the host restores by itself."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)], check=False).returncode != 0:
        pytest.skip("a small file system can be mounted by root only")
    try:
        quick.settle('directory = ".prudent/host"', f'directory = "{small}"')
        quick.die_with_the_change_live("bump cuda graphs to 96")
        quick.fill(small)

        resumed = quick.say("resume", "--json")

        state = resumed.record["verdict"]["state"]
        assert (resumed.status, state) in {(13, "unknown"), (11, "restored")}, resumed.record["verdict"]
        until = time.monotonic() + 60
        while quick.ground.script.read_bytes() != quick.original:
            assert time.monotonic() < until, "the host did not restore the script"
            time.sleep(0.2)
        quick.wait_until_ready(60)
    finally:
        time.sleep(1)
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_a_pipe_that_closes_does_not_end_a_run(quick):
    """Whoever watched goes away in the middle; the run goes on to its record."""
    asking = quick.start("ask", "bump cuda graphs to 96", "--json")
    for line in asking.stdout:
        event = json.loads(line)
        if event["kind"] == "plan":
            quick.say("approve", event["plan"]["run"])
            asking.stdout.close()
            break
    asking.wait(timeout=120)
    asking.stderr.close()

    record = quick.say("history", "--json").document["records"][0]

    assert (record["verdict"]["decision"], record["verdict"]["state"]) == ("kept", "new")
