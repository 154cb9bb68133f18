"""Change, Evidence -> Forecast: GPU memory, capture and restart time, each as an interval with its basis."""

from __future__ import annotations

from typing import Literal

from langgraph.runtime import Runtime
from langgraph.types import Command

from agent.domain import Change, Forecast
from agent.errors import DoesNotFit
from agent.nodes.anchors import learn_start, learned_starts
from agent.nodes.carried import carried
from agent.state import Parts, RunState, Tell
from tools.worker import Snapshot


def estimate_memory(state: RunState, runtime: Runtime[Parts]) -> Command[Literal["plan_verification", "record"]]:
    """Forecast what the change costs; what certainly does not fit is refused before anybody is asked."""
    return carried(_estimate_memory, state, runtime)


def _estimate_memory(state: RunState, parts: Parts, tell: Tell) -> Command[Literal["plan_verification", "record"]]:
    change = state["change"]
    snapshot = parts.worker.snapshot()
    learn_start(state["request"].run, snapshot.facts, snapshot.version, parts)
    forecast = forecast_of(change, snapshot, parts)
    tell({"kind": "forecast", "text": f"{forecast.fits}: {forecast.why}"})
    if forecast.fits == "does not fit":
        raise DoesNotFit(
            f"{change.summary} does not fit: {forecast.why}",
            "Choose a smaller value, or make room first (a smaller memory fraction or context length).",
        )
    return Command(update={"forecast": forecast}, goto="plan_verification")


def forecast_of(change: Change, snapshot: Snapshot, parts: Parts) -> Forecast:
    """What a change costs, by this worker's last start and by all that is remembered of those before."""
    started = parts.store.baselines(parts.name, metric="start_seconds", limit=40)
    return parts.worker.forecast(
        change,
        snapshot,
        floor_gb=parts.policy.floor_gb,
        start_seconds=[one.reading.value for one in started if one.reading.value is not None],
        remembered=learned_starts(parts),
    )
