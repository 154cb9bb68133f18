"""What the points of a campaign share: a room, a warm helper, and what engines were computed to say."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from agent.assemble import assemble
from agent.settings import load
from evals.campaigns.forge import Forge
from evals.campaigns.ground import Ground, make, other_mount, room, unmake
from evals.campaigns.host import VirtualHost, stand
from tools.transaction import HELPER


class Campaign(NamedTuple):
    """A campaign that is under way."""

    root: Path
    """Its room."""
    forge: Forge
    """Starts the helper."""

    @contextlib.contextmanager
    def ground(self, *, watchdog: float = 60.0, two_mounts: bool = False) -> Iterator[Ground]:
        """A ground with a worker that serves, gone afterwards.

        Args:
            watchdog: Seconds of the wall after which the host takes a change back by itself.
            two_mounts: Whether the script lies on another mount than Prudent's own folder.
        """
        folder = Path(tempfile.mkdtemp(dir=self.root, prefix="ground-"))
        folder.rmdir()
        scripts = other_mount(self.root) if two_mounts else None
        ground = make(folder, self.root / "kept", watchdog=watchdog, epoch=float(int(time.time())), scripts=scripts)
        try:
            stand(ground, self.forge)
            yield ground
        finally:
            unmake(ground)


@contextlib.contextmanager
def campaign() -> Iterator[Campaign]:
    """Begin a campaign; nothing of it is left afterwards."""
    root = Path(tempfile.mkdtemp(dir=room(), prefix="prudent-campaign-"))
    (root / "kept").mkdir()
    forge = Forge(sys.executable, HELPER)
    try:
        under = Campaign(root, forge)
        _load_all(under)
        yield under
    finally:
        forge.close()
        shutil.rmtree(root, ignore_errors=True)


def _load_all(under: Campaign) -> None:
    """Load what an agent loads on its way: in each of thousands of forks that takes longer than all it does."""
    with under.ground() as ground:
        host = VirtualHost(ground, under.forge)
        with assemble(load(ground.settings, {}), "decode", environ={}, clock=host.moment, seed=1, host=host):
            host.close()
