"""A unit of the system and an ordinary user, with and without a rule of polkit that lets this user restart just it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent.errors import ServiceUnusable
from tools.service import SystemdService

pytestmark = pytest.mark.slow

OLD, NEW = ("sleep", "86432"), ("sleep", "86496")
RULES = "/etc/polkit-1/rules.d/50-decode.rules"
RULE = """\
polkit.addRule(function(action, subject) {
    if (action.id == "org.freedesktop.systemd1.manage-units" && subject.user == "operator" &&
        action.lookup("unit") == "UNIT") {
        return polkit.Result.YES;
    }
});
"""


@pytest.fixture
def site(machine, unit_sites) -> Iterator:
    """The ordinary user's script, run as this user by a unit of the system."""
    made = unit_sites("operator")
    made.systemctl("disable", "--now", "--quiet", made.unit)
    unit = f"shared-{made.unit}"
    fragment = f"/etc/systemd/system/{unit}"
    lines = ["[Service]", "User=operator", f"ExecStart={made.script}", "Restart=always", "RestartSec=200ms", ""]
    machine.write(fragment, "\n".join(lines).encode())
    machine.run(["systemctl", "daemon-reload"])
    machine.run(["systemctl", "start", unit])
    made.service = SystemdService(unit=unit, scope="system", restart_seconds=60, settle_seconds=10)
    made.writer = made.writer_for()
    yield made
    machine.run(["systemctl", "stop", unit])
    machine.run(["rm", "-f", RULES, fragment])
    machine.run(["systemctl", "daemon-reload"])


def allow(site, unit: str) -> None:
    """Let the ordinary user have its way with one unit, and wait until polkit has read that."""
    site.machine.write(RULES, RULE.replace("UNIT", unit).encode())
    site.machine.run(["systemctl", "restart", "polkit.service"])


def restart_of(site):
    """What doctor finds about a restart."""
    return next(one for one in site.writer.doctor() if one.name == "restart")


def test_a_user_whom_polkit_lets_restart_the_unit_can_change_its_worker(site) -> None:
    """Doctor says so, and the change is live in a new process."""
    allow(site, site.service.unit)
    found = restart_of(site)
    assert (found.ok, found.says) == (True, "operator may restart it")
    before = site.process()
    token = site.open()
    site.writer.step(token, "r-1", "edit")
    after = site.writer.step(token, "r-1", "restart").after
    assert (after.argv, site.process().argv) == (NEW, NEW)
    assert after.identity != before.identity
    assert site.writer.commit(token, "r-1").state == "committed"


def test_the_watchdog_of_such_a_user_restores_too(site) -> None:
    """It has no session, and the rule counts for it all the same."""
    allow(site, site.service.unit)
    token = site.open(watchdog=3.0)
    site.writer.step(token, "r-1", "edit")
    site.writer.step(token, "r-1", "restart")
    execution = site.ended("undone")
    assert execution.journal[-1].by == "watchdog"
    assert site.process().argv == OLD


def test_a_user_whom_polkit_lets_restart_another_unit_only_is_told_before_anything_is_written(site) -> None:
    """Doctor names the rule that is missing, and a change is refused with the script and the process as they were."""
    allow(site, "another.service")
    found = restart_of(site)
    assert found.ok is False
    assert "org.freedesktop.systemd1.manage-units" in found.remedy
    before, script = site.process(), site.host.read(site.script)
    with pytest.raises(ServiceUnusable, match="polkit says no"):
        site.open()
    assert (site.process().identity, site.host.read(site.script)) == (before.identity, script)
