"""What is refused before anything is written, each with a sentence and a remedy; and what is in the way of a start."""

from __future__ import annotations

import pytest

from agent.errors import BadSettings, HelperRefused, HostError, RunInFlight, ServiceUnusable, StaleState

pytestmark = pytest.mark.slow

SERVER = "/usr/bin/python3 -m http.server --bind 127.0.0.1"


def untouched(site, plan) -> None:
    """Nothing of ours is on the host but our own directory, and the approval is unspent."""
    assert not site.host.ask("find", site.folder, "-path", "*/spent/*")
    assert site.traces == []
    execution = site.writer.observe().execution
    assert execution is None


def open_with(site, writer, plan):
    """Open a transaction for a plan that was made before."""
    token = writer.lease("r-1", 60).token
    return writer.open(token, "r-1", plan, site.approval(plan), b"", now=site.approval(plan).at)


def test_a_unit_that_is_not_there_is_named(unit_site) -> None:
    """An unknown unit is a mistake in the settings, and the manager that was asked is named."""
    site = unit_site
    plan = site.plan(edits=False)
    writer = site.writer_for(unit="decoed.service")
    with pytest.raises(BadSettings) as refused:
        open_with(site, writer, plan)
    whose = "the system's systemd" if site.scope == "system" else "the systemd of user operator"
    assert f"{whose} knows no unit decoed.service" in refused.value.sentence
    assert "prudent.toml" in refused.value.remedy
    assert "knows no unit" in writer.observe().process_problem
    untouched(site, plan)


def test_a_masked_unit_is_named(root_site) -> None:
    """A unit that somebody masked is not started behind their back."""
    site = root_site
    plan = site.plan(edits=False)
    site.host.ask("rm", site.fragment)
    site.host.ask("ln", "-s", "/dev/null", site.fragment)
    site.systemctl("daemon-reload")
    with pytest.raises(ServiceUnusable, match="is masked"):
        open_with(site, site.writer, plan)
    untouched(site, plan)


def test_a_unit_whose_files_changed_is_not_restarted(unit_site) -> None:
    """A restart would bring in what nobody approved: the change is refused until somebody has looked at it."""
    site = unit_site
    plan = site.plan(edits=False)
    site.host.ask("sh", "-c", f"echo Nice=5 >> {site.fragment}")
    with pytest.raises(StaleState) as refused:
        open_with(site, site.writer, plan)
    assert "more than this change" in refused.value.sentence
    assert "daemon-reload" in refused.value.remedy
    untouched(site, plan)


def test_a_unit_that_may_not_be_restarted_by_hand_is_named(root_site) -> None:
    """RefuseManualStop is somebody's decision, and it is found before the edit and not after it."""
    site = root_site
    plan = site.plan(edits=False)
    site.machine.write(site.fragment, b"[Unit]\nRefuseManualStop=yes\n" + site.host.read(site.fragment))
    site.systemctl("daemon-reload")
    with pytest.raises(ServiceUnusable, match="RefuseManualStop=yes"):
        open_with(site, site.writer, plan)
    untouched(site, plan)


def test_a_login_that_may_not_restart_a_unit_is_told_before_the_edit(unit_sites) -> None:
    """An ordinary user and a system unit: refused by name, with the ways out."""
    site = unit_sites("operator")
    plan = site.plan(edits=False)
    unit = "ssh.service"
    writer = site.writer_for(unit=unit, scope="system")
    with pytest.raises(ServiceUnusable) as refused:
        open_with(site, writer, plan)
    assert "user operator may not restart unit ssh.service" in refused.value.sentence
    assert 'become = "sudo"' in refused.value.remedy
    untouched(site, plan)


