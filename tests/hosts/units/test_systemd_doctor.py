"""What `doctor` finds on a host where systemd runs: what each login may do, and what it would take."""

from __future__ import annotations

import pytest


def found(writer, log: str = "journal"):
    """The abilities by name."""
    return {one.name: one for one in writer.doctor(log)}


def test_root_and_a_user_with_units_of_its_own_lack_nothing(unit_site) -> None:
    """Everything that a change needs is there, and the watchdog outlives logout and reboot for both."""
    site = unit_site
    seen = found(site.writer)
    needed = {"python", "directory", "script", "exchange", "unit", "restart", "disarm", "process", "log"}
    assert {name for name in needed | {"watchdog", "reboot"} if seen[name].ok is not True} == set(), seen
    assert site.unit in seen["unit"].says
    assert "Restart=always" in seen["disarm"].says
    assert site.traces == []
    assert site.writer.observe().execution is None
    assert site.host.ask("find", site.folder, "-name", "*trial*") == ""


def test_a_login_learns_what_it_may_not_do_and_what_would_help(unit_sites) -> None:
    """An ordinary user, a unit of the system, a script of root: each thing that is missing has its remedy."""
    site = unit_sites("operator")
    site.script = "/etc/ssh/sshd_config"
    writer = site.writer_for(unit="ssh.service", scope="system")
    seen = found(writer)
    assert seen["unit"].ok is True
    for name, says, remedy in (
        ("restart", "user operator may not restart unit ssh.service", 'become = "sudo"'),
        ("script", "/etc/ssh is not operator's to write", 'become = "sudo"'),
        ("process", "Permission denied", "Log in as the worker's user or as root"),
    ):
        assert seen[name].ok is False
        assert says in seen[name].says
        assert remedy in seen[name].remedy


def test_a_user_without_lingering_is_told_about_it(unit_sites) -> None:
    """Without a manager of its own there are no user units, and the watchdog is but a process."""
    site = unit_sites("operator")
    site.host.user, site.host.directory = "deploy", "/home/deploy/prudent"
    seen = found(site.writer)
    assert seen["service"].ok is False or seen["unit"].ok is False
    assert seen["watchdog"].ok is None
    assert "loginctl enable-linger deploy" in seen["watchdog"].remedy
    assert seen["reboot"].ok is None
    site.host.ask("rm", "-rf", "/home/deploy/prudent")
    site.host.user, site.host.directory = "operator", f"{site.folder}/prudent"


@pytest.mark.parametrize(
    ("unit", "name", "says"),
    [
        ("decoed.service", "unit", "knows no unit decoed.service"),
        ("masked.service", "unit", "is masked"),
    ],
)
def test_a_unit_that_cannot_be_started_is_told(root_site, unit, name, says) -> None:
    """Found before anybody asks for a change, with what to do."""
    site = root_site
    site.host.ask("ln", "-sf", "/dev/null", "/etc/systemd/system/masked.service")
    site.systemctl("daemon-reload")
    one = found(site.writer_for(unit=unit))[name]
    site.host.ask("rm", "/etc/systemd/system/masked.service")
    assert one.ok is False
    assert says in one.says
    assert one.remedy


def test_what_else_may_touch_the_worker_is_told(root_site) -> None:
    """Children that a stop leaves behind, and timers that start it, are notes and not hindrances."""
    site = root_site
    timer = site.fragment.replace(".service", ".timer")
    site.machine.write(timer, b"[Timer]\nOnActiveSec=1d\n")
    site.define("KillMode=process")
    site.systemctl("start", timer.rpartition("/")[2])
    seen = found(site.writer)
    site.systemctl("stop", timer.rpartition("/")[2])
    site.host.ask("rm", timer)
    assert (seen["stop"].ok, seen["triggers"].ok) == (None, None)
    assert "KillMode=process" in seen["stop"].says
    assert ".timer may start it" in seen["triggers"].says
