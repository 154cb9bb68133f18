"""argv -> the server arguments of SGLang, checked, defaulted and resolved as the engine does.

The flags are those of the recorded usage text and the defaults those of a recorded `/server_info`, so that nobody has
to keep a list of four hundred by hand; `dialect.py` says what other versions do differently.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from evals.lab.dialect import Dialect
from evals.lab.memory import captured_sizes, prefill_sizes
from evals.lab.specimen import Specimen

_YELLOW = "\033[1;33m{}\033[0m"
_OPTION = re.compile(r"\[(--[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*)\]|(--model-path MODEL_PATH)")
_SECOND_NAMES = {
    "--model-path": ("--model",),
    "--tp-size": ("--tensor-parallel-size",),
    "--pp-size": ("--pipeline-parallel-size",),
    "--dp-size": ("--data-parallel-size",),
    "--ep-size": ("--expert-parallel-size", "--ep"),
    "--fp8-gemm-backend": ("--fp8-gemm-runner-backend",),
    "--fp4-gemm-backend": ("--fp4-gemm-runner-backend",),
}
_FIELDS = {
    "--fp8-gemm-backend": "fp8_gemm_runner_backend",
    "--fp4-gemm-backend": "fp4_gemm_runner_backend",
    "--stream-output": "incremental_streaming_output",
    "--nsa-prefill-backend": "dsa_prefill_backend",
    "--nsa-decode-backend": "dsa_decode_backend",
    "--piecewise-cuda-graph-compiler": "cuda_graph_tc_compiler",
    "--mamba-scheduler-strategy": "mamba_radix_cache_strategy",
    "--disable-piecewise-cuda-graph": "cuda_graph_backend_prefill",
}
_CONSTANTS = {"--disable-piecewise-cuda-graph": "disabled"}
"""What a switch stores where that is not true."""
_WHOLE = re.compile(
    r"^(max_(running|queued)_requests|max_total_tokens|prefill_max_requests|context_length|chunked_prefill_size|page_size"
    r"|random_seed|default_priority_value|numa_node|gc_threshold|nccl_port|dist_timeout|pp_max_micro_batch_size"
    r"|max_lora_rank|max_loaded_loras|speculative_(num_steps|eagle_topk|num_draft_tokens|dflash_block_size|draft_window_size)"
    r"|max_mamba_cache_size|cuda_graph_(max_bs|bs)_(decode|prefill)|kt_.*(infer|experts|token)|moe_dense_tp_size"
    r"|disaggregation_decode_extra_slots|grpc_http_sidecar_port|(prompt|generation)_tokens_buckets)$"
)
_FRACTION = re.compile(r"^(mem_fraction_static|soft_watchdog_timeout|prefill_delayer_.*|bucket_.*)$")
# Old names that take a value: what the new one is called (engine facts, section 1.2).
_RENAMED = {
    "--cuda-graph-max-bs": "--cuda-graph-max-bs-decode",
    "--cuda-graph-bs": "--cuda-graph-bs-decode",
    "--piecewise-cuda-graph-tokens": "--cuda-graph-bs-prefill",
    "--piecewise-cuda-graph-max-tokens": "--cuda-graph-max-bs-prefill",
    "--piecewise-cuda-graph-compiler": "--cuda-graph-tc-compiler",
    "--nsa-prefill-backend": "--dsa-prefill-backend",
    "--nsa-decode-backend": "--dsa-decode-backend",
    "--mamba-scheduler-strategy": "--mamba-radix-cache-strategy",
    "--disable-cuda-graph": "--cuda-graph-backend-{decode,prefill}=disabled",
    "--disable-piecewise-cuda-graph": "--cuda-graph-backend-prefill=disabled",
    "--stream-output": "--incremental-streaming-output",
}


class Launch(NamedTuple):
    """What the server was started with, after the engine made up its mind."""

    arguments: dict[str, Any]
    """Every server argument by its field name, in the engine's order."""
    internal: dict[str, Any]
    """Fields that only the engine's own state shows."""
    locked: list[list[str]]
    """Which parts of the graph configuration the operator fixed, as pairs of phase and field."""
    sizes: list[int]
    """Batch sizes to capture for decode before the request pool cuts the list; empty: no graphs."""
    dialect: Dialect = Dialect()
    """How this version words it."""


