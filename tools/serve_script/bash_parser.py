"""The grammar of the shell: tree-sitter's, one for the whole process."""

from __future__ import annotations

from functools import lru_cache
from threading import Lock

import tree_sitter
import tree_sitter_bash
from tree_sitter import Node

_LONG = 4096
"""Bytes from which a text is worth remembering: a shorter one is parsed in less than a millisecond."""


class Parser:
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
def parser() -> Parser:
    """The one parser."""
    return Parser()
