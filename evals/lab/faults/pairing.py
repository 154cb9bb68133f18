"""What can be wrong between the two sides of a disaggregated pair."""

from __future__ import annotations

from typing import ClassVar

from evals.lab.faults.fault import Fault


class StaleBootstrap(Fault):
    """Seed: after a restart of one side, state of the transfer layer may linger on the other."""

    meaning: ClassVar[str] = (
        "A side of a pair goes on talking to the start of the other side that it has met first, though that is gone: "
        "health and warm-up are good, and no request comes through until the prefill side and then the decode side "
        "are started anew."
    )
    of_pairs: ClassVar[bool] = True

    def stale(self) -> bool:
        """It remembers."""
        return True
