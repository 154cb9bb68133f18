"""What stands in the machine: a model and the cards it runs on, as constants.

Memory is in GiB, which SGLang's log calls GB; times are in seconds of life.
"""

from __future__ import annotations

from typing import NamedTuple


class Specimen(NamedTuple):
    """A model on a machine, as far as start-up, memory and pace depend on them."""

    architecture: str
    """Class name that the weights declare."""
    model_type: str
    """`model_type` of the model's configuration."""
    quantization: str
    """The words between type and available memory in the log's `Load weight end` line; empty: none."""
    shards: int
    """Number of weight files."""
    vocabulary: int
    """Size of the vocabulary, in tokens."""
    context: int
    """Longest sequence the model declares, in tokens."""
    end_token: int
    """Token id that ends an answer."""
    page: int
    """Tokens a page of the KV pool."""
    bytes_per_token: float
    """KV bytes one token takes on one card."""
    swa_ratio: float
    """Size of the sliding window pool relative to the full one."""
    settings: tuple[tuple[str, object], ...]
    """Server arguments that the engine sets by itself for this model."""
    card_total: float
    """Memory of one card."""
    card_mebibytes: int
    """The same as `nvidia-smi` prints it, in MiB."""
    free_at_start: float
    """Free memory of a card once the process group stands."""
    communication: float
    """What the process group took by then."""
    weights_fixed: float
    """Weights that every card holds whole."""
    weights_shared: float
    """Weights that the cards share out."""
    eager_buffers: float
    """What the eager runner and the warm-up of the kernels keep."""
    library_workspace: float
    """What the first matrix product allocates; less than that free ends the start."""
    graph_first: float
    """Fixed cost of decode capture: private pool, workspaces, lazily loaded modules."""
    graph_each: float
    """Cost of one more captured graph."""
    prefill_per_token: float
    """Peak of activations in prefill, a token of the chunk."""
    decode_per_request: float
    """Peak of activations in a decode step outside the graphs, a request."""
    indexer_bytes: float
    """Bytes a request and a quarter of a context token in the sparse indexer's fallback path; 0: no indexer."""


DEEPSEEK_V4_FLASH = Specimen(
    architecture="DeepseekV4ForCausalLM",
    model_type="deepseek_v4",
    quantization="quant=modelopt_fp4, fmt=nvfp4",
    shards=46,
    # Vocabulary, context, KV bytes and the engine's own settings: engine facts, section 7 and section 4 (0.5.14, fp32
    # compress state). Weights: 149 GB of FP4 files over four cards and the parts that are not shared out.
    vocabulary=129_280,
    context=1_048_576,
    end_token=1,
    page=256,
    bytes_per_token=15_897.45,
    swa_ratio=0.1,
    settings=(
        ("kv_cache_dtype", "fp8_e4m3"),
        ("attention_backend", "dsv4"),
        ("page_size", 256),
        ("swa_full_tokens_ratio", 0.1),
    ),
    card_total=94.97,
    card_mebibytes=97_887,
    free_at_start=93.61,
    communication=0.87,
    weights_fixed=2.4,
    weights_shared=157.2,
    # The seed's figures: about 0.57 GB of graphs and 15 GB free with capture to 96, 15.3 GB free with capture to 32.
    eager_buffers=0.22,
    library_workspace=0.11,
    graph_first=0.225,
    graph_each=0.0117,
    prefill_per_token=0.00012,
    decode_per_request=0.0015,
    # 132 + 512 + 256 + 256 bytes gathered and widened: engine facts, section 4, "Exception that breaks small growth".
    indexer_bytes=1_156.0,
)
SPECIMENS = {"deepseek-v4-flash": DEEPSEEK_V4_FLASH}
