"""What stands in the machine: a model and the cards it runs on, as constants.

Memory is in GiB, which SGLang's log calls GB; times are in seconds of life.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from evals.lab.pace import DEEPSEEK_V2_LITE_ON_H200, QWEN3_8B_ON_H200, SEED, Curve


class Cards(NamedTuple):
    """The cards of one machine; all alike."""

    total: float
    """Memory of one card as PyTorch counts it."""
    mebibytes: int
    """The same as `nvidia-smi` prints it, in MiB."""
    free: float
    """Free memory of a card once the process group stands."""
    communication: float
    """What the process group took by then."""
    rounding: float
    """What the allocator loses while the pools are made: logs have 0.05 to 0.06 less than the formulas."""
    workspace: float
    """What the first matrix product needs; less than that free ends the start."""


class Specimen(NamedTuple):
    """A model on a machine, as far as start-up, memory and pace depend on them."""

    cards: Cards
    """What it runs on."""
    architecture: str
    """Class name that the weights declare."""
    model_type: str
    """`model_type` of the model's configuration."""
    quantization: str
    """The words between type and available memory in the log's `Load weight end` line; empty: none."""
    shards: int
    """Number of weight files."""
    layers: int
    """Number of layers."""
    vocabulary: int
    """Size of the vocabulary, in tokens."""
    context: int
    """Longest sequence the model declares, in tokens."""
    end_token: int
    """Token id that ends an answer."""
    page: int
    """Tokens a page of the KV pool."""
    pool: Literal["dsv4", "mla", "mha"]
    """What the KV pool holds; decides how the log words it."""
    bytes_per_token: float
    """KV bytes one token takes on one card."""
    swa_ratio: float
    """Size of the sliding window pool relative to the full one; 0: no such pool."""
    settings: tuple[tuple[str, object], ...]
    """Server arguments that the engine sets by itself for this model."""
    prefill_graphs: bool
    """The engine captures prefill graphs for this model unless told not to."""
    weights_fixed: float
    """Weights that every card holds whole."""
    weights_shared: float
    """Weights that the cards share out."""
    eager_buffers: float
    """What the eager runner and the warm-up of the kernels keep."""
    graph_first: float
    """Fixed cost of decode capture: private pool, workspaces, lazily loaded modules."""
    graph_each: float
    """Cost of one more captured decode graph."""
    prefill_graph_each: float
    """Cost of one captured prefill graph."""
    imports: float
    """Seconds from exec to the server's first lines."""
    spawn: float
    """Seconds from there to a scheduler's first line."""
    process_group: float
    """Seconds until the process group stands."""
    remarks: tuple[str, ...]
    """What the installation says while the model's code is imported."""
    loading: tuple[str, ...]
    """What the model's code says while its weights are loaded."""
    capturing: tuple[str, ...]
    """What it says at the first captured graph."""
    compile_start: float
    """Seconds that the first start takes longer where nothing is compiled yet."""
    compile_pass: float
    """Seconds that the first pass with new kernels takes longer there."""
    capture_first: float
    """Seconds that the first decode graph takes."""
    capture_each: float
    """Seconds that one more decode graph takes."""
    prefill_per_token: float
    """Peak of activations in prefill, a token of the chunk."""
    decode_per_request: float
    """Peak of activations in a decode step outside the graphs, a request."""
    curve: Curve
    """How long its passes take."""
    indexer_bytes: float
    """Bytes a request and a quarter of a context token in the sparse indexer's fallback path; 0: no indexer."""


RTX_PRO_6000 = Cards(total=94.97, mebibytes=97_887, free=93.61, communication=0.87, rounding=0.06, workspace=0.11)
# Recording: total from the texts about memory that ran out, free from `Load weight begin`; the start with 0.09 GB after
# the pools died of the first product, the one with 1.22 GB did not.
H200 = Cards(total=139.80, mebibytes=143_771, free=139.13, communication=0.09, rounding=0.06, workspace=0.11)

