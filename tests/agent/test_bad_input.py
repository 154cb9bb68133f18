"""Whatever goes in wrong: one clear sentence, a remedy, an exit code of its own, and no harm to the worker."""

import json
import os
import signal
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from evals.lab import ground

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

BUMP = "bump cuda graphs to 96"


def _untouched(bench, before: int) -> None:
    """The script's bytes and the process are those from before."""
    assert bench.ground.script.read_bytes() == bench.original
    assert ground.status(bench.ground.directory).pid == before


def _pid(bench) -> int:
    return ground.status(bench.ground.directory).pid


WORDS = {
    "a value outside the bounds": ("bump cuda graphs to 99999", 24, "1..1024"),
    "a negative value": ("set cuda graphs to -5", 24, "1..1024"),
    "a value that is no whole number": ("set cuda graphs to 96.5", 24, "96.5"),
    "a value equal to the current one": ("bump cuda graphs to 32", 15, "32 already"),
    "a value on the other side": ("lower cuda graphs to 96", 13, "other way"),
    "an old value that is not so": ("set cuda graphs from 64 to 96", 13, "it is 32"),
    "no value": ("bump cuda graphs", 13, "which value"),
    "nothing that is ours": ("make me a sandwich", 38, "not touched"),
    "a question": ("what are the current max parallel requests?", 16, "256"),
    "nothing to take back": ("roll back the last change", 13, "no kept change"),
    "a value that would be cut": ("bump cuda graphs to 512", 39, "256"),
    "more memory than there is": ("set the memory fraction to 0.98", 35, "does not fit"),
}


def test_words_that_lead_nowhere_leave_the_worker_alone(quick):
    """Each ends with its own exit code and says why; several are asked of one worker, which stays as it was."""
    before = _pid(quick)
    for name, (text, code, says) in WORDS.items():
        said = quick.ask(text, decide=())

        verdict = said.record["verdict"]
        assert (name, said.status) == (name, code), verdict
        assert says in f"{verdict['why']} {verdict['remedy']}"
        assert verdict["state"] == "untouched"
        assert verdict["decision"] == "answered" or verdict["decision"] == "unchanged" or verdict["remedy"]
    _untouched(quick, before)


def test_an_unknown_worker_is_met_with_the_nearest_name(quick):
    """A slip in the name starts nothing."""
    said = quick.say("ask", BUMP, "--worker", "decoed")

    assert said.status == 20
    assert "Did you mean 'decode'" in said.err


def test_a_usage_error_has_its_own_code(quick):
    """A command that is not one ends with 2, as everywhere, and a fault that is not one names those that are."""
    strange = quick.say("lab", "up", "--directory", str(quick.ground.directory / "other"), "--fault", "nonsense")
    assert (strange.status, "abort-wedge" in strange.err) == (24, True)
    assert quick.say("aks", BUMP).status == 2
    assert quick.say("ask").status == 2


def test_a_mistake_in_the_settings_is_named_with_its_line(quick):
    """The line and the nearest right key."""
    quick.settle("script =", "scirpt =")

    said = quick.say("ask", BUMP)

    assert said.status == 21
    assert "prudent.toml:" in said.err
    assert "'script'" in said.err


def test_a_missing_script_is_named(quick):
    """A script that cannot be read is refused with its path."""
    quick.ground.script.rename(quick.ground.script.with_suffix(".away"))

    said = quick.ask(BUMP, decide=())

    assert said.status == 22
    assert str(quick.ground.script) in said.record["verdict"]["why"]


def test_a_script_with_two_launches_is_not_guessed_at(quick):
    """Which of two servers is meant is not ours to choose."""
    text = quick.original.replace(
        b"exec python3", b"python3 -m sglang.launch_server --port 1 --cuda-graph-max-bs 8 &\nexec python3"
    )
    quick.ground.script.write_bytes(text)

    said = quick.ask(BUMP, decide=())

    assert said.status == 23
    assert quick.ground.script.read_bytes() == text


def test_a_value_that_is_worked_out_is_not_edited(quick):
    """A computed value is refused with its line."""
    text = quick.original.replace(b"--cuda-graph-max-bs 32", b'--cuda-graph-max-bs "$(echo 32)"')
    quick.ground.script.write_bytes(text)

    said = quick.ask(BUMP, decide=())

    assert said.status == 33
    assert "line" in said.record["verdict"]["why"]
    assert quick.ground.script.read_bytes() == text


