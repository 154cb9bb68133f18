"""SGLang, as `engine.Engine` promises: asked at /server_info, read from its log."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from agent.domain import Forecast, Knob
from tools.engines import sglang_info, sglang_lines, sglang_log, sglang_memory
from tools.engines.asking import Answers, Question
from tools.engines.facts import Log, StartupFacts
from tools.engines.model_shape import ModelShape
from tools.engines.start_progress import how_far


class SGLang:
    """The engine; it holds nothing."""

    name: Literal["sglang"] = "sglang"
    questions: Sequence[Question] = (Question("server_info", ("/server_info", "/get_server_info")),)
    says_where = "/server_info"

    def account(self, answers: Answers) -> Mapping[str, object] | None:
        """The JSON of /server_info (0.5.2 only knows /get_server_info)."""
        try:
            document = json.loads(answers.get("server_info", b""))
        except (ValueError, RecursionError):
            return None
        return document if isinstance(document, dict) else None

    def version(self, account: Mapping[str, object]) -> str | None:
        """As /server_info says it."""
        return sglang_info.version(account)

    def effective(
        self,
        account: Mapping[str, object],
        knobs: Sequence[Knob],
        *,
        facts: StartupFacts | None = None,
        argv: Sequence[str] = (),
    ) -> dict[str, str]:
        """From /server_info, with the capture list of the log; argv proves nothing and is not asked."""
        del argv
        return sglang_info.effective(account, knobs, facts=facts)

    def read_log(self, lines: Iterable[bytes], *, version: str | None = None, earlier: int = 0) -> Log:
        """See `sglang_log.read_log`."""
        return sglang_log.read_log(lines, version=version, earlier=earlier)

    def explain(self, line: bytes) -> str | None:
        """See `sglang_lines.explain`."""
        return sglang_lines.explain(line)

    def how_far(self, facts: StartupFacts) -> str:
        """By weights, pool, the progress bar of the capture, and the port."""
        return how_far(facts)

    def model_path(self, facts: StartupFacts) -> str | None:
        """`model_path` of the printed settings."""
        return facts.settings.get("model_path")

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
        """See `sglang_memory.forecast`."""
        return sglang_memory.forecast(
            facts=facts,
            change=change,
            floor_gb=floor_gb,
            history=history,
            start_seconds=start_seconds,
            stated=stated,
            variables=variables,
            shape=shape,
        )

    def help_questions(self, command: Sequence[str]) -> Sequence[tuple[str, ...]]:
        """`--help` prints every flag."""
        return ((*command, "--help"),)
