"""Read the launches of a shell script.

The grammar is tree-sitter's; what is read out of it is a walk through the script in the order of execution, with
branches merged, functions called with their arguments, and quoted text that another shell will run (`bash -c`, tmux,
here-documents) read as the script that it is. tree-sitter finds words and offsets; whether an edit is right is for
the execution to say (`prove.py`).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from functools import lru_cache
from threading import Lock
from typing import NamedTuple

import tree_sitter
import tree_sitter_bash
from tree_sitter import Node

from tools.serve_script.bash_state import Held, State
from tools.serve_script.bash_words import Piece, Words, adjacent, unknown_run
from tools.serve_script.launches import Blocked, Dead, EnvPlace, Launch, LineOf, Variable, Word, looks_like_flag
from tools.serve_script.programs import CONTAINERS, TALKERS, Boxed, Seen, base, is_python, see, skip_options, unbox
from tools.serve_script.text import OPAQUE, Run, Runs, Source, Unknown, cut, plain, unknown_of

HINT = re.compile(r"\b(?:vllm|sglang|sglang_router|launch_server|api_server)\b")
"""Text without any of these starts no server by itself."""

_IMAGES = re.compile(r"(?:^|/)(?:vllm-openai|vllm)(?:[-_a-z0-9.]*)(?:[:@]|$)")
_ACTIVATES = re.compile(
    r"(?:^|/)(?:activate|conda\.sh|deactivate|bashrc|\.bashrc|profile|\.profile|env\.sh|setvars\.sh|setenv)(?:$|\s)"
)
_FILLERS = frozenset({"sed", "envsubst", "awk", "gawk", "perl", "m4", "j2", "jinja2", "gomplate", "mustache"})
_MOST_DEEP = 12
_LONG = 4096
"""Bytes from which a text is worth remembering: a shorter one is parsed in less than a millisecond."""
_TELLS = re.compile(
    r"(?:^|[;&|{(]|\b(?:then|do|else)\b)\s*(?:export\s+|readonly\s+|declare\s+-\w*[gx]\w*\s+)?\w+(?:\[[^]]*\])?\+?=",
    re.M,
)
_HANDS_ON = re.compile(r"\$@|\$\*|\$\{[@*]|\beval\b|\bread\b|:=|\bsource\b|^\s*\.\s|^\s*[\"']?\$|\bset\b", re.M)


class Context(NamedTuple):
    """Where in the script a command stands."""

    names: tuple[str, ...] = ()
    arms: tuple[tuple[int, int], ...] = ()
    repeated: bool = False
    weak: tuple[str, ...] = ()
    """Log files and such, which name a launch where nothing better does."""


class _Parser:
    """The grammar, with the tree of the last long text, from which that of an edited one is made in little time."""

    def __init__(self) -> None:
        self._parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
        self._lock = Lock()
        self._text = b""
        self._tree: tree_sitter.Tree | None = None

    def root(self, text: bytes) -> Node:
        """The root of a text's tree."""
        with self._lock:
            if len(text) < _LONG:
                return self._parser.parse(text).root_node
            if self._tree is not None and text == self._text:
                return self._tree.root_node
            near = self._edited(text) if self._tree is not None else None
            self._tree = self._parser.parse(text, near) if near is not None else self._parser.parse(text)
            self._text = text
            return self._tree.root_node

    def _edited(self, text: bytes) -> tree_sitter.Tree | None:
        """The last tree, told what is different now; None: it is another text altogether."""
        old = self._text
        head = _alike(old, text)
        room = min(len(old), len(text)) - head
        tail = _alike(old[len(old) - room :][::-1], text[len(text) - room :][::-1])
        if self._tree is None or head + tail < len(text) // 2:
            return None
        near = self._tree.copy()

        def point(content: bytes, at: int) -> tuple[int, int]:
            return content.count(b"\n", 0, at), at - (content.rfind(b"\n", 0, at) + 1)

        end, new_end = len(old) - tail, len(text) - tail
        near.edit(head, end, new_end, point(old, head), point(old, end), point(text, new_end))
        return near