class _Deprecated(argparse.Action):
    """Stores under the new name and says so in bold yellow."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Take the value, and warn."""
        new = _RENAMED.get(self.option_strings[0], "")
        warning = f"'{option_string}' is deprecated and will be removed in a future release. Use '{new}' instead."
        print(_YELLOW.format(warning), file=sys.stderr, flush=True)
        setattr(namespace, self.dest, self.const if self.nargs == 0 else values)


def recorded() -> dict[str, Any]:
    """Defaults and field order as a real 0.5.14 showed them."""
    text = resources.files("evals.lab").joinpath("sglang_0_5_14/server_args.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def parser(
    defaults: Mapping[str, Any], absent: frozenset[str] = frozenset(), dialect: Dialect | None = None
) -> argparse.ArgumentParser:
    """A parser that accepts, abbreviates and refuses as the engine's does.

    Args:
        defaults: Value of each field when nobody sets it.
        absent: Flags that this build does not have.
        dialect: The version; None: the recorded one.
    """
    dialect = dialect or Dialect()
    absent |= dialect.absent()
    usage = resources.files("evals.lab").joinpath("sglang_0_5_14/usage.txt").read_text(encoding="utf-8")
    made = argparse.ArgumentParser(prog="sglang serve", usage=usage.removeprefix("usage: ").rstrip("\n"))
    for bracketed, required in _OPTION.findall(usage):
        if bracketed.split()[:1] and bracketed.split()[0] in absent:
            made.usage = str(made.usage).replace(f"[{bracketed}] ", "").replace(f"[{bracketed}]", "")
            continue
        _add(made, " ".join((bracketed or required).split()), bool(required), defaults, dialect)
    if dialect.flat:
        made.usage = re.sub(r"(CUDA_GRAPH_(?:MAX_)?BS)_(?:DECODE|PREFILL)", r"\1", str(made.usage))
    made.usage = re.sub(r"\n(?: *\n)+", "\n", str(made.usage))
    return made


def _add(
    made: argparse.ArgumentParser, words: str, required: bool, defaults: Mapping[str, Any], dialect: Dialect
) -> None:
    """Add one option as its usage words describe it, such as `--seed SEED` or `--sizes SIZE [SIZE ...]`."""
    flag, _, rest = words.partition(" ")
    names = (flag, *_SECOND_NAMES.get(flag, ()))
    old = dialect.deprecated(flag, _RENAMED)
    field = _FIELDS.get(flag, flag.removeprefix("--").replace("-", "_"))
    if rest.startswith("| --no-"):
        made.add_argument(flag, action=argparse.BooleanOptionalAction, default=defaults.get(field))
        return
    if not rest:
        action: Any = _Deprecated if old else "store_const"
        extra: dict[str, Any] = {"nargs": 0} if old else {}
        constant = _CONSTANTS.get(flag, True)
        made.add_argument(
            *names, dest=field, action=action, const=constant, default=defaults.get(field, False), **extra
        )
        return
    metavar = re.sub(r"[\[\] .]", " ", rest).split()[0]
    if not metavar.startswith("{") and metavar.lower() in defaults:
        field = metavar.lower()
    choices = metavar.strip("{}").split(",") if metavar.startswith("{") else None
    nargs = {"...": "+", "": None}["..." if "..." in rest else ""]
    if rest.startswith("["):
        nargs = "*" if "..." in rest else "?"
    kind = _kind(field, defaults.get(field))
    made.add_argument(
        *names,
        dest=field,
        type=kind,
        nargs=nargs,
        choices=[kind(choice) for choice in choices] if choices else None,
        metavar=None if choices else metavar,
        required=required,
        default=defaults.get(field),
        action=_Deprecated if old else "store",
    )


def _kind(field: str, default: Any) -> Any:
    """The type that a field's value is read as."""
    if isinstance(default, int) and not isinstance(default, bool) and field not in {"watchdog_timeout"}:
        return int
    if isinstance(default, float) or field == "watchdog_timeout" or _FRACTION.match(field):
        return float
    return int if _WHOLE.match(field) else str


