"""An edit in the making: what it may reach, and the check that the edited file reads as intended."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tools.serve_script.diff import changed_lines, diff
from tools.serve_script.difference import as_intended
from tools.serve_script.intents import Edit, Intent
from tools.serve_script.launches import Flag, Launch, LineOf, Word
from tools.serve_script.names import Grammar, abbreviates, same
from tools.serve_script.read import Reading, read_file
from tools.serve_script.refusals import RefusalKind, ScriptRefused
from tools.serve_script.secrets import is_secret_name, mask
from tools.serve_script.splice import Splice
from tools.serve_script.text import Runs, Unknown, outward, shown, unknown_of

_FILLED_IN = re.compile(r"\{\{|\{%|<%|^__[A-Z0-9_]+__$|^@[A-Za-z0-9_]+@$|^%%[A-Z0-9_]+%%$|^<[A-Z_]+>$")
BY_HAND = "Change it by hand, or where the value comes from."


def is_flag(flag: Flag, names: Sequence[str], grammar: Grammar) -> bool:
    """Whether a flag of a launch is the one that these spellings name."""
    return same(flag.name, names) or abbreviates(flag.name, names, grammar) is True


def in_force(flags: Sequence[Flag]) -> Flag:
    """The occurrence that counts: the last, unless branches make it a matter of chance."""
    last = flags[-1]
    if last.conditional and len(flags) > 1:
        lines = ", ".join(str(flag.line) for flag in flags)
        raise ScriptRefused(
            "several-values",
            f"{last.name} stands on lines {lines}, some of them under conditions.",
            BY_HAND,
            line=last.line,
        )
    return last


def known(runs: Runs, name: str, line: int) -> None:
    """Refuse a value that only the run decides."""
    unknown = unknown_of(runs)
    if unknown is not None:
        raise unknown_refusal(unknown, name, line)


def no_template(value: str, name: str, line: int) -> None:
    """Refuse a value that is a mark for another program."""
    if _FILLED_IN.search(value):
        raise ScriptRefused(
            "template",
            f"The value of {name} on line {line} is a mark that another program fills in.",
            "Change what fills it in.",
            line=line,
        )


def kind_of_unknown(word: Word) -> str:
    """Why a word is not known; empty: it is."""
    return word.unknown.kind if word.unknown else ""


def unknown_refusal(unknown: Unknown, name: str, line: int) -> ScriptRefused:
    """The refusal that a value earns which only the run decides."""
    remedies: dict[str, str] = {
        "computed": "Change what it is computed from, by hand.",
        "several-values": "Decide which of the assignments is meant, and change it by hand.",
        "from-arguments": "Change it where the script is called.",
        "loop-table": "Change the table that the loop reads, by hand.",
        "not-in-file": "Change it where it is set.",
        "template": "Change what fills the template in.",
    }
    where = f" on line {line}" if line else ""
    return ScriptRefused(
        unknown.kind,
        f"The value of {name}{where} is not written in the file: {shown(unknown.what)}.",
        remedies[unknown.kind],
        line=line or None,
    )


class Planning:
    """One edit in the making."""

    def __init__(
        self, content: bytes, path: str, launches: tuple[Launch, ...], names: tuple[str, ...], reading: Reading
    ) -> None:
        self.bytes = content
        self.content = content.decode("latin-1")
        self.path = path
        self.launches = launches
        self.names = names
        self.reading = reading
        self.line_of = LineOf(content)
        self.edits: list[Edit] = []
        self.refusal: ScriptRefused | None = None

    def refuse(self, kind: RefusalKind, sentence: str, remedy: str, line: int | None = None) -> None:
        """Note why it cannot be done; the first reason counts, should no way be found."""
        self.refusal = self.refusal or ScriptRefused(kind, sentence, remedy, line=line)

    @staticmethod
    def carriers(variables: set[tuple[int, str]], runs: Runs, chosen: Sequence[int]) -> tuple[str, ...] | None:
        """Exported variables that change with the value because they carry it; None: others would change too."""
        through = {via.name for run in runs for via in run.via}
        if not all(j in chosen and name in through for j, name in variables):
            return None
        return tuple(sorted({name for _, name in variables}))

    def overridden(self, runs: Runs, notes: list[str]) -> None:
        """Note a default that its caller can override."""
        for run in runs:
            if run.overridable:
                by = run.overridable
                sourced = "/" in by or "." in by
                notes.append(
                    f"{by} is read later and could override it."
                    if sourced
                    else f"It is a default: {by} from whoever runs the file still wins."
                )
                return

    def propose(
        self, splice: Splice, what: str, spelling: str, old: str | None, notes: list[str], intent: Intent
    ) -> None:
        """Add one way of making the change."""
        self.propose_content(splice.apply(self.content).encode("latin-1"), what, spelling, old, notes, intent)

    def propose_content(
        self, content: bytes, what: str, spelling: str, old: str | None, notes: list[str], intent: Intent
    ) -> None:
        """Add one way of making the change, given the file afterwards."""
        if content == self.bytes or any(edit.content == content for edit in self.edits):
            return
        lines = changed_lines(self.bytes, content)
        where = f"Line {lines[0]}" if len(lines) == 1 else f"Lines {lines[0]} to {lines[-1]}"
        told = mask(shown(what)) if not is_secret_name(spelling) else f"{spelling} changes"
        explanation = " ".join([f"{where}: {told}.", *(shown(note) for note in notes)])
        meant = intent._replace(
            values=tuple(outward(value) for value in intent.values),
            old=None if intent.old is None else tuple(outward(value) for value in intent.old),
        )
        before = None if old is None else shown(old)
        change = diff(self.bytes, content, self.path)
        self.edits.append(
            Edit(content, change, explanation, lines, spelling, before, tuple(dict.fromkeys(notes)), meant)
        )

    def reads_right(self, edit: Edit, chosen: Sequence[int]) -> bool:
        """Whether reading the edited file finds exactly the intended difference, in every launch."""
        try:
            after = read_file(edit.content, path=self.path, reading=self.reading)
        except ScriptRefused:
            return False
        if len(after) != len(self.launches):
            return False
        for i, (old, new) in enumerate(zip(self.launches, after, strict=True)):
            old_env = {v.name: outward(v.text) for v in old.env}
            new_env = {v.name: outward(v.text) for v in new.env}
            if i in chosen:
                if not as_intended(old.argv[old.first :], new.argv[new.first :], old_env, new_env, edit.intent):
                    return False
            elif old.argv != new.argv or old_env != new_env:
                return False
        return True
