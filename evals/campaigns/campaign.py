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

from evals.campaigns.forge import Forge
from evals.campaigns.ground import Ground, make, room, unmake
from evals.campaigns.host import stand
from tools.transaction import HELPER


class Campaign(NamedTuple):
    """A campaign that is under way."""

    root: Path
    """Its room."""
    forge: Forge
    """Starts the helper."""

    @contextlib.contextmanager
    def ground(self, *, watchdog: float = 60.0) -> Iterator[Ground]:
        """A ground with a worker that serves, gone afterwards.

        Args:
            watchdog: Seconds of the wall after which the host takes a change back by itself.
        """
        folder = Path(tempfile.mkdtemp(dir=self.root, prefix="ground-"))
        folder.rmdir()
        ground = make(folder, self.root / "kept", watchdog=watchdog, epoch=float(int(time.time())))
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
        yield Campaign(root, forge)
    finally:
        forge.close()
        shutil.rmtree(root, ignore_errors=True)
