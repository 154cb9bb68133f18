"""The scalars of a YAML document as text that knows its place in the file."""

from __future__ import annotations

import re

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from tools.serve_script.refusals import ScriptUnreadable
from tools.serve_script.text import OPAQUE, Layer, Run, Runs, Unknown

_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "\\": "\\",
    '"': '"',
    "/": "/",
    "0": "\0",
    "e": "\x1b",
    " ": " ",
    "a": "\a",
    "b": "\b",
}


class Document:
    """The nodes of a YAML file, and where each of their characters is written."""

    def __init__(self, content: bytes) -> None:
        try:
            self.text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ScriptUnreadable(
                "does-not-parse", f"The file is not UTF-8 (byte {error.start}).", "Convert it first."
            ) from None
        self.content = content
        line: int | None
        self.raw = content.decode("latin-1")
        self._ascii = len(self.text) == len(content)
        self._bytes: list[int] = []
        if not self._ascii:
            at = 0
            for character in self.text:
                self._bytes.append(at)
                at += len(character.encode())
            self._bytes.append(at)
        try:
            self.roots = [node for node in yaml.compose_all(self.text, Loader=yaml.SafeLoader) if node is not None]
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = mark.line + 1 if mark else None
            if re.search(r"\{\{.*?\}\}|\{%", self.text):
                first = next((i for i, row in enumerate(self.text.splitlines(), 1) if "{{" in row or "{%" in row), line)
                raise ScriptUnreadable(
                    "template",
                    f"Line {first} is a template: the file is not YAML until another program fills it in.",
                    "Change the values that fill it in.",
                    line=first,
                ) from None
            raise ScriptUnreadable(
                "does-not-parse",
                f"Line {line} is not YAML: {getattr(error, 'problem', error)}.",
                "Repair it first.",
                line=line,
            ) from None

        self._flow: set[int] = set()
        self._visited: set[tuple[int, bool]] = set()
        for root in self.roots:
            self._find_flow(root, inside=False)

    def _find_flow(self, node: Node, *, inside: bool) -> None:
        if (id(node), inside) in self._visited:
            return
        self._visited.add((id(node), inside))
        if isinstance(node, ScalarNode):
            if inside:
                self._flow.add(id(node))
            return
        inside = inside or bool(getattr(node, "flow_style", False))
        for item in node.value:
            for part in item if isinstance(item, tuple) else (item,):
                self._find_flow(part, inside=inside)

    def at(self, index: int) -> int:
        """Offset in the file's bytes of a character."""
        return index if self._ascii else self._bytes[min(index, len(self._bytes) - 1)]

    def extent(self, node: Node) -> tuple[int, int]:
        """Extent of a node in the file, trailing line ends left out."""
        start, end = self.at(node.start_mark.index), self.at(node.end_mark.index)
        while end > start and self.raw[end - 1] in " \t\r\n":
            end -= 1
        return start, end

    def runs(self, node: Node, *, string: bool) -> Runs:
        """The text of a scalar; unknown where it is written in a way that cannot be followed.

        Args:
            node: The scalar.
            string: It has to stay a string, whatever is written there.
        """
        start, end = self.extent(node)
        if not isinstance(node, ScalarNode):
            return (Run(OPAQUE, start, end, (), (start, end), (), Unknown("computed", "it is no scalar")),)
        value = node.value.encode("utf-8", "surrogatepass").decode("latin-1")
        if "{{" in value:
            return (
                Run(
                    OPAQUE, start, end, (), (start, end), (), Unknown("template", "it is filled in by another program")
                ),
            )
        out = self._scalar(node, start, end, "flow" if id(node) in self._flow else "string" if string else "plain")
        if "".join(run.text for run in out) != value:
            return (
                Run(
                    OPAQUE,
                    start,
                    end,
                    (),
                    (start, end),
                    (),
                    Unknown("computed", "it is written over several lines of YAML"),
                ),
            )
        return out

    def _scalar(self, node: ScalarNode, start: int, end: int, plain: Layer) -> Runs:
        text = self.raw[start:end]
        if node.style in ("|", ">"):
            return self._block(node)
        if "\n" in text:
            return self._folded(text, start, node.style)
        if node.style == '"':
            return self._double(text[1:-1], start + 1, (start, end))
        if node.style == "'":
            return self._single(text[1:-1], start + 1, (start, end))
        return (Run(text, start, end, (plain,), (start, end)),)

    def _double(self, text: str, at: int, outer: tuple[int, int]) -> Runs:
        out: list[Run] = []
        begin = i = 0
        while i < len(text):
            if text[i] != "\\" or i + 1 >= len(text):
                i += 1
                continue
            if i > begin:
                out.append(Run(text[begin:i], at + begin, at + i, ("yaml-double",), outer))
            if text[i + 1] not in _ESCAPES:
                return ()
            out.append(Run(_ESCAPES[text[i + 1]], at + i, at + i + 2, ("yaml-double",), outer))
            i += 2
            begin = i
        if i > begin or not out:
            out.append(Run(text[begin:i], at + begin, at + i, ("yaml-double",), outer))
        return tuple(out)

    def _single(self, text: str, at: int, outer: tuple[int, int]) -> Runs:
        out: list[Run] = []
        begin = 0
        for match in re.finditer("''", text):
            if match.start() > begin:
                out.append(Run(text[begin : match.start()], at + begin, at + match.start(), ("yaml-single",), outer))
            out.append(Run("'", at + match.start(), at + match.end(), ("yaml-single",), outer))
            begin = match.end()
        if len(text) > begin or not out:
            out.append(Run(text[begin:], at + begin, at + len(text), ("yaml-single",), outer))
        return tuple(out)

    def _folded(self, text: str, start: int, style: str | None) -> Runs:
        """A flow scalar over several lines: line ends become blanks."""
        quotes = 1 if style in ("'", '"') else 0
        layer: Layer = "yaml-double" if style == '"' else "yaml-single" if style == "'" else "block"
        body, at = text[quotes : len(text) - quotes], start + quotes
        out: list[Run] = []
        for i, match in enumerate(re.finditer(r"[^\n]+|\n", body)):
            if match[0] == "\n":
                continue
            piece = match[0].rstrip("\r")
            left = len(piece) - len(piece.lstrip()) if i else 0
            stop = len(piece.rstrip()) if match.end() < len(body) else len(piece)
            escaped = style == '"' and piece.rstrip().endswith("\\") and match.end() < len(body)
            stop = len(piece.rstrip()) - 1 if escaped else stop
            if out and not (out and out[-1].text == ""):
                out.append(Run(" ", -1, -1, (), (-1, -1)))
            if stop > left:
                low = at + match.start() + left
                out.append(Run(piece[left:stop], low, low + stop - left, (layer,), (low, low + stop - left)))
            if escaped:
                out.append(Run("", -1, -1, (), (-1, -1)))
        return tuple(run for run in out if run.text)

    def _block(self, node: ScalarNode) -> Runs:
        """A block scalar: indentation goes, and in a folded one single line ends become blanks."""
        start, end = self.at(node.start_mark.index), self.at(node.end_mark.index)
        head = self.raw.find("\n", start) + 1
        lines: list[tuple[int, str]] = []
        at = head
        while at < end:
            stop = self.raw.find("\n", at, end)
            stop = end if stop < 0 else stop + 1
            lines.append((at, self.raw[at:stop]))
            at = stop
        indents = [len(line) - len(line.lstrip(" ")) for _, line in lines if line.strip()]
        explicit = re.match(r"[|>][+-]?([1-9])", self.raw[start:head])
        indent = min(indents) if indents else 0
        if explicit:
            indent = max(indent, 0)
        out: list[Run] = []
        size = len(node.value.encode("utf-8", "surrogatepass"))
        made = 0
        folded = node.style == ">"
        bodies = [
            (at + min(indent, len(line)), line[indent:].rstrip("\r\n") if line.strip() else "") for at, line in lines
        ]
        for i, (at, body) in enumerate(bodies):
            if body:
                out.append(Run(body, at, at + len(body), ("block",), (at, at + len(body))))
                made += len(body)
            line_end = at + len(body)
            following = bodies[i + 1][1] if i + 1 < len(bodies) else None
            if made >= size:
                break
            if not folded:
                out.append(Run("\n", line_end, line_end + 1, ("block",), (line_end, line_end + 1)))
                made += 1
                continue
            more = body[:1] in " \t" or (following or "")[:1] in (" ", "\t")
            if body and following and not more:
                out.append(Run(" ", line_end, line_end + 1, ("block",), (line_end, line_end + 1)))
                made += 1
            elif not body or following is None or more or not any(b for _, b in bodies[i + 1 :]):
                out.append(Run("\n", line_end, line_end + 1, ("block",), (line_end, line_end + 1)))
                made += 1
        return tuple(out)


def entries(node: Node | None) -> list[tuple[str, Node, Node]]:
    """The keys and values of a mapping, merged ones first."""
    if not isinstance(node, MappingNode):
        return []
    out: list[tuple[str, Node, Node]] = []
    for key, value in node.value:
        if isinstance(key, ScalarNode) and key.tag == "tag:yaml.org,2002:merge":
            for merged in value.value if isinstance(value, SequenceNode) else [value]:
                out += entries(merged)
    for key, value in node.value:
        if isinstance(key, ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
            out.append((key.value, key, value))
    return out


def member(node: Node | None, name: str) -> Node | None:
    """The value of a key; the mapping's own wins over a merged one."""
    found = [value for key, _, value in entries(node) if key == name]
    return found[-1] if found else None


def is_null(node: Node | None) -> bool:
    """Whether there is nothing."""
    return node is None or (isinstance(node, ScalarNode) and node.tag == "tag:yaml.org,2002:null")


__all__ = ["Document", "MappingNode", "Node", "ScalarNode", "SequenceNode", "entries", "is_null", "member"]
