"""Plan the change of an environment variable."""

from __future__ import annotations

from collections.abc import Sequence

from tools.serve_script.intents import Intent, Operation
from tools.serve_script.launches import EnvPlace, Variable
from tools.serve_script.planning import BY_HAND, Planning, known, no_template
from tools.serve_script.read import read_file
from tools.serve_script.refusals import RefusalKind, ScriptRefused
from tools.serve_script.secrets import mask
from tools.serve_script.splice import Splice, remove_variable
from tools.serve_script.spots import reached, spots
from tools.serve_script.text import CannotWrite, write


def _filled(place: EnvPlace, name: str, value: str) -> str:
    """The text that adds a variable.

    Raises:
        CannotWrite: the value cannot be said there.
    """
    try:
        return place.template.format(name=name, value=write(value, place.layers))
    except CannotWrite:
        if not place.quoted:
            raise
        return place.quoted.format(name=name, value=write(value, place.quoted_layers))


class VariablePlan(Planning):
    """The change of a variable, in every way that reading finds right."""

    def change(self, chosen: Sequence[int], operation: Operation, value: str) -> None:
        """Find the edits for launches."""
        found = {i: next((v for v in self.launches[i].env if v.name in self.names), None) for i in chosen}
        present = {i: v for i, v in found.items() if v is not None}
        name = self.names[0]
        if not present:
            if operation in ("replace", "unset"):
                raise ScriptRefused(
                    "absent",
                    f"The file does not set {name} for this launch.",
                    "Set it instead." if operation == "replace" else "Nothing is to be done.",
                )
            self._add_variable(chosen, value)
            return
        variable = next(iter(present.values()))
        if operation == "add":
            raise ScriptRefused(
                "already-present",
                f"{name} is there already, on line {variable.line}.",
                "Ask for it to be set instead.",
                line=variable.line,
            )
        if len(present) < len(chosen):
            raise ScriptRefused(
                "shared-by-launches",
                f"Only some of the branches set {name}.",
                "Say which launch is meant.",
                line=variable.line,
            )
        if operation == "unset":
            self._remove_variable(chosen, variable)
            return
        known(variable.runs, name, variable.line)
        no_template(variable.text, name, variable.line)
        if variable.text == value:
            raise ScriptRefused(
                "already-so",
                f"{name} is {mask(f'{name}={value}')[len(name) + 1 :]!r} already, on line {variable.line}.",
                "Nothing is to be done.",
                line=variable.line,
            )
        notes = list(self.launches[chosen[0]].notes)
        self.overridden(variable.runs, notes)
        if any(run.conditional for run in variable.runs):
            notes.append(f"Only some runs of the file set {name}: it stands under a condition.")
        intent = Intent("env", "set", (name,), (value,), name, old=(variable.text,))
        old = variable.text
        for spot in spots(variable.runs, value):
            words, variables = reached(self.launches, spot.start, spot.end)
            if not words and variables <= {(j, name) for j in chosen}:
                self.propose(spot.splice, f"{name}={old} becomes {name}={value}", name, old, notes, intent)
        if (
            not self.edits
            and variable.line
            and all(run.start >= 0 for run in variable.runs)
            and variable.form in ("export", "prefix")
        ):
            self._add_variable(chosen, value, replaces=variable)
        if not self.edits:
            kind: RefusalKind = "not-in-file" if any(run.start < 0 for run in variable.runs) else "shared-by-launches"
            self.refuse(
                kind,
                f"What sets {name} also serves other launches or flags, or lies in another file.",
                BY_HAND,
                variable.line or None,
            )

    def _add_variable(self, chosen: Sequence[int], value: str, replaces: Variable | None = None) -> None:
        name = self.names[0]
        if len(chosen) > 1:
            raise ScriptRefused(
                "ambiguous-launch", "Each branch of the file has its own launch.", "Say which one is meant."
            )
        i = chosen[0]
        launch = self.launches[i]
        place = launch.env_place
        if place.at < 0:
            raise ScriptRefused(
                "not-in-file",
                f"The environment of the launch on line {launch.line} is not made in this file.",
                "Set it by hand.",
                line=launch.line,
            )
        if any(j != i and other.env_place.at == place.at for j, other in enumerate(self.launches)):
            raise ScriptRefused(
                "shared-by-launches",
                f"The command on line {launch.line} starts several servers.",
                "Set it by hand.",
                line=launch.line,
            )
        try:
            text = _filled(place, name, value)
        except CannotWrite:
            raise ScriptRefused(
                "quoting",
                f"The value cannot be written beside the launch on line {launch.line}.",
                "Set it by hand.",
                line=launch.line,
            ) from None
        old = replaces.text if replaces else None
        before = (old,) if old is not None else None
        intent = Intent("env", "set" if replaces else "add", (name,), (value,), name, old=before)
        self.propose(
            Splice(place.at, place.at, text),
            f"{name}={value} is added for this launch",
            name,
            old,
            list(launch.notes),
            intent,
        )

    def _remove_variable(self, chosen: Sequence[int], variable: Variable) -> None:
        name = variable.name
        splice = remove_variable(self.content, variable)
        if splice is None:
            raise ScriptRefused(
                "not-in-file", f"{name} is set in another file.", "Take it out there.", line=variable.line or None
            )
        words, variables = reached(self.launches, *variable.site)
        others = any(
            v.site == variable.site for j, launch in enumerate(self.launches) if j not in chosen for v in launch.env
        )
        if words or others or not variables <= {(j, name) for j in chosen}:
            self.refuse(
                "shared-by-launches",
                f"{name} on line {variable.line} also serves other launches or flags.",
                BY_HAND,
                variable.line,
            )
            return
        notes = list(self.launches[chosen[0]].notes)
        notes.append(f"{name} from the environment of whoever runs the file would now come through.")
        content = splice.apply(self.content).encode("latin-1")
        again = read_file(content, path=self.path, reading=self.reading)
        if len(again) == len(self.launches) and any(v.name == name for v in again[chosen[0]].env):
            inner = VariablePlan(content, self.path, again, self.names, self.reading)
            inner._remove_variable(chosen, next(v for v in again[chosen[0]].env if v.name == name))
            for edit in inner.edits:
                self.propose_content(
                    edit.content,
                    f"{name} is taken out, every assignment of it",
                    name,
                    variable.text,
                    notes,
                    edit.intent,
                )
            self.refusal = self.refusal or inner.refusal
            return
        self.propose(
            splice,
            f"{name}={variable.text} is taken out",
            name,
            variable.text,
            notes,
            Intent("env", "unset", (name,), (), name),
        )
