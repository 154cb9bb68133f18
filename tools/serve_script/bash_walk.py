"""Walk through a shell script: branches, loops, assignments, and what the shell knows at each point."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

from tree_sitter import Node

from tools.serve_script.bash_state import Held, State
from tools.serve_script.bash_words import Words, adjacent, unknown_run
from tools.serve_script.launches import Launch, LineOf, Word
from tools.serve_script.text import Runs, Source, Unknown, cut

HINT = re.compile(r"\b(?:vllm|sglang|sglang_router|launch_server|api_server)\b")
"""Text without any of these starts no server by itself."""


class Context(NamedTuple):
    """Where in the script a command stands."""

    names: tuple[str, ...] = ()
    arms: tuple[tuple[int, int], ...] = ()
    repeated: bool = False
    weak: tuple[str, ...] = ()
    """Log files and such, which name a launch where nothing better does."""


class Shared:
    """What all shells of one file share."""

    def __init__(self, content: bytes, files: Mapping[str, bytes]) -> None:
        self.line_of = LineOf(content)
        self.files = files
        self.launches: list[Launch] = []
        self.depth = 0
        self.calls = 0


class Walk:
    """A walk through one parsed text, in the order of execution.

    Branches go their own ways in copies of the state and are merged behind; loops are walked once.
    """

    handlers: ClassVar[Mapping[str, Callable[[Any, Node], None]]] = {}
    """What to do with each kind of statement."""

    def __init__(self, source: Source, state: State, shared: Shared, context: Context) -> None:
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

    def block(self, node: Node) -> None:
        """Walk each statement within."""
        for child in node.named_children:
            self.statement(child)

    def statement(self, node: Node) -> None:
        """Walk one statement."""
        method = self.handlers.get(node.type)
        if method is not None:
            method(self, node)

    def branch_off(self, nodes: list[Node], context: Context) -> State:
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
        """Each branch by itself, then what holds behind them."""
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
            branches.append(self.branch_off(body, self._arm(node, i, self.named_by(condition))))
        self.state.merge(branches, exhaustive=exhaustive)

    def named_by(self, condition: list[Node]) -> tuple[str, ...]:
        """The literal words that a condition compares with."""
        if not condition:
            return ()
        text = self.source.text[condition[0].start_byte : condition[-1].end_byte]
        if "!=" in text or "! " in text or len(text) > 200:
            return ()
        return tuple(re.findall(r"={1,2}~?\s*[\"']?([A-Za-z][\w.-]*)[\"']?", text))

    def case_statement(self, node: Node) -> None:
        """Each arm by itself, then what holds behind them."""
        branches: list[State] = []
        exhaustive = False
        for i, item in enumerate(c for c in node.named_children if c.type == "case_item"):
            patterns = item.children_by_field_name("value")
            texts = [self.source.text[p.start_byte : p.end_byte].strip("\"'") for p in patterns]
            exhaustive = exhaustive or "*" in texts
            last = patterns[-1].end_byte if patterns else item.start_byte
            body = [c for c in item.named_children if c.start_byte >= last]
            names = tuple(text for text in texts if text != "*")
            branches.append(self.branch_off(body, self._arm(node, i, names)))
        self.state.merge(branches, exhaustive=exhaustive)

    def for_statement(self, node: Node) -> None:
        """The body once; the variable holds one value after the other."""
        variable = node.child_by_field_name("variable")
        values = node.children_by_field_name("value")
        body = node.child_by_field_name("body")
        words = [w for g in adjacent(values, self.source) for w in self.words_here().fields(g)]
        name = self.source.text[variable.start_byte : variable.end_byte] if variable else ""
        single = len(words) == 1 and not words[0].many
        if name:
            what = Unknown("loop-table", f"{name} takes one value after the other in a loop")
            at = self.source.extent(node.start_byte, node.start_byte)
            self.state.put(name, Held((words[0].runs if single else (unknown_run(what, at),),)))
        self._loop([body] if body else [], repeated=not single)

    def c_for(self, node: Node) -> None:
        """The body once; its counter is not known."""
        for child in node.children_by_field_name("initializer"):
            name = child.child_by_field_name("name") if child.type == "variable_assignment" else None
            if name is not None:
                self.forget(self.source.text[name.start_byte : name.end_byte], node, "counts in a loop")
        body = node.child_by_field_name("body")
        self._loop([body] if body else [], repeated=True)

    def while_statement(self, node: Node) -> None:
        """Condition and body once."""
        condition = [c for c in node.children_by_field_name("condition") if c.is_named]
        body = node.child_by_field_name("body")
        self._loop([*condition, *([body] if body else [])], repeated=True)

    def _loop(self, nodes: list[Node], *, repeated: bool) -> None:
        branch = self.branch_off(nodes, self.context._replace(repeated=self.context.repeated or repeated))
        branch.ended = False
        self.state.merge([branch], exhaustive=False)

    def list_(self, node: Node) -> None:
        """The right side runs only where the left one lets it."""
        children = node.children
        if len(children) < 3:
            self.block(node)
            return
        self.statement(children[0])
        right = [c for c in children[2:] if c.is_named]
        names = self.named_by([children[0]]) if children[1].type == "&&" else ()
        branch = self.branch_off(right, self.context._replace(names=(*names, *self.context.names)))
        self.state.merge([branch], exhaustive=False)

    def subshell(self, node: Node) -> None:
        """What it assigns is gone behind it."""
        self.branch_off(node.named_children, self.context)

    def function(self, node: Node) -> None:
        """Remember a function until it is called."""
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[self.source.text[name.start_byte : name.end_byte]] = body
            self.mattering.clear()

    def words_here(self) -> Words:
        """The evaluation of words in the present state."""
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
            self.forget(name, node, "has elements assigned one by one")
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
        words = self.words_here()
        if value is not None and value.type == "array":
            elements = words.elements(value)
            held = held._replace(array=((*(old.array or ()), *elements) if adds and old else elements))
        else:
            if value is not None and self.hinted(value):
                self.substitutions(value)
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

    def substitutions(self, node: Node) -> None:
        """Walk the commands whose output a value is: one of them may start a server."""
        if node.type == "command_substitution":
            self.branch_off(node.named_children, self.context)
            return
        for child in node.named_children:
            self.substitutions(child)

    def lone_assignment(self, node: Node) -> None:
        """An assignment that is a statement of its own."""
        self.assignment(node)

    def assignments(self, node: Node) -> None:
        """Several assignments in one statement."""
        for child in node.named_children:
            if child.type == "variable_assignment":
                self.assignment(child, statement=node, alone=False)

    def declaration(self, node: Node) -> None:
        """`export`, `declare`, `local`, `readonly`."""
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
        for word in self.words_here().fields([item]):
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
        """`unset`."""
        for child in node.named_children:
            name = self.source.text[child.start_byte : child.end_byte]
            if name.isidentifier():
                self.state.put(name, Held(((),)))

    def forget(self, name: str, node: Node, what: str) -> None:
        """Let a variable hold something that only the run decides."""
        if not name.isidentifier():
            return
        old = self.state.held.get(name)
        place = self.source.extent(node.start_byte, node.end_byte)
        reason = Unknown("loop-table", f"{name} {what}", True)
        self.state.put(name, Held(((unknown_run(reason, place),),), exported=bool(old and old.exported)))

    def hinted(self, node: Node) -> bool:
        """Whether the name of a server stands anywhere in a node."""
        at = bisect_left(self.hints, node.start_byte)
        return at < len(self.hints) and self.hints[at] < node.end_byte
