"""The settings of SGLang that memory depends on: as the last start had them, and as a change makes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from agent.domain import Noun
from tools.engines.facts import StartupFacts
from tools.engines.size_lists import capture_list, default_max_bs, sizes_in

_LATENT: Final = ("DeepseekV2", "DeepseekV3", "Deepseek3", "Kimi", "GlmMoeDsa", "LongcatFlash")
"""Beginnings of the architectures that are known here to have a latent KV cache."""


class Configuration(Noun):
    """What capture and pools are made from."""

    max_bs: int | None = None
    """`cuda-graph-max-bs` as configured; None: not known."""
    explicit_sizes: tuple[int, ...] = ()
    """A list that was given in its place."""
    decode_captured: bool = True
    """Whether decode is captured at all."""
    speculative: bool = False
    """Whether a draft is checked in each step."""
    draft_tokens: int = 0
    """Draft tokens of one step."""
    padding_disabled: bool = False
    """Whether every size is captured."""
    prefill_captured: bool = False
    """Whether prefill is captured."""
    prefill_stated_off: bool = False
    """Whether the launch itself turns prefill capture off, apart from `disable-cuda-graph`."""
    prefill_guessed: bool = False
    """Whether the engine decides about prefill capture by rules that are not all known here."""
    prefill_max: int | None = None
    """Most tokens of a captured prefill; None: those of a chunk."""
    tensor_parallel: int = 1
    """GPUs that share each layer."""
    stages: int = 1
    """Pipeline stages."""
    attention_groups: int = 0
    """Groups of data-parallel attention; 0: there is none."""
    expert_exchange: bool = False
    """Whether experts are reached over an all-to-all exchange, whose buffers the rows do not tell."""
    latent: bool = False
    """Whether the KV cache is latent (MLA), for which prefill capture reserves more."""
    memory_fraction: float | None = None
    """`mem-fraction-static` in force."""
    max_running: int | None = None
    """Running requests of one data-parallel worker, as resolved."""
    workers: int = 1
    """Data-parallel workers that share the running limit."""
    context: int | None = None
    """Longest request in tokens."""
    chunk: int | None = None
    """Most tokens of one prefill step."""
    max_total_tokens: int | None = None
    """Limit that was put on the KV pool; None: none."""
    queue_limit: int | None = None
    """Waiting requests beyond which new ones are refused; None: none, or not known."""
    disaggregated: bool = False
    """Whether the worker is one side of a disaggregated pair."""
    overlap: bool = True
    """Whether the overlap scheduler is on."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The decode sizes that will be captured."""
        if not self.decode_captured:
            return ()
        if self.explicit_sizes:
            limit = self.max_running
            kept = {size for size in self.explicit_sizes if limit is None or size <= limit}
            return tuple(sorted(kept | ({limit} if limit is not None and max(self.explicit_sizes) > limit else set())))
        if self.max_bs is None:
            return ()
        return capture_list(
            self.max_bs,
            speculative=self.speculative,
            padding_disabled=self.padding_disabled,
            max_running=self.max_running,
        )

    @property
    def plain_rows(self) -> bool:
        """Whether a row of a decode graph is one token of one request, and nothing is gathered over groups."""
        return not self.speculative and not self.attention_groups and not self.expert_exchange

    @property
    def request_table_gb(self) -> float | None:
        """GB of the table that maps requests to their KV slots: (limit + 1) x (context + 4 + drafts) x 4 bytes."""
        if self.max_running is None or self.context is None:
            return None
        return (self.max_running + 1) * (self.context + 4 + self.draft_tokens) * 4 / 2**30

    @property
    def captured_prefill_tokens(self) -> int | None:
        """Most tokens of a captured prefill."""
        return self.prefill_max or self.prefill_tokens

    @property
    def prefill_tokens(self) -> int | None:
        """Most tokens of one prefill step."""
        return self.chunk if self.chunk is not None and self.chunk > 0 else None


