"""Who sits before a door on this machine."""

from __future__ import annotations

import getpass
import os


def login() -> str:
    """The login name, or the number where the system knows no name for it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
