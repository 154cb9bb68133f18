"""What the words of a shell command become, and where each character of them is written.

Expansion as bash does it, as far as the script alone decides it: quotes, escapes, variables, defaults, arrays, word
splitting. What depends on anything else becomes an `Unknown` with its reason.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from tools.serve_script.bash_state import Held, State
from tools.serve_script.launches import Word
from tools.serve_script.refusals import ScriptUnreadable
from tools.serve_script.text import OPAQUE, Layer, Run, Runs, Source, Unknown, Via, cut, plain, unknown_of

if TYPE_CHECKING:
    from tree_sitter import Node

_PARAMETER = re.compile(r"([A-Za-z_]\w*|\d+|[@*#?!$-])(\[[^\]]*\])?(:?[-=?+])?")
_DOUBLE_ESCAPES = frozenset('\\"$`\n')
_HEREDOC_ESCAPES = frozenset("\\$`\n")
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}
_BLANKS = " \t\n"
_MOST = 20_000
"""Words of an array, or pieces of a text."""


class Piece(NamedTuple):
    """A part of a word before splitting."""

    runs: Runs
    split: bool = False
    """Whether the shell splits it at blanks."""
    items: tuple[Word, ...] | None = None
    """The words that it becomes, for an array or the arguments."""


def unknown_run(kind: Unknown, place: tuple[int, int]) -> Run:
    """A run for what is not known."""
    return Run(OPAQUE, place[0], place[1], (), place, (), kind)


class Words:
    """Evaluates the words of one parsed text in one state."""

    def __init__(self, source: Source, state: State) -> None:
        self.source = source
        self.state = state

    # ------------------------------------------------------------------------------------------- whole words

    def fields(self, nodes: list[Node]) -> list[Word]:
        """The words that adjacent nodes, nearly always one, become as an argument of a command."""
        pieces = [piece for node in nodes for piece in self.pieces(node, None)]
        start, end = nodes[0].start_byte, nodes[-1].end_byte
        site = self.source.extent(start, end)
        layers: tuple[Layer, ...] = ("bare", *self.source.layers_at(start))
        here = Word((), site, layers, "command", 0)
        if len(pieces) == 1:
            only = pieces[0]
            if only.items is not None:
                return list(only.items)
            if not only.split:
                return [here._replace(runs=only.runs)]
        return _assemble(pieces, here)

    def scalar(self, node: Node | None, at: int) -> Runs:
        """The text that a node becomes as the value of an assignment."""
        if node is None:
            return self.source.take(at, at, "bare")
        out: Runs = ()
        for piece in self.pieces(node, None):
            out += _joined(piece.items) if piece.items is not None else piece.runs
        _bounded(len(out))
        return out or self.source.take(node.start_byte, node.end_byte, "bare")

    def elements(self, node: Node) -> tuple[Word, ...]:
        """The elements of an array literal."""
        owner = self.source.extent(node.start_byte, node.end_byte)[0]
        out: list[Word] = []
        for group in adjacent(node.named_children, self.source):
            words = self.fields(group)
            out += [w._replace(container="array", owner=owner) if w.container == "command" else w for w in words]
            _bounded(len(out))
        return tuple(out)

    # ------------------------------------------------------------------------------------------------ pieces

    def pieces(self, node: Node, inside: Layer | None) -> list[Piece]:  # noqa: C901, PLR0911 - one branch a node type
        """The parts of a node; `inside`: the quotes that it stands in."""
        kind = node.type
        start, end = node.start_byte, node.end_byte
        if kind in ("word", "number") or (not node.child_count and kind not in ("raw_string", "ansi_c_string")):
            return [Piece(self.literal(start, end, inside or "bare"))]
        if kind == "string":
            return self.quoted(node, start + 1, end - 1, "double", (start, end))
        if kind == "raw_string":
            return [Piece(self.source.take(start + 1, end - 1, "single", (start, end)))]
        if kind == "ansi_c_string":
            return [Piece(self.ansi(start + 2, end - 1, (start, end)))]
        if kind == "translated_string":
            return [piece for child in node.named_children for piece in self.pieces(child, inside)]
        if kind == "concatenation":
            text = self.source.text[start:end]
            if inside is None and re.search(r"(?<!\$)\{[^{}]*(?:,|\.\.)[^{}]*\}", text) and not text.startswith("$"):
                literal = [c for c in node.children if c.type == "word" and c.text in (b"{", b"}")]
                if literal:
                    return [self.unknown("computed", "it is written with a brace expansion", start, end, many=True)]
            out: list[Piece] = []
            at = start
            for child in node.children:
                if child.start_byte > at:
                    out.append(Piece(self.literal(at, child.start_byte, inside or "bare")))
                out += self.pieces(child, inside)
                at = child.end_byte
            return out
        if kind in ("simple_expansion", "expansion"):
            return [self.expansion(node, inside)]
        if kind == "command_substitution":
            return [self.unknown("computed", "it is what a command prints", start, end, many=inside is None)]
        if kind == "arithmetic_expansion":
            return [self.unknown("computed", "it is worked out by arithmetic", start, end)]
        if kind == "process_substitution":
            return [self.unknown("computed", "it is the output of another process", start, end)]
        if kind == "brace_expression":
            return [self.unknown("computed", "it is written with a brace expansion", start, end, many=True)]
        return [self.unknown("computed", "it is worked out when the script runs", start, end, many=True)]

    def unknown(self, kind: str, what: str, start: int, end: int, *, many: bool = False) -> Piece:
        """A piece that only the run decides."""
        reason = Unknown(kind, what, many)  # type: ignore[arg-type]
        return Piece((unknown_run(reason, self.source.extent(start, end)),))

    def literal(self, start: int, end: int, layer: Layer) -> Runs:
        """Characters as they stand, escapes taken off."""
        text = self.source.text[start:end]
        if "\\" not in text:
            return self.source.take(start, end, layer)
        outer = (start, end)
        out: list[Run] = []
        at = begin = 0
        escapes = _DOUBLE_ESCAPES if layer == "double" else _HEREDOC_ESCAPES if layer == "heredoc" else None
        while at < len(text):
            if text[at] != "\\" or at + 1 >= len(text) or (escapes is not None and text[at + 1] not in escapes):
                at += 1
                continue
            out += self.source.take(start + begin, start + at, layer, outer) if at > begin else ()
            if text[at + 1] != "\n":
                low, high = self.source.extent(start + at, start + at + 2)
                layers: tuple[Layer, ...] = (layer, *self.source.layers_at(start + at))
                wide = self.source.extent(*outer)
                out.append(Run(text[at + 1], low, high, layers, wide))
            at += 2
            begin = at
        out += self.source.take(start + begin, start + at, layer, outer) if at > begin else ()
        return tuple(out)

    def ansi(self, start: int, end: int, outer: tuple[int, int]) -> Runs:
        """The text between $' and '."""
        text = self.source.text[start:end]
        if "\\" not in text:
            return self.source.take(start, end, "ansi", outer)
        out: list[Run] = []
        at = begin = 0
        wide = self.source.extent(*outer)
        while at < len(text):
            if text[at] != "\\" or at + 1 >= len(text):
                at += 1
                continue
            out += self.source.take(start + begin, start + at, "ansi", outer) if at > begin else ()
            letter = text[at + 1]
            if letter in "0123456789xuUc":
                return self.unknown("computed", "it is written with numeric escapes", start, end).runs
            low, high = self.source.extent(start + at, start + at + 2)
            out.append(Run(_ANSI.get(letter, letter), low, high, ("ansi", *self.source.layers_at(start + at)), wide))
            at += 2
            begin = at
        out += self.source.take(start + begin, start + at, "ansi", outer) if at > begin else ()
        return tuple(out)

    def quoted(self, node: Node, start: int, end: int, layer: Layer, outer: tuple[int, int] | None) -> list[Piece]:
        """Text with expansions in it: between double quotes, or in a here-document."""
        out: list[Piece] = []
        at = start
        for child in node.named_children:
            if child.type in ("string_content", "heredoc_content", "heredoc_redirect"):
                continue
            if child.start_byte > at:
                out.append(Piece(self._within(at, child.start_byte, layer, outer)))
            out += self.pieces(child, layer)
            at = child.end_byte
        if end > at or not out:
            out.append(Piece(self._within(at, end, layer, outer)))
        return out

    def _within(self, start: int, end: int, layer: Layer, outer: tuple[int, int] | None) -> Runs:
        runs = self.literal(start, end, layer)
        if outer is None:
            return runs
        wide = self.source.extent(*outer)
        return tuple([run._replace(outer=wide) for run in runs]) or self.source.take(start, start, layer, outer)

    # -------------------------------------------------------------------------------------------- expansions

    def expansion(self, node: Node, inside: Layer | None) -> Piece:  # noqa: PLR0911 - one return a form of expansion
        """`$NAME` and `${...}`."""
        start, end = node.start_byte, node.end_byte
        text = self.source.text[start:end]
        site = self.source.extent(start, end)
        many = inside is None
        if node.type == "simple_expansion":
            return self.parameter(text[1:], None, node, inside, site)
        body = text[2:-1]
        if body.startswith(("!", "#")) and len(body) > 1:
            return self.unknown("computed", "it is an indirect or counting expansion", start, end, many=many)
        match = _PARAMETER.match(body)
        if not match:
            return self.unknown("computed", "it is worked out when the script runs", start, end, many=many)
        name, index, operator = match[1], match[2], match[3] or ""
        if not operator and match.end() != len(body):
            return self.unknown("computed", f"it is cut out of {name} when the script runs", start, end, many=many)
        plain_piece = self.parameter(name, index, node, inside, site)
        if not operator:
            return plain_piece
        held = self.held(name)
        told = name.isdigit() and self.state.arguments is not None and not unknown_of(plain_piece.runs)
        known = held is not None or plain_piece.items is not None or told
        filled = known and (
            plain_piece.items != ()
            if plain_piece.items is not None
            else bool(plain(plain_piece.runs)) or operator[0] != ":"
        )
        if operator[-1] == "?":
            return plain_piece
        if operator[-1] == "+":
            if known and not filled:
                return Piece((), inside is None)
            piece = self.default(node, operator, inside)
            if not known or unknown_of(plain_piece.runs):
                return piece._replace(
                    runs=tuple([run._replace(conditional=True) for run in piece.runs]),
                    items=None
                    if piece.items is None
                    else tuple(
                        [w._replace(runs=tuple([r._replace(conditional=True) for r in w.runs])) for w in piece.items]
                    ),
                )
            return piece
        if filled:
            return plain_piece
        piece = self.default(node, operator, inside)
        who = f"${name}" if name.isdigit() else name
        runs = (
            tuple([run._replace(overridable=run.overridable or who) for run in piece.runs]) if not known else piece.runs
        )
        if operator[-1] == "=" and name.isidentifier():
            self.state.put(name, Held((runs,), exported=bool(held and held.exported)))
        return piece._replace(runs=runs)

    def default(self, node: Node, operator: str, inside: Layer | None) -> Piece:
        """The text behind the operator of `${NAME:-text}`."""
        children = node.children
        at = next(
            (i for i, child in enumerate(children) if child.type == operator or child.type in (operator, "=")), -1
        )
        at = next(
            (i for i, child in enumerate(children) if self.source.text[child.start_byte : child.end_byte] == operator),
            at,
        )
        begin, stop = children[at].end_byte, node.end_byte - 1
        inner = [child for child in children[at + 1 : -1] if child.is_named]
        if len(inner) == 1 and inside is not None and inner[0].type == "string":
            whole = self.pieces(inner[0], inside)
            if len(whole) == 1:
                return whole[0]
        runs: Runs = ()
        place = begin
        for child in inner:
            if child.start_byte > place:
                runs += self._default_literal(place, child.start_byte, inside)
            for piece in self._default_pieces(child, inside):
                if piece.items is not None and len(inner) == 1:
                    return piece
                runs += _joined(piece.items) if piece.items is not None else piece.runs
            place = child.end_byte
        if stop > place or not inner:
            runs += self._default_literal(place, stop, inside)
        quoted_whole = len(inner) == 1 and inner[0].type in ("string", "raw_string", "ansi_c_string")
        return Piece(runs, inside is None and not quoted_whole)

    def _default_pieces(self, child: Node, inside: Layer | None) -> list[Piece]:
        if child.type in ("word", "number") or not child.child_count:
            if child.type not in ("raw_string", "ansi_c_string"):
                return [Piece(self._default_literal(child.start_byte, child.end_byte, inside))]
            return self.pieces(child, None)
        if child.type == "concatenation":
            return [piece for part in child.children for piece in self._default_pieces(part, inside)]
        return self.pieces(child, inside)

    def _default_literal(self, start: int, end: int, inside: Layer | None) -> Runs:
        runs = self.literal(start, end, inside or "default")
        if inside is None:
            return runs
        return tuple([run._replace(layers=("default", *run.layers)) for run in runs])

    def held(self, name: str) -> Held | None:
        """What a variable holds; None where the script never assigned it."""
        return self.state.held.get(name)

    def parameter(  # noqa: C901, PLR0911, PLR0912 - one return a kind of parameter
        self, name: str, index: str | None, node: Node, inside: Layer | None, site: tuple[int, int]
    ) -> Piece:
        """The value of a variable, an argument or an array."""
        start, end = node.start_byte, node.end_byte
        layers: tuple[Layer, ...] = (inside or "bare", *self.source.layers_at(start))
        if name in ("@", "*"):
            if self.state.arguments is None:
                reason = Unknown("from-arguments", "it is an argument of the script", True)
                return Piece((unknown_run(reason, site),))
            if name == "*" and inside:
                return Piece(_joined(self.state.arguments))
            return Piece((), inside is None, self.state.arguments)
        if name.isdigit():
            if name != "0" and self.state.arguments is not None:
                place = int(name) - 1
                if place < len(self.state.arguments):
                    word = self.state.arguments[place]
                    size = len(word.text)
                    via = Via(f"${name}", *site, layers, size)
                    return Piece(tuple([run._replace(via=(*run.via, via)) for run in word.runs]), inside is None)
                return (
                    Piece((), inside is None)
                    if not any(w.many for w in self.state.arguments)
                    else self.unknown(
                        "from-arguments", f"it is argument {name} of a function", start, end, many=inside is None
                    )
                )
            return self.unknown(
                "from-arguments", f"it is argument {name} of the script", start, end, many=inside is None
            )
        if not name.isidentifier():
            return self.unknown("computed", f"it is ${name}", start, end)
        held = self.held(name)
        if held is None:
            where = (
                f"{name} is set in {self.state.sourced[-1]}"
                if self.state.sourced
                else (f"{name} comes from the environment of whoever runs the file")
            )
            return self.unknown("not-in-file", where, start, end, many=inside is None)
        if held.array is not None:
            if index is None and held.array:
                index = "[0]"
            if index in ("[@]", "[*]"):
                via = Via(name, -1, -1, layers, -1)
                items = tuple(
                    [
                        word._replace(runs=tuple([run._replace(via=(*run.via, via)) for run in word.runs]))
                        for word in held.array
                    ]
                )
                if index == "[*]" and inside:
                    return Piece(_joined(items))
                return Piece((), inside is None, items)
            if index and index[1:-1].isdigit() and not any(word.many or word.conditional for word in held.array):
                place = int(index[1:-1])
                if place < len(held.array):
                    via = Via(name, *site, layers, len(held.array[place].text))
                    return Piece(tuple([r._replace(via=(*r.via, via)) for r in held.array[place].runs]), inside is None)
            return self.unknown(
                "loop-table", f"it is an element of {name} chosen at run time", start, end, many=inside is None
            )
        if index not in (None, "[@]", "[*]", "[0]"):
            return self.unknown("computed", f"it is an element of {name}", start, end, many=inside is None)
        if len(held.options) == 1:
            runs = held.options[0]
            via = Via(name, *site, layers, sum(len(run.text) for run in runs))
            return Piece(tuple([_split_or_not(run, via, many=inside is None) for run in runs]), inside is None)
        if inside is None:
            chosen = _alternatives(held, name, site, layers)
            if chosen is not None:
                return Piece((), split=True, items=chosen)
        return self.unknown("several-values", f"{name} is assigned in several places under conditions", start, end)


def _bounded(size: int) -> None:
    """A variable that doubles itself line by line would not fit into memory."""
    if size > _MOST:
        raise ScriptUnreadable("does-not-parse", "A variable grows beyond what can be followed.", "Edit it by hand.")


def _split_or_not(run: Run, via: Via, *, many: bool) -> Run:
    """A run that a variable brings: what is not known is one word between quotes, and any number without."""
    unknown = run.unknown._replace(many=many) if run.unknown else None
    return run._replace(via=(*run.via, via), unknown=unknown)


def _alternatives(held: Held, name: str, site: tuple[int, int], layers: tuple[Layer, ...]) -> tuple[Word, ...] | None:
    """The words of every text that a variable may hold, for flags chosen by branches; None: it holds no flags."""
    if not any("-" in plain(option) for option in held.options):
        return None
    out: list[Word] = []
    blank = Word((), site, layers, "command", 0)
    via = Via(name, -1, -1, layers, -1)
    for option in held.options:
        runs = tuple([run._replace(conditional=True, via=(*run.via, via)) for run in option])
        out += _assemble([Piece(runs, split=True), Piece((), split=True)], blank)
    return tuple(out)


def _joined(items: tuple[Word, ...]) -> Runs:
    """Words put together with blanks, as `$*` does."""
    out: list[Run] = []
    for i, word in enumerate(items):
        if i:
            out.append(Run(" ", -1, -1, (), (-1, -1)))
        out += word.runs
    return tuple(out)


def _assemble(pieces: list[Piece], here: Word) -> list[Word]:  # noqa: C901 - the shell's rules of splitting, in one place
    """Fields out of pieces, split where the shell splits."""
    out: list[Word] = []
    current: Runs = ()
    open_ = False
    alone = len(pieces) == 1

    def close() -> None:
        nonlocal current, open_
        if open_:
            out.append(here._replace(runs=current))
        current, open_ = (), False

    for piece in pieces:
        if piece.items is not None:
            for i, word in enumerate(piece.items):
                if i:
                    close()
                if not open_ and not current and (i < len(piece.items) - 1 or alone or piece is pieces[-1]):
                    out.append(word)
                    current, open_ = (), False
                    continue
                current += word.runs
                open_ = True
        elif piece.split:
            whole = plain(piece.runs)
            parts = [(m.start(), m.end()) for m in re.finditer(r"[^ \t\n]+", whole)]
            if whole[:1] in _BLANKS and whole:
                close()
            for i, (a, b) in enumerate(parts):
                if i:
                    close()
                runs = tuple([_as_field(run) for run in cut(piece.runs, a, b)])
                if len(parts) > 1:
                    runs = tuple([run._replace(via=tuple([via._replace(start=-1) for via in run.via])) for run in runs])
                if (len(parts) > 1 or (alone and whole[a : a + 1] == "-")) and not current and (i or not open_):
                    glued = i == len(parts) - 1 and piece is not pieces[-1] and whole[-1:] not in _BLANKS
                    if not glued:
                        out.append(_loose(here, runs))
                        current, open_ = (), False
                        continue
                current += runs
                open_ = True
            if parts and whole[-1:] in _BLANKS:
                close()
        else:
            current += piece.runs
            open_ = True
    close()
    return out


def _as_field(run: Run) -> Run:
    if run.unknown or run.layers[:1] == ("fields",):
        return run
    return run._replace(layers=("fields", *run.layers))


def _loose(here: Word, runs: Runs) -> Word:
    """A word out of a text that the shell splits: it stands in that text, not in the command."""
    starts = [run.start for run in runs]
    if min(starts) < 0 or any(run.unknown for run in runs):
        return here._replace(runs=runs, site=(-1, -1) if len(runs) > 1 else here.site)
    return Word(runs, (runs[0].start, runs[-1].end), runs[0].layers, "fields", runs[0].outer[0])


def adjacent(nodes: list[Node], source: Source) -> list[list[Node]]:
    """Nodes in groups: those that a backslash and a line end glue together form one word."""
    out: list[list[Node]] = []
    for node in nodes:
        if node.type == "comment":
            continue
        if out:
            gap = source.text[out[-1][-1].end_byte : node.start_byte]
            if gap in ("\\\n", "\\\n\\\n"):
                out[-1].append(node)
                continue
        out.append([node])
    return out
