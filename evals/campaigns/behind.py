"""A host behind something of ours: it is called what the host is called, and its calls are the wrapper's."""

from __future__ import annotations

from tools.host import Host


class Behind:
    """What every wrapper of a host hands through.

    Args:
        host: The host.
    """

    def __init__(self, host: Host) -> None:
        self._host = host

    @property
    def name(self) -> str:
        """What messages call it."""
        return self._host.name

    @property
    def python(self) -> str:
        """Its interpreter."""
        return self._host.python

    @property
    def directory(self) -> str:
        """Prudent's own directory."""
        return self._host.directory
