"""Who is let in where: keys, agents, jumps, and a machine that has to be who it was, with a real sshd."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from agent.errors import BadSettings, ChangedHostKey, HostUnfit, HostUnreachable, LoginRefused, UnknownHostKey
from tools.ssh import SshHost
from tools.ssh_target import SshTarget


def who(target: SshTarget) -> str:
    """Get in, and ask who we are."""
    with SshHost.connect(target) as host:
        return host.run(["id", "-un"], timeout=60).stdout.decode().strip()


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """An ssh-agent of one's own; returns what adds a key to it."""
    spot = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", spot], stdout=subprocess.DEVNULL)
    while not spot.exists():
        assert process.poll() is None
    monkeypatch.setenv("SSH_AUTH_SOCK", str(spot))
    yield lambda *keys: subprocess.run(["ssh-add", "-q", *map(str, keys)], check=True, capture_output=True)
    process.terminate()
    process.wait()


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """An empty home, so that no key of whoever runs the tests is offered."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / ".ssh").mkdir(mode=0o700)
    return tmp_path


def test_a_machine_that_nobody_has_vouched_for_is_refused_until_somebody_does(way, tmp_path) -> None:
    """Nothing is offered to it; the refusal shows its fingerprint and the command that adds the key."""
    file = tmp_path / "known_hosts"
    target = way("root", known_hosts=str(file))
    with pytest.raises(UnknownHostKey, match=r"ssh-ed25519 SHA256:[\w+/]{43}\.") as refused:
        SshHost.connect(target)
    assert not file.exists()
    subprocess.run(["sh", "-c", refused.value.remedy.partition("if it is right: ")[2]], check=True)
    assert who(target) == "root"


def test_a_machine_with_another_key_than_before_is_refused(machine, way, tmp_path) -> None:
    """It may be somebody else's: no key of ours is offered, and the line that contradicts is named."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    kind, text = (tmp_path / "other.pub").read_text().split()[:2]
    file = tmp_path / "known_hosts"
    file.write_text(f"[{machine.address}]:{machine.port} {kind} {text}\n")
    cursor = machine.run(["journalctl", "-n", "0", "--show-cursor"]).stdout.decode().split()[-1]
    with pytest.raises(ChangedHostKey, match=rf"another key than the one in {file}:1"):
        SshHost.connect(way("root", known_hosts=str(file)))
    seen = machine.run(["journalctl", "-u", "ssh", "--after-cursor", cursor, "-o", "cat"]).stdout
    assert b"Accepted" not in seen


def test_a_machine_is_asked_for_the_kind_of_key_that_is_known(machine, way, tmp_path) -> None:
    """It has keys of two kinds; known_hosts has one, and not the one that would be shown first."""
    folder = tmp_path / "keys"
    folder.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", folder / "k"], check=True)
    machine.write("/etc/ssh/ssh_host_ecdsa_key", (folder / "k").read_bytes(), mode=0o600)
    machine.run(["systemctl", "restart", "ssh"])
    try:
        file = tmp_path / "known_hosts"
        file.write_text(f"[{machine.address}]:{machine.port} {(folder / 'k.pub').read_text()}")
        assert who(way("root", known_hosts=str(file))) == "root"
    finally:
        machine.run(["rm", "/etc/ssh/ssh_host_ecdsa_key"])
        machine.run(["systemctl", "restart", "ssh"])


def test_a_key_that_is_not_let_in_is_named(machine, way, home) -> None:
    """The refusal says which keys were tried and which could not be."""
    locked = home / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", locked], check=True)
    for identity, said in [(machine.key("operator"), "operator"), (locked, r"not used: it has a passphrase")]:
        with pytest.raises(LoginRefused, match=said) as refused:
            SshHost.connect(way("root", identity=str(identity)))
        assert "ssh-add" in refused.value.remedy
        assert "secret" not in str(refused.value)


def test_a_login_without_any_key_is_refused(way, home) -> None:
    """No password is ever asked for."""
    with pytest.raises(LoginRefused, match="no key at all"):
        SshHost.connect(way("root", identity=None))


def test_the_usual_key_of_the_user_is_found(machine, way, home) -> None:
    """Without settings the key in the home is taken, a locked one only through the agent."""
    (home / ".ssh" / "id_ed25519").write_bytes(machine.key("root").read_bytes())
    assert who(way("root", identity=None)) == "root"


def test_the_agent_s_keys_let_in(machine, way, home, agent) -> None:
    """A key that only the agent holds is enough."""
    agent(machine.key("operator"))
    assert who(way("operator", identity=None)) == "operator"


def test_a_locked_key_is_used_through_the_agent(machine, way, home, agent, tmp_path) -> None:
    """The file has a passphrase; the agent holds the key, and with `IdentitiesOnly` offers no other."""
    key = tmp_path / "locked"
    key.write_bytes(machine.key("root").read_bytes())
    key.chmod(0o600)
    Path(f"{key}.pub").write_bytes(Path(f"{machine.key('root')}.pub").read_bytes())
    agent(machine.key("deploy"), key)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", key], check=True, capture_output=True)
    conf = tmp_path / "ssh_config"
    conf.write_text("Host *\n IdentitiesOnly yes\n")
    assert who(way("root", identity=str(key), config=str(conf))) == "root"
    with pytest.raises(LoginRefused) as refused:
        SshHost.connect(way("deploy", identity=str(key), config=str(conf), become=None))
    assert "from the agent" in refused.value.sentence
    assert "the agent's" not in refused.value.sentence


