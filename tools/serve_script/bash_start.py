"""Follow a command of the shell through wrappers, containers and terminals to the servers that it starts."""

from __future__ import annotations

import re

from tree_sitter import Node

from tools.serve_script.bash_state import Held, State
from tools.serve_script.bash_walk import HINT, Context, Walk
from tools.serve_script.launches import Blocked, Dead, EnvPlace, Launch, Variable, Word, looks_like_flag
from tools.serve_script.programs import Boxed, Seen, base, see, skip_options, unbox
from tools.serve_script.text import Run, Runs, cut

_IMAGES = re.compile(r"(?:^|/)(?:vllm-openai|vllm)(?:[-_a-z0-9.]*)(?:[:@]|$)")


class Start(Walk):
    """What a command starts."""

    def nested(self, runs: Runs, state: State, context: Context) -> None:
        """Walk a text that a shell runs; `state` is the one that it works on."""
        raise NotImplementedError

    def run_file(self, path: str, arguments: tuple[Word, ...]) -> None:
        """Walk a file that the script wrote and now runs."""
        raise NotImplementedError

    def begin(
        self,
        words: list[Word],
        seen: Seen,
        env: tuple[Variable, ...],
        site: tuple[int, int],
        place: EnvPlace,
        document: Runs | None = None,
    ) -> None:
        """Follow a command to the servers that it starts."""
        rest = words[seen.at :]
        if seen.what in ("server", "router"):
            self._launch(words, seen, env, site, place)
        elif seen.what == "shell":
            self._run_shell(rest, env, document, [word.text for word in rest])
        elif seen.what == "container":
            self._container(words, seen, site, document)
        elif seen.what == "terminal":
            self._terminal(rest)
        elif seen.what == "remote":
            self._remote(rest, document)
        elif seen.what == "eval":
            self._evaluated(site, words[seen.first :])

    def _launch(
        self, words: list[Word], seen: Seen, env: tuple[Variable, ...], site: tuple[int, int], place: EnvPlace
    ) -> None:
        if seen.env_at >= 0 and seen.env_at < len(words):
            place = EnvPlace(words[seen.env_at].site[0], "{name}={value} ", words[seen.env_at].layers)
        elif "sudo" in seen.wrappers or "time" in seen.wrappers or "systemd-run" in seen.wrappers:
            place = EnvPlace(words[seen.at].site[0], "env {name}={value} ", words[seen.at].layers)
        self._record(site, words[seen.at :], seen.first - seen.at, seen.engine, env, place)

    def _record(
        self,
        site: tuple[int, int],
        words: list[Word],
        first: int,
        engine: str,
        env: tuple[Variable, ...],
        place: EnvPlace,
        names: tuple[str, ...] = (),
    ) -> None:
        number = site[0]
        owned = tuple([word._replace(owner=number) if word.container == "command" else word for word in words])
        context = self.context
        first_site = next((w.site[0] for w in owned if w.site[0] >= 0), -1)
        line = self.shared.line_of.at(site[0]) or self.shared.line_of.at(first_site)
        self.shared.launches.append(
            Launch(
                engine=engine,  # type: ignore[arg-type]
                words=owned,
                first=first,
                env=env,
                line=line,
                site=site,
                names=(*names, *context.names, *context.weak),
                arms=context.arms,
                repeated=context.repeated,
                env_place=place,
            )
        )

    def cut_off(self, words: list[Word], node: Node) -> None:
        """A command that begins with a dash: arguments that were cut off from the command above."""
        if len(self.shared.launches) <= self.first:
            return
        launch = self.shared.launches[-1]
        start = self.source.extent(node.start_byte, node.end_byte)[0]
        above = self.source.text[max(0, node.start_byte - 400) : node.start_byte].splitlines()
        reason = "the line above does not go on"
        for line in reversed([item for item in above if item.strip()]):
            if line.lstrip().startswith("#"):
                reason = "a comment line above it ends the command"
            elif re.search(r"\\[ \t]+$", line):
                reason = "a blank behind the backslash above it ends the command"
            break
        cut_off = tuple(
            Dead(word.text.partition("=")[0], self.shared.line_of(word) or self.shared.line_of.at(start), reason)
            for word in words
            if looks_like_flag(word.text)
        )
        self.shared.launches[-1] = launch._replace(dead=(*launch.dead, *cut_off))

    def _run_shell(self, rest: list[Word], env: tuple[Variable, ...], document: Runs | None, texts: list[str]) -> None:
        child = self.state.child()
        for variable in env:
            child.held[variable.name] = Held((variable.runs,), exported=True, site=variable.site)
        at = 1
        inline = False
        while at < len(texts) and texts[at].startswith("-") and len(texts[at]) > 1:
            inline = inline or ("c" in texts[at] and not texts[at].startswith("--"))
            at += 2 if texts[at] in ("-o", "--rcfile", "--init-file") else 1
            if inline:
                break
        if inline and at < len(rest):
            child.arguments = tuple(rest[at + 2 :])
            self.nested(rest[at].runs, child, self.context)
        elif at < len(rest) and (texts[at] in self.written or texts[at].removeprefix("./") in self.written):
            path = texts[at] if texts[at] in self.written else texts[at].removeprefix("./")
            self.run_file(path, tuple(rest[at + 1 :]))
        elif document is not None:
            self.nested(document, child, self.context)

    def _container(self, words: list[Word], seen: Seen, site: tuple[int, int], document: Runs | None) -> None:
        texts = [word.text for word in words]
        verb = texts[seen.first - 1]
        box = unbox(texts, seen.first)
        if box.image >= len(words):
            return
        env = self._boxed_environment(words, texts, box)
        names = tuple(
            text.partition("=")[2] or (texts[i + 1] if i + 1 < len(texts) else "")
            for i, text in enumerate(texts[: box.image])
            if text.partition("=")[0] == "--name"
        )
        inner = words[box.image + 1 :]
        inner_texts = texts[box.image + 1 :]
        place = EnvPlace(-1, "", ())
        anchor = words[seen.first - 1]
        if anchor.container == "command" and anchor.site[1] >= 0:
            place = EnvPlace(anchor.site[1], " -e {name}={value}", anchor.layers)
        given: list[Word] = []
        if box.entrypoint >= 0:
            word = words[box.entrypoint]
            given = (
                [word._replace(runs=cut(word.runs, len("--entrypoint="), len(word.text)))]
                if "=" in word.text
                else [word]
            )
        whole = given + inner
        whole_texts = [word.text for word in whole]
        deeper = see(whole_texts) if whole_texts else None
        if deeper and deeper.what in ("server", "router"):
            self._record(site, whole[deeper.at :], deeper.first - deeper.at, deeper.engine, env, place, names)
        elif deeper and deeper.what == "shell":
            saved = self.state
            self.state = State()
            at = len(self.shared.launches)
            self._run_shell(whole[deeper.at :], env, document, whole_texts[deeper.at :])
            self.state = saved
            self.shared.launches[at:] = [
                launch._replace(names=(*names, *launch.names), env_place=place) for launch in self.shared.launches[at:]
            ]
        elif verb == "run" and _IMAGES.search(texts[box.image]) and not given and inner_texts:
            self._record(site, inner, 0, "vllm", env, place, names)

    def _boxed_environment(self, words: list[Word], texts: list[str], box: Boxed) -> tuple[Variable, ...]:
        out: dict[str, Variable] = {}
        for first, last in box.env:
            word = words[last]
            text = word.text
            skip = 0
            if first == last:
                head = re.match(r"--env=|-e=?", text)
                skip = head.end() if head else 0
            name, equals, value = text[skip:].partition("=")
            if not equals:
                held = self.state.held.get(name)
                if held is not None and len(held.options) == 1:
                    out[name] = Variable(
                        name,
                        held.options[0],
                        self.shared.line_of.at(held.site[0]),
                        held.site,
                        "export",
                        held.statement,
                        held.alone,
                    )
                continue
            runs = cut(word.runs, skip + len(name) + 1, len(text)) if value else word.runs[-1:]
            site = (words[first].site[0], word.site[1])
            out[name] = Variable(name, runs, self.shared.line_of(word), site, "docker")
        return tuple(out.values())

    def _terminal(self, rest: list[Word]) -> None:
        """tmux: the last word of a new session, or the keys that are sent to one."""
        texts = [word.text for word in rest]
        if len(texts) < 3:
            return
        verb = next((text for text in texts[1:] if not text.startswith("-")), "")
        names: tuple[str, ...] = ()
        for option in ("-s", "-n", "-t"):
            if option in texts[:-1]:
                names += (texts[texts.index(option) + 1],)
        if verb in ("new-session", "new", "new-window", "neww", "split-window", "splitw", "respawn-pane"):
            candidates = [rest[-1]]
        elif verb in ("send-keys", "send"):
            candidates = [word for word in rest[2:] if HINT.search(word.text)]
        else:
            return
        context = self.context._replace(names=(*names, *self.context.names))
        for word in candidates:
            if " " in word.text.strip() or "\n" in word.text:
                self.nested(word.runs, self.state.child(), context)

    def _remote(self, rest: list[Word], document: Runs | None) -> None:
        texts = [word.text for word in rest]
        valued = frozenset(
            [
                "-b",
                "-c",
                "-D",
                "-E",
                "-e",
                "-F",
                "-I",
                "-i",
                "-J",
                "-L",
                "-l",
                "-m",
                "-O",
                "-o",
                "-p",
                "-Q",
                "-R",
                "-S",
                "-W",
                "-w",
            ]
        )
        host = skip_options(texts, 1, valued, 0)
        at = len(self.shared.launches)
        context = self.context._replace(names=(*(texts[host : host + 1]), *self.context.names))
        command = rest[host + 1 :]
        if command and not (document is not None and base(texts[host + 1]) in ("bash", "sh")):
            runs: list[Run] = []
            for i, word in enumerate(command):
                if i:
                    runs.append(Run(" ", -1, -1, (), (-1, -1)))
                runs += word.runs
            self.nested(tuple(runs), State(), context)
        elif document is not None:
            self.nested(document, State(), context)
        none = EnvPlace(-1, "", ())
        self.shared.launches[at:] = [
            launch._replace(env_place=none, notes=(*launch.notes, "It is started on another machine through ssh."))
            for launch in self.shared.launches[at:]
        ]

    def _evaluated(self, site: tuple[int, int], words: list[Word]) -> None:
        text = " ".join(word.text for word in words)
        if not HINT.search(text):
            return
        at = len(self.shared.launches)
        self.nested(flat(tuple(words)), self.state.branch(), self.context)
        line = self.shared.line_of.at(site[0])
        blocked = Blocked(
            "eval",
            f"Line {line} puts the command together as text and evaluates it: what runs is not what is written.",
            "Write the command out without eval, or edit it by hand.",
        )
        if len(self.shared.launches) == at:
            engine = "vllm" if "vllm" in text else "sglang"
            self.shared.launches.append(Launch(engine, (), 0, (), line, site, names=self.context.names))  # type: ignore[arg-type]
        self.shared.launches[at:] = [
            launch._replace(blocked=blocked, line=line) for launch in self.shared.launches[at:]
        ]


def flat(words: tuple[Word, ...]) -> Runs:
    """Words as one text, with blanks between them."""
    out: list[Run] = []
    for i, word in enumerate(words):
        if i:
            out.append(Run(" ", -1, -1, (), (-1, -1)))
        out += word.runs
    return tuple(out)
