"""Cut words out of a file and put words into it, the way a person would."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from tools.serve_script.launches import Variable, Word
from tools.serve_script.text import CannotWrite, Layer, as_scalar, write


class Splice(NamedTuple):
    """Characters of the file that give way to others."""

    start: int
    end: int
    text: str

    def apply(self, content: str) -> str:
        """The file afterwards."""
        return content[: self.start] + self.text + content[self.end :]


def line_around(content: str, start: int, end: int) -> tuple[int, int]:
    """Offsets of the lines that a stretch lies on, the last line end included."""
    low = content.rfind("\n", 0, start) + 1
    high = content.find("\n", max(start, end - 1) if end > start and content[end - 1] == "\n" else end)
    return low, len(content) if high < 0 else high + 1


# ------------------------------------------------------------------------------------------------ taking out


def remove_words(content: str, words: Sequence[Word], before: Word | None, after: Word | None) -> Splice | None:
    """Take adjacent words out; None: they do not stand together.

    Args:
        content: The file.
        words: The words, in order, all of one container.
        before: The word before them in the same container.
        after: The word behind them in the same container.
    """
    first, last = words[0], words[-1]
    start, end = first.site[0], last.site[1]
    if start < 0 or end < start or any(w.container != first.container or w.owner != first.owner for w in words):
        return None
    if first.container == "config":
        return Splice(*line_around(content, start, end), "")
    between = content[start:end]
    if first.container in ("sequence", "json"):
        return _remove_items(content, first, start, end)
    if any(w.layers != first.layers for w in words):
        return None
    low, high = line_around(content, start, end)
    head, tail = content[low:start], content[end:high]
    bare_tail = tail.rstrip("\r\n")
    whole = not head.strip()
    comment = bool(re.match(r"[ \t]+#", tail)) and first.container in ("array", "config")
    goes_on = bare_tail.strip() == "\\"
    lined = first.container in ("array", "supervisord", "config", "fields")
    if whole and (comment or goes_on or (lined and not bare_tail.strip())):
        return Splice(low, high, "")
    if (
        before is not None
        and before.owner == first.owner
        and before.container == first.container
        and 0 <= before.site[1] <= start
    ):
        gap = content[before.site[1] : start]
        if "#" not in gap and not re.search(r"[\"'$]", gap):
            return Splice(before.site[1], end, "")
    if after is not None and after.owner == first.owner and after.container == first.container and after.site[0] >= end:
        gap = content[end : after.site[0]]
        if "#" not in gap and not re.search(r"[\"'$]", gap):
            return Splice(start, after.site[0], "")
    while start > 0 and content[start - 1] in " \t":
        start -= 1
    if start == first.site[0] or content[start - 1 : start] in "\n(":
        start = first.site[0]
        while end < len(content) and content[end] in " \t":
            end += 1
    return Splice(start, end, "") if between else None


def _remove_items(content: str, first: Word, start: int, end: int) -> Splice:
    if first.container == "sequence":
        low, high = line_around(content, start, end)
        return Splice(low, high, "")
    match = re.compile(r"[ \t]*,[ \t]*(?:\r?\n[ \t]*)?").match(content, end)
    if match:
        return Splice(start, match.end(), "")
    back = re.compile(r",[ \t\r\n]*\Z").search(content, 0, start)
    return Splice(back.start() if back else start, end, "")


def remove_statement(content: str, start: int, end: int) -> Splice:
    """Take a statement out of a shell script; where a block would be left empty, a `:` stays."""
    low, high = line_around(content, start, end)
    head, tail = content[low:start], content[end:high].rstrip("\r\n")
    if not head.strip() and re.fullmatch(r"[ \t]*;?[ \t]*(?:#.*)?", tail):
        above = content[:low].rstrip().rsplit("\n", 1)[-1].strip()
        below = content[high:].lstrip().split("\n", 1)[0].strip()
        opens = re.search(r"(?:^|[\s;])(?:then|do|else|\{|\()$|\)$", above)
        closes = re.match(r"(?:fi|done|else|elif|esac|\}|\)|;;)", below)
        return Splice(start, end, ":") if opens and closes else Splice(low, high, "")
    following = re.compile(r"[ \t]*;[ \t]*(?=[^\s;#])").match(content, end)
    if following and not re.search(r"(?:then|do|else|\{|&&|\|\|)[ \t]*$", head):
        return Splice(start, following.end(), "")
    preceding = re.search(r";[ \t]*$", head)
    if preceding and not re.search(r"(?:then|do|else|\{)\s*;?[ \t]*$", head) and re.fullmatch(r"[ \t]*(?:#.*)?", tail):
        return Splice(low + preceding.start(), end, "")
    return Splice(start, end, ":")


def remove_variable(content: str, variable: Variable) -> Splice | None:
    """Take an assignment out."""
    start, end = variable.site
    if start < 0:
        return None
    if variable.form == "export":
        if variable.alone and variable.statement[0] >= 0:
            return remove_statement(content, *variable.statement)
    elif variable.form in ("line", "unit", "map", "list", "entry") and variable.alone and variable.statement[0] >= 0:
        return Splice(*line_around(content, *variable.statement), "")
    elif variable.form in ("supervisord", "map", "list", "entry"):
        match = re.compile(r"[ \t]*,[ \t]*(?:\r?\n[ \t]*)?").match(content, end)
        if match:
            return Splice(start, match.end(), "")
        back = re.compile(r",[ \t\r\n]*\Z").search(content, 0, start)
        return Splice(back.start() if back else start, end, "")
    after = end
    while after < len(content) and content[after] in " \t":
        after += 1
    if variable.form in ("prefix", "env"):
        if content[after : after + 1] == "\\" and content[after + 1 : after + 2] == "\n":
            low, _ = line_around(content, start, end)
            if not content[low:start].strip():
                return Splice(low, after + 2, "")
        return Splice(start, after, "")
    low, high = line_around(content, start, end)
    if not content[low:start].strip() and re.fullmatch(r"[ \t]*\\\r?\n", content[end:high]):
        return Splice(low, high, "")
    before = start
    while before > 0 and content[before - 1] in " \t":
        before -= 1
    return Splice(before, end, "") if before < start and content[before - 1] not in "\n" else Splice(start, after, "")


# ------------------------------------------------------------------------------------------------ putting in


def write_words(words: Sequence[str], layers: Sequence[Layer]) -> str:
    """Words with blanks between them.

    Raises:
        CannotWrite: one of them cannot be said there.
    """
    return " ".join(write(word, layers) for word in words)


def insert_after(content: str, word: Word, words: Sequence[str], previous: Word | None) -> Splice | None:
    """Put words behind another, on a line of their own where its neighbours have one; None: it cannot be done there."""
    end = word.site[1]
    if end < 0:
        return None
    try:
        if word.container in ("sequence", "json"):
            return _insert_items(content, word, words)
        text = write_words(words, word.layers)
    except CannotWrite:
        return None
    low, high = line_around(content, word.site[0], end)
    group = previous if previous is not None and previous.site[0] >= low else word
    indent = content[low : group.site[0]]
    own_line = bool(indent) and not indent.strip() and low > 0
    newline = "\r\n" if content[low:high].endswith("\r\n") else "\n"
    tail = content[end:high].rstrip("\r\n")
    if own_line and word.container in ("array", "config") and re.fullmatch(r"[ \t]*(?:#.*)?", tail):
        return Splice(high, high, indent + text + newline) if high > end else Splice(end, end, newline + indent + text)
    if own_line and word.container == "command" and len(word.layers) == 1:
        return Splice(end, end, f" \\{newline}{indent}{text}")
    if own_line and word.container == "unit" and len(word.layers) <= 3:
        return Splice(end, end, f" \\{newline}{indent}{text}")
    if own_line and word.container == "supervisord":
        return Splice(end, end, f"{newline}{indent}{text}")
    return Splice(end, end, " " + text)


def _insert_items(content: str, word: Word, words: Sequence[str]) -> Splice:
    start, end = word.site
    outer = word.layers[1:] if word.layers[:1] in (("plain",), ("yaml-double",), ("yaml-single",)) else word.layers
    items = [as_scalar(write(text, outer)) for text in words]
    if word.container == "json":
        quoted = ['"' + write(text, ("yaml-double", *outer)) + '"' for text in words]
        if content[start : start + 1] not in "\"'":
            quoted = [
                item if not re.search(r"[,\[\]{}]", item.strip('"')) else quoted[i] for i, item in enumerate(items)
            ]
        return Splice(end, end, ", " + ", ".join(quoted))
    low, high = line_around(content, start, end)
    indent = re.match(r"[ \t]*", content[low:high])
    newline = "\r\n" if content[low:high].endswith("\r\n") else "\n"
    space = indent[0] if indent else ""
    text = "".join(f"{space}- {item}{newline}" for item in items)
    if high == len(content) and not content.endswith("\n"):
        return Splice(high, high, newline + text.removesuffix(newline))
    return Splice(high, high, text)
