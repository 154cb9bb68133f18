"""Why an edit is refused: the kind, the line, a sentence, and what a person could do."""

from __future__ import annotations

from typing import Literal

from agent.errors import AmbiguousLaunch, EditRefused, UnreadableScript
from tools.serve_script.secrets import mask

RefusalKind = Literal[
    "ambiguous-launch",  # several launches and no target, or a target that fits several
    "no-such-launch",  # the target fits no launch of the file
    "shared-by-launches",  # one literal serves launches that were not asked for
    "computed",  # the value is worked out when the script runs
    "several-values",  # the value is assigned in several places under conditions
    "from-arguments",  # the value is an argument of the script or function
    "loop-table",  # the value comes out of a loop or of `read`
    "eval",  # the command is put together as text and evaluated
    "template",  # the file is filled in by another program before it runs
    "not-in-file",  # the text that decides lies in another file
    "absent",  # the flag or variable is not there
    "not-in-command",  # the flag is cut off from its command by a comment or a blank behind a backslash
    "carriage-returns",  # bash takes a carriage return as part of a word
    "does-not-parse",  # the file is not valid
    "already-present",  # an addition of something that is there, perhaps under another spelling
    "abbreviated",  # a spelling that may or may not be an abbreviation of the one asked for
    "quoting",  # the value cannot be written where the old one stands
    "already-so",  # the value is as asked
    "no-launch",  # nothing in the file starts a server
    "unproven",  # executing the edited file did not show exactly the intended difference
]


class ScriptRefused(EditRefused):
    """An edit that cannot be made safely; `kind` says why in one word, `line` where (1-based, None: nowhere)."""

    def __init__(self, kind: RefusalKind, sentence: str, remedy: str, *, line: int | None = None) -> None:
        super().__init__(mask(sentence), remedy)
        self.kind: RefusalKind = kind
        self.line = line


class LaunchAmbiguous(AmbiguousLaunch):
    """The file launches several servers and nothing says which one is meant."""

    def __init__(self, sentence: str, remedy: str, *, line: int | None = None) -> None:
        super().__init__(mask(sentence), remedy)
        self.kind: RefusalKind = "ambiguous-launch"
        self.line = line


class ScriptUnreadable(UnreadableScript):
    """The file cannot be read as a launch file."""

    def __init__(self, kind: RefusalKind, sentence: str, remedy: str, *, line: int | None = None) -> None:
        super().__init__(mask(sentence), remedy)
        self.kind: RefusalKind = kind
        self.line = line