def test_a_worker_that_is_down_is_not_changed(quick):
    """There is no baseline on a worker that does not serve."""
    ground.down(quick.ground.directory)

    said = quick.ask(BUMP, decide=())

    assert said.status == 25
    assert "down" in said.record["verdict"]["why"]
    assert quick.ground.script.read_bytes() == quick.original


def test_a_second_run_is_told_about_the_first(quick):
    """One change at a time for a worker."""
    first = quick.start("ask", BUMP, "--json")
    run, second = "", None
    for line in first.stdout:
        event = json.loads(line)
        if event["kind"] == "plan":
            run = event["plan"]["run"]
            assert quick.say("approve", run).status == 0
        if event["kind"] == "check" and second is None:
            second = quick.say("ask", "set max running requests to 128", "--json")
    first.communicate()

    assert second is not None
    assert second.status == 26
    assert run in second.record["verdict"]["why"]


def test_users_on_the_worker_come_first(quick):
    """A worker that keeps serving people is left alone after the wait."""
    before, stop = _pid(quick), threading.Event()
    users = [threading.Thread(target=_chat, args=(quick.ground.port, stop)) for _ in range(2)]

    def arrive(_: str) -> None:
        for user in users:
            user.start()

    said = quick.ask(BUMP, before=arrive)
    stop.set()
    for user in users:
        user.join()

    assert said.status == 27, said.record["verdict"]
    _untouched(quick, before)


def test_nobody_decides_in_time(bench):
    """An approval that never came ends the run, and one that comes too late finds it ended."""
    bench.brisk("approve_within_minutes: 0.5", "approve_within_minutes: 0.03")
    before = _pid(bench)

    said = bench.ask(BUMP, decide=())

    assert said.status == 28
    assert bench.say("approve", said.record["run"]).status == 37
    _untouched(bench, before)


def test_a_decision_fits_one_plan_and_is_spent(quick):
    """Another digest is foreign, a second yes is spent, an unknown run is unknown; a no touches nothing."""
    before, codes = _pid(quick), {}

    def decide(run: str) -> None:
        codes["foreign"] = quick.say("approve", run, "--digest", "0123456789ab").status
        codes["unknown"] = quick.say("approve", "r-nobody").status
        assert quick.say("reject", run, "--reason", "not tonight").status == 0
        codes["second"] = quick.say("approve", run).status

    said = quick.ask(BUMP, decide=(), before=decide)

    assert (said.status, said.record["verdict"]["decision"]) == (14, "rejected")
    assert "not tonight" in said.record["verdict"]["why"]
    assert codes == {"foreign": 29, "unknown": 37, "second": 30}
    _untouched(quick, before)


def test_a_script_that_moved_voids_the_approval(quick):
    """Somebody edits the script between plan and approval: nothing is written."""
    edited = quick.original + b"# touched\n"

    said = quick.ask(BUMP, before=lambda _: quick.ground.script.write_bytes(edited) and None)

    assert said.status == 32
    assert said.record["verdict"]["state"] == "untouched"
    assert quick.ground.script.read_bytes() == edited


def _race(bench, captured: int = 32) -> bytes:
    """Put the race back that the shipped script keeps off: captured decode mixes up tool calls."""
    racing = bench.original.replace(b"MULTI_STREAM_OVERLAP=0", b"MULTI_STREAM_OVERLAP=1")
    racing = racing.replace(b"max-bs 32", f"max-bs {captured}".encode())
    bench.ground.script.write_bytes(racing)
    bench.restart()
    return racing


def test_a_worker_that_is_already_broken_is_not_changed(bench):
    """Sessions that are corrupted before the change refuse it: afterwards nobody could tell whose fault it is."""
    bench.brisk("concurrency: [14], count: 14", "concurrency: [30], count: 90")
    racing = _race(bench)

    said = bench.ask(BUMP)

    verdict = said.record["verdict"]
    assert (said.status, verdict["state"]) == (34, "untouched")
    assert verdict["decided_by"] == ["corruption"]
    assert bench.ground.script.read_bytes() == racing


