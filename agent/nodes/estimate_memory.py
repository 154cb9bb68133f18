"""Change, Evidence -> Forecast: GPU memory, capture and restart time, each as an interval with its basis."""

from __future__ import annotations

from typing import Literal

from langgraph.runtime import Runtime
from langgraph.types import Command

from agent.errors import DoesNotFit
from agent.nodes.carried import carried
from agent.state import Parts, RunState, Tell


def estimate_memory(state: RunState, runtime: Runtime[Parts]) -> Command[Literal["plan_verification", "record"]]:
    """Forecast what the change costs; what certainly does not fit is refused before anybody is asked."""
    return carried(_estimate_memory, state, runtime)


def _estimate_memory(state: RunState, parts: Parts, tell: Tell) -> Command[Literal["plan_verification", "record"]]:
    change = state["change"]
    forecast = parts.worker.forecast(change, floor_gb=parts.policy.floor_gb, start_seconds=measured_starts(parts))
    tell({"kind": "forecast", "text": f"{forecast.fits}: {forecast.why}"})
    if forecast.fits == "does not fit":
        raise DoesNotFit(
            f"{change.summary} does not fit: {forecast.why}",
            "Choose a smaller value, or make room first (a smaller memory fraction or context length).",
        )
    return Command(update={"forecast": forecast}, goto="plan_verification")


def measured_starts(parts: Parts) -> list[float]:
    """Seconds that this worker's starts took, from the last records, the newest first."""
    return [
        reading.value
        for record in parts.store.records(worker=parts.name, limit=20)
        for reading in record.readings
        if reading.metric == "start_seconds" and reading.value is not None
    ]