def parse(argv: Sequence[str], absent: frozenset[str] = frozenset(), dialect: Dialect | None = None) -> dict[str, Any]:
    """Read an argv as the engine would, a configuration file that it names included.

    Args:
        argv: The words after the program.
        absent: Flags that this build does not have.
        dialect: The version; None: the recorded one.

    Returns:
        Each server argument by field name, in the recorded version's order.

    Raises:
        SystemExit: with status 2 and the usage on stderr, for what the engine does not take.
        ValueError: the configuration file is none.
    """
    defaults = recorded()["server_args"]
    found = vars(parser(defaults, absent, dialect).parse_args(configured(argv)))
    return {field: found.get(field, default) for field, default in defaults.items()}


def configured(argv: Sequence[str]) -> list[str]:
    """Put what a `--config` file says before the other words, so that these win, as the engine's merger does.

    Raises:
        ValueError: more than one file, or one that is no YAML mapping.
        FileNotFoundError: it is not there.
    """
    words = [part for word in argv for part in (word.split("=", 1) if word.startswith("--config=") else [word])]
    if "--config" not in words:
        return list(argv)
    if words.count("--config") > 1:
        raise ValueError("Multiple config files specified! Only one allowed.")
    at = words.index("--config")
    if at + 1 == len(words) or words[at + 1].startswith("-"):
        raise ValueError("No config file specified after --config flag!")
    path = Path(words[at + 1])
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise ValueError(f"Config file must be YAML format, got: {path}")
    with path.open(encoding="utf-8") as file:
        document = yaml.safe_load(file) or {}
    if not isinstance(document, dict):
        raise ValueError("Config file must contain a dictionary at root level")  # noqa: TRY004 - the engine's own kind
    said: list[str] = []
    for key, value in document.items():
        flag = f"--{str(key).replace('_', '-')}"
        if isinstance(value, bool):
            said += [flag] if value else []
        elif isinstance(value, list):
            said += [flag, *map(str, value)] if value else []
        else:
            said += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return [*said, *words[:at], *words[at + 2 :]]


def resolve(values: Mapping[str, Any], specimen: Specimen, seed: int, dialect: Dialect | None = None) -> Launch:
    """Fill in what was left open, as `ServerArgs` does for this model on this machine.

    Args:
        values: What `parse` returned.
        specimen: The model and the cards.
        seed: The random seed to report when none was given.
        dialect: The version; None: the recorded one.

    Raises:
        ValueError: combinations that the engine refuses, in its words.
    """
    known = recorded()
    arguments = dict(values)
    locked: list[list[str]] = []
    for field, value in specimen.settings:
        if arguments[field] in (None, known["server_args"][field]):
            arguments[field] = value
    _default(arguments, "tokenizer_path", arguments["model_path"])
    _default(arguments, "served_model_name", arguments["model_path"])
    _default(arguments, "random_seed", seed)
    _default(arguments, "page_size", specimen.page)
    _default(arguments, "sampling_backend", "flashinfer")
    _default(arguments, "grammar_backend", "xgrammar")
    _default(arguments, "chunked_prefill_size", 8192)
    _take_side(arguments)
    if arguments["enable_hierarchical_cache"] and arguments["disable_radix_cache"]:
        raise ValueError(
            "The arguments enable-hierarchical-cache and disable-radix-cache are mutually exclusive and cannot be used"
            " at the same time. Please use only one of them."
        )
    if isinstance(arguments["cuda_graph_config"], str):
        _spread(json.loads(arguments["cuda_graph_config"]), arguments)
    off = arguments["disable_cuda_graph"] or arguments["disable_decode_cuda_graph"]
    backend = "disabled" if off else arguments["cuda_graph_backend_decode"] or "full"
    top = arguments["cuda_graph_max_bs_decode"]
    listed = arguments["cuda_graph_bs_decode"]
    if arguments["cuda_graph_backend_decode"] or off:
        locked.append(["decode", "backend"])
    if listed:
        sizes = sorted(listed)
        top = sizes[-1]
        locked.append(["decode", "bs"])
    else:
        if top is not None:
            locked.append(["decode", "max_bs"])
        top = top or (512 if arguments["tp_size"] >= 4 else 256)
        sizes = captured_sizes(top, padded=not arguments["disable_cuda_graph_padding"])
    prefill = _prefill(arguments, specimen, locked)
    if arguments["mem_fraction_static"] is None:
        arguments["mem_fraction_static"] = _memory_fraction(arguments, specimen, top, prefill)
    arguments["cuda_graph_config"] = {
        "decode": {"backend": backend, "max_bs": top, "bs": sizes, "tc_compiler": "eager"},
        "prefill": prefill,
    }
    return Launch(arguments, known["internal"], locked, [] if backend == "disabled" else sizes, dialect or Dialect())


