"""known_hosts -> whether a machine is who it was: patterns, hashed names, ports, and revoked keys."""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from agent.errors import ChangedHostKey, UnknownHostKey


class KnownKey(NamedTuple):
    """One line that speaks of a machine."""

    kind: str
    """Key type, such as `ssh-ed25519`."""
    blob: bytes
    """The key itself."""
    place: str
    """`file:line`."""
    revoked: bool
    """Whether the line says that nobody may have this key."""


class Known(NamedTuple):
    """What is known of a machine."""

    keys: tuple[KnownKey, ...]
    """The keys that it may have, and those that nobody may have."""
    unsupported: tuple[str, ...]
    """Places of lines that speak of it in a way that cannot be used here: certificate authorities."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Types of the keys that it may have, so that it can be asked for one of them."""
        return tuple(dict.fromkeys(key.kind for key in self.keys if not key.revoked))


def label(address: str, port: int) -> str:
    """How known_hosts calls a machine at a port."""
    return address if port == 22 else f"[{address}]:{port}"


def known(names: Sequence[str], files: Iterable[Path]) -> Known:
    """Everything that some files say of a machine.

    Args:
        names: Its labels. As OpenSSH does, a key that is written down without the port counts at any port, so callers
            name both.
        files: Files in the format of sshd(8); one that is not there says nothing.
    """
    keys, unsupported = [], []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            words = line.split()
            marker = words.pop(0) if words and words[0].startswith("@") else ""
            if len(words) < 3 or words[0].startswith("#") or not any(_speaks_of(words[0], name) for name in names):
                continue
            place = f"{file}:{number}"
            if marker == "@cert-authority":
                unsupported.append(place)
                continue
            try:
                blob = base64.b64decode(words[2], validate=True)
            except binascii.Error:
                continue
            keys.append(KnownKey(words[1], blob, place, marker == "@revoked"))
    return Known(tuple(keys), tuple(unsupported))


def fingerprint(blob: bytes) -> str:
    """A key's fingerprint as OpenSSH prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def verify(facts: Known, kind: str, blob: bytes, *, shown: str, called: str, file: Path) -> None:
    """See that a machine's key is the one that is written down.

    Args:
        facts: What is written down.
        kind: Type of the key that it shows.
        blob: The key that it shows.
        shown: The machine, for people.
        called: Its label.
        file: Where a key would be added.

    Raises:
        UnknownHostKey: none is.
        ChangedHostKey: another one is, or this one is revoked.
    """
    print_ = fingerprint(blob)
    revoked = next((one for one in facts.keys if one.revoked and one.blob == blob), None)
    if revoked is not None:
        raise ChangedHostKey(
            f"{shown} shows a {kind} key that {revoked.place} calls revoked: {print_}.",
            "Do not go there before you know whose machine that is.",
        )
    valid = [one for one in facts.keys if not one.revoked]
    if any(one.blob == blob for one in valid):
        return
    compare = (
        "Compare the fingerprint with what the machine itself says (ssh-keygen -lf its host key's .pub file there)"
    )
    entry = f"{called} {kind} {base64.b64encode(blob).decode()}"
    if valid:
        places = ", ".join(one.place for one in valid)
        raise ChangedHostKey(
            f"{shown} shows another key than the one in {places}: {kind} {print_}.",
            f"It may be another machine. {compare}; if it is right, remove the old line with "
            f"ssh-keygen -R {shlex.quote(called)} -f {shlex.quote(str(file))} and add: {entry}",
        )
    authority = (
        f" ({', '.join(facts.unsupported)} names an authority, which is not used here)" if facts.unsupported else ""
    )
    raise UnknownHostKey(
        f"The key of {shown} is not known{authority}: {kind} {print_}.",
        f"{compare}; if it is right: echo {shlex.quote(entry)} >> {shlex.quote(str(file))}",
    )


def _speaks_of(patterns: str, name: str) -> bool:
    """Whether the first field of a line means a machine: a hashed name, or patterns with `*`, `?` and `!`."""
    if patterns.startswith("|1|"):
        try:
            salt, digest = (base64.b64decode(part) for part in patterns[3:].split("|"))
        except ValueError:
            return False
        return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)
    spoken = False
    for pattern in patterns.split(","):
        # Square brackets stand around addresses with ports here; they are no sets of characters.
        shape = pattern.lstrip("!").replace("[", "[[]").lower()
        if fnmatch.fnmatchcase(name.lower(), shape):
            if pattern.startswith("!"):
                return False
            spoken = True
    return spoken
