"""What `/metrics` shows: the families, labels and buckets of a recorded 0.5.14, stale gauges included."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping
from importlib import resources
from typing import Any

Labels = tuple[tuple[str, str], ...]
_CONSTANT = {"fwd_occupancy": float("nan"), "new_token_ratio": 0.7}


class Metrics:
    """Counters, gauges and histograms of one worker.

    Args:
        model: The served model's name.
        pid: Process id that a few gauges carry as a label.
    """

    def __init__(self, model: str, pid: int) -> None:
        text = resources.files("evals.lab").joinpath("sglang_0_5_14/metrics.json").read_text(encoding="utf-8")
        self._families: dict[str, dict[str, Any]] = json.loads(text)
        tokenizer = {"engine_type": "unified", "model_name": model}
        self._labels: dict[str, Mapping[str, str]] = {
            "tokenizer": tokenizer,
            "scheduler": {**tokenizer, "moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"},
            "process": {},
        }
        self._pid = str(pid)
        self._values: dict[str, dict[Labels, float]] = {}
        self._counts: dict[str, dict[Labels, list[int]]] = {}
        self._sums: dict[str, dict[Labels, float]] = {}
        for name, family in self._families.items():
            if family["type"] == "gauge" and family["scope"] == "scheduler" and "routing_key" not in name:
                short = name.removeprefix("sglang:")
                self._values[name] = {(): _CONSTANT.get(short, 0.0)}

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Count something."""
        series = self._values.setdefault(f"sglang:{name}", {})
        key = tuple(sorted(labels.items()))
        series[key] = series.get(key, 0.0) + amount

    def set(self, name: str, value: float, **labels: str) -> None:
        """Show a gauge's new value."""
        self._values.setdefault(f"sglang:{name}", {})[tuple(sorted(labels.items()))] = value

    def observe(self, name: str, value: float, times: int = 1, **labels: str) -> None:
        """Put a value into a histogram, `times` over."""
        name = f"sglang:{name}"
        key = tuple(sorted(labels.items()))
        bounds = self._bounds(name)
        counts = self._counts.setdefault(name, {}).setdefault(key, [0] * (len(bounds) + 1))
        counts[bisect_left(bounds, value)] += times
        sums = self._sums.setdefault(name, {})
        sums[key] = sums.get(key, 0.0) + value * times

    def _bounds(self, name: str) -> list[float]:
        family = self._families[name]
        if "bounds" not in family:
            family["bounds"] = [float(bound) for bound in family["buckets"] if bound != "+Inf"]
        bounds: list[float] = family["bounds"]
        return bounds

    def text(self) -> str:
        """The whole exposition."""
        lines: list[str] = []
        for name, family in self._families.items():
            shown = self._histogram(name, family) if family["type"] == "histogram" else self._plain(name, family)
            if shown:
                lines += (f"# HELP {name} {family['help']}", f"# TYPE {name} {family['type']}", *shown)
        return "\n".join(lines) + "\n"

    def _written(self, family: Mapping[str, Any], key: Labels, **more: str) -> str:
        labels = {**self._labels[family["scope"]], **dict(key), **more}
        if family.get("pid"):
            labels["pid"] = self._pid
        return "{" + ",".join(f'{label}="{labels[label]}"' for label in sorted(labels)) + "}" if labels else ""

    def _plain(self, name: str, family: Mapping[str, Any]) -> list[str]:
        return [
            f"{name}{self._written(family, key)} {_number(value)}" for key, value in self._values.get(name, {}).items()
        ]

    def _histogram(self, name: str, family: Mapping[str, Any]) -> list[str]:
        lines = []
        for key, counts in self._counts.get(name, {}).items():
            lines.append(f"{name}_sum{self._written(family, key)} {_number(self._sums[name][key])}")
            total = 0
            for bound, number in zip(family["buckets"], counts, strict=True):
                total += number
                lines.append(f"{name}_bucket{self._written(family, key, le=bound)} {_number(total)}")
            lines.append(f"{name}_count{self._written(family, key)} {_number(total)}")
        return lines


def _number(value: float) -> str:
    return "NaN" if value != value else repr(float(value))  # noqa: PLR0124 - only NaN differs from itself
