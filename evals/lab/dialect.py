"""What differs between the versions of SGLang that the practice worker can be: flags, fields, and how the log words it.

Facts: engine facts, sections 1.2, 2 and 3. 0.5.14 is the one that was recorded; the others are told by what sets them
apart from it: 0.5.13 has the flat names of before the capture settings were split into phases, 0.5.20 has dropped the
old spellings and prints its arguments as a dictionary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

RECORDED = "0.5.14"
"""The version that the recordings are of."""
_OLD_FLAGS = {
    "--cuda-graph-max-bs",
    "--cuda-graph-bs",
    "--piecewise-cuda-graph-tokens",
    "--piecewise-cuda-graph-max-tokens",
}
_NEW_FLAGS = {
    "--cuda-graph-config",
    "--cuda-graph-backend-decode",
    "--cuda-graph-backend-prefill",
    "--cuda-graph-max-bs-decode",
    "--cuda-graph-max-bs-prefill",
    "--cuda-graph-bs-decode",
    "--cuda-graph-bs-prefill",
    "--cuda-graph-tc-compiler",
    "--disable-prefill-cuda-graph",
    "--disable-decode-cuda-graph",
    "--dsa-prefill-backend",
    "--dsa-decode-backend",
    "--disaggregation-decode-extra-slots",
}
_PHASED = (
    "cuda_graph_config", "cuda_graph_backend_decode", "cuda_graph_backend_prefill", "cuda_graph_max_bs_decode",
    "cuda_graph_max_bs_prefill", "cuda_graph_bs_decode", "cuda_graph_bs_prefill", "cuda_graph_tc_compiler",
    "disable_prefill_cuda_graph", "disable_decode_cuda_graph",
)  # fmt: skip
_OLD_HINTS = """Possible solutions:
1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)
2. set --cuda-graph-max-bs to a smaller value (e.g., 16)
3. disable torch compile by not using --enable-torch-compile
4. disable CUDA graph by --disable-cuda-graph. (Not recommended. Huge performance loss)
Open an issue on GitHub https://github.com/sgl-project/sglang/issues/new/choose 
"""  # noqa: W291 - the engine prints that blank
_HINTS = """Possible solutions:
1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)
2. set --cuda-graph-max-bs-decode to a smaller value (e.g., 16)
3. disable decode CUDA graph by --cuda-graph-backend-decode=disabled. (Not recommended. Huge performance loss)
Open an issue on GitHub https://github.com/sgl-project/sglang/issues/new/choose 
"""  # noqa: W291 - the engine prints that blank


class Dialect:
    """One version.

    Args:
        version: Such as `0.5.14`.
    """

    def __init__(self, version: str = RECORDED) -> None:
        self.version = version
        parts = tuple(int(part) for part in version.split("."))
        self.flat = parts < (0, 5, 14)
        """Capture settings are flat, and old spellings are the only ones."""
        self._dictionary = parts >= (0, 5, 19)
        self._dropped = parts >= (0, 5, 20)

    def absent(self) -> frozenset[str]:
        """Flags of the recorded version that this one does not have."""
        if self.flat:
            return frozenset(_NEW_FLAGS)
        return frozenset(_OLD_FLAGS if self._dropped else ())

    def deprecated(self, flag: str, renamed: Mapping[str, str]) -> bool:
        """Whether a spelling is taken with a warning."""
        return flag in renamed and not self.flat

    # --------------------------------------------------------------------------------------------- fields

    def fields(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The resolved arguments by the names and in the form that this version gives them."""
        if not self.flat:
            return dict(arguments)
        decode, prefill = (arguments["cuda_graph_config"][phase] for phase in ("decode", "prefill"))
        older: dict[str, Any] = {
            "cuda_graph_max_bs": decode["max_bs"],
            "cuda_graph_bs": decode["bs"],
            "disable_piecewise_cuda_graph": prefill["backend"] == "disabled",
            "enforce_piecewise_cuda_graph": False,
            "piecewise_cuda_graph_max_tokens": prefill["max_bs"],
            "piecewise_cuda_graph_tokens": prefill["bs"],
            "piecewise_cuda_graph_compiler": prefill["tc_compiler"],
        }
        told: dict[str, Any] = {}
        for field, value in arguments.items():
            if field == "cuda_graph_config":
                told |= older
            elif field not in _PHASED and field != "disaggregation_decode_extra_slots":
                told[field.replace("dsa_", "nsa_") if "dsa_" in field else field] = value
        return told

    def shown(self, arguments: Mapping[str, Any]) -> str:
        """The arguments as the first line of the log shows them: `ServerArgs(...)`, later a dictionary."""
        if self._dictionary:
            return repr(dict(arguments))
        parts = []
        for field, value in self.fields(arguments).items():
            if field == "cuda_graph_config":
                phases = ", ".join(
                    f"{phase}=PhaseConfig({', '.join(f'{key}={item!r}' for key, item in plan.items())})"
                    for phase, plan in value.items()
                )
                parts.append(f"{field}=CudaGraphConfig({phases})")
            else:
                parts.append(f"{field}={value!r}")
        return f"ServerArgs({', '.join(parts)})"

    # ------------------------------------------------------------------------------------------------ log

    def decode_begins(self, backend: str, sizes: Sequence[int], free: float) -> list[str]:
        """Before decode graphs are captured."""
        if self.flat:
            return [
                f"Capture cuda graph begin. This can take up to several minutes. avail mem={free:.2f} GB",
                f"Capture cuda graph bs {list(sizes)}",
            ]
        return [
            f"Capture target decode CUDA graph begin. backend={backend}, num_tokens_per_bs=1, bs={list(sizes)},"
            f" avail mem={free:.2f} GB"
        ]

    def prefill_begins(self, backend: str, sizes: Sequence[int], free: float) -> list[str]:
        """Before prefill graphs are captured."""
        if self.flat:
            return [
                f"Capture piecewise CUDA graph begin. avail mem={free:.2f} GB",
                f"Capture cuda graph num tokens {list(sizes)}",
            ]
        return [
            f"Capture target prefill CUDA graph begin. backend={backend}, num_tokens={list(sizes)},"
            f" avail mem={free:.2f} GB"
        ]

    def ends(self, phase: str, seconds: float, used: float, free: float) -> str:
        """After a capture of `decode` or `prefill`; seconds of life, GiB."""
        if self.flat:
            what = "cuda graph" if phase == "decode" else "piecewise CUDA graph"
            return (
                f"Capture {what} end. Time elapsed: {seconds:.2f} s. mem usage={used:.2f} GB. avail mem={free:.2f} GB."
            )
        return (
            f"Capture target {phase} CUDA graph end. elapsed={seconds:.2f} s, mem usage={used:.2f} GB,"
            f" avail mem={free:.2f} GB."
        )

    def prefill_off(self) -> str:
        """Why prefill is not captured."""
        if self.flat:
            return "Disable piecewise CUDA graph because --disable-piecewise-cuda-graph is set"
        return (
            "Disable prefill CUDA graph because cuda_graph_config resolved prefill.backend='disabled'"
            " (e.g. via --cuda-graph-backend-prefill=disabled or auto-disable rules)."
        )

    def no_graph(self, phase: str, said: str) -> str:
        """A capture that failed, with what may be done."""
        if self.flat:
            what = "cuda graph" if phase == "decode" else "piecewise CUDA graph"
            return f"Exception: Capture {what} failed: {said}\n{_OLD_HINTS}"
        hints = _HINTS
        if phase == "prefill":
            hints = hints.replace("decode", "prefill").replace("(e.g., 16)", "(e.g., 2048)")
        what = "cuda graph" if phase == "decode" else "prefill CUDA graph"
        return f"Exception: Capture {what} failed: {said}\n{hints}"