def test_a_manager_that_does_not_run_is_named_with_its_remedy(unit_sites) -> None:
    """A user without a manager of its own learns of lingering, in the sentence itself."""
    site = unit_sites("operator")
    site.host.user = "deploy"
    site.host.directory = "/home/deploy/prudent"
    problem = site.writer.observe().process_problem
    assert "the systemd of user deploy did not show" in problem
    assert "loginctl enable-linger deploy" in problem
    site.host.ask("rm", "-rf", "/home/deploy/prudent")
    site.host.user, site.host.directory = "operator", f"{site.folder}/prudent"


def test_agents_that_were_told_other_directories_do_not_meet_on_a_unit(root_site) -> None:
    """One directory is one truth; the drop-in on the unit tells a second one that somebody is at work."""
    site = root_site
    plan = site.plan(edits=False)
    token = site.open()
    other = site.writer_for(directory=f"{site.folder}/elsewhere")
    with pytest.raises(RunInFlight, match="another change of it is in flight"):
        open_with(site, other, plan)
    assert site.writer.undo(token, "r-1").state == "undone"
    site.until(lambda: site.traces == [])


def test_a_child_that_outlives_a_restart_is_named_and_the_change_is_not_kept(root_site) -> None:
    """Under KillMode=process a child of the old worker lives on beside the new one: found by name, never overlooked."""
    site = root_site
    site.write(b"#!/bin/bash\nexport LEVEL=32\nsleep 7777 &\nexec sleep 86432\n")
    site.define("KillMode=process")
    new = site.host.read(site.script).replace(b"32", b"96")
    site.writer = site.writer_for(settle_seconds=1.0)
    token = site.open(new=new)
    site.writer.step(token, "r-1", "edit")
    with pytest.raises(HelperRefused) as refused:
        site.writer.step(token, "r-1", "restart")
    assert refused.value.kind == "leftovers"
    assert "(sleep) still there beside the new one" in str(refused.value)
    execution = site.writer.undo(token, "r-1")
    assert execution.state == "undone"
    assert any("(sleep)" in left for left in execution.journal[-1].detail["leftovers"])
    found = site.writer.observe(leftovers=True).leftovers
    assert {one.kind for one in found} == {"earlier"}
    site.writer.release(token)
    token = site.open("r-2", new=new)
    site.writer.step(token, "r-2", "edit")
    before = site.process().identity
    with pytest.raises(HelperRefused, match="left over in the unit's control group"):
        site.writer.step(token, "r-2", "restart")
    assert site.process().identity == before
    assert site.writer.undo(token, "r-2").state == "undone"
    site.systemctl("kill", "--kill-whom=all", "--signal=KILL", site.unit)


def test_a_worker_that_would_not_die_is_named(root_site) -> None:
    """It ignores what its manager sends it: the step says that it is still there, and is not done."""
    site = root_site
    site.write(b"#!/bin/bash\nexport LEVEL=32\ntrap '' TERM\nexec sleep 86432\n")
    site.define("SendSIGKILL=no", "TimeoutStopSec=1")
    stubborn = site.process()
    new = site.host.read(site.script).replace(b"32", b"96")
    site.writer = site.writer_for(settle_seconds=2.0)
    token = site.open(new=new)
    site.writer.step(token, "r-1", "edit")
    with pytest.raises(HelperRefused) as refused:
        site.writer.step(token, "r-1", "restart")
    assert refused.value.kind in {"failed", "leftovers"}
    assert f"pid {stubborn.pid} (sleep)" in str(refused.value)
    # Its manager starts nothing beside it: nobody can bring the worker back until somebody has ended it.
    with pytest.raises(HelperRefused) as refused:
        site.writer.undo(token, "r-1")
    assert refused.value.kind == "undo_failed"
    assert f"still there: pid {stubborn.pid} (sleep)" in str(refused.value)
    assert site.host.read(site.script) == new.replace(b"96", b"32")
    site.host.ask("kill", "-9", str(stubborn.pid))
    execution = site.writer.undo(token, "r-1")
    assert execution.state == "undone"
    assert execution.after.pid == site.process().pid != stubborn.pid
    site.systemctl("kill", "--signal=KILL", site.unit)


