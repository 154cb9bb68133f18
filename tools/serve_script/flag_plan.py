"""Plan the change of a flag."""

from __future__ import annotations

from collections.abc import Sequence

from tools.serve_script.intents import Intent, Operation
from tools.serve_script.launches import Flag, Launch, Word
from tools.serve_script.names import abbreviates, negates, normal, same
from tools.serve_script.planning import (
    BY_HAND,
    Planning,
    in_force,
    kind_of_unknown,
    known,
    no_template,
    unknown_refusal,
)
from tools.serve_script.read import read_file
from tools.serve_script.refusals import ScriptRefused
from tools.serve_script.secrets import mask
from tools.serve_script.splice import Splice, insert_after, remove_words, write_words
from tools.serve_script.spots import reached, spots
from tools.serve_script.text import CannotWrite, Runs, plain, shown, write


class FlagPlan(Planning):
    """The change of a flag, in every way that reading finds right."""

    def change(self, chosen: Sequence[int], operation: Operation, values: tuple[str, ...], *, listed: bool) -> None:
        """Find the edits for launches; `listed`: the values are a list, which replaces a whole list."""
        found = {i: self._occurrences(self.launches[i]) for i in chosen}
        if not any(found.values()):
            self._absent_flag(chosen, operation, values)
            return
        some = next(flags[-1] for flags in found.values() if flags)
        if operation == "add":
            raise ScriptRefused(
                "already-present",
                f"{self.names[0]} is there already, as {some.name} on line {some.line}.",
                "Ask for it to be set instead.",
                line=some.line,
            )
        if not all(found.values()):
            raise ScriptRefused(
                "shared-by-launches",
                f"Only some of the branches give {some.name}.",
                "Say which launch is meant.",
                line=some.line,
            )
        if operation == "unset":
            self._remove_flag(chosen, found)
            return
        flags = {i: in_force(flags) for i, flags in found.items()}
        self._set_flag(chosen, flags, values, listed=listed)

    def _occurrences(self, launch: Launch) -> list[Flag]:
        out = []
        for flag in launch.flags(self.line_of):
            if same(flag.name, self.names):
                out.append(flag)
                continue
            shortened = abbreviates(flag.name, self.names, self.reading.grammar)
            if shortened:
                out.append(flag)
            elif shortened is None:
                self.refuse(
                    "abbreviated",
                    f"{flag.name} on line {flag.line} may be short for {self.names[0]}.",
                    "Write it out in full in the file, then ask again.",
                    flag.line,
                )
        return out

    def _set_flag(
        self, chosen: Sequence[int], flags: dict[int, Flag], values: tuple[str, ...], *, listed: bool
    ) -> None:
        i = chosen[0]
        launch, flag = self.launches[i], flags[i]
        notes = self._notes(launch, flag.last)
        if flag.conditional:
            notes.append(f"Only some runs of the file give {flag.name}: it stands under a condition.")
        old_runs = flag.values
        self._settable(launch, flag, values)
        whole = (
            listed
            or normal(flag.name) in self.reading.grammar.lists
            or all(plain(r).lstrip("-").isdigit() for r in old_runs)
        )
        if not whole:
            old_runs = old_runs[:1]
        for runs in old_runs:
            known(runs, flag.name, flag.line)
            no_template(plain(runs), flag.name, flag.line)
        old = tuple(plain(runs) for runs in old_runs)
        told = mask(shown(" ".join((flag.name, *old))))
        if old == values:
            raise ScriptRefused(
                "already-so",
                f"{told} stands there already, on line {flag.line}.",
                "Nothing is to be done.",
                line=flag.line,
            )
        intent = Intent("flag", "set", self.names, values, flag.name, old=old)
        first = flag.word if flag.joined else flag.word + 1
        allowed = {(j, k) for j in chosen for k in range(flags[j].word, flags[j].last + 1)}
        if len(old_runs) == 1 and len(values) == 1:
            self.overridden(old_runs[0], notes)
            for spot in spots(old_runs[0], values[0]):
                words, variables = reached(self.launches, spot.start, spot.end)
                carriers = self.carriers(variables, old_runs[0], chosen)
                if not words <= allowed or carriers is None or not all(any(j == k for k, _ in words) for j in chosen):
                    continue
                through = f", through the variable {spot.through}" if spot.through else ""
                what = f"{flag.name} {old[0]} becomes {values[0]}{through}"
                self.propose(spot.splice, what, flag.name, old[0], notes, intent._replace(carriers=carriers))
            if not self.edits:
                self._not_alone(flag, old_runs[0])
            return
        splice = self._replace_list(launch.words[first : first + len(old_runs)], values)
        if splice is None:
            self.refuse(
                "quoting", f"The values of {flag.name} do not stand together.", "Change them by hand.", flag.line
            )
            return
        touched, variables = reached(self.launches, splice.start, splice.end)
        carriers = self.carriers(variables, old_runs[0], chosen)
        if touched <= allowed and carriers is not None:
            intent = intent._replace(carriers=carriers)
            self.propose(
                splice,
                f"{flag.name} {' '.join(old)} becomes {' '.join(values)}",
                flag.name,
                " ".join(old),
                notes,
                intent,
            )
        else:
            self._not_alone(flag, old_runs[0])

    def _settable(self, launch: Launch, flag: Flag, values: tuple[str, ...]) -> None:
        """Refuse where there is no value to give or none to replace."""
        if not values:
            if not flag.values or normal(flag.name) in self.reading.grammar.switches:
                raise ScriptRefused(
                    "already-so",
                    f"{flag.name} is there already, on line {flag.line}.",
                    "Nothing is to be done.",
                    line=flag.line,
                )
            raise ScriptRefused(
                "quoting",
                f"{flag.name} on line {flag.line} has a value, and none was given.",
                "Say which value.",
                line=flag.line,
            )
        if not flag.values:
            following = launch.words[flag.word + 1] if flag.word + 1 < len(launch.words) else None
            if following is not None and following.unknown is not None:
                raise unknown_refusal(following.unknown, flag.name, flag.line)
            raise ScriptRefused(
                "quoting",
                f"{flag.name} on line {flag.line} has no value that could be changed.",
                "Change it by hand.",
                line=flag.line,
            )

    def _replace_list(self, words: Sequence[Word], values: Sequence[str]) -> Splice | None:
        first = words[0]
        if (
            first.site[0] < 0
            or words[-1].site[1] < 0
            or any(w.owner != first.owner or w.container != first.container for w in words)
        ):
            return None
        if first.container in ("sequence", "json"):
            after = insert_after(self.content, words[-1], values, None)
            taken = remove_words(self.content, words, None, None)
            if after is None or taken is None:
                return None
            return Splice(
                min(taken.start, after.start),
                max(taken.end, after.start),
                after.text,
            )
        try:
            return Splice(first.site[0], words[-1].site[1], write_words(values, first.layers))
        except CannotWrite:
            return None

    def _not_alone(self, flag: Flag, runs: Runs) -> None:
        other = next((run for run in runs if run.start < 0), None)
        if other is not None:
            where = f" (through {other.via[0].name})" if other.via else ""
            self.refuse(
                "not-in-file",
                f"The value of {flag.name} on line {flag.line} comes from another file{where}.",
                "Change it there.",
                flag.line,
            )
        elif len(runs) > 1 or not any(True for _ in spots(runs, "0")):
            self.refuse(
                "computed",
                f"The value of {flag.name} on line {flag.line} is put together from pieces.",
                BY_HAND,
                flag.line,
            )
        elif not any(True for _ in spots(runs, "0")):
            self.refuse(
                "quoting",
                f"The value cannot be written where that of {flag.name} stands on line {flag.line}.",
                BY_HAND,
                flag.line,
            )
        else:
            self.refuse(
                "shared-by-launches",
                f"What gives {flag.name} its value on line {flag.line} also serves other launches or flags.",
                "Give the launch a value of its own by hand.",
                flag.line,
            )

    def _notes(self, launch: Launch, last: int) -> list[str]:
        notes = list(launch.notes)
        if launch.repeated:
            notes.append("A loop starts it: the change reaches every server of the loop.")
        if any(word.many for word in launch.words[last + 1 :]):
            notes.append("Arguments that are not known before it runs follow, and could override it.")
        return notes

    def _remove_flag(self, chosen: Sequence[int], found: dict[int, list[Flag]]) -> None:
        content = self.content
        launches = self.launches
        flag = found[chosen[0]][-1]
        i = chosen[0]
        following = launches[i].words[flag.last + 1] if flag.last + 1 < len(launches[i].words) else None
        switch = normal(flag.name) in self.reading.grammar.switches
        if not flag.values and not switch and following is not None and following.many and following.unknown:
            raise unknown_refusal(following.unknown, flag.name, flag.line)
        span = self._removal_span(launches[i], flag)
        words = launches[i].words[span[0] : span[1] + 1]
        before = launches[i].words[span[0] - 1] if span[0] > 0 else None
        after = launches[i].words[span[1] + 1] if span[1] + 1 < len(launches[i].words) else None
        splice = remove_words(content, words, before, after) if words else None
        old = "" if normal(flag.name) in self.reading.grammar.switches else " ".join(plain(r) for r in flag.values)
        notes = self._notes(launches[i], flag.last)
        if flag.conditional:
            notes.append(f"Only some runs of the file give {flag.name}: it stands under a condition.")
        if splice is None:
            unknown = words[-1].unknown if words else None
            if unknown is not None:
                raise unknown_refusal(unknown, flag.name, flag.line)
            self.refuse(
                "quoting",
                f"{flag.name} on line {flag.line} does not stand together with its value.",
                "Take it out by hand.",
                flag.line,
            )
            return
        allowed = {(j, k) for j in chosen for k in range(len(launches[j].words))}
        touched = {pair for w in words for pair in reached(launches, w.site[0], w.site[1])[0]}
        variables = {pair for w in words for pair in reached(launches, w.site[0], w.site[1])[1]}
        carriers = self.carriers(variables, words[0].runs, chosen)
        if not touched <= allowed or carriers is None:
            self._not_alone(flag, words[0].runs)
            self.refusal = (
                self.refusal
                if self.refusal and self.refusal.kind == "shared-by-launches"
                else ScriptRefused(
                    "shared-by-launches",
                    f"{flag.name} on line {flag.line} also serves other launches.",
                    BY_HAND,
                    line=flag.line,
                )
            )
            return
        rest = len(found[i]) - 1
        if rest:
            deeper = splice.apply(content).encode("latin-1")
            inner = FlagPlan(
                deeper, self.path, read_file(deeper, path=self.path, reading=self.reading), self.names, self.reading
            )
            same_launches = len(inner.launches) == len(self.launches)
            again = {j: inner._occurrences(inner.launches[j]) for j in chosen} if same_launches else {}
            if not again or not all(again.values()):
                self.refuse("quoting", f"{flag.name} stands several times, and not all can be taken out.", BY_HAND)
                return
            inner._remove_flag(chosen, again)
            for edit in inner.edits:
                self.propose_content(
                    edit.content,
                    f"{flag.name} is taken out, every occurrence of it",
                    flag.name,
                    old,
                    notes,
                    Intent("flag", "unset", self.names, (), flag.name, carriers),
                )
            self.refusal = self.refusal or inner.refusal
            return
        self.propose(
            splice,
            f"{(flag.name + ' ' + old).strip()} is taken out",
            flag.name,
            old,
            notes,
            Intent("flag", "unset", self.names, (), flag.name, carriers),
        )

    def _removal_span(self, launch: Launch, flag: Flag) -> tuple[int, int]:
        if flag.joined or normal(flag.name) in self.reading.grammar.switches:
            return flag.word, flag.word
        name = normal(flag.name)
        if (
            len(flag.values) > 1
            and name not in self.reading.grammar.lists
            and not all(plain(r).isdigit() for r in flag.values)
        ):
            return flag.word, flag.word + 1
        return flag.word, flag.last

    def _absent_flag(self, chosen: Sequence[int], operation: Operation, values: tuple[str, ...]) -> None:
        name = self.names[0]
        for i in chosen:
            launch = self.launches[i]
            for dead in launch.dead:
                if same(dead.name, self.names):
                    raise ScriptRefused(
                        "not-in-command",
                        f"{dead.name} on line {dead.line} is not part of the command: {dead.why}.",
                        "Repair the command by hand first; what the server gets will change.",
                        line=dead.line,
                    )
        if self.refusal is not None and self.refusal.kind == "abbreviated":
            raise self.refusal
        launch = self.launches[chosen[0]]
        dotted = next((f for f in launch.flags(self.line_of) if f.name.partition(".")[0] in self.names), None)
        if dotted is not None:
            raise ScriptRefused(
                "already-present",
                f"{dotted.name} on line {dotted.line} sets a part of {name}.",
                "Change that part, or take it out first.",
                line=dotted.line,
            )
        twin = next((f for f in launch.flags(self.line_of) if negates(f.name, self.names)), None)
        if twin is not None:
            if operation in ("set", "replace") and not values:
                word = launch.words[twin.word]
                touched, variables = reached(self.launches, *word.site)
                if word.site[0] >= 0 and touched <= {(j, twin.word) for j in chosen} and not variables:
                    self.propose(
                        Splice(*word.site, write(name, word.layers)),
                        f"{twin.name} becomes {name}",
                        name,
                        None,
                        self._notes(launch, twin.word),
                        Intent("flag", "add", (*self.names, twin.name), (), name),
                    )
                    return
            raise ScriptRefused(
                "already-present",
                f"The file says {twin.name}, the opposite of {name}, on line {twin.line}.",
                "Take that out first.",
                line=twin.line,
            )
        config = next((f for f in launch.flags(self.line_of) if f.name == "--config" and f.values), None)
        if config is not None:
            self._in_config(plain(config.values[0]), config.line, operation)
        opaque = [word for word in launch.words[launch.first :] if word.many]
        elsewhere = next(
            (
                w.unknown
                for w in opaque
                if w.unknown and w.unknown.kind == "not-in-file" and "is set in" in w.unknown.what
            ),
            None,
        )
        if operation in ("replace", "unset") or (elsewhere is not None and operation == "set"):
            if opaque:
                unknown = elsewhere or opaque[0].unknown
                assert unknown is not None
                raise ScriptRefused(
                    "not-in-file" if elsewhere else unknown.kind,
                    f"{name} is not written in the launch on line {launch.line}, "
                    f"and some of its arguments are not in the file: {shown(unknown.what)}.",
                    "Change it where those arguments come from.",
                    line=launch.line,
                )
            said = [n for n in self.names if n in self.content]
            extra = " It is only mentioned elsewhere, such as in a comment." if said else ""
            raise ScriptRefused(
                "absent",
                f"The launch on line {launch.line} does not give {name}.{extra}",
                "Add it instead.",
                line=launch.line,
            )
        self._add_flag(chosen, values)

    def _in_config(self, path: str, line: int, operation: Operation) -> None:
        known = next(
            (c for n, c in self.reading.files.items() if n == path or n.rsplit("/", 1)[-1] == path.rsplit("/", 1)[-1]),
            None,
        )
        keys = {
            normal("--" + row.split(":", 1)[0].strip().strip("\"'"))
            for row in (known or b"").decode("utf-8", "replace").splitlines()
            if ":" in row
        }
        inside = any(normal(name) in keys for name in self.names)
        if inside or (known is None and operation in ("replace", "unset")):
            raise ScriptRefused(
                "not-in-file",
                f"The launch on line {line} reads {path}, which {'sets' if inside else 'may set'} {self.names[0]}.",
                f"Change it in {path}.",
                line=line,
            )

    def _add_flag(self, chosen: Sequence[int], values: tuple[str, ...]) -> None:
        if len(chosen) > 1:
            raise ScriptRefused(
                "ambiguous-launch", "Each branch of the file has its own launch.", "Say which one is meant."
            )
        i = chosen[0]
        launch = self.launches[i]
        name = self.names[0]
        joined = len(values) == 1 and self._joins(launch)
        words = [f"{name}={values[0]}"] if joined else [name, *values]
        notes = self._notes(launch, len(launch.words))
        intent = Intent("flag", "add", self.names, values, name)
        what = f"{name} {' '.join(values)}".strip()
        for at in self._anchors(launch):
            anchor = launch.words[at]
            group = self._line_start(launch, at)
            splice = insert_after(self.content, anchor, words, group)
            if splice is None:
                continue
            touched, variables = reached(self.launches, *anchor.site)
            carriers = self.carriers(variables, anchor.runs, chosen)
            if any(j != i for j, _ in touched) or carriers is None or anchor.conditional:
                continue
            intent = intent._replace(carriers=carriers)
            self.propose(splice, f"{what} is added", name, None, notes, intent)
            if len(self.edits) > 1:
                break
        if not self.edits:
            self.refuse(
                "shared-by-launches",
                f"There is no place where {name} would reach this launch alone.",
                "Add it by hand.",
                launch.line,
            )

    def _joins(self, launch: Launch) -> bool:
        valued = [f for f in launch.flags(self.line_of) if f.values]
        return bool(valued) and all(f.joined for f in valued)

    def _anchors(self, launch: Launch) -> list[int]:
        """Words behind which a flag can stand, the best first: the last of its own kind, then the last of all."""
        last = len(launch.words) - 1
        while last > 0 and launch.words[last].many and kind_of_unknown(launch.words[last]) == "from-arguments":
            last -= 1
        order = [at for at in range(last, launch.first - 2, -1) if launch.words[at].site[1] >= 0]
        steady = [at for at in order if not launch.words[at].conditional]
        return [at for at in steady if at == last or not launch.words[at + 1].many or at >= launch.first - 1]

    def _line_start(self, launch: Launch, at: int) -> Word:
        """The first word of the line that a word stands on."""
        word = launch.words[at]
        start = at
        low = self.content.rfind("\n", 0, word.site[0]) + 1
        while (
            start > 0
            and launch.words[start - 1].owner == word.owner
            and launch.words[start - 1].container == word.container
        ):
            if launch.words[start - 1].site[0] < low:
                break
            start -= 1
        return launch.words[start]
