"""The test host itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evals.lab import machine as lab_machine


def test_systemd_runs_it_and_everybody_has_what_the_account_promises(machine) -> None:
    """Its process 1 is systemd; operator has a user manager without a login; deploy may sudo without a password."""
    assert machine.run(["cat", "/proc/1/comm"]).stdout == b"systemd\n"
    assert machine.run(["systemctl", "is-system-running"], check=False).stdout == b"running\n"
    assert machine.run(["systemctl", "--user", "is-system-running"], user="operator").stdout == b"running\n"
    assert machine.run(["sudo", "-n", "id", "-u"], user="deploy").stdout == b"0\n"
    assert machine.run(["sudo", "-n", "id", "-u"], user="operator", check=False).returncode != 0


def test_it_knows_nothing_but_the_practice_ground_and_debian_itself(machine) -> None:
    """Its python3 has the standard library alone, unless it is told where the practice ground is, read-only."""
    seen = {"PYTHONPATH": lab_machine.PYTHONPATH}
    assert machine.run(["python3", "-c", "import pydantic"], check=False).returncode == 1
    machine.run(["python3", "-c", "import evals.lab.worker, aiohttp"], user="operator", environ=seen)
    assert b"Read-only" in machine.run(["touch", f"{lab_machine.SOURCE}/x"], check=False).stderr


def test_a_reboot_and_a_power_cut_keep_the_disk_and_end_every_process(own_machine) -> None:
    """The boot id is a new one each time, what was written is there, and what ran is gone."""
    boots = set()
    for restart in (lambda: None, own_machine.reboot, own_machine.power_cut):
        restart()
        boots.add(own_machine.read("/proc/sys/kernel/random/boot_id"))
        seen = own_machine.run(["systemctl", "is-active", "mark.service"], check=False).stdout
        assert seen == b"inactive\n"
        own_machine.run(["systemd-run", "--unit=mark", "sleep", "1000"])
        own_machine.write("/srv/kept", b"kept")
        assert own_machine.read("/srv/kept") == b"kept"
    assert len(boots) == 3


def test_it_ends_with_its_owner(host_cache, tmp_path) -> None:
    """An owner that is killed leaves no process behind, and who comes after it removes the groups that it left."""
    code = (
        "import sys, time; from pathlib import Path; from evals.lab import machine\n"
        f"made = machine.up(Path({str(tmp_path / 'own')!r}), folder=Path(sys.argv[1]))\n"
        "print(made.process, made.leader(), flush=True); time.sleep(1000)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, host_cache], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert owner.stdout is not None
    with owner.stdout:
        pids = [int(word) for word in owner.stdout.readline().split()]
    assert len(pids) == 2
    inode = (tmp_path / "own").stat().st_ino
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    until = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < until
        time.sleep(0.05)
    lab_machine.sweep()
    groups = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines() if " cgroup" in line]
    assert not [path for group in groups for path in Path(group).glob(f"practice-{inode}")]


def test_a_machine_that_cannot_stand_says_why(tmp_path) -> None:
    """Where nothing may be mounted or kept apart, the reason is a sentence, and nothing is left."""
    if lab_machine.unable() is not None:
        pytest.skip("no test host on this machine")
    missing = subprocess.run(
        [sys.executable, "-c", "from evals.lab import machine; print(machine.unable())"],
        env={"PATH": "/nowhere", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert missing.stdout.startswith("a test host needs systemd-nspawn, debootstrap")
