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
        families: Every family by its full name: type, help, scope, buckets.
        prefix: What the engine puts before its names.
        labels: Labels of each scope.
        pid: Process id that a few gauges carry as a label.
    """

    def __init__(
        self, families: Mapping[str, dict[str, Any]], prefix: str, labels: Mapping[str, Mapping[str, str]], pid: int
    ) -> None:
        self._families = families
        self._prefix = prefix
        self._labels = labels
        self._pid = str(pid)
        self._values: dict[str, dict[Labels, float]] = {}
        self._counts: dict[str, dict[Labels, list[int]]] = {}
        self._sums: dict[str, dict[Labels, float]] = {}

    @classmethod
    def sglang(cls, model: str, pid: int, *, engine_type: str = "unified") -> Metrics:
        """A SGLang's, with the scheduler's gauges at their first values.

        Args:
            model: The served model's name.
            pid: The process's id.
            engine_type: `unified`, `prefill` or `decode`.
        """
        text = resources.files("evals.lab").joinpath("sglang_0_5_14/metrics.json").read_text(encoding="utf-8")
        families: dict[str, dict[str, Any]] = json.loads(text)
        tokenizer = {"engine_type": engine_type, "model_name": model}
        labels = {
            "tokenizer": tokenizer,
            "scheduler": {**tokenizer, "moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"},
            "process": {},
        }
        made = cls(families, "sglang:", labels, pid)
        for name, family in families.items():
            if family["type"] == "gauge" and family["scope"] == "scheduler" and "routing_key" not in name:
                short = name.removeprefix("sglang:")
                made.set(short, _CONSTANT.get(short, 0.0))
        return made

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Count something."""
        series = self._values.setdefault(self._full(name), {})
        key = tuple(sorted(labels.items()))
        series[key] = series.get(key, 0.0) + amount

    def set(self, name: str, value: float, **labels: str) -> None:
        """Show a gauge's new value."""
        self._values.setdefault(self._full(name), {})[tuple(sorted(labels.items()))] = value

    def observe(self, name: str, value: float, times: int = 1, **labels: str) -> None:
        """Put a value into a histogram, `times` over."""
        name = self._full(name)
        key = tuple(sorted(labels.items()))
        bounds = self._bounds(name)
        counts = self._counts.setdefault(name, {}).setdefault(key, [0] * (len(bounds) + 1))
        counts[bisect_left(bounds, value)] += times
        sums = self._sums.setdefault(name, {})
        sums[key] = sums.get(key, 0.0) + value * times

    def _full(self, name: str) -> str:
        """A family's name with the engine's prefix, unless it has none."""
        full = f"{self._prefix}{name}"
        return full if full in self._families else name

    def _bounds(self, name: str) -> list[float]:
        family = self._families[name]
        if "bounds" not in family:
            family["bounds"] = [float(bound) for bound in family["buckets"] if bound != "+Inf"]
        bounds: list[float] = family["bounds"]
        return bounds

    def text(self, created: float | None = None) -> str:
        """The whole exposition.

        Args:
            created: Unix time at which counters and histograms were made, which a server of one process shows; None:
                one of several, which does not.
        """
        lines: list[str] = []
        for name, family in self._families.items():
            shown = self._histogram(name, family) if family["type"] == "histogram" else self._plain(name, family)
            if not shown:
                continue
            lines += (f"# HELP {name} {family['help']}", f"# TYPE {name} {family['type']}", *shown)
            if created is not None and family["type"] != "gauge":
                born = f"{name.removesuffix('_total')}_created"
                series = self._counts if family["type"] == "histogram" else self._values
                lines += (f"# HELP {born} {family['help']}", f"# TYPE {born} gauge")
                lines += [f"{born}{self._written(family, key)} {created!r}" for key in series[name]]
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
