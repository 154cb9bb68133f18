"""The settings that an engine prints at its start -> a flat mapping.

Both print Python: `ServerArgs(model_path='/m', cuda_graph_config=CudaGraphConfig(decode=...))`, `{'model': '/m', ...}`.
The text may be cut off or written over, so it is scanned and never evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_OPEN = {"(": ")", "[": "]", "{": "}"}
_NAME = re.compile(r"\s*(?:(?P<name>[A-Za-z_]\w*)\s*=(?!=)|(?P<quote>['\"])(?P<key>[^'\"]{1,200})(?P=quote)\s*:)\s*")
_NESTED = re.compile(r"(?:[A-Za-z_][\w.]*\((?=\s*[A-Za-z_]\w*\s*=)|\{\s*['\"])")
_SECRET = re.compile(r"(?:^|[._])(?:\w*api_key|\w*password|\w*secret|hf_token|\w*auth_token)$")
_DEEPEST = 4
MASK = "***"
"""What stands where a secret was."""


def read_settings(text: str) -> dict[str, str]:
    """Flatten a printed settings object.

    Returns:
        Value texts by dotted field name, quotes removed, lists as printed; fields that are None are left out, and
        values of fields that hold keys, passwords or tokens are masked.
    """
    settings: dict[str, str] = {}
    _collect(text, "", settings, 0)
    return settings


def _collect(text: str, prefix: str, settings: dict[str, str], depth: int) -> None:
    begin = min((at for at in (text.find("("), text.find("{")) if at >= 0), default=-1)
    for item in _items(text[begin + 1 :]):
        named = _NAME.match(item)
        if named is None:
            continue
        name = prefix + (named["name"] or named["key"])
        value = item[named.end() :].strip()
        if _NESTED.match(value) and depth < _DEEPEST:
            _collect(value, name + ".", settings, depth + 1)
        elif value not in ("None", ""):
            settings[name] = MASK if _SECRET.search(name) else _unquoted(value)


def _items(text: str) -> Iterator[str]:
    """Split at the commas of the outermost level, up to the bracket that closes it or the end of the text."""
    closers: list[str] = []
    quote = ""
    begin = 0
    position = 0
    while position < len(text):
        character = text[position]
        if quote:
            if character == "\\":
                position += 1
            elif character == quote:
                quote = ""
        elif character in "'\"":
            quote = character
        elif character in _OPEN:
            closers.append(_OPEN[character])
        elif character in ")]}":
            if not closers:
                break
            closers.pop()
        elif character == "," and not closers:
            yield text[begin:position]
            begin = position + 1
        position += 1
    if begin < position:
        yield text[begin:position]


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value