def test_a_change_that_corrupts_is_rolled_back(bench):
    """What ran eager and right is captured by the change and goes wrong: a measured breach, taken back with proof."""
    # So little is captured before that hardly a session meets it while the batches fill and run empty.
    racing = _race(bench, captured=1)

    said = bench.ask(BUMP)

    verdict = said.record["verdict"]
    assert (said.status, verdict["decision"], verdict["state"]) == (10, "rolled_back", "restored")
    assert verdict["decided_by"] == ["corruption"]
    assert bench.ground.script.read_bytes() == racing
    assert bench.argv()[bench.argv().index("--cuda-graph-max-bs") + 1] == "1"


def test_a_full_disk_is_found_before_anything_is_written(quick, tmp_path: Path):
    """No room for the backup: refused, and the worker is as it was."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=False)
    if mounted.returncode != 0:
        pytest.skip("a small file system can be mounted by root only")
    try:
        quick.settle('directory = ".prudent/host"', f'directory = "{small}"')
        before = _pid(quick)

        said = quick.ask(BUMP, before=lambda _: quick.fill(small))

        assert said.status == 31, said.record["verdict"]
        _untouched(quick, before)
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.parametrize(
    ("moment", "state"),
    [("change", "untouched"), ("plan", "untouched"), ("check", "untouched"), ("candidate", "restored")],
)
def test_ctrl_c_ends_in_a_proven_state(quick, moment: str, state: str):
    """Before the edit nothing happens; after it the change is taken back at once, and the exit code says stopped."""
    before = _pid(quick)
    asking = quick.start("ask", BUMP, "--json")
    record = None
    sent = False
    for line in asking.stdout:
        event = json.loads(line)
        reached = event["kind"] == moment or str(event.get("text", "")).startswith(moment)
        if reached and not sent:
            sent = True
            os.kill(asking.pid, signal.SIGINT)
        elif event["kind"] == "plan":
            quick.say("approve", event["plan"]["run"])
        if event["kind"] == "record":
            record = event["record"]
    asking.communicate()

    assert asking.returncode == 130
    assert record is not None
    assert record["verdict"]["state"] == state
    assert "Ctrl-C" in json.dumps(record)
    assert quick.ground.script.read_bytes() == quick.original
    if state == "untouched":
        _untouched(quick, before)
    else:
        quick.wait_until_ready()
        assert quick.argv()[quick.argv().index("--cuda-graph-max-bs") + 1] == "32"


def test_the_host_takes_back_what_a_dead_agent_left(quick):
    """The agent dies after the restart and nobody resumes: the watchdog restores script and worker by itself."""
    quick.die_with_the_change_live(BUMP)
    assert quick.ground.script.read_bytes() != quick.original

    until = time.monotonic() + 60
    while quick.ground.script.read_bytes() != quick.original or not ground.status(quick.ground.directory).ready:
        assert time.monotonic() < until, "the watchdog did not restore the script"
        time.sleep(0.2)

    resumed = quick.say("resume", "--json")
    record = resumed.record
    assert record["verdict"]["state"] == "restored"
    assert any(entry["by"] == "watchdog" for entry in record["execution"]["journal"])


def test_somebody_elses_edit_is_never_overwritten(quick):
    """The script is edited by hand while the change is verified: nothing is put over it, and a person is called."""
    theirs = b""
    asking = quick.start("ask", "turn on the overlap scheduler", "--json")
    record = None
    for line in asking.stdout:
        event = json.loads(line)
        if event["kind"] == "plan":
            quick.say("approve", event["plan"]["run"])
        if event["kind"] == "check" and event["text"].startswith("candidate") and not theirs:
            theirs = quick.ground.script.read_bytes() + b"# mine\n"
            quick.ground.script.write_bytes(theirs)
        if event["kind"] == "record":
            record = event["record"]
    asking.communicate()

    assert asking.returncode == 13
    assert (record["verdict"]["decision"], record["verdict"]["state"]) == ("needs_human", "unknown")
    assert quick.ground.script.read_bytes() == theirs

    blocked = quick.ask("set max running requests to 128", decide=())
    assert blocked.status == 26
    assert f"prudent settle {record['run']}" in blocked.record["verdict"]["remedy"]

    quick.ground.script.write_bytes(quick.original)
    quick.restart()
    assert quick.say("settle", record["run"], "--reason", "put the script back").status == 0
    assert quick.ask("bump cuda graphs to 32", decide=()).status == 15


def _chat(port: int, stop: threading.Event) -> None:
    """A user who keeps talking to the worker."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 64, "ignore_eos": True}
    while not stop.is_set():
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()