DEEPSEEK_V4_FLASH = Specimen(
    cards=RTX_PRO_6000,
    architecture="DeepseekV4ForCausalLM",
    model_type="deepseek_v4",
    quantization="quant=modelopt_fp4, fmt=nvfp4",
    shards=46,
    # Shape, KV bytes and the engine's own settings: engine facts, sections 7 and 4 (0.5.14, fp32 compress state).
    # Weights: 149 GB of FP4 files over four cards, and the parts that are not shared out.
    layers=43,
    vocabulary=129_280,
    context=1_048_576,
    end_token=1,
    page=256,
    pool="dsv4",
    bytes_per_token=15_897.45,
    swa_ratio=0.1,
    settings=(
        ("kv_cache_dtype", "fp8_e4m3"),
        ("attention_backend", "dsv4"),
        ("page_size", 256),
        ("swa_full_tokens_ratio", 0.1),
        ("max_running_requests", 256),
    ),
    prefill_graphs=False,
    weights_fixed=2.4,
    weights_shared=157.2,
    # The seed's figures: about 0.57 GB of graphs and 15 GB free with capture to 96, in about 15 s; 15.3 GB free with
    # capture to 32.
    eager_buffers=0.16,
    graph_first=0.225,
    graph_each=0.0117,
    prefill_graph_each=0.0,
    # Imports, spawning and process group: their share of the seed's 70 to 75 seconds to ready.
    imports=13.0,
    spawn=8.5,
    process_group=3.6,
    remarks=(),
    loading=(),
    capturing=(),
    compile_start=19.0,
    compile_pass=8.0,
    capture_first=4.6,
    capture_each=0.69,
    prefill_per_token=0.00012,
    decode_per_request=0.0015,
    # 132 + 512 + 256 + 256 bytes gathered and widened: engine facts, section 4, on what breaks the small growth.
    curve=SEED,
    indexer_bytes=1_156.0,
)
# What the installation on the recorded machine lacked.
_REMARKS = (
    "tilelang not installed; deepseek_v4_rope pass_configs unset. Triton kernels in this module still run; only"
    " downstream tilelang.jit consumers of pass_configs will need to handle the None.",
    *(
        f"Ignore import error when loading sglang.srt.models.{name}: Can not import FA3 in sgl_kernel. Please check"
        " your installation."
        for name in ("mimo_audio", "mimo_v2", "mimo_v2_asr", "mimo_v2_nextn")
    ),
)
# The two shapes of the recordings. Graph costs are fitted to their `Capture ... end` lines, activations to the start
# that ran out of memory at its first prefill of 8064 tokens with 0.71 GB free.
QWEN3_8B = Specimen(
    cards=H200,
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    quantization="",
    shards=5,
    layers=36,
    vocabulary=151_936,
    context=40_960,
    end_token=151_645,
    page=1,
    pool="mha",
    bytes_per_token=8 * (128 + 128) * 36 * 2,
    swa_ratio=0.0,
    settings=(),
    prefill_graphs=True,
    weights_fixed=0.0,
    weights_shared=15.28,
    eager_buffers=0.1,
    graph_first=0.036,
    graph_each=0.0024,
    prefill_graph_each=0.0221,
    imports=17.5,
    spawn=19.0,
    process_group=0.2,
    remarks=_REMARKS,
    loading=(),
    capturing=(),
    compile_start=19.0,
    compile_pass=0.0,
    capture_first=0.75,
    capture_each=0.125,
    prefill_per_token=0.0001,
    decode_per_request=0.001,
    curve=QWEN3_8B_ON_H200,
    indexer_bytes=0.0,
)
DEEPSEEK_V2_LITE = Specimen(
    cards=H200,
    architecture="DeepseekV2ForCausalLM",
    model_type="deepseek_v2",
    quantization="",
    shards=4,
    layers=27,
    vocabulary=102_400,
    context=163_840,
    end_token=100_001,
    page=1,
    pool="mla",
    bytes_per_token=(512 + 64) * 27 * 2,
    swa_ratio=0.0,
    settings=(),
    prefill_graphs=True,
    weights_fixed=0.0,
    weights_shared=29.44,
    eager_buffers=0.1,
    graph_first=0.33,
    graph_each=0.0024,
    prefill_graph_each=0.0221,
    imports=17.5,
    spawn=19.0,
    process_group=0.2,
    remarks=_REMARKS,
    loading=(
        "Config does not support fused shared expert(s). Shared experts fusion optimization is disabled.",
        "FlashInfer TRTLLM MoE deferred finalize is disabled (moe_runner_backend=auto,"
        " quant_method=UnquantizedFusedMoEMethod).",
    ),
    capturing=tuple(
        f"{words} Performance might be sub-optimal! Config file not found at"
        f" /opt/sglang/sglang/srt/layers/moe/moe_runner/triton_utils/configs/triton_3_6_0/{name}.json, you can create"
        " them with https://github.com/sgl-project/sglang/tree/main/benchmark/kernels/fused_moe_triton"
        for words, name in (
            ("Using default MoE kernel config.", "E=64,N=1408,device_name=NVIDIA_H200"),
            ("Using MoE kernel config with down_moe=False.", "E=64,N=1408,device_name=NVIDIA_H200_down"),
        )
    ),
    compile_start=16.0,
    compile_pass=8.0,
    capture_first=1.0,
    capture_each=0.94,
    prefill_per_token=0.0001,
    decode_per_request=0.001,
    curve=DEEPSEEK_V2_LITE_ON_H200,
    indexer_bytes=0.0,
)
SPECIMENS = {
    "deepseek-v4-flash": DEEPSEEK_V4_FLASH,
    "qwen3-8b": QWEN3_8B,
    "deepseek-v2-lite": DEEPSEEK_V2_LITE,
}
"""Every specimen by the name that a private file gives it."""