def test_too_many_keys_are_told_from_a_wrong_one(machine, way, home, agent, tmp_path) -> None:
    """Sshd hangs up after six; the refusal says so instead of calling the machine unreachable."""
    for number in range(8):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / f"k{number}"], check=True)
        agent(tmp_path / f"k{number}")
    with pytest.raises(LoginRefused, match="hung up after") as refused:
        SshHost.connect(way("root", identity=None))
    assert "IdentitiesOnly" in refused.value.remedy


def test_names_and_jumps_of_ssh_config_lead_there(machine, tmp_path) -> None:
    """An alias with everything in the file, through the same sshd as a jump host, twice, each with its own login."""
    conf = tmp_path / "ssh_config"
    conf.write_text(
        f"Host *\n HostName {machine.address}\n Port {machine.port}\n UserKnownHostsFile {machine.known_hosts}\n"
        f"Host inner\n User root\n IdentityFile {machine.key('root')}\n ProxyJump middle\n"
        f"Host middle\n User deploy\n IdentityFile {machine.key('deploy')}\n ProxyJump outer\n"
        f"Host outer\n User operator\n IdentityFile {machine.key('operator')}\n"
    )
    with SshHost.connect(SshTarget(name="inner", config=str(conf))) as host:
        assert host.run(["id", "-un"], timeout=60).stdout == b"root\n"
        load = os.urandom(1_000_000)
        assert host.run(["cat"], stdin=load, timeout=60).stdout == load
        seen = machine.run(["who", "-a"], check=False).stdout + machine.run(["loginctl", "--no-legend"]).stdout
        assert {b"root", b"deploy", b"operator"} <= set(re.findall(rb"root|deploy|operator", seen))
    assert who(SshTarget(name="outer", config=str(conf))) == "operator"


def test_a_jump_that_is_not_let_in_is_the_one_that_is_named(machine, way, tmp_path, home) -> None:
    """Which of the machines on the way refuses is what the operator has to know."""
    conf = tmp_path / "ssh_config"
    conf.write_text(
        f"Host {machine.address}\n ProxyJump nobody@bastion\n"
        f"Host bastion\n HostName {machine.address}\n Port {machine.port}\n UserKnownHostsFile {machine.known_hosts}\n"
        f" IdentityFile {machine.key('root')}\n ProxyJump none\n"
    )
    with pytest.raises(LoginRefused, match="nobody@"):
        SshHost.connect(way("root", config=str(conf)))


def test_a_proxy_command_leads_there(machine, way, tmp_path) -> None:
    """A command that stands for the way, as in ssh_config."""
    relay = tmp_path / "relay.py"
    relay.write_text(
        "import os, select, socket, sys\n"
        "far = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "while True:\n"
        "    for ready in select.select([0, far], [], [])[0]:\n"
        "        part = os.read(0, 65536) if ready == 0 else far.recv(65536)\n"
        "        if not part: sys.exit()\n"
        "        far.sendall(part) if ready == 0 else os.write(1, part)\n"
    )
    conf = tmp_path / "ssh_config"
    conf.write_text(f"Host *\n ProxyCommand {shlex.quote(sys.executable)} {shlex.quote(str(relay))} %h %p\n")
    assert who(way("root", config=str(conf))) == "root"
    conf.write_text("Host *\n ProxyCommand /nowhere/relay %h\n")
    with pytest.raises(HostUnreachable, match="No such file"):
        SshHost.connect(way("root", config=str(conf)))
    conf.write_text("Host *\n ProxyCommand true\n")
    with pytest.raises(HostUnreachable):
        SshHost.connect(way("root", config=str(conf)))


def test_a_machine_without_what_is_needed_says_what(machine, way) -> None:
    """No such interpreter, an interpreter that is none, no sudo without a password: each is named with its remedy."""
    for changed, said in [
        ({"python": "/opt/nowhere/python3"}, "python3' does not start there: it was not started: .*No such file"),
        ({"python": "true"}, "'true' does not start there"),
        ({"become": "sudo"}, "a password is required"),
    ]:
        with pytest.raises(HostUnfit, match=said) as refused:
            SshHost.connect(way("operator", **changed))
        assert ("sudo -n" in refused.value.remedy) == ("become" in changed)
    old = '#!/bin/sh\nexec python3 "$@"\n'
    shim = (
        "import sys; sys.version_info = (3, 8, 18, 'final', 0); "
        "del sys.argv[:sys.argv.index('-c', 1) + 1]; exec(sys.argv[0])"
    )
    machine.write("/opt/old", (old.replace('"$@"', f'-c {shlex.quote(shim)} "$@"')).encode(), mode=0o755)
    with pytest.raises(HostUnfit, match=r"is Python 3\.8"):
        SshHost.connect(way("operator", python="/opt/old"))


def test_a_login_that_may_run_nothing_is_told(machine, way) -> None:
    """An account with no shell gets in and can do nothing: that is no machine for us, and no success."""
    machine.run(["usermod", "--shell", "/usr/sbin/nologin", "operator"])
    try:
        with pytest.raises(HostUnfit, match="currently not available"):
            SshHost.connect(way("operator"))
    finally:
        machine.run(["usermod", "--shell", "/bin/bash", "operator"])


def test_what_is_no_sshd_is_unreachable(tmp_path, way, machine) -> None:
    """A port where something else speaks."""
    with pytest.raises(HostUnreachable, match="root@"):
        SshHost.connect(way("root", port=1))
    with pytest.raises(BadSettings):
        SshHost.connect(way("root", config=str(tmp_path / "none")))