def test_a_stranger_on_the_port_is_named_before_the_worker_is_stopped(root_site) -> None:
    """A start that cannot get its port is not tried: the old worker runs on."""
    site = root_site
    port = 21477
    site.writer = site.writer_for(ports=(port,))
    token = site.open()
    site.writer.step(token, "r-1", "edit")
    site.host.ask("systemd-run", "--quiet", "--collect", "--unit=stranger", *SERVER.split(), str(port))
    site.until(lambda: site.writer.observe().listener.relation == "foreign")
    assert [one.kind for one in site.writer.observe(leftovers=True).leftovers] == ["port"]
    before = site.process().identity
    with pytest.raises(HelperRefused, match=rf"\(python3\) holds port {port}"):
        site.writer.step(token, "r-1", "restart")
    assert site.process().identity == before
    site.systemctl("stop", "stranger")
    assert site.writer.undo(token, "r-1").state == "undone"


def test_a_load_process_of_ours_that_refuses_to_die_is_ended_before_the_start(root_site) -> None:
    """Load that an agent left behind is found by its connection to the worker, named in the journal, and ended."""
    site = root_site
    port = 21478
    site.write(f"#!/bin/bash\nexec {SERVER} {port}\n".encode())
    site.systemctl("restart", site.unit)
    writer = site.writer_for(ports=(port,))
    site.until(lambda: writer.observe().listener.relation == "main")
    code = (
        "import signal, socket, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"line = socket.create_connection(('127.0.0.1', {port}))\ntime.sleep(3600)\n"
    )
    path = site.host.ship("probe.py", code.encode())
    site.host.ask("systemd-run", "--quiet", "--collect", "--unit=left-load", "/usr/bin/python3", "-I", path)
    site.until(lambda: [one.kind for one in writer.observe(leftovers=True).leftovers] == ["load"])
    site.process = writer.main
    token = site.open(writer=writer, edits=False)
    execution = writer.step(token, "r-1", "restart")
    ended = next(entry.detail["ended"] for entry in execution.journal if entry.event == "begun")
    assert "still sends load" in ended[0]
    site.until(lambda: writer.observe(leftovers=True).leftovers == ())
    assert site.systemctl("is-active", "left-load", check=False).strip() != "active"
    writer.undo(token, "r-1")


def test_what_a_shell_would_take_for_a_command_is_a_name_like_any_other(unit_sites) -> None:
    """A path with quotes, spaces, percents and variables reaches the watchdog's unit and the one at boot unharmed."""
    site = unit_sites("root")
    directory = f"{site.folder}/a b%n'\"${{HOME}}$x;\\"
    writer = site.writer_for(directory=directory)
    token = site.open(writer=writer)
    pid = site.host.read(f"{directory}/workers/decode/watchdog").decode().strip()
    assert "prudent-watch-decode" in site.host.ask("cat", f"/proc/{pid}/cgroup")
    assert site.host.read(f"/proc/{pid}/cmdline").decode().split("\0")[-3:-1] == [directory, "decode"]
    # At boot nothing lives that watches; here it does, which whoever comes second is told before it ends.
    name = next(name for name in site.traces if "boot" in name).rpartition("/")[2]
    site.systemctl("start", name)
    site.until(lambda: site.systemctl("show", name, "--property=ActiveState", "--value").strip() == "inactive")
    shown = site.systemctl("show", name, "--property=Result,ExecMainStatus", "--value").split()
    assert shown == ["success", "0"], site.host.ask("journalctl", "--unit", name, "--output=cat")
    assert writer.undo(token, "r-1").state == "undone"
    site.until(lambda: site.traces == [])


def test_a_host_that_cannot_be_asked_is_no_answer(root_site) -> None:
    """An unreadable answer of the manager is an error and never an empty unit."""
    site = root_site
    site.host.environ = {"PATH": "/nowhere"}
    with pytest.raises(HostError):
        site.writer.main()
    site.host.environ = {}
