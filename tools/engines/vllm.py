"""vLLM, as `engine.Engine` promises: its version and pool are asked, its settings are read from its log."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from agent.domain import Forecast, Knob
from tools.engines import vllm_info, vllm_lines, vllm_log, vllm_memory
from tools.engines.asking import Answers, Question
from tools.engines.facts import Log, StartupFacts
from tools.engines.model_shape import ModelShape
from tools.engines.start_progress import how_far


class VLLM:
    """The engine; it holds nothing."""

    name: Literal["vllm"] = "vllm"
    questions: Sequence[Question] = (
        Question("version", ("/version",)),
        Question("metrics", ("/metrics",), required=False),
        Question("models", ("/v1/models",), required=False),
    )
    says_where = "log, /metrics and /v1/models"

    def account(self, answers: Answers) -> Mapping[str, object] | None:
        """Version, `vllm:cache_config_info` of /metrics, and the longest request of /v1/models."""
        return vllm_info.account(answers)

    def version(self, account: Mapping[str, object]) -> str | None:
        """As /version says it."""
        return vllm_info.version(account)

    def effective(
        self,
        account: Mapping[str, object],
        knobs: Sequence[Knob],
        *,
        facts: StartupFacts | None = None,
        argv: Sequence[str] = (),
    ) -> dict[str, str]:
        """See `vllm_info.effective`."""
        return vllm_info.effective(facts, knobs, account=account, argv=argv)

    def read_log(self, lines: Iterable[bytes], *, version: str | None = None, earlier: int = 0) -> Log:
        """See `vllm_log.read_log`."""
        return vllm_log.read_log(lines, version=version, earlier=earlier)

    def explain(self, line: bytes) -> str | None:
        """See `vllm_lines.explain`."""
        return vllm_lines.explain(line)

    def how_far(self, facts: StartupFacts) -> str:
        """By weights, pool, the progress bars of the capture, and the port."""
        return how_far(facts)

    def model_path(self, facts: StartupFacts) -> str | None:
        """`model` of the printed settings."""
        return facts.settings.get("model") or facts.settings.get("model_tag")

    def forecast(
        self,
        *,
        facts: StartupFacts,
        change: Mapping[str, str | None],
        floor_gb: float,
        history: Sequence[StartupFacts] = (),
        start_seconds: Sequence[float] = (),
        stated: Collection[str] | None = None,
        variables: Mapping[str, str] | None = None,
        shape: ModelShape | None = None,
    ) -> Forecast:
        """See `vllm_memory.forecast`; nothing there moves by itself with what is stated or set in the environment."""
        del stated, variables
        return vllm_memory.forecast(
            facts=facts, change=change, floor_gb=floor_gb, history=history, start_seconds=start_seconds, shape=shape
        )

    def help_questions(self, command: Sequence[str]) -> Sequence[tuple[str, ...]]:
        """`--help=all`: plain `--help` of newer versions prints the names of groups and few flags."""
        return ((*command, "--help=all"), (*command, "--help"))
