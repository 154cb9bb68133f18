"""The promise of an engine: how it is asked, what its answers and its log mean, what a change of it costs.

Who works with a worker knows this promise and no engine by name; `engine_of` is the one place that does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from agent.domain import Forecast, Knob
from tools.engines import sglang, vllm
from tools.engines.asking import Answers, Question
from tools.engines.catalogue import Engine as EngineName
from tools.engines.facts import Log, StartupFacts
from tools.engines.model_shape import ModelShape

Account = Mapping[str, object]
"""What an engine says about itself, put together from its answers."""


class Engine(Protocol):
    """SGLang or vLLM, as far as the rest of the house needs it."""

    @property
    def name(self) -> EngineName:
        """As the settings have it."""

    @property
    def questions(self) -> Sequence[Question]:
        """What it is asked at its control endpoint to see what is in force."""

    @property
    def says_where(self) -> str:
        """Where the values in force are read, for sources: a path of the control endpoint, or the log."""

    def account(self, answers: Answers) -> Account | None:
        """Put its answers together; None where they are no answers of this engine."""

    def version(self, account: Account) -> str | None:
        """Its version as it reports it; None where it does not."""

    def effective(
        self,
        account: Account,
        knobs: Sequence[Knob],
        *,
        facts: StartupFacts | None = None,
        argv: Sequence[str] = (),
    ) -> dict[str, str]:
        """Flags in force by knob name, in the form of `catalogue.canonical`.

        Args:
            account: What it says about itself.
            knobs: The knobs to look for; variables are not in an engine's account, they come from its process.
            facts: The start of the same process, where its log was read.
            argv: The words of its process, for an engine that tells nobody else.

        Returns:
            Only what is reported.
        """

    def read_log(self, lines: Iterable[bytes], *, version: str | None = None, earlier: int = 0) -> Log:
        """Read a log to its end.

        Args:
            lines: Its lines without their ends, such as `log_lines.lines_of` gives.
            version: The engine's version where somebody knows it.
            earlier: How many starts before the last one are wanted too.
        """

    def explain(self, line: bytes) -> str | None:
        """What a fragment of its log is, or why it may be ignored; None: nobody has thought of it."""

    def how_far(self, facts: StartupFacts) -> str:
        """How far a start has come, in a few words that change as it goes on."""

    def model_path(self, facts: StartupFacts) -> str | None:
        """Where the model lies, as the start printed it."""

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
        """Forecast the next start after a change.

        Args:
            facts: The last start, which the forecast is anchored on.
            change: By canonical knob name the text that will stand in the script; None: removed; empty: a switch flag.
            floor_gb: Free GPU memory that has to be left after capture, GB.
            history: Earlier starts of this worker, failed ones included, in any order.
            start_seconds: Wall seconds of this worker's restarts, from stop to ready, as measured.
            stated: Names of the knobs that the launch states; None: not known.
            variables: The worker's environment as its process has it; None: not known.
            shape: The model's sizes, where its config.json could be read.
        """

    def help_questions(self, command: Sequence[str]) -> Sequence[tuple[str, ...]]:
        """Ways to ask the installed engine for its flags, the fullest first.

        Args:
            command: The words that started it, up to where its flags begin.
        """


def engine_of(name: EngineName) -> Engine:
    """The engine of that name."""
    known: Mapping[EngineName, Engine] = {"sglang": sglang.SGLang(), "vllm": vllm.VLLM()}
    return known[name]