def of_start(facts: StartupFacts) -> Configuration:
    """The configuration of a start, from the settings that the engine printed and the limits that it resolved."""
    settings = facts.settings
    capture = facts.decode_capture
    backend = settings.get("cuda_graph_config.decode.backend")
    disabled = backend == "disabled" or settings.get("disable_cuda_graph") == "True"
    max_bs = _whole(settings.get("cuda_graph_config.decode.max_bs") or settings.get("cuda_graph_max_bs"))
    if max_bs is None and capture is not None and capture.sizes:
        max_bs = max(capture.sizes)
    fraction = settings.get("mem_fraction_static")
    return Configuration(
        max_bs=max_bs,
        explicit_sizes=sizes_in(settings.get("cuda_graph_bs_decode", "")),
        decode_captured=not disabled and not (capture is None and facts.ready),
        speculative="speculative_algorithm" in settings,
        draft_tokens=_whole(settings.get("speculative_num_draft_tokens")) or 0,
        padding_disabled=settings.get("disable_cuda_graph_padding") == "True",
        prefill_captured=facts.capture("prefill") is not None,
        prefill_stated_off=settings.get("cuda_graph_backend_prefill") == "disabled"
        or settings.get("disable_prefill_cuda_graph") == "True",
        prefill_max=_whole(settings.get("cuda_graph_config.prefill.max_bs")),
        tensor_parallel=max(1, _whole(settings.get("tp_size")) or 1),
        stages=max(1, _whole(settings.get("pp_size")) or 1),
        attention_groups=_whole(settings.get("dp_size")) or 0 if settings.get("enable_dp_attention") == "True" else 0,
        expert_exchange=settings.get("moe_a2a_backend", "none") != "none",
        latent=(facts.model_type or "").startswith(_LATENT),
        memory_fraction=_fraction(fraction),
        max_running=facts.max_running_requests or _whole(settings.get("max_running_requests")),
        workers=max(1, _whole(settings.get("dp_size")) or 1),
        context=facts.context_length or _whole(settings.get("context_length")),
        chunk=facts.chunked_prefill_size
        if facts.chunked_prefill_size is not None
        else _whole(settings.get("chunked_prefill_size")),
        max_total_tokens=_whole(settings.get("max_total_tokens")),
        queue_limit=_whole(settings.get("max_queued_requests")),
        disaggregated=settings.get("disaggregation_mode", "null") != "null",
        overlap=settings.get("disable_overlap_schedule") != "True",
    )


def changed(  # noqa: C901, PLR0912 - one branch a knob
    before: Configuration, change: Mapping[str, str | None], *, kv_tokens: int | None, gpu_gb: float | None = None
) -> Configuration:
    """The configuration after a change.

    Args:
        before: The configuration now.
        change: By canonical knob name the text that will stand in the script; None: removed.
        kv_tokens: Tokens of the KV pool, half of which limit the running requests.
        gpu_gb: Memory of the GPU, GB, from which the engine chooses what nobody states; None: not known.
    """
    update: dict[str, object] = _range(before, change, gpu_gb)
    for name, value in change.items():
        number = _whole(value)
        on = value is not None
        match name:
            case "disable-cuda-graph":
                update["decode_captured"] = not on
                if "cuda-graph-backend-prefill" not in change:
                    update |= _prefill(by_default=not on and not before.prefill_stated_off)
            case "disable-decode-cuda-graph":
                update["decode_captured"] = not on
            case "cuda-graph-backend-decode":
                update["decode_captured"] = value != "disabled"
            case "cuda-graph-backend-prefill":
                update |= _prefill(by_default=not on) if not on or value == "disabled" else {"prefill_captured": True}
            case "disable-cuda-graph-padding":
                update["padding_disabled"] = on
            case "mem-fraction-static":
                update["memory_fraction"] = _fraction(value)
            case "max-running-requests" if number is not None:
                per_worker = max(1, number // before.workers)
                update["max_running"] = min(per_worker, kv_tokens // 2) if kv_tokens else per_worker
            case "max-running-requests":
                update["max_running"] = None
            case "context-length":
                update["context"] = number
            case "chunked-prefill-size":
                update["chunk"] = number
                if before.prefill_max == before.chunk:
                    update["prefill_max"] = number
            case "cuda-graph-max-bs-prefill":
                update["prefill_max"] = number
            case "max-total-tokens":
                update["max_total_tokens"] = number
            case "max-queued-requests":
                update["queue_limit"] = number
            case "disable-overlap-schedule":
                update["overlap"] = not on
    if change.get("disable-cuda-graph") is not None:
        update |= {"decode_captured": False, "prefill_captured": False}
    return before.model_copy(update=update)


def _range(before: Configuration, change: Mapping[str, str | None], gpu_gb: float | None) -> dict[str, object]:
    """The captured range: a list goes before a largest size, and without either the engine chooses by the GPU."""
    if not change.keys() & {"cuda-graph-max-bs", "cuda-graph-bs"}:
        return {}
    listed = sizes_in(change["cuda-graph-bs"] or "") if "cuda-graph-bs" in change else before.explicit_sizes
    if listed:
        return {"explicit_sizes": listed, "max_bs": max(listed)}
    chosen = None if gpu_gb is None else default_max_bs(gpu_gb, before.tensor_parallel)
    largest = _whole(change.get("cuda-graph-max-bs"))
    return {"explicit_sizes": (), "max_bs": largest if largest is not None else chosen}


def _prefill(*, by_default: bool) -> dict[str, object]:
    return {"prefill_captured": by_default, "prefill_guessed": by_default}


def _whole(text: str | None) -> int | None:
    if text is None or not re.fullmatch(r"[+-]?\d{1,15}", text.strip()):
        return None
    return int(text)


def _fraction(text: str | None) -> float | None:
    if text is None or not re.fullmatch(r"\d{0,3}(\.\d{0,12})?", text.strip()) or text.strip() in ("", "."):
        return None
    return float(text)
