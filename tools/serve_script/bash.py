"""Read the launches of a shell script.

The grammar is tree-sitter's; what is read out of it is a walk through the script in the order of execution, with
branches merged, functions called with their arguments, and quoted text that another shell will run (`bash -c`, tmux,
here-documents) read as the script that it is. tree-sitter finds words and offsets; whether an edit is right is for
the execution to say (`prove.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tree_sitter import Node

from tools.serve_script.bash_parser import parser
from tools.serve_script.bash_start import Start, flat
from tools.serve_script.bash_state import Held, State
from tools.serve_script.bash_walk import HINT, Context, Shared
from tools.serve_script.bash_words import Piece, adjacent, unknown_run
from tools.serve_script.launches import Blocked, EnvPlace, Launch, Variable, Word
from tools.serve_script.programs import TALKERS, Seen, base, is_python, see
from tools.serve_script.refusals import ScriptUnreadable
from tools.serve_script.text import OPAQUE, Run, Runs, Source, Unknown, cut, plain

_ACTIVATES = re.compile(
    r"(?:^|/)(?:activate|conda\.sh|deactivate|bashrc|\.bashrc|profile|\.profile|setvars\.sh)(?:$|\s)"
)
_FILLERS = frozenset({"sed", "envsubst", "awk", "gawk", "perl", "m4", "j2", "jinja2", "gomplate", "mustache"})
_SCRIPT_NAME = re.compile(r"\.(?:sh|bash|service|conf|sbatch|slurm|job|run)$")
_MOST_DEEP = 12
_MOST_CALLS = 20_000
_TELLS = re.compile(
    r"(?:^|[;&|{(]|\b(?:then|do|else)\b)\s*(?:export\s+|readonly\s+|declare\s+-\w*[gx]\w*\s+)?\w+(?:\[[^]]*\])?\+?=",
    re.M,
)
_HANDS_ON = re.compile(r"\$@|\$\*|\$\{[@*]|\beval\b|\bread\b|:=|\bsource\b|^\s*\.\s|^\s*[\"']?\$|\bset\b", re.M)


def read_shell(
    runs: Runs,
    *,
    content: bytes,
    files: Mapping[str, bytes],
    variables: Mapping[str, Runs] | None = None,
    context: Context | None = None,
) -> tuple[Launch, ...]:
    """The launches of a text that a shell runs.

    Args:
        runs: The text, with the way back to the file.
        content: The file, for line numbers.
        files: Other files that the script may read, by the name that it uses.
        variables: The environment that it is started with, as far as it is known.
        context: What surrounds it.
    """
    state = State()
    for name, value in (variables or {}).items():
        state.held[name] = Held((value,), exported=True)
    shared = Shared(content, files)
    _Shell(Source(runs), state, shared, context or Context()).run()
    return tuple(shared.launches)


def read_command(
    words: list[Word],
    *,
    content: bytes,
    files: Mapping[str, bytes],
    env: tuple[Variable, ...],
    context: Context,
    site: tuple[int, int],
    place: EnvPlace,
) -> tuple[Launch, ...]:
    """The launches of a command that a service manager or a container runs without a shell.

    Args:
        words: The command and its arguments.
        content: The file, for line numbers.
        files: Other files that the command may read, by the name that it uses.
        env: Its environment, as far as the file makes it.
        context: What surrounds it.
        site: Extent of the command in the file.
        place: Where a variable can be added.
    """
    state = State()
    for variable in env:
        state.held[variable.name] = Held((variable.runs,), exported=True, site=variable.site)
    shared = Shared(content, files)
    shell = _Shell(Source(()), state, shared, context)
    seen = see([word.text for word in words])
    if seen.what == "other":
        return ()
    outer = {variable.name: variable for variable in env}
    for at in seen.env:
        name = words[at].text.partition("=")[0]
        runs = cut(words[at].runs, len(name) + 1, len(words[at].text)) or words[at].runs[-1:]
        outer[name] = Variable(name, runs, shared.line_of(words[at]), words[at].site, "env")
    shell.begin(words, seen, tuple(outer.values()), site, place)
    boxed = seen.what in ("container", "remote")
    return tuple(
        launch._replace(
            env=launch.env if boxed else _same_variables(launch.env, outer),
            env_place=launch.env_place if boxed or launch.env_place.at >= 0 else place,
            command=tuple(words),
        )
        for launch in shared.launches
    )


def _same_variables(found: tuple[Variable, ...], outer: Mapping[str, Variable]) -> tuple[Variable, ...]:
    """Variables that a shell passed on unaltered are those that the file around it makes."""
    return tuple(
        outer[v.name] if v.name in outer and plain(outer[v.name].runs) == plain(v.runs) and v.form == "export" else v
        for v in found
    )


class _Shell(Start):
    """A shell that runs a text."""

    def run(self) -> None:
        """Walk the whole text."""
        if self.shared.depth > _MOST_DEEP:
            return
        self.shared.depth += 1
        root = parser().root(self.source.text.encode("latin-1"))
        if root.has_error:
            self._find_errors(root)
        self.block(root)
        self._uncalled()
        if self.outermost:
            self._unused_files()
        self._mark_errors()
        self.shared.depth -= 1

    def pipeline(self, node: Node) -> None:
        parts = node.named_children
        weak = self._tee(parts[-1]) if parts else ()
        context = self.context._replace(weak=(*weak, *self.context.weak))
        text = self._here_document(parts[0]) if len(parts) > 1 else None
        for i, part in enumerate(parts):
            if i and text is not None and part.type in ("command", "redirected_statement"):
                self._feed(part, text)
                continue
            self.branch_off([part], context)

    def _tee(self, node: Node) -> tuple[str, ...]:
        if node.type != "command":
            return ()
        text = self.source.text[node.start_byte : node.end_byte]
        match = re.match(r"tee\s+(?:-a\s+)?[\"']?([^\s\"'|&;]+)", text)
        return (match[1],) if match else ()

    def redirected(self, node: Node) -> None:
        body = node.child_by_field_name("body")
        redirects = node.children_by_field_name("redirect")
        weak: list[str] = []
        document: Runs | None = None
        after: list[Node] = []
        destination = source_file = ""
        quoted = False
        for redirect in redirects:
            if redirect.type == "file_redirect":
                where = self._destination(redirect)
                if self.source.text[redirect.start_byte : redirect.end_byte].lstrip("0123456789&").startswith("<"):
                    source_file = where
                elif where and where != "/dev/null" and not where.isdigit():
                    weak.append(where)
                    destination = destination or where
            elif redirect.type == "heredoc_redirect":
                document, quoted = self._document(redirect)
                for child in redirect.children:
                    if child.type == "file_redirect":
                        destination = destination or self._destination(child)
                    elif child.is_named and child.type not in (
                        "heredoc_start",
                        "heredoc_body",
                        "heredoc_end",
                        "file_descriptor",
                    ):
                        after.append(child)
        saved = self.context
        self.context = saved._replace(weak=(*weak, *saved.weak))
        if document is not None and body is not None:
            self._with_document(body, document, quoted, destination, after)
        elif body is not None:
            if source_file and body.type == "command":
                self._reads(body, source_file)
            self.statement(body)
        elif after:
            for child in after:
                self.statement(child)
        self.context = saved

    def _destination(self, redirect: Node) -> str:
        target = redirect.child_by_field_name("destination")
        if target is None:
            return ""
        words = self.words_here().fields([target])
        return words[0].text.replace(OPAQUE, "") if words else ""

    def _document(self, redirect: Node) -> tuple[Runs, bool]:
        """The body of a here-document, and whether its delimiter is quoted."""
        start = next((c for c in redirect.children if c.type == "heredoc_start"), None)
        body = next((c for c in redirect.children if c.type == "heredoc_body"), None)
        if start is None or body is None:
            return (), False
        raw = any(c in self.source.text[start.start_byte : start.end_byte] for c in "'\"\\")
        if raw:
            text = self.source.text[body.start_byte : body.end_byte]
            if not redirect.text or not redirect.text.startswith(b"<<-"):
                return self.source.take(body.start_byte, body.end_byte, None), True
            out: Runs = ()
            at = body.start_byte
            for line in text.splitlines(keepends=True):
                tabs = len(line) - len(line.lstrip("\t"))
                out += self.source.take(at + tabs, at + len(line), None) if len(line) > tabs else ()
                at += len(line)
            return out, True
        pieces: list[Piece] = self.words_here().quoted(body, body.start_byte, body.end_byte, "heredoc", None)
        return tuple(
            run for piece in pieces for run in (flat(piece.items) if piece.items is not None else piece.runs)
        ), False

    def _here_document(self, node: Node) -> Runs | None:
        """What the first command of a pipeline writes, where it is a here-document through `cat`."""
        if node.type != "redirected_statement":
            return None
        body = node.child_by_field_name("body")
        if body is None or not self.source.text[body.start_byte : body.end_byte].startswith("cat"):
            return None
        for redirect in node.children_by_field_name("redirect"):
            if redirect.type == "heredoc_redirect":
                return self._document(redirect)[0]
        return None

    def _with_document(self, body: Node, document: Runs, quoted: bool, destination: str, after: list[Node]) -> None:
        name = self.source.text[body.start_byte : body.end_byte]
        program = base(name.split()[0]) if name.split() else ""
        if program == "sudo":
            program = base(name.split()[1]) if len(name.split()) > 1 else ""
        pipes = [c for c in after if c.type == "pipeline"]
        if program == "cat" and pipes:
            for part in pipes[0].named_children:
                self._feed(part, document)
        elif program == "tee" or (program == "cat" and destination):
            if program == "tee":
                words = [w for w in name.replace("sudo ", "").split()[1:] if not w.startswith("-")]
                destination = words[0].strip("\"'") if words else destination
            self._write(destination, document, quoted)
        else:
            self._feed(body, document)
        for child in after:
            if child.type != "pipeline":
                self.statement(child)

    def _write(self, path: str, document: Runs, quoted: bool) -> None:
        self.written[path] = (document, quoted)

    def _feed(self, node: Node, document: Runs) -> None:
        """A command whose standard input is known."""
        if node.type == "redirected_statement":
            inner = node.child_by_field_name("body")
            if inner is not None:
                self._feed(inner, document)
            return
        if node.type != "command":
            self.statement(node)
            return
        self.command(node, document)

    def _reads(self, node: Node, path: str) -> None:
        text = self.source.text[node.start_byte : node.end_byte].split()
        if text and base(text[0]) in _FILLERS:
            self.templates.add(path)

    def command(self, node: Node, document: Runs | None = None) -> None:  # noqa: PLR0911 - one branch a builtin
        name = node.child_by_field_name("name")
        if name is None:
            return
        children = node.children
        prefix = self._prefix([c for c in children if c.type == "variable_assignment"], name)
        literal = self.source.text[name.start_byte : name.end_byte]
        if literal in TALKERS and literal not in self.functions:
            self._talker(literal, node)
            return
        if literal in self.functions and not self._matters(literal):
            self.called.add(literal)
            return
        parts = [c for c in children if c.start_byte >= name.start_byte and not c.type.endswith("_redirect")]
        parts[0] = name.named_children[0] if name.named_child_count else name
        evaluate = self.words_here()
        words = [word for group in adjacent(parts, self.source) for word in evaluate.fields(group)]
        if not words:
            return
        texts = [word.text for word in words]
        first = texts[0]
        if first in self.functions:
            self._call(first, tuple(words[1:]), node)
            return
        if first.startswith("-"):
            self.cut_off(words, node)
            return
        if first in (":", "true"):
            return
        if first == "set":
            self._set(texts, words)
            return
        if first in ("source", "."):
            self._source(texts)
            return
        if first in ("read", "mapfile", "readarray"):
            for text in texts[1:]:
                if text.isidentifier():
                    self.forget(text, node, "is read when the script runs")
            return
        if first == "shift" and self.state.arguments:
            self.state.arguments = self.state.arguments[1:]
            return
        if OPAQUE in first and not HINT.search(" ".join(texts)):
            self._used(texts)
            return
        self._start(node, name, prefix, words, document)

    def _prefix(self, assignments: list[Node], name: Node) -> list[Node]:
        """The assignments that belong to a command.

        tree-sitter takes `A=1 B=2` and the command on the next line for one command; bash does not, and those
        assignments are carried out here.
        """
        if not assignments:
            return []
        text = self.source.text
        ends = [node.start_byte for node in assignments[1:]] + [name.start_byte]
        own = 0
        for i, (node, following) in enumerate(zip(assignments, ends, strict=True)):
            if re.search(r"(?<!\\)\n", text[node.end_byte : following]):
                own = i + 1
        for node in assignments[:own]:
            self.assignment(node, alone=own == 1)
        return assignments[own:]

    def _talker(self, literal: str, node: Node) -> None:
        text = self.source.text[node.start_byte : node.end_byte]
        if literal in ("exit", "return"):
            self.state.ended = True
        elif literal == "printf" and " -v " in text:
            match = re.search(r"-v\s+(\w+)", text)
            if match:
                self.forget(match[1], node, "is printed when the script runs")
        elif literal in ("getopts", "let"):
            for word in text.split()[1:]:
                self.forget(word.partition("=")[0], node, "is set when the script runs")
        elif literal in _FILLERS and self.written:
            inplace = re.search(r"\s-\w*i", text)
            for path in self.written:
                if path and path in text:
                    self.templates.add(path)
            if inplace:
                return
        elif ":=" in text or ("${" in text and "=" in text):
            words = self.words_here()
            for child in node.named_children:
                if child.type in ("string", "expansion", "concatenation"):
                    words.pieces(child, None)

    def _set(self, texts: list[str], words: list[Word]) -> None:
        if "--" in texts:
            at = texts.index("--")
            self.state.arguments = tuple(words[at + 1 :])
            return
        for i, text in enumerate(texts[1:], 1):
            if text.startswith("-") and "a" in text and not text.startswith("--") and text != "-o":
                self.state.auto_export = True
            elif text.startswith("+") and "a" in text and text != "+o":
                self.state.auto_export = False
            elif text in ("-o", "+o") and texts[i + 1 : i + 2] == ["allexport"]:
                self.state.auto_export = text == "-o"

    def _source(self, texts: list[str]) -> None:
        path = texts[1] if len(texts) > 1 else ""
        self.used.add(path)
        if path in self.written:
            self.nested(self.written[path][0], self.state, self.context)
            return
        tail = path.replace(OPAQUE, "").lstrip("./")
        content = next(
            (c for n, c in self.shared.files.items() if n.lstrip("./") == tail or base(n) == base(tail)), None
        )
        if content is not None:
            text = content.decode("latin-1")
            inner = _Shell(Source((Run(text, -1, -1, ("line",), (-1, -1)),)), self.state, self.shared, self.context)
            inner.run()
            return
        if not path or _ACTIVATES.search(path.replace(OPAQUE, "x")):
            return
        self.state.sourced = (*self.state.sourced, path)
        for name, held in list(self.state.held.items()):
            options = tuple(tuple(r._replace(overridable=r.overridable or path) for r in o) for o in held.options)
            self.state.put(name, held._replace(options=options))

    def nested(self, runs: Runs, state: State, context: Context) -> None:
        """Walk a text that a shell runs; `state` is the one that it works on."""
        inner = _Shell(Source(runs), state, self.shared, context)
        inner.functions = dict(self.functions) if state is self.state else {}
        inner.written, inner.used, inner.templates = self.written, self.used, self.templates
        inner.outermost = False
        inner.run()

    def _call(self, name: str, arguments: tuple[Word, ...], node: Node) -> None:
        body = self.functions[name]
        self.called.add(name)
        if name in self.stack or len(self.stack) > _MOST_DEEP or not self._matters(name):
            return
        self.shared.calls += 1
        if self.shared.calls > _MOST_CALLS:
            raise ScriptUnreadable(
                "does-not-parse", "Its functions call each other too often to be followed.", "Edit it by hand."
            )
        saved = self.state.arguments
        saved_context = self.context
        self.state.arguments = arguments
        self.context = saved_context._replace(names=(name, *saved_context.names))
        self.stack.append(name)
        self.locals.append({})
        ended = self.state.ended
        self.statement(body)
        self.state.ended = ended
        for variable, held in self.locals.pop().items():
            self.state.put(variable, held)
        self.stack.pop()
        self.state.arguments = saved
        self.context = saved_context

    def _matters(self, name: str) -> bool:
        """Whether calling a function can start a server or change what one is started with."""
        known = self.mattering.get(name)
        if known is not None:
            return known
        body = self.functions[name]
        text = self.source.text[body.start_byte : body.end_byte]
        matters = bool(self.hinted(body) or _TELLS.search(text) or _HANDS_ON.search(text))
        if not matters:
            self.mattering[name] = False
            words = set(re.findall(r"[\w.:-]+", text))
            matters = any(other in words and self._matters(other) for other in self.functions if other != name)
        self.mattering[name] = matters
        return matters

    def _uncalled(self) -> None:
        """Functions that nothing in the text calls may be called by name: `"$1"`, a trap, a caller that sources it."""
        for name, body in list(self.functions.items()):
            if name in self.called or not self.hinted(body):
                continue
            saved, self.state = self.state, self.state.branch()
            self.state.ended = False
            self.state.arguments = None
            context, self.context = self.context, self.context._replace(names=(name, *self.context.names))
            self.stack.append(name)
            self.locals.append({})
            self.statement(body)
            self.locals.pop()
            self.stack.pop()
            self.state, self.context = saved, context

    def _used(self, texts: list[str]) -> None:
        for text in texts:
            if text in self.written:
                self.used.add(text)

    def _start(self, node: Node, name: Node, prefix: list[Node], words: list[Word], document: Runs | None) -> None:
        texts = [word.text for word in words]
        seen = see(texts)
        if seen.what == "other":
            self._other(texts, words)
            return
        env = self._environment(prefix, words, seen)
        start = self.source.extent(name.start_byte, name.end_byte)[0]
        place = EnvPlace(start, "{name}={value} ", ("bare", *self.source.layers_at(name.start_byte)))
        site = self.source.extent((prefix[0] if prefix else name).start_byte, node.end_byte)
        if "`#" in self.source.text[node.start_byte : node.end_byte]:
            self.errors.append((node.start_byte, node.end_byte))
        self.begin(words, seen, env, site, place, document)

    def _other(self, texts: list[str], words: list[Word]) -> None:
        path = texts[0]
        if path in self.written or path.removeprefix("./") in self.written:
            found = path if path in self.written else path.removeprefix("./")
            self.run_file(found, tuple(words[1:]))
            return
        if texts and texts[0] in ("exec",):
            return
        if "screen" in texts[:1]:
            return
        for text in texts[1:]:
            if text in self.written and texts[0] in ("sbatch", "setsid", "nohup", "exec", "at", "batch", "parallel"):
                self.run_file(text, ())
        if base(texts[0]) in _FILLERS or is_python(base(texts[0])):
            for path in self.written:
                if any(path and path in text for text in texts[1:]):
                    self.templates.add(path)

    def run_file(self, path: str, arguments: tuple[Word, ...]) -> None:
        self.used.add(path)
        if path in self.templates:
            self._template(path)
            return
        child = self.state.child()
        child.arguments = arguments
        self.nested(self.written[path][0], child, self.context._replace(weak=(path, *self.context.weak)))

    def _template(self, path: str) -> None:
        """Read a template only to say that it is one."""
        at = len(self.shared.launches)
        self.nested(self.written[path][0], State(), self.context)
        blocked = Blocked(
            "template",
            f"The command is a template ({path}) that another program fills in when the script runs.",
            "Change the text that fills it in, or the template, by hand.",
        )
        self.shared.launches[at:] = [launch._replace(blocked=blocked) for launch in self.shared.launches[at:]]

    def _unused_files(self) -> None:
        for path in list(self.written):
            if path in self.used:
                continue
            self.used.add(path)
            text = plain(self.written[path][0])
            if not HINT.search(text):
                continue
            if path not in self.templates and not text.startswith("#!") and not _SCRIPT_NAME.search(path):
                continue
            if path in self.templates:
                self._template(path)
            elif "[Service]" in text:
                from tools.serve_script.systemd import read_unit  # noqa: PLC0415 - a unit may hold a shell, a shell a unit

                self.shared.launches += read_unit(
                    self.written[path][0], content=b"", files=self.shared.files, line_of=self.shared.line_of
                )
            else:
                self.nested(self.written[path][0], State(), self.context._replace(weak=(path, *self.context.weak)))

    def _environment(self, prefix: list[Node], words: list[Word], seen: Seen) -> tuple[Variable, ...]:
        """What the file puts into the environment of a command."""
        out: dict[str, Variable] = {}
        for name, held in self.state.held.items():
            if not held.exported or held.array is not None:
                continue
            runs = (
                held.options[0]
                if len(held.options) == 1
                else (
                    unknown_run(
                        Unknown("several-values", f"{name} is assigned in several places under conditions"), held.site
                    ),
                )
            )
            if held.options == ((),):
                continue
            out[name] = Variable(
                name, runs, self.shared.line_of.at(held.site[0]), held.site, "export", held.statement, held.alone
            )
        for node in prefix:
            target = node.child_by_field_name("name")
            if target is None:
                continue
            name = self.source.text[target.start_byte : target.end_byte]
            runs = self.words_here().scalar(node.child_by_field_name("value"), node.end_byte)
            site = self.source.extent(node.start_byte, node.end_byte)
            out[name] = Variable(name, runs, self.shared.line_of.at(site[0]), site, "prefix")
        for at in seen.env:
            name, _, value = words[at].text.partition("=")
            word = words[at]
            runs = cut(word.runs, len(name) + 1, len(word.text)) if value else word.runs[-1:]
            out[name] = Variable(name, runs, self.shared.line_of(word), word.site, "env")
        return tuple(out.values())

    def _find_errors(self, node: Node) -> None:
        for child in node.children:
            if child.is_error or child.is_missing:
                self.errors.append((child.start_byte, max(child.end_byte, child.start_byte + 1)))
            elif child.has_error:
                self._find_errors(child)

    def _mark_errors(self) -> None:
        """An error of the grammar matters where it touches a launch, or where a here-document above has gone astray."""
        if not self.errors:
            return
        for i in range(self.first, len(self.shared.launches)):
            launch = self.shared.launches[i]
            for start, end in self.errors:
                low, high = self.source.extent(start, end)
                here = "<<" in self.source.text[max(0, start - 80) : end]
                if (low < launch.site[1] and high > launch.site[0]) or (here and low < launch.site[0]):
                    line = self.shared.line_of.at(low)
                    blocked = Blocked(
                        "does-not-parse",
                        f"Line {line} cannot be read with certainty, and the launch depends on it.",
                        "Write that line more simply, or edit the file by hand.",
                    )
                    self.shared.launches[i] = launch._replace(blocked=launch.blocked or blocked)


_STATEMENTS: dict[str, Callable[[Any, Node], None]] = {
    "program": _Shell.block,
    "command": _Shell.command,
    "redirected_statement": _Shell.redirected,
    "variable_assignment": _Shell.lone_assignment,
    "variable_assignments": _Shell.assignments,
    "declaration_command": _Shell.declaration,
    "unset_command": _Shell.unset,
    "if_statement": _Shell.if_statement,
    "case_statement": _Shell.case_statement,
    "for_statement": _Shell.for_statement,
    "c_style_for_statement": _Shell.c_for,
    "while_statement": _Shell.while_statement,
    "list": _Shell.list_,
    "pipeline": _Shell.pipeline,
    "subshell": _Shell.subshell,
    "compound_statement": _Shell.block,
    "do_group": _Shell.block,
    "negated_command": _Shell.block,
    "function_definition": _Shell.function,
    "ERROR": _Shell.block,
}
_Shell.handlers = _STATEMENTS
