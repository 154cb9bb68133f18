"""Practice grounds under a real systemd: the system's and a user's own."""

from __future__ import annotations

import json
import tomllib

import pytest

from evals.lab.machine import PYTHONPATH

pytestmark = pytest.mark.slow


def lab(machine, user, *words, check=True):
    """Run the practice ground's own command line inside; return what it printed as JSON."""
    command = ["python3", "-m", "evals.lab", *words]
    done = machine.run(command, user=user, environ={"PYTHONPATH": PYTHONPATH}, check=check)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr.decode()


def unit(machine, user, name, field):
    """A property of a unit, by the word of whoever's manager it is."""
    whose = [] if user == "root" else ["--user"]
    return machine.run(["systemctl", *whose, "show", f"--property={field}", "--value", name], user=user).stdout.decode()


def ask(machine, url):
    """A chat answer's status, from inside."""
    program = (
        "import json,sys,urllib.request as u\n"
        "b=json.dumps({'messages':[{'role':'user','content':'Hello.'}],'max_tokens':4}).encode()\n"
        "r=u.Request(sys.argv[1]+'/v1/chat/completions',b,{'Content-Type':'application/json'})\n"
        "print(u.urlopen(r,timeout=60).status)"
    )
    return int(machine.run(["python3", "-c", program, url]).stdout)


@pytest.mark.parametrize(
    ("user", "scope", "folder"), [("root", "system", "/srv/decode"), ("operator", "user", "/home/operator/decode")]
)
def test_systemd_keeps_a_worker(machine, user, scope, folder):
    """Its main process is the worker, a crash is followed by a start, and after down nothing of it is left."""
    made = lab(machine, user, "up", "-d", folder, "--supervision", f"systemd-{scope}", "--start-speed", "200")
    try:
        settings = tomllib.loads(machine.read(made["settings"]).decode())["workers"]["decode"]
        assert settings["service"] == {"kind": "systemd", "unit": made["unit"], "scope": scope}
        before = lab(machine, user, "status", "-d", folder)
        assert (before["state"], before["ready"]) == ("running", True)
        assert unit(machine, user, made["unit"], "MainPID").strip() == str(before["pid"])
        assert b"sglang.launch_server" in machine.read(f"/proc/{before['pid']}/cmdline")
        assert unit(machine, user, made["unit"], "UnitFileState").strip() == "enabled"

        machine.run(["kill", "-KILL", str(before["pid"])])
        machine.run(["sh", "-c", f"until grep -c 'fired up' {made['log']} | grep -qx 2; do sleep 0.1; done"])

        after = lab(machine, user, "status", "-d", folder)
        assert after["restarts"] == 1
        assert after["pid"] not in {0, before["pid"]}
        assert ask(machine, made["entry"]) == 200
    finally:
        assert lab(machine, user, "down", "-d", folder) == {"ran": True}
    assert lab(machine, user, "status", "-d", folder)["state"] == "stopped"
    assert unit(machine, user, made["unit"], "LoadState").strip() == "not-found"


def test_systemd_gives_up_on_a_worker_that_keeps_dying(machine):
    """After five starts within a minute, the good one included, the unit has failed, and the ground says so."""
    made = lab(machine, "root", "up", "-d", "/srv/dying", "--supervision", "systemd-system", "--start-speed", "200")
    try:
        machine.write(made["script"], b"echo no >&2\nexit 3\n", mode=0o755)
        machine.run(["systemctl", "restart", made["unit"]])
        machine.run(["sh", "-c", f"until systemctl is-failed -q {made['unit']}; do sleep 0.2; done"])

        status = lab(machine, "root", "status", "-d", "/srv/dying")
        assert (status["state"], status["running"]) == ("failed", False)
        assert machine.read(made["log"]).count(b"no\n") == 4
    finally:
        lab(machine, "root", "down", "-d", "/srv/dying")


def test_an_ordinary_user_has_a_pair_in_the_journal(machine):
    """A prefill worker, a decode worker and a router as user units; their output is in the journal, by unit."""
    words = ("--supervision", "systemd-user", "--topology", "pd", "--journal", "--start-speed", "200")
    made = lab(machine, "operator", "up", "-d", "/home/operator/pair", *words)
    try:
        settings = tomllib.loads(machine.read(made["settings"]).decode())["workers"]["decode"]
        assert (settings["log"], settings["role"], settings["entry"]) == ("journal", "decode", made["entry"])
        assert ask(machine, made["entry"]) == 200
        shown = machine.run(
            ["journalctl", "--quiet", "--output=cat", f"--user-unit={made['unit']}"], user="operator"
        ).stdout.decode()
        assert "disaggregation_mode='decode'" in shown
        assert "The server is fired up and ready to roll!" in shown
    finally:
        assert lab(machine, "operator", "down", "-d", "/home/operator/pair") == {"ran": True}


def test_a_reboot_brings_a_unit_back(own_machine):
    """After a power cut the worker runs again, without anybody asking."""
    words = ("--supervision", "systemd-system", "--start-speed", "200")
    made = lab(own_machine, "root", "up", "-d", "/srv/decode", *words)

    own_machine.power_cut()
    own_machine.run(["sh", "-c", f"until grep -c 'fired up' {made['log']} | grep -qx 2; do sleep 0.1; done"])

    assert lab(own_machine, "root", "status", "-d", "/srv/decode")["ready"]


def test_an_ordinary_user_cannot_have_a_system_unit(machine):
    """What the user may not do is said, and nothing is left."""
    said = lab(machine, "operator", "up", "-d", "/home/operator/no", "--supervision", "systemd-system", check=False)

    assert "Permission denied" in said
    assert "Traceback" not in said
    assert lab(machine, "operator", "status", "-d", "/home/operator/no")["state"] in {"stopped", "absent"}
