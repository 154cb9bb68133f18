"""Which machine is meant, and what the settings say of the way to it; all that they leave out is left to ssh_config."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field

from agent.domain import Noun
from agent.errors import BadSettings

_SPOT = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?(?P<address>\[[^\]\s]+\]|[^:@\s\[\]]+|[0-9A-Fa-f:]+)(?::(?P<port>\d{1,5}))?"
)


class SshTarget(Noun):
    """A machine to reach by SSH."""

    name: str
    """What messages call it, and, without an address, the name that ssh_config knows."""
    address: str | None = None
    """Its address; None: the name is looked up."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """Port of its sshd; None: ssh_config's, or 22."""
    user: str | None = None
    """Login; None: ssh_config's, or the one of whoever runs Prudent."""
    identity: str | None = None
    """Path of a private key; None: ssh_config's, the agent's and the usual files."""
    known_hosts: str | None = None
    """Path of the file with its key; None: ssh_config's, or the user's and the machine's own."""
    config: str | None = None
    """Path of the ssh_config; None: the user's own, where there is one."""
    become: Literal["sudo"] | None = None
    """`sudo`: every command runs through `sudo -n`."""
    python: str = "python3"
    """A Python 3.10 or newer there."""
    directory: str | None = None
    """Prudent's own directory there, absolute; None: `.prudent/host` in the home of the user that commands run as."""

    @classmethod
    def parse(cls, text: str) -> SshTarget:
        """A name that ssh_config knows, or `user@host:port`; an IPv6 address with a port stands in brackets.

        Raises:
            BadSettings: it is neither.
        """
        spot = _SPOT.fullmatch(text)
        if spot is None or int(spot["port"] or 22) not in range(1, 65536):
            raise BadSettings(
                f"The host {text!r} is no name and no address.",
                "Write a name that your ssh_config knows, or user@host:port, or add a [hosts.NAME] section.",
            )
        plain = text == spot["address"]
        address = spot["address"].strip("[]")
        return cls(
            name=text,
            address=None if plain else address,
            user=spot["user"],
            port=int(spot["port"]) if spot["port"] else None,
        )
