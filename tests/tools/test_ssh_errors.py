"""Every exception of the SSH library has a meaning of ours."""

from __future__ import annotations

import inspect

import paramiko
import pytest

from agent.errors import BadSettings, HostUnreachable, LoginRefused
from tools.ssh import MEANINGS, SshHost
from tools.ssh_target import SshTarget

OTHERS = {
    "NeedRekeyException",  # goes from one part of the library to another and never leaves it
    "SFTPError",  # belongs to file transfers, which are not used
}


def _kinds() -> list[type[Exception]]:
    modules = (paramiko, paramiko.ssh_exception, paramiko.pkey, paramiko.agent, paramiko.transport, paramiko.config)
    found = {
        kind
        for module in modules
        for kind in vars(module).values()
        if inspect.isclass(kind)
        and issubclass(kind, Exception)
        and kind.__module__.startswith("paramiko")
        and kind.__name__ not in OTHERS
    }
    return sorted(found, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", _kinds(), ids=lambda kind: kind.__name__)
def test_every_exception_of_the_library_becomes_a_sentence_of_ours(kind) -> None:
    """None reaches the operator as a traceback, and the special ones are found before the general one."""
    first = next(meant for meant in MEANINGS if issubclass(kind, meant))
    nearer = [meant for meant in MEANINGS if issubclass(kind, meant) and issubclass(meant, first)]
    assert nearer == [first]


def test_the_kinds_are_told_apart() -> None:
    """A login that is refused is none that cannot be reached, and a mistake in a file is neither."""
    meant = {kind.__name__: MEANINGS[kind][0] for kind in MEANINGS}
    assert meant["AuthenticationException"] is LoginRefused
    assert meant["SSHException"] is meant["OSError"] is HostUnreachable
    assert meant["ConfigParseError"] is BadSettings


@pytest.mark.parametrize("address", ["127.0.0.1", "name.invalid", "256.1.1.1"])
def test_a_machine_that_is_not_there_is_a_sentence_with_a_remedy(address, tmp_path) -> None:
    """Nobody listens, or the name means nothing."""
    target = SshTarget(name="gpu7", address=address, port=1, user="root", known_hosts=str(tmp_path / "k"))
    with pytest.raises(HostUnreachable, match=r"root@\[.*\]:1: .*Check address, port and network"):
        SshHost.connect(target)
