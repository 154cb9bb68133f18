"""A model's config.json -> the sizes that GPU memory follows from."""

from __future__ import annotations

import json
from collections.abc import Mapping

from agent.domain import Noun

_LARGEST = 10**9
"""Beyond this a figure is damage, not a size."""


class ModelShape(Noun):
    """Sizes of a model; None where its config.json does not say it."""

    vocabulary: int | None = None
    """Words of the vocabulary."""
    hidden: int | None = None
    """Width of a token between the layers."""
    layers: int | None = None
    """Layers."""
    intermediate: int | None = None
    """Width of the dense feed-forward block."""
    expert_intermediate: int | None = None
    """Width of one expert; None: there are none."""
    experts_per_token: int = 0
    """Experts that each token passes, shared ones included."""

    @property
    def activation_bytes(self) -> int | None:
        """Bytes that one token holds at the widest point of a layer, at 2 bytes a number; None: not known.

        Gate and up side by side, their product, the way in and out, and the residual; for experts, for each that the
        token passes.
        """
        if self.hidden is None:
            return None
        dense = 3 * self.intermediate if self.intermediate is not None else None
        routed = None
        if self.expert_intermediate is not None and self.experts_per_token:
            routed = self.experts_per_token * (3 * self.expert_intermediate + self.hidden)
        widest = max((each for each in (dense, routed) if each is not None), default=None)
        return None if widest is None else 2 * (widest + 4 * self.hidden)


def read_shape(text: bytes) -> ModelShape | None:
    """Read a config.json, that of a multimodal model included; None where it is none."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    inner = document.get("text_config")
    document = {**document, **inner} if isinstance(inner, dict) else document
    experts = _whole(document, "num_experts_per_tok", "num_experts_per_token", "moe_topk") or 0
    return ModelShape(
        vocabulary=_whole(document, "vocab_size"),
        hidden=_whole(document, "hidden_size", "n_embd"),
        layers=_whole(document, "num_hidden_layers", "n_layer"),
        intermediate=_whole(document, "intermediate_size", "ffn_dim"),
        expert_intermediate=_whole(document, "moe_intermediate_size"),
        experts_per_token=experts + (_whole(document, "n_shared_experts") or 0) if experts else 0,
    )


def _whole(document: Mapping[str, object], *names: str) -> int | None:
    for name in names:
        found = document.get(name)
        if isinstance(found, int) and not isinstance(found, bool) and 0 < found <= _LARGEST:
            return found
    return None
