"""What was asked is not what runs: words that wrappers mangle, restarts with old words, values that do not take."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from evals.lab.faults.fault import Fault, Live, Parameter
from evals.lab.memory import Allocation


class MangledArgv(Fault):
    """A wrapper between script and engine passes words on through a shell once more."""

    meaning = "a wrapper re-reads words that hold JSON or blanks, so that their quotes, or they themselves, are lost"
    early = True
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "way": Parameter(
            "strip",
            "strip: double quotes are eaten; quote: literal quotes come around; drop: flag and value are lost",
            choices=("strip", "quote", "drop"),
        ),
    }

    def live(self, live: Live) -> Live:
        """The words after the wrapper; words that it has mangled once it leaves alone."""
        made: list[str] = []
        for word in live.words:
            if not re.search(r"[\s{\"]", word):
                made.append(word)
                continue
            way = self.text("way")
            if way == "strip":
                made.append(word.replace('"', ""))
            elif way == "quote":
                made.append(word if word.startswith("'") else f"'{word}'")
            elif made and made[-1].startswith("-"):
                # A flag whose value came to nothing is left out with it, as templates do.
                made.pop()
        return live._replace(words=tuple(made))


class StaleRestart(Fault):
    """Whoever restarts the worker uses the definition that was made when it was created, not the file."""

    meaning = "a restart brings back words and environment of the creation; only a new supervisor reads the file"
    early = True
    parameters: ClassVar[Mapping[str, Parameter]] = {}

    def live(self, live: Live) -> Live:
        """The first start under one parent defines what every later one gets."""
        parent = self.shelf.parent()
        kept = self.shelf.read("definition")
        if kept is None or kept["parent"] != parent:
            self.shelf.write("definition", {"parent": parent, "words": list(live.words), "environ": live.environ})
            return live
        return Live(tuple(kept["words"]), dict(kept["environ"]))


class RejectedFlag(Fault):
    """This build of the engine has lost a flag."""

    meaning = "the build does not know a flag that its version should, and says so like any unknown one"
    early = True
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "flag": Parameter("--num-continuous-decode-steps", "the flag, with its dashes"),
    }

    def absent(self) -> frozenset[str]:
        """The flag."""
        return frozenset({self.text("flag")})


class IgnoredValue(Fault):
    """A setting is read from nowhere; the engine echoes it and goes by its default."""

    meaning = "a flag or variable is accepted and echoed, and the engine goes by its default without a word"
    early = True
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "setting": Parameter("--max-running-requests", "a flag with its dashes, or the name of a variable"),
    }

    def heed(self, values: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
        """The values with the default in its place."""
        field = self.text("setting").removeprefix("--").replace("-", "_")
        if not self.text("setting").startswith("--"):
            return values
        for name in (field, f"{field}_decode"):
            if name in values:
                return {**values, name: defaults.get(name)}
        return values

    def felt(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """The environment without the variable."""
        return {name: value for name, value in environ.items() if name != self.text("setting")}


class SideEffect(Fault):
    """The engine switches something else on for a feature that is asked for, against what the operator wrote."""

    meaning = (
        "a feature that is asked for changes another setting too, which the engine echoes and nobody has asked for"
    )
    early = True
    when = "speculative_algorithm!=unset"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "setting": Parameter("--disable-overlap-schedule", "the flag that is changed, with its dashes"),
        "value": Parameter("false", "what it becomes: true, false, a number or a text"),
    }

    def turn(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values with that one changed."""
        field = self.text("setting").removeprefix("--").replace("-", "_")
        text = self.text("value")
        known = {"true": True, "false": False}
        value: Any = known.get(text, int(text) if text.lstrip("-").isdigit() else text)
        return {**values, field: value} if field in values else values


class ClampedValue(Fault):
    """A state cache beside the KV pool has fewer slots than requests were asked for."""

    meaning = "a state cache that grows with the KV pool caps the requests that may run; the endpoint says otherwise"
    parameters: ClassVar[Mapping[str, Parameter]] = {
        "tokens": Parameter(8800.0, "tokens of KV pool for each request that the state cache has room for", 1.0),
        "quiet": Parameter(0.0, "1: the log does not say so", 0.0, 1.0),
    }

    def allot(self, allocation: Allocation) -> tuple[Allocation, str]:
        """As many requests as there are slots, and the line that says so."""
        slots = max(int(allocation.tokens / self.number("tokens")), 1)
        if slots >= allocation.requests:
            return allocation, ""
        said = f"max_running_requests is capped to {slots} by the number of state slots (was {allocation.requests})."
        return allocation._replace(requests=slots), "" if self.number("quiet") else said


def same(one: Live, other: Live) -> bool:
    """Whether two processes would be started alike."""
    return json.dumps(one) == json.dumps(other)
