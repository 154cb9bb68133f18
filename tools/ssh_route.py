"""Settings and ssh_config -> the machines on the way to one, each with its login, keys and known_hosts."""

from __future__ import annotations

import getpass
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from agent.errors import BadSettings
from tools.ssh_known_hosts import label
from tools.ssh_target import SshTarget

Lookup = Callable[[SshTarget], Mapping[str, Any]]
"""What ssh_config says of a target, after `before`: keywords in lower case, `hostname` always among them.

Raises:
    ValueError: it cannot be used.
"""
_JUMPS = 8
_USUAL_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_USUAL_KNOWN = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")


class Hop(NamedTuple):
    """One machine on the way, the last of which is the one that is meant."""

    address: str
    """Where it is, from the hop before."""
    port: int
    """Port of its sshd."""
    user: str
    """Login."""
    called: str
    """What known_hosts calls it; `HostKeyAlias`, where there is one."""
    keys: tuple[str, ...]
    """Paths of private keys."""
    named_keys_only: bool
    """Offer no other key than those: `IdentitiesOnly`."""
    known_hosts: tuple[Path, ...]
    """Files with its key."""
    command: str | None
    """A command that stands for the way to it: `ProxyCommand`."""

    @property
    def shown(self) -> str:
        """The hop for people."""
        return f"{self.user}@{label(self.address, self.port)}"


class _Resolved(NamedTuple):
    hop: Hop
    jump: str | None


def config_path(target: SshTarget) -> Path | None:
    """The ssh_config to read; None: the user has none and the settings name none."""
    path = Path(target.config or "~/.ssh/config").expanduser()
    return None if target.config is None and not path.exists() else path


def before(target: SshTarget) -> Iterator[str]:
    """Lines that stand before the ssh_config, so that what the settings say is what its commands are told, too."""
    yield f"Host {target.address or target.name}"
    if target.port is not None:
        yield f"Port {target.port}"
    if target.user is not None:
        yield f"User {target.user}"
    yield "Host *"


def route(target: SshTarget, lookup: Lookup) -> tuple[Hop, ...]:
    """The machines on the way, by the settings and by ssh_config, ours last.

    Raises:
        BadSettings: what they say cannot be, or sends us round in circles.
    """
    last = _hop(lookup, target)
    asked = last.jump
    hops = [last.hop]
    while asked:
        *first, through = [spot.strip() for spot in asked.split(",")]
        if len(hops) > _JUMPS:
            raise BadSettings(
                f"{target.name}: ProxyJump leads round in circles.", "Give the first machine ProxyJump none."
            )
        step = _hop(lookup, SshTarget.parse(through.removeprefix("ssh://")))
        hops.insert(0, step.hop)
        asked = ",".join(first) or step.jump
    return tuple(hops)


def lines_of(path: Path, depth: int = 0) -> Iterator[str]:
    """The lines of an ssh_config with what it includes; after that the block before goes on.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: it is no text.
    """
    block = "Host *"
    for line in path.read_text(encoding="utf-8").splitlines():
        words = line.replace("=", " ", 1).split()
        if words and words[0].lower() == "include" and depth < _JUMPS:
            for pattern in words[1:]:
                where = Path(pattern.strip('"')).expanduser()
                base = where.parent if where.is_absolute() else Path("~/.ssh").expanduser() / where.parent
                for file in sorted(base.glob(where.name)):
                    yield from lines_of(file, depth + 1)
            yield block
            continue
        if words and words[0].lower() in {"host", "match"}:
            block = line
        yield line


def _hop(lookup: Lookup, target: SshTarget) -> _Resolved:
    try:
        said = lookup(target)
    except ValueError as error:
        raise BadSettings(
            f"{target.name}: ssh_config cannot be used: {error}.",
            'Correct it, or name another file, such as one without "Match exec", with config = "...".',
        ) from error
    address = said["hostname"]
    port = int(said.get("port", 22))
    keys = (target.identity,) if target.identity else tuple(said.get("identityfile", ()))
    if target.identity and not Path(target.identity).expanduser().exists():
        raise BadSettings(f"{target.name}: there is no key {target.identity!r}.", "Correct the path of identity.")
    named = [target.known_hosts] if target.known_hosts else _paths(said.get("userknownhostsfile"))
    files = named or [*_USUAL_KNOWN]
    jump = said.get("proxyjump")
    return _Resolved(
        Hop(
            address=address,
            port=port,
            user=said.get("user") or getpass.getuser(),
            called=said.get("hostkeyalias") or label(address, port),
            keys=keys or _USUAL_KEYS,
            named_keys_only=bool(keys) and str(said.get("identitiesonly", "no")).lower() == "yes",
            known_hosts=tuple(Path(file).expanduser() for file in files),
            command=said.get("proxycommand"),
        ),
        None if jump is None or jump.lower() == "none" else jump,
    )


def _paths(text: str | None) -> list[str]:
    """Files that a line of ssh_config names."""
    return shlex.split(text) if text else []