def _alike(one: bytes, other: bytes) -> int:
    """How many bytes two texts have in common at their beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


@lru_cache(maxsize=1)
def _parser() -> _Parser:
    return _Parser()


class _Shared:
    """What all shells of one file share."""

    def __init__(self, content: bytes, files: Mapping[str, bytes]) -> None:
        self.line_of = LineOf(content)
        self.files = files
        self.launches: list[Launch] = []
        self.depth = 0


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
    shared = _Shared(content, files)
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
    shared = _Shared(content, files)
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


class _Shell:
    def __init__(self, source: Source, state: State, shared: _Shared, context: Context) -> None:
        self.source = source
        self.state = state
        self.shared = shared
        self.context = context
        self.functions: dict[str, Node] = {}
        self.called: set[str] = set()
        self.mattering: dict[str, bool] = {}
        self.hints = [match.start() for match in HINT.finditer(source.text)]
        self.stack: list[str] = []
        self.locals: list[dict[str, Held | None]] = []
        self.written: dict[str, tuple[Runs, bool]] = {}
        self.used: set[str] = set()
        self.templates: set[str] = set()
        self.errors: list[tuple[int, int]] = []
        self.first = len(shared.launches)
        self.outermost = True

    # ----------------------------------------------------------------------------------------------- the walk

    def run(self) -> None:
        """Walk the whole text."""
        if self.shared.depth > _MOST_DEEP:
            return
        self.shared.depth += 1
        root = _parser().root(self.source.text.encode("latin-1"))
        if root.has_error:
            self._find_errors(root)
        self.block(root)
        self._uncalled()
        if self.outermost:
            self._unused_files()
        self._mark_errors()
        self.shared.depth -= 1

    def block(self, node: Node) -> None:
        for child in node.named_children:
            self.statement(child)

    def statement(self, node: Node) -> None:
        method = _STATEMENTS.get(node.type)
        if method is not None:
            method(self, node)

    def _branch(self, nodes: list[Node], context: Context) -> State:
        """Walk statements in a copy of the state."""
        saved_state, saved_context = self.state, self.context
        self.state, self.context = saved_state.branch(), context
        for node in nodes:
            self.statement(node)
        branch, self.state, self.context = self.state, saved_state, saved_context
        return branch

    def _arm(self, node: Node, arm: int, names: tuple[str, ...] = ()) -> Context:
        at = self.source.extent(node.start_byte, node.end_byte)[0]
        here = self.context
        return here._replace(arms=(*here.arms, (at, arm)), names=(*names, *here.names))

    def if_statement(self, node: Node) -> None:
        branches: list[State] = []
        exhaustive = False
        arms: list[tuple[list[Node], list[Node]]] = []
        clauses = [node, *[c for c in node.children if c.type in ("elif_clause", "else_clause")]]
        for clause in clauses:
            inner = [c for c in clause.children if c.type not in ("elif_clause", "else_clause")]
            if clause.type == "else_clause":
                exhaustive = True
                arms.append(([], [c for c in inner if c.is_named]))
                continue
            then = next((i for i, c in enumerate(inner) if c.type == "then"), len(inner))
            arms.append(([c for c in inner[:then] if c.is_named], [c for c in inner[then:] if c.is_named]))
        for i, (condition, body) in enumerate(arms):
            for part in condition:
                self.statement(part)
            branches.append(self._branch(body, self._arm(node, i, self._named_by(condition))))
        self.state.merge(branches, exhaustive=exhaustive)

    def _named_by(self, condition: list[Node]) -> tuple[str, ...]:
        """The literal words that a condition compares with."""
        if not condition:
            return ()
        text = self.source.text[condition[0].start_byte : condition[-1].end_byte]
        if "!=" in text or "! " in text or len(text) > 200:
            return ()
        return tuple(re.findall(r"={1,2}~?\s*[\"']?([A-Za-z][\w.-]*)[\"']?", text))

    def case_statement(self, node: Node) -> None:
        branches: list[State] = []
        exhaustive = False
        for i, item in enumerate(c for c in node.named_children if c.type == "case_item"):
            patterns = item.children_by_field_name("value")
            texts = [self.source.text[p.start_byte : p.end_byte].strip("\"'") for p in patterns]
            exhaustive = exhaustive or "*" in texts
            last = patterns[-1].end_byte if patterns else item.start_byte
            body = [c for c in item.named_children if c.start_byte >= last]
            names = tuple(text for text in texts if text != "*")
            branches.append(self._branch(body, self._arm(node, i, names)))
        self.state.merge(branches, exhaustive=exhaustive)

    def for_statement(self, node: Node) -> None:
        variable = node.child_by_field_name("variable")
        values = node.children_by_field_name("value")
        body = node.child_by_field_name("body")
        words = [w for g in adjacent(values, self.source) for w in self._words().fields(g)]
        name = self.source.text[variable.start_byte : variable.end_byte] if variable else ""
        single = len(words) == 1 and not words[0].many
        if name:
            what = Unknown("loop-table", f"{name} takes one value after the other in a loop")
            at = self.source.extent(node.start_byte, node.start_byte)
            self.state.put(name, Held((words[0].runs if single else (unknown_run(what, at),),)))
        self._loop([body] if body else [], repeated=not single)

    def c_for(self, node: Node) -> None:
        for child in node.children_by_field_name("initializer"):
            name = child.child_by_field_name("name") if child.type == "variable_assignment" else None
            if name is not None:
                self._unknown(self.source.text[name.start_byte : name.end_byte], node, "counts in a loop")
        body = node.child_by_field_name("body")
        self._loop([body] if body else [], repeated=True)

    def while_statement(self, node: Node) -> None:
        condition = [c for c in node.children_by_field_name("condition") if c.is_named]
        body = node.child_by_field_name("body")
        self._loop([*condition, *([body] if body else [])], repeated=True)

    def _loop(self, nodes: list[Node], *, repeated: bool) -> None:
        branch = self._branch(nodes, self.context._replace(repeated=self.context.repeated or repeated))
        branch.ended = False
        self.state.merge([branch], exhaustive=False)

    def list_(self, node: Node) -> None:
        children = node.children
        if len(children) < 3:
            self.block(node)
            return
        self.statement(children[0])
        right = [c for c in children[2:] if c.is_named]
        names = self._named_by([children[0]]) if children[1].type == "&&" else ()
        branch = self._branch(right, self.context._replace(names=(*names, *self.context.names)))
        self.state.merge([branch], exhaustive=False)

    def pipeline(self, node: Node) -> None:
        parts = node.named_children
        weak = self._tee(parts[-1]) if parts else ()
        context = self.context._replace(weak=(*weak, *self.context.weak))
        text = self._here_document(parts[0]) if len(parts) > 1 else None
        for i, part in enumerate(parts):
            if i and text is not None and part.type in ("command", "redirected_statement"):
                self._feed(part, text)
                continue
            self._branch([part], context)

    def _tee(self, node: Node) -> tuple[str, ...]:
        if node.type != "command":
            return ()
        text = self.source.text[node.start_byte : node.end_byte]
        match = re.match(r"tee\s+(?:-a\s+)?[\"']?([^\s\"'|&;]+)", text)
        return (match[1],) if match else ()

    def subshell(self, node: Node) -> None:
        self._branch(node.named_children, self.context)

    def function(self, node: Node) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[self.source.text[name.start_byte : name.end_byte]] = body
            self.mattering.clear()

    # -------------------------------------------------------------------------------------------- assignments

    def _words(self) -> Words:
        return Words(self.source, self.state)

    def assignment(
        self, node: Node, *, statement: Node | None = None, alone: bool = True, exported: bool | None = None
    ) -> str:
        """Carry out one assignment; return the variable's name."""
        target = node.child_by_field_name("name")
        value = node.child_by_field_name("value")
        if target is None:
            return ""
        whole = statement or node
        if target.type == "subscript":
            name = self.source.text[target.start_byte : target.end_byte].partition("[")[0]
            self._unknown(name, node, "has elements assigned one by one")
            return name
        name = self.source.text[target.start_byte : target.end_byte]
        adds = self.source.text[target.end_byte : target.end_byte + 2] == "+="
        old = self.state.held.get(name)
        held = Held(
            exported=exported if exported is not None else bool(old and old.exported) or self.state.auto_export,
            site=self.source.extent(node.start_byte, node.end_byte),
            statement=self.source.extent(whole.start_byte, whole.end_byte),
            alone=alone,
        )
        words = self._words()
        if value is not None and value.type == "array":
            elements = words.elements(value)
            held = held._replace(array=((*(old.array or ()), *elements) if adds and old else elements))
        else:
            if value is not None and self._hinted(value):
                self._substitutions(value)
            runs = words.scalar(value, node.end_byte)
            if adds and old and old.array is not None:
                last = old.array[-1:] and old.array[0]
                held = held._replace(array=old.array if last else (Word(runs, (-1, -1), (), "array", 0),))
            elif adds and old:
                held = held._replace(options=tuple(option + runs for option in old.options))
            elif adds:
                reason = Unknown("not-in-file", f"{name} comes from the environment of whoever runs the file", True)
                held = held._replace(options=((unknown_run(reason, held.site), *runs),))
            else:
                held = held._replace(options=(runs,))
        self.state.put(name, held)
        return name

    def _substitutions(self, node: Node) -> None:
        """Walk the commands whose output a value is: one of them may start a server."""
        if node.type == "command_substitution":
            self._branch(node.named_children, self.context)
            return
        for child in node.named_children:
            self._substitutions(child)

    def lone_assignment(self, node: Node) -> None:
        self.assignment(node)

    def assignments(self, node: Node) -> None:
        for child in node.named_children:
            if child.type == "variable_assignment":
                self.assignment(child, statement=node, alone=False)

    def declaration(self, node: Node) -> None:
        children = node.children
        keyword = self.source.text[children[0].start_byte : children[0].end_byte]
        exported: bool | None = True if keyword == "export" else None
        items = [c for c in children[1:] if c.is_named and c.type != "comment"]
        alone = len(items) == 1
        for item in items:
            text = self.source.text[item.start_byte : item.end_byte]
            if item.type == "word" and text.startswith(("-", "+")):
                if keyword == "export" and "n" in text:
                    exported = False
                elif keyword in ("declare", "typeset", "local") and "x" in text:
                    exported = text[0] == "-"
                elif "n" in text and keyword in ("declare", "typeset", "local"):
                    exported = None
                continue
            if item.type == "variable_assignment":
                self._declare(keyword, item)
                self.assignment(item, statement=node, alone=alone, exported=exported)
            elif item.type == "variable_name":
                name = text
                self._declare(keyword, item)
                old = self.state.held.get(name)
                if keyword == "local" or (old is None and keyword in ("declare", "typeset")):
                    self.state.put(name, Held(((),), exported=bool(exported)))
                elif old is not None and exported is not None:
                    self.state.put(name, old._replace(exported=exported))
            else:
                self._quoted_declaration(node, item, exported=exported, alone=alone)

    def _quoted_declaration(self, node: Node, item: Node, *, exported: bool | None, alone: bool) -> None:
        for word in self._words().fields([item]):
            name, equals, value = word.text.partition("=")
            if equals and name.isidentifier():
                runs = (
                    cut(word.runs, len(name) + 1, len(word.text))
                    if value
                    else self.source.take(item.end_byte, item.end_byte, None)
                )
                self.state.put(
                    name,
                    Held(
                        (runs,),
                        exported=bool(exported),
                        site=word.site,
                        statement=self.source.extent(node.start_byte, node.end_byte),
                        alone=alone,
                    ),
                )

    def _declare(self, keyword: str, node: Node) -> None:
        if keyword == "export" or not self.locals or keyword == "readonly":
            return
        name = re.split(r"[=+\[]", self.source.text[node.start_byte : node.end_byte], maxsplit=1)[0]
        self.locals[-1].setdefault(name, self.state.held.get(name))

    def unset(self, node: Node) -> None:
        for child in node.named_children:
            name = self.source.text[child.start_byte : child.end_byte]
            if name.isidentifier():
                self.state.put(name, Held(((),)))

    def _unknown(self, name: str, node: Node, what: str) -> None:
        if not name.isidentifier():
            return
        old = self.state.held.get(name)
        place = self.source.extent(node.start_byte, node.end_byte)
        reason = Unknown("loop-table", f"{name} {what}", True)
        self.state.put(name, Held(((unknown_run(reason, place),),), exported=bool(old and old.exported)))

    # ------------------------------------------------------------------------------------------------ commands

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
        words = self._words().fields([target])
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
        pieces: list[Piece] = self._words().quoted(body, body.start_byte, body.end_byte, "heredoc", None)
        return tuple(
            run for piece in pieces for run in (_flat(piece.items) if piece.items is not None else piece.runs)
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
        literal = self.source.text[name.start_byte : name.end_byte]
        if literal in TALKERS and literal not in self.functions:
            self._talker(literal, node)
            return
        if literal in self.functions and not self._matters(literal):
            self.called.add(literal)
            return
        parts = [c for c in children if c.start_byte >= name.start_byte and not c.type.endswith("_redirect")]
        parts[0] = name.named_children[0] if name.named_child_count else name
        evaluate = self._words()
        words = [word for group in adjacent(parts, self.source) for word in evaluate.fields(group)]
        if not words:
            return
        texts = [word.text for word in words]
        first = texts[0]
        if first in self.functions:
            self._call(first, tuple(words[1:]), node)
            return
        if first.startswith("-"):
            self._dead(words, node)
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
                    self._unknown(text, node, "is read when the script runs")
            return
        if first == "shift" and self.state.arguments:
            self.state.arguments = self.state.arguments[1:]
            return
        prefix = [c for c in children if c.type == "variable_assignment" and c.start_byte < name.start_byte]
        if OPAQUE in first and not HINT.search(" ".join(texts)):
            self._used(texts)
            return
        self._start(node, name, prefix, words, document)

    def _talker(self, literal: str, node: Node) -> None:
        text = self.source.text[node.start_byte : node.end_byte]
        if literal in ("exit", "return"):
            self.state.ended = True
        elif literal == "printf" and " -v " in text:
            match = re.search(r"-v\s+(\w+)", text)
            if match:
                self._unknown(match[1], node, "is printed when the script runs")
        elif literal in ("getopts", "let"):
            for word in text.split()[1:]:
                self._unknown(word.partition("=")[0], node, "is set when the script runs")
        elif literal in _FILLERS and self.written:
            inplace = re.search(r"\s-\w*i", text)
            for path in self.written:
                if path and path in text:
                    self.templates.add(path)
            if inplace:
                return
        elif ":=" in text or ("${" in text and "=" in text):
            words = self._words()
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
            self._nested(self.written[path][0], self.state, self.context)
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
        shown = path.replace(OPAQUE, "…")
        self.state.sourced = (*self.state.sourced, shown)

    def _nested(self, runs: Runs, state: State, context: Context) -> None:
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
        matters = bool(self._hinted(body) or _TELLS.search(text) or _HANDS_ON.search(text))
        if not matters:
            self.mattering[name] = False
            words = set(re.findall(r"[\w.:-]+", text))
            matters = any(other in words and self._matters(other) for other in self.functions if other != name)
        self.mattering[name] = matters
        return matters

    def _hinted(self, node: Node) -> bool:
        """Whether the name of a server stands anywhere in a node."""
        at = bisect_left(self.hints, node.start_byte)
        return at < len(self.hints) and self.hints[at] < node.end_byte

    def _uncalled(self) -> None:
        """Functions that nothing in the text calls may be called by name: `"$1"`, a trap, a caller that sources it."""
        for name, body in list(self.functions.items()):
            if name in self.called or not self._hinted(body):
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

    # ------------------------------------------------------------------------------------------------- starting

    def _start(self, node: Node, name: Node, prefix: list[Node], words: list[Word], document: Runs | None) -> None:
        texts = [word.text for word in words]
        seen = see(texts)
        if seen.what == "other":
            self._other(texts, words)
            return
        env = self._environment(prefix, words, seen)
        start = self.source.extent(name.start_byte, name.end_byte)[0]
        place = EnvPlace(start, "{name}={value} ", ("bare", *self.source.layers_at(name.start_byte)))
        site = self.source.extent(node.start_byte, node.end_byte)
        if "`#" in self.source.text[node.start_byte : node.end_byte]:
            self.errors.append((node.start_byte, node.end_byte))
        self.begin(words, seen, env, site, place, document)

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

    def _other(self, texts: list[str], words: list[Word]) -> None:
        path = texts[0]
        if path in self.written or path.removeprefix("./") in self.written:
            found = path if path in self.written else path.removeprefix("./")
            self._run_file(found, tuple(words[1:]))
            return
        if texts and texts[0] in ("exec",):
            return
        if "screen" in texts[:1]:
            return
        for text in texts[1:]:
            if text in self.written and texts[0] in ("sbatch", "setsid", "nohup", "exec", "at", "batch", "parallel"):
                self._run_file(text, ())
        if base(texts[0]) in _FILLERS or is_python(base(texts[0])):
            for path in self.written:
                if any(path and path in text for text in texts[1:]):
                    self.templates.add(path)

    def _run_file(self, path: str, arguments: tuple[Word, ...]) -> None:
        self.used.add(path)
        if path in self.templates:
            self._template(path)
            return
        child = self.state.child()
        child.arguments = arguments
        self._nested(self.written[path][0], child, self.context._replace(weak=(path, *self.context.weak)))

    def _template(self, path: str) -> None:
        """Read a template only to say that it is one."""
        at = len(self.shared.launches)
        self._nested(self.written[path][0], State(), self.context)
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
            if path in self.templates:
                self._template(path)
            elif "[Service]" in text:
                from tools.serve_script.systemd import read_unit  # noqa: PLC0415 - a unit may hold a shell, a shell a unit

                self.shared.launches += read_unit(
                    self.written[path][0], content=b"", files=self.shared.files, line_of=self.shared.line_of
                )
            else:
                self._nested(self.written[path][0], State(), self.context._replace(weak=(path, *self.context.weak)))

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
            runs = self._words().scalar(node.child_by_field_name("value"), node.end_byte)
            site = self.source.extent(node.start_byte, node.end_byte)
            out[name] = Variable(name, runs, self.shared.line_of.at(site[0]), site, "prefix")
        for at in seen.env:
            name, _, value = words[at].text.partition("=")
            word = words[at]
            runs = cut(word.runs, len(name) + 1, len(word.text)) if value else word.runs[-1:]
            out[name] = Variable(name, runs, self.shared.line_of(word), word.site, "env")
        return tuple(out.values())

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

    def _dead(self, words: list[Word], node: Node) -> None:
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
            self._nested(rest[at].runs, child, self.context)
        elif at < len(rest) and (texts[at] in self.written or texts[at].removeprefix("./") in self.written):
            path = texts[at] if texts[at] in self.written else texts[at].removeprefix("./")
            self._run_file(path, tuple(rest[at + 1 :]))
        elif document is not None:
            self._nested(document, child, self.context)

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
                self._nested(word.runs, self.state.child(), context)

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
            self._nested(tuple(runs), State(), context)
        elif document is not None:
            self._nested(document, State(), context)
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
        self._nested(_flat(tuple(words)), self.state.branch(), self.context)
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

    # --------------------------------------------------------------------------------------------------- errors

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


def _flat(words: tuple[Word, ...]) -> Runs:
    out: list[Run] = []
    for i, word in enumerate(words):
        if i:
            out.append(Run(" ", -1, -1, (), (-1, -1)))
        out += word.runs
    return tuple(out)


_STATEMENTS = {
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

__all__ = ["CONTAINERS", "HINT", "Context", "read_shell", "unknown_of"]
