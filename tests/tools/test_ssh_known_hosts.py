"""Whether a machine is who it was, by lines that OpenSSH's own tools write and by lines that people write."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest

from agent.errors import ChangedHostKey, UnknownHostKey
from tools.ssh_known_hosts import fingerprint, known, label, verify


class Pair:
    """A host key, made by ssh-keygen."""

    def __init__(self, folder: Path, name: str, kind: str = "ed25519") -> None:
        self.file = folder / name
        subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", self.file], check=True)
        self.kind, self.text = (folder / f"{name}.pub").read_text().split()[:2]
        self.blob = base64.b64decode(self.text)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> tuple[Pair, Pair]:
    """The machine's key and somebody else's."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen on this machine")
    folder = tmp_path_factory.mktemp("keys")
    return Pair(folder, "ours"), Pair(folder, "theirs")


def judge(file: Path, pair: Pair, *names: str) -> None:
    """Judge a key that a machine of these names shows."""
    verify(known(names, [file]), pair.kind, pair.blob, shown="the machine", called=names[0], file=file)


@pytest.mark.parametrize(
    "patterns",
    ["gpu7", "GPU7", "other,gpu7", "gpu*", "gpu?", "*,!gpu8", "[10.0.0.7]:2222,gpu7"],
)
def test_a_line_that_speaks_of_the_machine_vouches_for_its_key(tmp_path, pairs, patterns) -> None:
    """Names, lists, patterns and exceptions mean what sshd(8) says."""
    file = tmp_path / "known_hosts"
    file.write_text(f"# people write comments\n\n{patterns} {pairs[0].kind} {pairs[0].text} and a comment\n")
    judge(file, pairs[0], "gpu7")
    with pytest.raises(ChangedHostKey):
        judge(file, pairs[1], "gpu7")


@pytest.mark.parametrize(
    "line",
    ["gpu70 {} {}", "gpu7,!gpu7 {} {}", "!gpu7,* {} {}", "# gpu7 {} {}", "[gpu7]:2222 {} {}", "gpu7 {}", "gpu7 {} !{}"],
)
def test_a_line_that_speaks_of_another_says_nothing(tmp_path, pairs, line) -> None:
    """A key that is written down for somebody else, or wrongly, vouches for nobody and accuses nobody."""
    file = tmp_path / "known_hosts"
    file.write_text(line.format(pairs[0].kind, pairs[0].text) + "\n")
    with pytest.raises(UnknownHostKey):
        judge(file, pairs[0], "gpu7")


def test_names_that_ssh_keygen_has_hashed_are_found(tmp_path, pairs) -> None:
    """`ssh-keygen -H` hides the names; the machine is known all the same, and nobody else is."""
    file = tmp_path / "known_hosts"
    file.write_text(f"[127.0.0.1]:2222 {pairs[0].kind} {pairs[0].text}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", file], check=True, capture_output=True)
    assert "127.0.0.1" not in file.read_text()
    judge(file, pairs[0], label("127.0.0.1", 2222))
    with pytest.raises(UnknownHostKey):
        judge(file, pairs[0], label("127.0.0.1", 2223))


def test_a_key_written_down_without_the_port_counts_at_any_port(tmp_path, pairs) -> None:
    """As OpenSSH does: the machine is the same."""
    file = tmp_path / "known_hosts"
    file.write_text(f"gpu7 {pairs[0].kind} {pairs[0].text}\n")
    judge(file, pairs[0], label("gpu7", 2222), "gpu7")


def test_a_revoked_key_is_refused_though_another_line_vouches_for_it(tmp_path, pairs) -> None:
    """Somebody has said that this key is stolen."""
    file = tmp_path / "known_hosts"
    file.write_text(f"gpu7 {pairs[0].kind} {pairs[0].text}\n@revoked * {pairs[0].kind} {pairs[0].text}\n")
    with pytest.raises(ChangedHostKey, match=rf"{file}:2 calls revoked"):
        judge(file, pairs[0], "gpu7")


def test_an_authority_is_named_and_not_used(tmp_path, pairs) -> None:
    """A certificate authority vouches for nothing here, and the refusal says so."""
    file = tmp_path / "known_hosts"
    file.write_text(f"@cert-authority gpu* {pairs[0].kind} {pairs[0].text}\n")
    with pytest.raises(UnknownHostKey, match=rf"{file}:1 names an authority, which is not used here"):
        judge(file, pairs[0], "gpu7")


def test_one_of_several_keys_is_enough_and_their_kinds_are_asked_for(tmp_path, pairs) -> None:
    """A machine has a key of each kind; the file may know some of them."""
    rsa = Pair(tmp_path, "rsa", "rsa")
    file = tmp_path / "known_hosts"
    file.write_text(f"gpu7 {rsa.kind} {rsa.text}\ngpu7 {pairs[0].kind} {pairs[0].text}\n")
    judge(file, pairs[0], "gpu7")
    assert known(["gpu7"], [file, tmp_path / "none"]).kinds == ("ssh-rsa", "ssh-ed25519")


def test_the_remedy_for_an_unknown_key_is_a_command_that_adds_it(tmp_path, pairs) -> None:
    """Fingerprint as ssh-keygen prints it, and a line for the shell, after which the key is known."""
    file = tmp_path / "known hosts"
    with pytest.raises(UnknownHostKey) as refused:
        judge(file, pairs[0], "[127.0.0.1]:2222")
    printed = subprocess.run(["ssh-keygen", "-lf", pairs[0].file], capture_output=True, text=True, check=True).stdout
    assert fingerprint(pairs[0].blob) == printed.split()[1]
    assert printed.split()[1] in refused.value.sentence
    subprocess.run(["sh", "-c", refused.value.remedy.partition("if it is right: ")[2]], check=True)
    judge(file, pairs[0], "[127.0.0.1]:2222")


def test_the_remedy_for_a_changed_key_removes_the_old_line(tmp_path, pairs) -> None:
    """The refusal names the line, both fingerprints' owners and the command of OpenSSH that removes it."""
    file = tmp_path / "known_hosts"
    file.write_text(f"[127.0.0.1]:2222 {pairs[1].kind} {pairs[1].text}\n")
    with pytest.raises(ChangedHostKey, match=rf"another key than the one in {file}:1") as refused:
        judge(file, pairs[0], "[127.0.0.1]:2222")
    remedy = refused.value.remedy
    command = remedy[remedy.index("ssh-keygen -R") : remedy.index(" and add: ")]
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    with pytest.raises(UnknownHostKey):
        judge(file, pairs[0], "[127.0.0.1]:2222")
    with file.open("a") as more:
        more.write(remedy.partition(" and add: ")[2] + "\n")
    judge(file, pairs[0], "[127.0.0.1]:2222")
