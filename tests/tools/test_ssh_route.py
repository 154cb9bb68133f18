"""Which machines lie on the way, by the settings and an ssh_config, as OpenSSH itself understands it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from agent.errors import BadSettings
from tools.ssh import SshHost, way_to
from tools.ssh_target import SshTarget


def config(folder: Path, text: str) -> Path:
    """An ssh_config."""
    file = folder / "ssh_config"
    file.write_text(text)
    return file


def openssh(file: Path, name: str) -> dict[str, str]:
    """What OpenSSH's client makes of a name."""
    if shutil.which("ssh") is None:
        pytest.skip("no ssh on this machine")
    said = subprocess.run(["ssh", "-G", "-F", file, name], capture_output=True, text=True, check=True).stdout
    found: dict[str, str] = {}
    for line in said.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key, value)
    return found


@pytest.mark.parametrize("name", ["gpu7", "gpu8.lab", "bastion", "plain.example"])
def test_ssh_config_means_what_openssh_takes_it_for(tmp_path, name) -> None:
    """Patterns, the first value that is found, included files, blocks that go on after them, jumps and aliases."""
    more = tmp_path / "more.conf"
    more.write_text("Host bastion\n  HostName 10.9.8.7\n  Port 2200\n")
    file = config(
        tmp_path,
        f"Include {more}\nUser=fallback\nHost gpu*\n  Port 2022\n  HostKeyAlias racks\n"
        f"Host gpu7 gpu8.*\n  HostName %h.example\n  User decode\n  Port 9\n  IdentityFile {tmp_path}/k\n"
        "  IdentitiesOnly yes\n  ProxyJump jumper@bastion\n"
        f"  UserKnownHostsFile {tmp_path}/a {tmp_path}/b\n",
    )
    expected = openssh(file, name)
    hops = way_to(SshTarget(name=name, config=str(file)))
    hop = hops[-1]
    assert (hop.address, str(hop.port), hop.user) == (expected["hostname"], expected["port"], expected["user"])
    assert hop.named_keys_only == (expected.get("identitiesonly") == "yes")
    if "hostkeyalias" in expected:
        assert hop.called == expected["hostkeyalias"]
    if name.startswith("gpu"):
        assert [str(path) for path in hop.known_hosts] == expected["userknownhostsfile"].split()
        assert hop.keys == (expected["identityfile"],)
        assert [h.shown for h in hops] == ["jumper@[10.9.8.7]:2200", f"fallback@[{name}.example]:2022"]
    else:
        assert len(hops) == 1


def test_the_settings_stand_before_ssh_config(tmp_path) -> None:
    """Address, port, login, key and known_hosts of the settings win; what they leave out comes from the file."""
    key = tmp_path / "key"
    key.touch()
    file = config(
        tmp_path, "Host gpu7\n HostName wrong\nHost 10.0.0.7\n Port 1\n User x\n IdentityFile y\n HostKeyAlias z\n"
    )
    target = SshTarget(
        name="gpu7", address="10.0.0.7", port=22, user="root", identity=str(key), known_hosts="/k", config=str(file)
    )
    (hop,) = way_to(target)
    assert (hop.address, hop.port, hop.user, hop.keys) == ("10.0.0.7", 22, "root", (str(key),))
    assert hop.known_hosts == (Path("/k"),)
    assert hop.called == "z"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu7", (None, None, None)),
        ("gpu7:2222", ("gpu7", 2222, None)),
        ("root@gpu7", ("gpu7", None, "root")),
        ("root@10.0.0.7:2222", ("10.0.0.7", 2222, "root")),
        ("root@[::1]:2222", ("::1", 2222, "root")),
        ("::1", (None, None, None)),
    ],
)
def test_a_host_may_be_written_as_a_spot(text, expected) -> None:
    """A bare name is left to ssh_config; a login or a port makes it an address."""
    target = SshTarget.parse(text)
    assert (target.address, target.port, target.user) == expected
    assert target.name == text


@pytest.mark.parametrize(
    "text", ["", "a b", "root@", "gpu7:", "gpu7:99999", "gpu7:0", "@gpu7", "-oProxyCommand=x y", "a@b@c"]
)
def test_a_host_that_is_none_is_refused(text) -> None:
    """Nothing is guessed from what is no name and no address."""
    with pytest.raises(BadSettings, match=r"is no name and no address"):
        SshTarget.parse(text)


def test_several_jumps_are_taken_in_their_order(tmp_path) -> None:
    """A list of machines is the way as it is written; a machine's own jump counts where it stands alone."""
    file = config(
        tmp_path,
        "Host far\n ProxyJump one,u@two:2022\n"
        "Host near\n ProxyJump two\nHost two\n ProxyJump three\nHost *\n User me\n",
    )
    assert [hop.shown for hop in way_to(SshTarget(name="far", config=str(file)))] == [
        "me@one",
        "u@[two]:2022",
        "me@far",
    ]
    assert [hop.shown for hop in way_to(SshTarget(name="near", config=str(file)))] == ["me@three", "me@two", "me@near"]


def test_a_way_in_circles_is_refused(tmp_path) -> None:
    """`ProxyJump` for every host, the first machine among them, leads nowhere."""
    file = config(tmp_path, "Host *\n ProxyJump bastion\n")
    with pytest.raises(BadSettings, match="leads round in circles"):
        way_to(SshTarget(name="gpu7", config=str(file)))


def test_a_config_that_cannot_be_used_is_named(tmp_path) -> None:
    """A missing or broken file, and a key that is not there, are put right before anything is tried."""
    for said, target in [
        ("nowhere", SshTarget(name="gpu7", config=str(tmp_path / "nowhere"))),
        ("ssh_config", SshTarget(name="gpu7", config=str(config(tmp_path, "Host gpu7\n  =\n")))),
        ("no key", SshTarget(name="gpu7", config=os.devnull, identity=str(tmp_path / "none"))),
    ]:
        with pytest.raises(BadSettings, match=said):
            SshHost.connect(target)


def test_the_user_s_own_files_are_the_default(tmp_path, monkeypatch) -> None:
    """Without settings and without an ssh_config: the usual keys, the usual known_hosts, the login's own name."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "ada")
    (hop,) = way_to(SshTarget(name="gpu7"))
    assert hop.known_hosts[0] == tmp_path / ".ssh" / "known_hosts"
    assert (hop.user, hop.port, hop.called, hop.keys[0]) == ("ada", 22, "gpu7", "~/.ssh/id_ed25519")
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host gpu7\n User root\n")
    assert way_to(SshTarget(name="gpu7"))[0].user == "root"
