"""Which side of a pair a worker is, made from its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from evals.lab.clock import Clock
from evals.lab.decode_side import DecodeSide
from evals.lab.log import Log
from evals.lab.metrics import Metrics
from evals.lab.pair import BOOTSTRAP_VARIABLE, WAITING_VARIABLE, Side, patience
from evals.lab.prefill_side import PrefillSide
from evals.lab.specimen import Specimen


def side_of(
    arguments: Mapping[str, Any],
    environ: Mapping[str, str],
    name: str,
    stale: Callable[[], bool],
    specimen: Specimen,
    clock: Clock,
    log: Log,
    metrics: Metrics,
) -> Side | None:
    """A worker's side; None for one that serves whole requests.

    Args:
        arguments: Its server arguments.
        environ: Its environment.
        name: This start's own name; no other start of any worker has it.
        stale: Whether it holds on to the other side's start that is gone.
        specimen: Model and cards.
        clock: Serving clock.
        log: Where lines go.
        metrics: Where figures go.
    """
    mode, host = arguments["disaggregation_mode"], str(arguments["host"])
    if mode == "prefill":
        port, limit = int(arguments["disaggregation_bootstrap_port"]), patience(environ, BOOTSTRAP_VARIABLE)
        return PrefillSide(host, port, name, limit, stale, specimen, clock, log, metrics)
    if mode == "decode":
        address, limit = f"{host}:{arguments['port']}", patience(environ, WAITING_VARIABLE)
        return DecodeSide(address, name, limit, stale, clock, log, metrics)
    return None
