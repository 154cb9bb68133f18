"""A disk that loses what was not synced: a trace of system calls -> every state that a power cut may leave behind.

The model: bytes of a file survive once the file is synced after they were written; a name survives once its folder is
synced after it was made, moved or taken away. Operations on names are atomic, as on any journalling file system. Of
what is not synced anything may be lost; the classes that are looked at are: all of it; all but a first part, for each
first part; and all bytes while the names are kept, which is what an ext4 with delayed allocation is known for.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

CALLS = (
    "openat,write,pwrite64,ftruncate,fsync,fdatasync,rename,renameat,renameat2,link,linkat,unlink,unlinkat,mkdir,"
    "mkdirat,rmdir"
)
_LINE = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) = (\d+)(?:<.*)?$")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_FD = re.compile(r"\d+<((?:\\x[0-9a-f]{2})*)>")

Image = Mapping[str, bytes | None]
"""Files by path with their bytes; None: a folder."""


class Effect(NamedTuple):
    """One thing that a program did to the disk."""

    kind: str
    """write, cut, sync, make (a file), folder, move, exchange, link or drop."""
    path: str
    """Of what; for `sync` a file or a folder."""
    other: str = ""
    """Where to, for `move`, `exchange` and `link`."""
    data: bytes = b""
    """What was written."""
    at: int = -1
    """Where it was written, or how long the file is afterwards; -1: at the end."""


def traced(argv: Sequence[str], stdin: bytes, below: Sequence[str], into: Path) -> tuple[bytes, list[Effect]]:
    """Run a program under strace; return what it printed and what it did to files below some folders.

    Raises:
        RuntimeError: it could not be traced.
    """
    command = ["strace", "-qq", "-y", "-xx", "-s", "100000000", "-e", f"trace={CALLS}", "-o", str(into), *argv]
    done = subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=120)
    if not done.stdout:
        raise RuntimeError(f"nothing came of {argv}: {done.stderr.decode(errors='replace')}")
    effects = [
        effect
        for line in into.read_text(encoding="ascii").splitlines()
        for effect in _effects(line)
        if any(effect.path.startswith(folder) for folder in below)
    ]
    return done.stdout, effects


def _effects(line: str) -> Iterator[Effect]:
    found = _LINE.match(line)
    if found is None:
        return
    call, said, result = found[1], found[2], int(found[3])
    texts = [_plain(text) for text in _TEXT.findall(said)]
    held = [_plain(text).decode() for text in _FD.findall(said)]
    if call == "openat":
        if "O_CREAT" in said:
            yield Effect("make", texts[0].decode())
        if "O_TRUNC" in said:
            yield Effect("cut", texts[0].decode(), at=0)
    elif call == "write" and held:
        yield Effect("write", held[0], data=texts[0][:result] if texts else b"")
    elif call == "pwrite64":
        yield Effect("write", held[0], data=texts[0][:result], at=int(said.rsplit(", ", 1)[1]))
    elif call == "ftruncate":
        yield Effect("cut", held[0], at=int(said.rsplit(", ", 1)[1]))
    elif call in {"fsync", "fdatasync"}:
        yield Effect("sync", held[0])
    elif call.startswith("rename"):
        kind = "exchange" if "RENAME_EXCHANGE" in said else "move"
        yield Effect(kind, texts[0].decode(), texts[1].decode())
    elif call.startswith("link"):
        yield Effect("link", texts[0].decode(), texts[1].decode())
    elif call.startswith("unlink") or call == "rmdir":
        yield Effect("drop", texts[0].decode())
    elif call.startswith("mkdir"):
        yield Effect("folder", texts[0].decode())


def _plain(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", ""))


class _State:
    """Names and bytes while effects are applied to them."""

    def __init__(self, image: Image) -> None:
        self.names: dict[str, int | None] = {}
        self.bytes: dict[int, bytearray] = {}
        self._next = 0
        for path, content in image.items():
            self.names[path] = None if content is None else self._inode(content)

    def _inode(self, content: bytes) -> int:
        self._next += 1
        self.bytes[self._next] = bytearray(content)
        return self._next

    def name(self, effect: Effect) -> None:
        """Apply an effect on names."""
        path, other = effect.path, effect.other
        if effect.kind == "make":
            self.names.setdefault(path, self._inode(b""))
        elif effect.kind == "folder":
            self.names.setdefault(path, None)
        elif effect.kind == "drop":
            self.names.pop(path, None)
        elif effect.kind == "move":
            self.names[other] = self.names.pop(path)
        elif effect.kind == "exchange":
            self.names[path], self.names[other] = self.names[other], self.names[path]
        elif effect.kind == "link":
            self.names[other] = self.names[path]

    def image(self, bytes_of: Mapping[int, bytes]) -> dict[str, bytes | None]:
        """Names with the bytes that are given for their files."""
        return {path: None if inode is None else bytes_of.get(inode, b"") for path, inode in self.names.items()}


class _Step(NamedTuple):
    effect: Effect
    inode: int | None
    """The file that it is about, as the running system saw it."""
    folders: frozenset[str]
    """Folders whose names it changes."""


def images(start: Image, effects: Sequence[Effect], crash: int) -> dict[str, Image]:
    """What a power cut just after so many effects may leave, by the class of what was lost; equal ones come once.

    Args:
        start: The disk before, all of it synced.
        effects: What was done.
        crash: How many of the effects came before the cut.
    """
    steps = _understood(start, effects[:crash])
    safe = _safe(steps)
    pending = [at for at in range(len(steps)) if at not in safe and steps[at].effect.kind != "sync"]
    kept: dict[str, set[int]] = {"nothing kept": set()}
    for length in range(1, len(pending) + 1):
        kept[f"first {length} of {len(pending)} kept"] = set(pending[:length])
    kept["names kept, bytes lost"] = {at for at in pending if steps[at].effect.kind not in {"write", "cut"}}
    found: dict[str, Image] = {}
    for label, more in kept.items():
        image = _replayed(start, steps, safe | more)
        if image not in found.values():
            found[label] = image
    return found


def _understood(start: Image, effects: Sequence[Effect]) -> list[_Step]:
    state = _State(start)
    steps = []
    for effect in effects:
        folders = frozenset[str]()
        if effect.kind in {"make", "folder", "drop", "move", "exchange", "link"}:
            known = effect.kind == "make" and effect.path in state.names
            state.name(effect)
            named = [effect.path] if effect.kind != "link" else []
            named += [effect.other] if effect.other else []
            folders = frozenset() if known else frozenset(str(Path(path).parent) for path in named)
        inode = state.names.get(effect.path)
        if inode is not None and effect.kind in {"write", "cut"}:
            _poke(state.bytes[inode], effect)
        steps.append(_Step(effect, inode, folders))
    return steps


def _poke(content: bytearray, effect: Effect) -> None:
    if effect.kind == "cut":
        del content[effect.at :]
        content.extend(b"\0" * (effect.at - len(content)))
    elif effect.at < 0:
        content.extend(effect.data)
    else:
        content[effect.at : effect.at + len(effect.data)] = effect.data


def _safe(steps: Sequence[_Step]) -> set[int]:
    """Effects that were synced before the cut."""
    safe: set[int] = set()
    for number, step in enumerate(steps):
        if step.effect.kind != "sync":
            continue
        for at, earlier in enumerate(steps[:number]):
            bytes_synced = earlier.effect.kind in {"write", "cut"} and earlier.inode == step.inode is not None
            if bytes_synced or step.effect.path in earlier.folders:
                safe.add(at)
    # What changes a name rests on the changes of the same name before it: a journal keeps their order.
    names = [at for at, step in enumerate(steps) if step.folders]
    last = max((at for at in names if at in safe), default=-1)
    return (
        safe
        | {at for at in names if at <= last and _related(steps, at, safe)}
        | {at for at, step in enumerate(steps) if step.effect.kind in {"make", "folder"} and not step.folders}
    )


def _related(steps: Sequence[_Step], at: int, safe: set[int]) -> bool:
    """Whether a later change of a name that is safe touches a name of this one."""
    mine = {steps[at].effect.path, steps[at].effect.other} - {""}
    return any(
        later in safe and steps[later].folders and mine & {steps[later].effect.path, steps[later].effect.other}
        for later in range(at + 1, len(steps))
    )


def _replayed(start: Image, steps: Sequence[_Step], kept: set[int]) -> dict[str, bytes | None]:
    """The disk with those effects only."""
    state = _State(start)
    contents = {inode: bytes(content) for inode, content in state.bytes.items()}
    real = _State(start)
    pools = {inode: bytearray(content) for inode, content in contents.items()}
    for at, step in enumerate(steps):
        if step.effect.kind in {"make", "folder", "drop", "move", "exchange", "link"}:
            real.name(step.effect)
            if at in kept:
                _name_as(state, step, real)
        if at in kept and step.inode is not None and step.effect.kind in {"write", "cut"}:
            _poke(pools.setdefault(step.inode, bytearray()), step.effect)
    return state.image({inode: bytes(content) for inode, content in pools.items()})


def _name_as(state: _State, step: _Step, real: _State) -> None:
    """Apply a change of names, to the files that it was about when it happened."""
    path, other = step.effect.path, step.effect.other
    if step.effect.kind in {"make", "folder"}:
        state.names.setdefault(path, real.names[path])
    elif step.effect.kind == "drop":
        state.names.pop(path, None)
    elif step.effect.kind == "move":
        state.names.pop(path, None)
        state.names[other] = real.names[other]
    elif step.effect.kind == "exchange":
        state.names[path], state.names[other] = real.names[path], real.names[other]
    else:
        state.names[other] = real.names[other]
