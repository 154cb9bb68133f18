"""What can be wrong with a worker: composable, seeded, and known to nobody but the ground's private folder."""

from evals.lab.faults.catalogue import DEFAULT_FAULTS, FAULTS, build, check, listing
from evals.lab.faults.condition import Conditions
from evals.lab.faults.fault import Fault, Live, Parameter, Sight
from evals.lab.faults.together import Faults

__all__ = [
    "DEFAULT_FAULTS", "FAULTS", "Conditions", "Fault", "Faults", "Live", "Parameter", "Sight", "build", "check",
    "listing",
]  # fmt: skip