def _take_side(arguments: dict[str, Any]) -> None:
    """What a side of a disaggregated pair does without (engine facts, section 1.6)."""
    mode = arguments["disaggregation_mode"]
    if mode == "decode" and not arguments["disaggregation_decode_enable_radix_cache"]:
        arguments["disable_radix_cache"] = True
    if mode == "prefill":
        arguments["disable_cuda_graph"] = True
    if mode != "null":
        arguments["disable_prefill_cuda_graph"] = True
        arguments["max_queued_requests"] = None


def _default(arguments: dict[str, Any], field: str, value: Any) -> None:
    if arguments[field] is None:
        arguments[field] = value


def _spread(wishes: Mapping[str, Mapping[str, Any]], arguments: dict[str, Any]) -> None:
    """Let the JSON form of the graph configuration win over the single flags, as it does in the engine."""
    for phase, wish in wishes.items():
        for key in ("backend", "max_bs", "bs"):
            if key in wish:
                arguments[f"cuda_graph_{key}_{phase}"] = wish[key]


def _prefill(arguments: Mapping[str, Any], specimen: Specimen, locked: list[list[str]]) -> dict[str, Any]:
    """The prefill phase's part of the graph configuration."""
    said = arguments["disable_cuda_graph"] or arguments["disable_prefill_cuda_graph"]
    if arguments["cuda_graph_backend_prefill"] or said:
        locked.insert(0, ["prefill", "backend"])
    off = said or not specimen.prefill_graphs or any(_without_prefill_graphs(arguments))
    top = arguments["cuda_graph_max_bs_prefill"] or (
        arguments["chunked_prefill_size"] if specimen.pool == "mha" else 2048
    )
    return {
        "backend": "disabled" if off else arguments["cuda_graph_backend_prefill"] or "tc_piecewise",
        "max_bs": top,
        "bs": prefill_sizes(top),
        "tc_compiler": "eager",
    }


def _without_prefill_graphs(arguments: Mapping[str, Any]) -> Iterator[bool]:
    """What makes the engine do without prefill graphs by itself (engine facts, section 1.1)."""
    yield arguments["pp_size"] > 1
    yield arguments["cpu_offload_gb"] > 0
    yield arguments["moe_a2a_backend"] != "none"
    yield "gguf" in {arguments["load_format"], arguments["quantization"]}
    for switch in (
        "enable_dp_attention", "enable_lora", "enable_hierarchical_cache", "enable_multimodal", "enable_symm_mem",
        "enable_eplb", "enable_deterministic_inference",
    ):  # fmt: skip
        yield bool(arguments[switch])


def _memory_fraction(arguments: Mapping[str, Any], specimen: Specimen, top: int, prefill: Mapping[str, Any]) -> float:
    """The engine's own share of memory for weights and KV pool (engine facts, section 1.4), in MiB arithmetic."""
    chunk: int = arguments["chunked_prefill_size"]
    reserved = 512 + max(chunk if chunk > 0 else arguments["max_prefill_tokens"], 2048) * 1.5 + top * 2
    reserved += arguments["tp_size"] * arguments["pp_size"] / 8 * 1024
    if prefill["backend"] != "disabled":
        reserved += len(prefill["bs"]) * 8 if specimen.pool == "mha" else 1536
    reserved = max(float(reserved), 10_240.0)
    return round((specimen.cards.mebibytes - reserved) / specimen.cards.mebibytes, 3)
