"""What vLLM 0.24 prints of its arguments: the banner with those that differ, and the engine's whole configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evals.lab.clock import Walk
from evals.lab.specimen import Specimen
from evals.lab.vllm_0_24.arguments import VERSION, Launch, said
from evals.lab.vllm_0_24.capture import MODES
from evals.lab.vllm_0_24.log import VllmLog

_IMPORTS = 12.0
"""Seconds of life from exec to the banner."""


def announce(values: Mapping[str, Any], walk: Walk, log: VllmLog) -> None:
    """Say which version starts with which arguments, before anything is made of them.

    Args:
        values: The named arguments.
        walk: The start-up clock.
        log: Where the lines go.
    """
    walk.on(_IMPORTS)
    model = f"  █▄█▀ █     █     █     █  model   {values['model']}"
    top = ("", "       █     █     █▄   ▄█", f" ▄▄ ▄█ █     █     █ ▀▄▀ █  version {VERSION}")
    for line in (*top, model, "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀", ""):
        log.server(line, "api_utils.py:339")
    log.server(f"non-default args: {said(values)}", "api_utils.py:273")


def configuration(launch: Launch, specimen: Specimen) -> str:
    """The line in which the engine shows its configuration."""
    values, capture = launch.values, launch.capture
    level = "<CompilationMode.VLLM_COMPILE: 3>" if capture.compiled else "<CompilationMode.NONE: 0>"
    compilation = (
        f"{{'mode': {level}, 'debug_dump_path': None, 'cache_dir': '', 'compile_cache_save_format': 'binary',"
        f" 'backend': 'inductor', 'custom_ops': ['{'none' if capture.compiled else 'all'}'], 'compile_sizes': [],"
        f" 'compile_ranges_endpoints': [{launch.batched}], 'inductor_passes': {{}},"
        f" 'cudagraph_mode': {MODES[capture.mode]}, 'cudagraph_num_of_warmups': {int(bool(capture.sizes))},"
        f" 'cudagraph_capture_sizes': {capture.sizes}, 'cudagraph_copy_inputs': False,"
        f" 'cudagraph_specialize_lora': True, 'use_inductor_graph_partition': False,"
        f" 'max_cudagraph_capture_size': {capture.largest}, 'local_cache_dir': None}}"
    )
    quantization = values["quantization"] or specimen.quantization.partition(",")[0].removeprefix("quant=") or None
    parts = {
        "model": repr(launch.model),
        "speculative_config": values["speculative_config"],
        "tokenizer": repr(values["tokenizer"] or launch.model),
        "skip_tokenizer_init": values["skip_tokenizer_init"],
        "tokenizer_mode": values["tokenizer_mode"],
        "revision": values["revision"],
        "trust_remote_code": values["trust_remote_code"],
        "dtype": "torch.bfloat16",
        "max_seq_len": launch.context,
        "download_dir": values["download_dir"],
        "load_format": values["load_format"],
        "tensor_parallel_size": values["tensor_parallel_size"],
        "pipeline_parallel_size": values["pipeline_parallel_size"],
        "data_parallel_size": values["data_parallel_size"],
        "decode_context_parallel_size": values["decode_context_parallel_size"],
        "dcp_comm_backend": values["dcp_comm_backend"],
        "disable_custom_all_reduce": values["disable_custom_all_reduce"],
        "quantization": quantization,
        "quantization_config": values["quantization_config"],
        "enforce_eager": values["enforce_eager"],
        "enable_return_routed_experts": values["enable_return_routed_experts"],
        "kv_cache_dtype": values["kv_cache_dtype"],
        "device_config": "cuda",
        "structured_outputs_config": (
            "StructuredOutputsConfig(backend='auto', disable_any_whitespace=False, disable_additional_properties=False,"
            f" reasoning_parser={values['reasoning_parser'] or ''!r}, reasoning_parser_plugin='',"
            " enable_in_reasoning=False)"
        ),
        "seed": values["seed"],
        "served_model_name": launch.names[0],
        "enable_prefix_caching": launch.prefixes,
        "enable_chunked_prefill": values["enable_chunked_prefill"] is not False,
        "pooler_config": values["pooler_config"],
        "compilation_config": compilation,
    }
    text = ", ".join(f"{name}={value}" for name, value in parts.items())
    return f"Initializing a V1 LLM engine (v{VERSION}) with config: {text}"
