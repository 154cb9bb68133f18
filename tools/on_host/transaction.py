"""The sole writer on a worker's machine: one file, standard library only, Python 3.10 or newer.

    python -I -S -B transaction.py VERB  < request.json  > answer.json

Request and answer are one JSON object each. An answer is `{"ok": true, ...}` with exit status 0 or
`{"ok": false, "kind": "...", "says": "...", ...}` with status 1. Every request names `directory` (Prudent's own,
absolute) and `worker`, and may say how many seconds to `wait` for the worker's lock. An optional `seal` is the SHA-256
of the rest of the object in canonical JSON; an answer always has one, and `to` repeats the seal of the request, so that
neither a garbled nor a foreign answer passes for ours.

    lease release observe status                        who may write, and how things stand
    open step renew commit undo abandon                 one transaction, from the approval to its named end
    doctor                                              what this user may do here, and what is missing
    watch DIRECTORY WORKER                              the watchdog: started by `open` or at boot, not by people

What holds, whatever is killed and whenever (the names are those of `design.md`, laws 1, 2, 3, 4, 5 and 9):

- All verbs but `observe` hold the worker's lock while they work. The journal is the truth: append-only lines, each with
  a checksum that covers the line before it; an answer is given only after what it says has been synced.
- The undo of a step lies on the disk before the step begins. A command of the service is spawned behind a gate and is
  let through only once its process identity is on the disk, so that whoever comes after a crash can wait for it.
- The script is replaced by exchanging two names atomically; what comes out is hashed, and is put back if it is not what
  the approval was given for. A foreign edit can therefore slip in at no instant.
- The watchdog is started before the transaction is open, and ends only under the lock and with nothing left to watch.
  Where systemd may be used it is a unit of its own, so that no logout ends it; a boot unit stands as long as a
  transaction is open, so that a reboot does not either. `Restart=` of the worker's unit is disarmed meanwhile. All
  three are named in the journal before they are made, and gone before the transaction's end is written down.
- The service's commands see an environment of a few harmless variables, never the caller's keys.
- Leases and deadlines count on CLOCK_BOOTTIME and hold within one boot. The wall clock is written down for people only.

Files, all below `directory`, folders 0700 and files 0600: `spent/DIGEST` (one an approval, for the whole host) and for
each worker `workers/NAME/`: `lock`, `journal`, `lease`, `deadline`, `watchdog` (its pid; held locked while it lives),
`spare` (room for the journal on a full disk) and `saved/TRANSACTION/`: `old` and `new` (bytes), `plan`, `swap` (what
the script is exchanged with), `commands/` (identities of restart commands) and `output/` (what they printed).

Test seams, without effect unless set: PRUDENT_CRASH_AT=N kills this process with SIGKILL just before its Nth durable
action (each half of a write, each sync, rename, removal, command, and the answer itself is one), PRUDENT_TRACE=FILE
lists them there, PRUDENT_PAUSE_AT=ACTION=FILE makes FILE before the first action of that name and goes on once it is
gone, PRUDENT_DETACHED=1 leaves the units of the machine that runs the tests alone. They do not reach the watchdog and
the service.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import platform
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

Json = dict[str, Any]
Identity = tuple[str, int, int]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
STEP = re.compile(r"[A-Za-z0-9_-]{1,60}")
DIGEST = re.compile(r"[0-9a-f]{64}")
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)
LARGEST_SCRIPT = 4 * 1024 * 1024  # bytes; a launch file is some kilobytes
SPARE = 64 * 1024  # bytes; every line that an undo can write, many times over
ENDED = ("none", "committed", "undone", "abandoned")


class Refusal(Exception):
    """A named "no": `kind` for programs, the sentence for people, `more` for both."""

    def __init__(self, kind: str, says: str, **more: Any) -> None:
        super().__init__(says)
        self.kind = kind
        self.more = more


# --------------------------------------------------------------------------------------- time and processes


def now() -> float:
    """Seconds since boot, those asleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """The kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def stat_fields(pid: int) -> list[str] | None:
    """/proc/PID/stat from field 3 (the state) on; None: no such process, or only its remains."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else fields


def identity_of(pid: int) -> Identity | None:
    """Boot id, pid and start ticks (field 22 of /proc/PID/stat): equal only for the very same process."""
    fields = stat_fields(pid) if pid > 0 else None
    return None if fields is None else (boot_id(), pid, int(fields[19]))


def is_alive(identity: Sequence[Any]) -> bool:
    """Whether this very process runs."""
    return identity_of(int(identity[1])) == tuple(identity)


def started(ticks: int) -> float:
    """When a process started, in seconds since boot, from the ticks that /proc tells."""
    return ticks / os.sysconf("SC_CLK_TCK")


def pids() -> list[int]:
    """Every process that this user may see."""
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdecimal()]


def kin_of(pid: int) -> set[int]:
    """A process and all that descend from it."""
    parents = {other: int(fields[1]) for other in pids() if (fields := stat_fields(other)) is not None}
    kin = {pid} & parents.keys()
    while fresh := {child for child, parent in parents.items() if parent in kin} - kin:
        kin |= fresh
    return kin


def called(pid: int) -> str:
    """A process for people: its pid and its own name for itself."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        name = "gone"
    return f"pid {pid} ({name})"


def end(identity: Sequence[Any]) -> bool:
    """Kill this very process, whatever its pid may be used for meanwhile; False: it is not there, or not ours."""
    try:
        handle = os.pidfd_open(int(identity[1]))
    except OSError:
        return False
    try:
        if not is_alive(identity):
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def process_of(pid: int, names: Sequence[str] = (), words: Sequence[str] = ()) -> Json | None:
    """A process as itself shows it: identity, argv with secrets masked, and the variables that were asked for."""
    identity = identity_of(pid)
    if identity is None:
        return None
    shown: Json = {"boot_id": identity[0], "pid": pid, "start_ticks": identity[2], "argv": [], "environ": {}}
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        shown["argv"] = masked([word.decode(errors="replace") for word in argv], words)
        if names:
            pairs = (line.partition(b"=") for line in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
            environ = {key.decode(errors="replace"): value.decode(errors="replace") for key, _, value in pairs}
            shown["environ"] = {
                name: "***" if is_secret(name, words) else masked_text(environ[name], words)
                for name in names
                if name in environ
            }
    except OSError as error:
        shown["problem"] = f"{error.filename}: {error.strerror}"
    return shown if identity_of(pid) == identity else None


def identity_in(process: Mapping[str, Any] | None) -> Identity | None:
    """The identity within what `process_of` answered."""
    return None if process is None else (str(process["boot_id"]), int(process["pid"]), int(process["start_ticks"]))


def sockets(port: int, *, listening: bool) -> set[str]:
    """The links in /proc/PID/fd of TCP sockets that listen on a port, or that are connected to one elsewhere."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                words = line.split()
                end_of, state = (words[1], "0A") if listening else (words[2], "01")
                if words[3] == state and int(end_of.rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{words[9]}]")
    return found


def holders(links: set[str], among: Sequence[int] | None = None) -> list[int]:
    """Pids that hold one of some sockets, as far as this user may see them."""
    found = []
    for pid in (pids() if among is None else among) if links else ():
        with contextlib.suppress(OSError):
            if any(str(link.readlink()) in links for link in Path(f"/proc/{pid}/fd").iterdir()):
                found.append(pid)
    return sorted(found)


def listeners(port: int) -> list[int]:
    """Pids that hold a listening TCP socket on a port, as far as this user may see them."""
    return holders(sockets(port, listening=True))


# -------------------------------------------------------------------------------------------------- secrets

SECRET_WORDS = frozenset(
    {"key", "apikey", "token", "secret", "password", "passwd", "credential", "credentials", "authorization"}
)


def is_secret(name: str, words: Sequence[str] = ()) -> bool:
    """Whether a flag's or variable's name says that its value is secret.

    Names are cut at dashes, underscores and dots, so that `--max-total-tokens` and `--tokenizer-path` stay readable.
    """
    parts = re.split(r"[-_.]+", name.lower().strip("-"))
    return any(part in SECRET_WORDS or part in words for part in parts)


def masked_text(text: str, words: Sequence[str] = ()) -> str:
    """A text without URL credentials, bearer words, values of secret names (`name=X`, `"name": "X"`, `--name X`)."""
    text = re.sub(r"(\w+://)[^/@\s'\"]+@", r"\1***@", text)
    text = re.sub(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}", r"\1 ***", text)
    secret = "|".join(map(re.escape, sorted({*SECRET_WORDS, *words})))
    name = rf"(?:[A-Za-z0-9]+[-_.])*(?:{secret})(?:[-_.][A-Za-z0-9]+)*"
    value = r"\"[^\"]*\"|'[^']*'|[^\s,;}]+"
    return re.sub(rf"(?i)((?<![A-Za-z0-9]){name}[\"']?\s*[=:]\s*|(?<!\S)--{name}\s+)({value})", r"\1***", text)


def masked(argv: Sequence[str], words: Sequence[str] = ()) -> list[str]:
    """An argv without secrets: `--api-key X`, `--api-key=X`, `A_TOKEN=X`, URL credentials, also within a word."""
    shown: list[str] = []
    hide = False
    for word in argv:
        if hide and not word.startswith("--"):
            shown.append("***")
            hide = False
            continue
        flag, equals, _ = word.partition("=")
        if equals and re.fullmatch(r"-{0,2}[\w.-]+", flag) and is_secret(flag, words):
            shown.append(flag + "=***")
        else:
            shown.append(masked_text(word, words) if not word.startswith("-") or "=" in word else word)
        hide = word.startswith("-") and not equals and is_secret(word, words)
    return shown


# ----------------------------------------------------------------------------------------------------- disk


class Disk:
    """Every durable action, and the seams that tests use to stop between two of them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.crash_at = int(environ.get("PRUDENT_CRASH_AT") or 0)
        self.trace = environ.get("PRUDENT_TRACE")
        self.pause, _, self.pause_file = (environ.get("PRUDENT_PAUSE_AT") or "").partition("=")
        self.count = 0
        libc = ctypes.CDLL(None, use_errno=True)
        self.renameat2 = getattr(libc, "renameat2", None)

    def mark(self, action: str, path: Path | str = "") -> None:
        """Stand just before a durable action."""
        self.count += 1
        if self.trace:
            with Path(self.trace).open("a", encoding="utf-8") as trace:
                trace.write(f"{self.count} {action} {path}\n")
        if action == self.pause:
            self.pause = ""
            flag = Path(self.pause_file)
            flag.touch()
            while flag.exists():
                time.sleep(0.005)
        if self.count == self.crash_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def sync(self, path: Path) -> None:
        """Make a file, or the names in a folder, durable."""
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.mark("sync", path)
            os.fsync(handle)
        finally:
            os.close(handle)

    def make(self, folder: Path) -> None:
        """Make a folder and those above it, for this user only."""
        if folder.is_dir():
            return
        self.make(folder.parent)
        self.mark("mkdir", folder)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        self.sync(folder.parent)

    def pour(self, handle: int, content: bytes, path: Path) -> None:
        """Write all bytes and sync them; under a crash seam in two halves, so that torn writes are met too."""
        half_way = len(content) // 2 if self.crash_at or self.trace else 0
        halves = [content[:half_way], content[half_way:]]
        for half in filter(None, halves):
            self.mark("write", path)
            rest = memoryview(half)
            while rest:
                rest = rest[os.write(handle, rest) :]
        self.mark("sync", path)
        os.fsync(handle)

    def draft(self, path: Path, content: bytes, dress: Callable[[int], None] | None = None) -> Path:
        """A complete and synced file under the working name `PATH.part`; `dress` sets its mode and owner."""
        part = path.with_name(path.name + ".part")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(part, flags, 0o600)
        try:
            if dress:
                dress(handle)
            self.pour(handle, content, part)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)
        return part

    def write(self, path: Path, content: bytes, dress: Callable[[int], None] | None = None) -> None:
        """Give a file this content, whole and durable, or leave it as it was."""
        part = self.draft(path, content, dress)
        self.mark("rename", path)
        part.replace(path)
        self.sync(path.parent)

    def claim(self, path: Path, content: bytes) -> bool:
        """Create a file with this content unless it exists: compare-and-set among all processes of the host."""
        part = self.draft(path.with_name(f"{path.name}.{os.getpid()}"), content)
        try:
            self.mark("link", path)
            os.link(part, path)
        except FileExistsError:
            return False
        finally:
            part.unlink(missing_ok=True)
        self.sync(path.parent)
        return True

    def remove(self, path: Path) -> None:
        """Take a file away, if it is there."""
        if path.exists() or path.is_symlink():
            self.mark("unlink", path)
            path.unlink(missing_ok=True)
            self.sync(path.parent)

    def point(self, link: Path, target: Path) -> None:
        """Make a symbolic link, unless there is one."""
        if not link.is_symlink():
            self.mark("symlink", link)
            with contextlib.suppress(FileExistsError):
                link.symlink_to(target)
            self.sync(link.parent)

    def exchange(self, one: Path, other: Path) -> bool:
        """Exchange two names atomically and durably; False: this file system or kernel cannot."""
        self.mark("exchange", other)
        if self.renameat2 is None:
            return False
        at_cwd, rename_exchange = -100, 2  # fcntl.h, linux/fs.h
        if self.renameat2(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), rename_exchange):
            number = ctypes.get_errno()
            if number in NO_EXCHANGE:
                return False
            raise OSError(number, os.strerror(number), str(other))
        self.sync(other.parent)
        self.sync(one.parent)
        return True


def private(path: Path) -> BinaryIO:
    """A new file for this user only, for what other programs say; nothing depends on it, so nothing syncs it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "wb")


def sha256(content: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(content).hexdigest()


def hash_of(path: Path) -> str | None:
    """SHA-256 of a file's bytes; None: there is none."""
    try:
        return sha256(path.read_bytes())
    except FileNotFoundError:
        return None


def canonical(document: Any) -> str:
    """JSON with sorted keys and no white space."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


# -------------------------------------------------------------------------------------------------- journal


class Transaction:
    """One transaction as the journal tells it."""

    def __init__(self, id_: str, opened: Json, token: int) -> None:
        self.id = id_
        self.opened = opened
        self.token = token
        self.state = "open"  # or undoing, or one of the ends: committed, undone, undo_failed, abandoned
        self.entries: list[Json] = []
        self.begun: dict[str, Json] = {}
        self.done: dict[str, Json] = {}
        self.failed: dict[str, Json] = {}

    def take(self, entry: Json) -> None:
        """Go on by one line."""
        self.entries.append(entry)
        event, detail, step = entry["event"], entry["detail"], entry["step"]
        if event in ("begun", "done", "failed") and step is not None:
            {"begun": self.begun, "done": self.done, "failed": self.failed}[event][step] = detail
        self.state = {"undo_begun": "undoing"}.get(event, self.state)
        if event in ("committed", "undone", "undo_failed", "abandoned"):
            self.state = event

    @property
    def problem(self) -> str | None:
        """The last thing that went wrong, unless what came later settled it."""
        settled = self.state in ("committed", "undone")
        for entry in reversed(self.entries):
            if entry["event"] in (("failed",) if settled else ("failed", "undo_failed", "abandoned")):
                return str(entry["detail"].get("says"))
        return None


class Journal:
    """The lines of one worker: `CHECKSUM JSON`, each checksum covering the one before it."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self.disk = disk
        self.length = 0
        self.sum = ""
        self.seq = 0
        self.transactions: dict[str, Transaction] = {}
        content = path.read_bytes() if path.exists() else b""
        lines = content.split(b"\n")
        lines.pop()
        for number, line in enumerate(lines, 1):
            entry = self._read(line)
            if entry is None:
                if number < len(lines):
                    raise Refusal("journal_corrupt", f"line {number} of {path} does not match its checksum.")
                break
            self._take(entry)
            self.length += len(line) + 1
        self.torn = len(content) > self.length

    def _read(self, line: bytes) -> Json | None:
        checksum, _, text = line.partition(b" ")
        if checksum.decode("ascii", "replace") != self._checksum(text):
            return None
        entry: Json = json.loads(text)
        return entry if entry.get("seq") == self.seq + 1 else None

    def _checksum(self, text: bytes) -> str:
        return sha256(self.sum.encode() + text)[:16]

    def _take(self, entry: Json) -> None:
        self.sum = self._checksum(canonical(entry).encode())
        self.seq = entry["seq"]
        if entry["event"] == "opened":
            id_ = entry["transaction"]
            self.transactions[id_] = Transaction(id_, entry["detail"], entry["token"])
        self.transactions[entry["transaction"]].take(entry)

    @property
    def current(self) -> Transaction | None:
        """The transaction that has not come to an end; there is at most one."""
        last = self.last
        return None if last is None or last.state in ENDED else last

    @property
    def last(self) -> Transaction | None:
        """The newest transaction."""
        return next(reversed(self.transactions.values()), None)

    def settle(self) -> None:
        """Under the lock: cut off a torn last line, and sync what an earlier call may have left unsynced."""
        if self.path.exists():
            handle = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                if self.torn:
                    self.disk.mark("truncate", self.path)
                    os.ftruncate(handle, self.length)
                    self.torn = False
                os.fsync(handle)
            finally:
                os.close(handle)
            self.disk.sync(self.path.parent)

    def append(self, transaction: str, event: str, *, token: int, step: str | None, by: str, detail: Json) -> None:
        """Write one line; when this returns it is durable."""
        entry = {
            "seq": self.seq + 1,
            "at": time.time(),
            "event": event,
            "transaction": transaction,
            "token": token,
            "step": step,
            "by": by,
            "detail": detail,
        }
        text = canonical(entry).encode()
        line = self._checksum(text).encode() + b" " + text + b"\n"
        fresh = not self.path.exists()
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self.disk.pour(handle, line, self.path)
        except OSError:
            os.ftruncate(handle, self.length)
            raise
        finally:
            os.close(handle)
        if fresh:
            self.disk.sync(self.path.parent)
        self._take(json.loads(text))
        self.length += len(line)


# ---------------------------------------------------------------------------------------------------- books


class Books:
    """All that is written down about one worker."""

    def __init__(self, request: Json, disk: Disk) -> None:
        directory = Path(text_of(request, "directory"))
        if not directory.is_absolute():
            raise Refusal("bad_request", f"directory is not absolute: {str(directory)!r}.")
        self.disk = disk
        self.directory = directory
        self.worker = name_of(request, "worker")
        self.folder = directory / "workers" / self.worker
        self._journal: Journal | None = None

    @property
    def journal(self) -> Journal:
        """The journal as it was when it was first asked for, or last reloaded."""
        if self._journal is None:
            self._journal = Journal(self.folder / "journal", self.disk)
        return self._journal

    def reload(self) -> Journal:
        """Read the journal again."""
        self._journal = None
        return self.journal

    @contextlib.contextmanager
    def lock(self, patience: float = 1e9) -> Iterator[None]:
        """Be the only one, after so many seconds of waiting at most; everything that was known before is read again."""
        self.disk.make(self.folder)
        mode = self.directory.stat()
        if mode.st_uid != os.geteuid():
            raise Refusal("unsafe_directory", f"{self.directory} belongs to another user.")
        if mode.st_mode & 0o077:
            self.directory.chmod(0o700)
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._acquire(handle, patience)
            self.reload().settle()
            yield
        finally:
            os.close(handle)

    def _acquire(self, handle: int, patience: float) -> None:
        limit = now() + patience
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if now() > limit:
                    raise Refusal("locked", f"another call is at work on {self.worker!r}.") from None
                time.sleep(0.01)
            else:
                return

    def note(self, transaction: Transaction, event: str, *, by: str, step: str | None = None, **detail: Any) -> None:
        """Write one line of a transaction, on a full disk into the room that was kept for it."""
        for attempt in (1, 2):
            try:
                self.journal.append(transaction.id, event, token=transaction.token, step=step, by=by, detail=detail)
            except OSError as error:
                if error.errno not in NO_SPACE or attempt == 2 or not (self.folder / "spare").exists():
                    raise
                self.disk.remove(self.folder / "spare")
            else:
                return

    def load(self, name: str) -> Json:
        """A small document that is replaced as a whole: `lease` or `deadline`."""
        try:
            document: Json = json.loads((self.folder / name).read_bytes())
        except FileNotFoundError:
            return {}
        return document

    def keep(self, name: str, document: Json) -> None:
        """Replace a small document."""
        self.disk.write(self.folder / name, canonical(document).encode())

    def left(self, name: str) -> float:
        """Seconds until a lease or deadline ends; it ends with the boot in which it was set."""
        document = self.load(name)
        return float(document["until"]) - now() if document.get("boot") == boot_id() else -1.0

    def lease_view(self) -> Json | None:
        """The lease for people and agents; None: nobody holds it."""
        lease, left = self.load("lease"), self.left("lease")
        if left <= 0:
            return None
        return {"holder": lease["holder"], "who": lease.get("who"), "token": lease["token"], "seconds": left}

    def extend(self, transaction: Transaction | None) -> None:
        """The agent is alive: its lease and the watchdog of its transaction run their full time again."""
        if transaction is not None:
            until = now() + float(transaction.opened["watchdog_seconds"])
            self.keep("deadline", {"boot": boot_id(), "until": until})
        lease = self.load("lease")
        self.keep("lease", {**lease, "boot": boot_id(), "until": now() + lease["ttl"]})

    def saved(self, transaction: str) -> Path:
        """The folder of a transaction."""
        return self.folder / "saved" / transaction


def text_of(request: Mapping[str, Any], key: str) -> str:
    """A text that has to be there."""
    value = request.get(key)
    if not isinstance(value, str) or not value or "\0" in value:
        raise Refusal("bad_request", f"{key} is missing or not a text.")
    return value


def name_of(request: Mapping[str, Any], key: str) -> str:
    """A text that can be a file's name."""
    value = text_of(request, key)
    if not NAME.fullmatch(value):
        raise Refusal("bad_request", f"{key} cannot be a name: {value!r}.")
    return value


def number_of(request: Mapping[str, Any], key: str) -> float:
    """A number above zero."""
    value = request.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise Refusal("bad_request", f"{key} is missing or not a number above zero.")
    return float(value)


def argv_of(request: Mapping[str, Any], key: str) -> list[str]:
    """A command."""
    value = request.get(key)
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(word, str) and "\0" not in word for word in value)
    ):
        raise Refusal("bad_request", f"{key} is not a list of words.")
    return list(value)


def check_token(books: Books, request: Json, *, alive: bool = True) -> Json:
    """The lease, if the request's token is the newest one and, where asked, its time has not run out."""
    lease = books.load("lease")
    token = request.get("token")
    if not lease or token != lease["token"]:
        raise Refusal(
            "fenced", f"token {token} is not the newest one, {lease.get('token')}.", holder=lease.get("holder")
        )
    if alive and books.left("lease") <= 0:
        raise Refusal("lease_expired", f"the lease of {lease['holder']!r} has run out.")
    return lease


def check_open(books: Books, request: Json) -> Transaction:
    """The open transaction that the request may go on with."""
    lease = check_token(books, request)
    transaction = books.journal.transactions.get(name_of(request, "transaction"))
    state = transaction.state if transaction else "none"
    if transaction is None or state != "open":
        raise Refusal("not_open", f"transaction {request['transaction']!r} is {state}, not open.", state=state)
    if transaction.opened["holder"] != lease["holder"]:
        raise Refusal("fenced", f"the transaction belongs to {transaction.opened['holder']!r}: it can be undone only.")
    if books.left("deadline") <= 0:
        raise Refusal("overdue", "the agent was silent for too long: the watchdog takes the change back.")
    return transaction


# --------------------------------------------------------------------------------------------------- script


class Dress(NamedTuple):
    """What a file has besides its bytes."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int
    extended: dict[str, str]  # extended attributes (ACLs among them), base64

    @classmethod
    def of(cls, path: Path) -> Dress:
        """Look at a regular file that has this one name only."""
        seen = path.stat()
        if not stat.S_ISREG(seen.st_mode):
            raise Refusal("unsafe_script", f"{path} is not a regular file.")
        if seen.st_nlink > 1:
            raise Refusal("unsafe_script", f"{path} has {seen.st_nlink} hard links, and an edit would part them.")
        extended = {}
        with contextlib.suppress(OSError):
            for name in os.listxattr(path):
                with contextlib.suppress(OSError):
                    extended[name] = base64.b64encode(os.getxattr(path, name)).decode()
        return cls(stat.S_IMODE(seen.st_mode), seen.st_uid, seen.st_gid, seen.st_mtime_ns, extended)

    def put_on(self, handle: int, *, mtime: bool) -> None:
        """Dress an open file; owner and mode must succeed, extended attributes where the system lets us."""
        seen = os.fstat(handle)
        if (seen.st_uid, seen.st_gid) != (self.uid, self.gid):
            os.fchown(handle, self.uid, self.gid)
        for name, value in self.extended.items():
            with contextlib.suppress(OSError):
                os.setxattr(handle, name, base64.b64decode(value))
        os.fchmod(handle, self.mode)
        if mtime:
            os.utime(handle, ns=(self.mtime_ns, self.mtime_ns))


def mount_of(folder: Path) -> str:
    """The kernel's id of the mount that a folder lies on: names can be exchanged within one mount only."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return next(
            line.split()[1]
            for line in Path(f"/proc/self/fdinfo/{handle}").read_text(encoding="ascii").splitlines()
            if line.startswith("mnt_id:")
        )
    finally:
        os.close(handle)


class Script:
    """The serve script of a transaction, the two contents that it may have, and the place they are exchanged with."""

    def __init__(self, books: Books, transaction: Transaction) -> None:
        self.disk = books.disk
        self.path = Path(transaction.opened["script"])
        self.saved = books.saved(transaction.id)
        self.old = str(transaction.opened["old_sha256"])
        self.new = str(transaction.opened["new_sha256"])
        self.dress = Dress(**transaction.opened["dress"])
        inside = self.saved / "swap"
        same_mount = mount_of(self.saved) == mount_of(self.path.parent)
        # Across mounts nothing can be exchanged from our own folder, and writing in place would feed a running bash
        # half of each script: there, and only for the moment of the exchange, the swap lies beside the script.
        self.swap = inside if same_mount else self.path.with_name(f".{self.path.name}.prudent-{transaction.id}")
        self.beside = not same_mount

    @property
    def now(self) -> str | None:
        """Hash of what the script holds."""
        return hash_of(self.path)

    def put(self, wanted: str, *, instead_of: str, plain: Callable[[], None]) -> None:
        """Replace the script's content by one of the two that we keep, if it is the other one until the very last.

        Args:
            wanted: Hash of the content to put there.
            instead_of: Hash of the content that must come out.
            plain: Called before an exchange that this file system can only do as a plain rename.

        Raises:
            Refusal: `stale`, with everything as it was; somebody else's content came out and was put back.
        """
        if hash_of(self.swap) != wanted:
            content = (self.saved / ("old" if wanted == self.old else "new")).read_bytes()
            dress, restoring = (self.dress, True) if wanted == self.old else (Dress.of(self.path), False)
            self.disk.write(self.swap, content, lambda handle: dress.put_on(handle, mtime=restoring))
        if self.now != instead_of:
            self.clear()
            raise Refusal("stale", f"{self.path} changed.", moved="script", found=self.now)
        if not self.disk.exchange(self.swap, self.path):
            plain()
            if self.now != instead_of:
                self.clear()
                raise Refusal("stale", f"{self.path} changed.", moved="script", found=self.now)
            self.disk.mark("rename", self.path)
            self.swap.replace(self.path)
            self.disk.sync(self.path.parent)
            return
        out = hash_of(self.swap)
        if out != instead_of:
            self._give_back(wanted, out)
            raise Refusal("stale", f"{self.path} changed while it was exchanged.", moved="script", found=out)

    def _give_back(self, put: str | None, out: str | None) -> None:
        """Exchange back what came out; where somebody wrote in the meantime, theirs is newer and stays."""
        for _ in range(16):
            self.disk.exchange(self.swap, self.path)
            came = hash_of(self.swap)
            if came == put:
                break
            put, out = out, came

    def settle(self) -> None:
        """After a crash between an exchange and the look at what came out: what is not ours goes back."""
        held = hash_of(self.swap)
        if held is not None and held not in (self.old, self.new) and self.now in (self.old, self.new):
            self._give_back(self.now, held)
        self.disk.sync(self.path.parent)

    def was_exchanged(self) -> bool:
        """Whether the edit has come into effect: the old content lies where the new one was laid out."""
        return hash_of(self.swap) == self.old

    def clear(self) -> None:
        """Take the swap away, unless it holds what is neither old nor new and so belongs to somebody."""
        self.disk.remove(self.swap.with_name(self.swap.name + ".part"))
        if hash_of(self.swap) in (self.old, self.new):
            self.disk.remove(self.swap)


# ------------------------------------------------------------------------------------------ service managers

HARMLESS = ("PATH", "HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LOGNAME", "SHELL", "TMPDIR", "TZ", "USER")
SHOWN = (
    "Id,LoadState,LoadError,ActiveState,SubState,Result,MainPID,NRestarts,NeedDaemonReload,Restart,Type,KillMode,Job,"
    "StartLimitIntervalUSec,StartLimitBurst,ExecMainStartTimestampMonotonic,ExecMainStatus,FragmentPath,DropInPaths,"
    "ControlGroup,RefuseManualStart,RefuseManualStop,TriggeredBy,OnFailure"
)
UNITS = {"system": Path("/etc/systemd/system"), "user": Path("~/.config/systemd/user")}
TARGETS = {"system": "multi-user.target", "user": "default.target"}


def runtime_folder() -> Path:
    """Where this user's manager has its sockets; whether it runs is another question."""
    return Path(f"/run/user/{os.geteuid()}")


def login() -> str:
    """This user's name, or number where it has none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """What commands of ours see: a few harmless variables and what was asked for, never the caller's keys and agent."""
    here = {name: os.environ[name] for name in HARMLESS if name in os.environ}
    here.setdefault("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    if runtime_folder().is_dir():
        here["XDG_RUNTIME_DIR"] = str(runtime_folder())
    return {**here, **(more or {})}


def said_by(argv: Sequence[str], *, limit: float, **how: Any) -> subprocess.CompletedProcess[str]:
    """Run a short command that asks something.

    Raises:
        OSError: it could not be started.
        subprocess.TimeoutExpired: it took too long.
    """
    return subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=limit,
        check=False,
        encoding="utf-8",
        errors="replace",
        **{"env": environment(), **how},
    )


class Commands:
    """A service that two commands speak for."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.restart_argv = argv_of(spec, "restart") if "restart" in spec else []
        self.pid_argv = argv_of(spec, "pid")
        self.cwd = str(spec.get("cwd") or Path.cwd())
        self.environ: dict[str, str] = {str(name): str(value) for name, value in (spec.get("environ") or {}).items()}

    def pid(self) -> int:
        """The service's main pid; 0: it does not run."""
        try:
            answer = said_by(self.pid_argv, limit=30, env=environment(self.environ), cwd=self.cwd)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Refusal("no_pid", f"the command that tells the main pid failed: {masked_text(str(error))}") from error
        text = answer.stdout.strip()
        if answer.returncode != 0 or not re.fullmatch(r"\d+", text):
            said = (answer.stderr.strip() or text)[-500:]
            raise Refusal(
                "no_pid", f"the command that tells the main pid ended with {answer.returncode}: {masked_text(said)}"
            )
        return int(text)

    def check(self, script: Path) -> None:
        """Nothing is known before it is tried."""

    def prepare(self, disk: Disk, script: Path) -> None:
        """Nothing to be done before a restart."""

    def settle(self, limit: float) -> None:
        """Nothing goes on once the command has ended."""

    def failure(self) -> str | None:
        """Nobody says that a start has failed."""
        return None

    def members(self) -> list[int]:
        """No group holds the service's processes together."""
        return []

    def look(self) -> Json | None:
        """There is no unit to look at."""
        return None


class Unit:
    """A service that systemd keeps, in the system's manager or in this user's own."""

    environ: Mapping[str, str] = {}
    cwd = "/"

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.name = text_of(spec, "unit")
        self.scope = str(spec.get("scope") or "system")
        if self.scope not in UNITS or not re.fullmatch(r"[A-Za-z0-9:_.@\\-]{1,255}", self.name) or self.name[0] == "-":
            raise Refusal("bad_request", f"not a unit of the system or of a user: {self.name!r}, {self.scope!r}.")
        self.systemctl = ["systemctl", "--no-ask-password", "--no-pager"]
        self.systemctl += ["--user"] if self.scope == "user" else []
        self.restart_argv = [*self.systemctl, "restart", self.name]

    @property
    def manager(self) -> str:
        """The manager, for people."""
        return "the system's systemd" if self.scope == "system" else f"the systemd of user {login()}"

    def call(self, *words: str, limit: float = 30) -> str:
        """Have systemctl do something short.

        Raises:
            Refusal: `no_systemd`: it did not.
        """
        try:
            done = said_by([*self.systemctl, *words], limit=limit, cwd="/")
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Refusal("no_systemd", f"{self.manager} does not answer: {error}") from error
        if done.returncode:
            said = masked_text(done.stderr.strip())[-300:]
            lingers = self.scope == "system" or Path("/var/lib/systemd/linger", login()).exists()
            why = "" if lingers else f" (it runs without a login only after: loginctl enable-linger {login()})"
            raise Refusal("no_systemd", f"{self.manager} did not {words[0]} {' '.join(words[1:2])}: {said}{why}")
        return done.stdout

    def show(self) -> dict[str, str]:
        """What the manager knows of the unit."""
        text = self.call("show", self.name, f"--property={SHOWN}")
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def known(self) -> dict[str, str]:
        """The same of a unit that there is.

        Raises:
            Refusal: `no_unit`, `masked`, `no_systemd`.
        """
        shown = self.show()
        load = shown.get("LoadState", "")
        if load == "not-found":
            raise Refusal("no_unit", f"{self.manager} knows no unit {self.name}.")
        if load == "masked":
            raise Refusal("masked", f"unit {self.name} is masked, so that nobody can start it.")
        if load != "loaded":
            raise Refusal("no_unit", f"unit {self.name} cannot be loaded: {shown.get('LoadError') or load}.")
        return shown

    def pid(self) -> int:
        """The unit's main pid; 0: it does not run."""
        shown = self.known()
        pid = int(shown.get("MainPID") or 0)
        if not pid and shown["ActiveState"] == "active":
            kind = shown.get("Type")
            raise Refusal("no_pid", f"unit {self.name} is active without a main process (Type={kind}).")
        return pid

    def check(self, script: Path) -> None:
        """Whether this user may restart it, and a restart would bring what is there now.

        Raises:
            Refusal: `not_controllable`, `unit_changed`.
        """
        shown = self.known()
        allowed, why = self.standing(shown)
        if allowed is None and shown.get("ActiveState") == "active":
            # Polkit tells ordinary users nothing of its rules for one unit. To start what runs already is allowed by
            # the same rules, and does nothing.
            try:
                self.call("start", self.name)
            except Refusal:
                allowed = False
        if allowed is False:
            raise Refusal("not_controllable", why)
        if shown.get("NeedDaemonReload") == "yes":
            says = f"the files of unit {self.name} are newer than what {self.manager} has loaded of them"
            raise Refusal("unit_changed", f"{says}: a restart would bring in more than this change.")

    def standing(self, shown: Mapping[str, str]) -> tuple[bool | None, str]:
        """Whether this user may restart the unit, and why not; None: polkit decides, and does not tell beforehand."""
        for key in ("RefuseManualStart", "RefuseManualStop"):
            if shown.get(key) == "yes":
                return False, f"unit {self.name} says {key}=yes: it cannot be restarted by hand."
        if os.geteuid() == 0 or self.scope == "user":
            return True, ""
        why = f"user {login()} may not restart unit {self.name} of {self.manager}: "
        asked = "org.freedesktop.systemd1.manage-units"
        try:
            answer = said_by(["pkcheck", "--action-id", asked, "--process", str(os.getpid())], limit=20)
        except (OSError, subprocess.TimeoutExpired) as error:
            return False, f"{why}polkit cannot be asked ({error})."
        return (True, "") if answer.returncode == 0 else (None, f"{why}polkit says no.")

    def prepare(self, disk: Disk, script: Path) -> None:
        """Have the manager read the unit's files where they changed, and forget failed starts."""
        shown = self.known()
        files = [Path(path) for path in (shown.get("FragmentPath", ""), *shown.get("DropInPaths", "").split()) if path]
        # A file that was put back is as old as it was, which the manager does not take for a change.
        if shown.get("NeedDaemonReload") == "yes" or script in [path.resolve() for path in files]:
            disk.mark("reload", self.name)
            self.call("daemon-reload", limit=90)
        # Without this a unit that failed too often in a short time is not started; it is no failure if there is
        # nothing to reset, and where it is forbidden the restart itself will say so.
        with contextlib.suppress(Refusal):
            self.call("reset-failed", self.name)

    def settle(self, limit: float) -> None:
        """Wait until the manager has stopped what it stops and spawned what it starts; call off what takes too long."""
        until = now() + limit
        while (job := (shown := self.show()).get("Job") or "0") != "0":
            if shown.get("ActiveState") == "activating" and int(shown.get("MainPID") or 0):
                return
            if now() > until:
                self.call("cancel", job)
                until = now() + limit
            time.sleep(0.1)

    def failure(self) -> str | None:
        """The manager's word that the start has failed; None: it has not."""
        shown = self.show()
        if shown.get("ActiveState") != "failed":
            return None
        return f"unit {self.name} failed: {shown.get('Result')}, status {shown.get('ExecMainStatus')}"

    def members(self) -> list[int]:
        """The processes in the unit's control group, as the kernel tells."""
        group = self.show().get("ControlGroup")
        if not group:
            return []
        found = []
        for pid in pids():
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines():
                    _, controllers, path = line.split(":", 2)
                    if controllers in ("", "name=systemd") and (path == group or path.startswith(group + "/")):
                        found.append(pid)
                        break
        return found

    def look(self) -> Json:
        """The unit for agents: names as systemd has them, times in seconds on the clock of this boot."""
        shown = self.show()
        micros = int(shown.get("ExecMainStartTimestampMonotonic") or 0)
        asleep = now() - time.monotonic()
        return {
            "unit": shown.get("Id", self.name),
            "scope": self.scope,
            "load": shown.get("LoadState", ""),
            "active": shown.get("ActiveState", ""),
            "sub": shown.get("SubState", ""),
            "result": shown.get("Result", ""),
            "main_pid": int(shown.get("MainPID") or 0),
            "main_started": micros / 1e6 + asleep if micros else None,
            "restarts": int(shown.get("NRestarts") or 0),
            "restart_policy": shown.get("Restart", ""),
            "need_daemon_reload": shown.get("NeedDaemonReload") == "yes",
            "start_limit": f"{shown.get('StartLimitBurst')} in {shown.get('StartLimitIntervalUSec')}",
            "kill_mode": shown.get("KillMode", ""),
            "job": (shown.get("Job") or "0") != "0",
            "fragment": shown.get("FragmentPath", ""),
            "drop_ins": shown.get("DropInPaths", "").split(),
            "triggered_by": shown.get("TriggeredBy", "").split(),
        }


def speaker_of(spec: Mapping[str, Any]) -> Commands | Unit:
    """Who speaks for a service."""
    return Unit(spec) if spec.get("kind") == "systemd" else Commands(spec)


# ------------------------------------------------------------------------------------------------ leftovers


def former(saved: Path) -> list[Identity]:
    """Who were the worker's processes just before restarts of ours, as these wrote them down."""
    found: set[Identity] = set()
    for path in saved.glob("*/commands/*"):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            for boot, pid, ticks in filter(None, json.loads(path.read_bytes())["family"]):
                found.add((str(boot), int(pid), int(ticks)))
    return sorted(found)


def started_for(pid: int, port: int) -> tuple[str, ...]:
    """The words before the first flag of a process that was told to use a port; empty: it was not."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return ()
    told = any(
        word == f"--port={port}" or (word == "--port" and words[at + 1 : at + 2] == [str(port)])
        for at, word in enumerate(words)
    )
    first = next((at for at, word in enumerate(words) if word.startswith("--")), len(words))
    return tuple(words[:first]) if told else ()


def strays(speaker: Commands | Unit, main: int, ports: Sequence[int], saved: Path) -> list[Json]:
    """What an earlier life of the worker left behind, or what stands in the place of the next one.

    `earlier`: older than the main process, or without one, and either in the unit's control group, or one of the
    worker's processes from before a restart of ours, or the worker's own program on the worker's own port. `port`:
    holds the worker's port and is none of the worker's processes.
    """
    kin, members = kin_of(main) if main else set(), speaker.members()
    own = kin | set(members)
    since = identity_of(main)
    why = {
        identity[1]: "is left over from before an earlier restart" for identity in former(saved) if is_alive(identity)
    }
    for port in ports[:1]:
        programs = {program for pid in kin if (program := started_for(pid, port))}
        told = f"runs the worker's program for port {port}, and is not the service's"
        why |= {pid: told for pid in (pids() if programs else ()) if started_for(pid, port) in programs}
    why |= dict.fromkeys(members, "is left over in the unit's control group")
    found: list[Json] = []
    for pid in sorted(why):
        identity = identity_of(pid)
        if identity and pid not in kin and (since is None or identity[2] < since[2]):
            found.append({"kind": "earlier", "identity": identity, "says": f"{called(pid)} {why[pid]}"})
    known = {stray["identity"][1] for stray in found}
    for port in ports[:1]:
        held = listeners(port)
        if held and not own & set(held):
            found += [
                {"kind": "port", "identity": identity_of(pid), "says": f"{called(pid)} holds port {port}"}
                for pid in held
                if pid not in known
            ]
    return found


def loads(directory: Path, ports: Sequence[int]) -> list[Json]:
    """Load processes of ours that are connected to the worker; whoever restarts it has none that it still wants."""
    ours = []
    for pid in pids():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            if any(word.startswith(f"{directory}/shipped/") and word.endswith("/probe.py") for word in words):
                ours.append(pid)
    links: set[str] = set()
    for port in ports if ours else ():
        links |= sockets(port, listening=False)
    return [
        {"kind": "load", "identity": identity, "says": f"{called(pid)} still sends load"}
        for pid in holders(links, ours)
        if (identity := identity_of(pid))
    ]


def gpu_users(speaker: Commands | Unit, main: int) -> list[Json]:
    """Who holds GPU memory besides the worker, by the driver's own tool; on the worker's GPUs where it runs."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory,gpu_uuid", "--format=csv,noheader,nounits"]
    try:
        answer = said_by(query, limit=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [line.split(", ") for line in answer.stdout.splitlines() if line.count(", ") == 2]
    own = (kin_of(main) if main else set()) | set(speaker.members())
    here = {gpu for pid, _, gpu in rows if pid.isdecimal() and int(pid) in own}
    return [
        {
            "kind": "gpu",
            "identity": identity_of(int(pid)),
            "says": f"{called(int(pid))} holds {used} MiB of GPU memory on {gpu}",
        }
        for pid, used, gpu in rows
        if pid.isdecimal() and int(pid) not in own and (gpu in here or not here)
    ]


# -------------------------------------------------------------------------------------------------- service


class Service:
    """The worker's service: who it is now, and how it is restarted, by commands that survive us in a known way."""

    def __init__(self, books: Books, transaction: Transaction) -> None:
        spec = transaction.opened["service"]
        self.disk = books.disk
        self.directory = books.directory
        self.folder = books.saved(transaction.id) / "commands"
        self.script = Path(transaction.opened["script"])
        self.speaker = speaker_of(spec)
        self.ports = [int(port) for port in spec.get("ports") or ()]
        self.restart_seconds = float(spec["restart_seconds"])
        self.settle_seconds = float(spec["settle_seconds"])

    def main(self) -> Json | None:
        """The main process; None: there is none."""
        return process_of(self.speaker.pid())

    def clear_the_way(self) -> list[str]:
        """End load processes that nobody waits for any more, and name what else stands in the way of a start.

        Raises:
            Refusal: `leftovers`: something that is not ours to end.
        """
        ended = [load["says"] for load in loads(self.directory, self.ports) if end(load["identity"])]
        found = strays(self.speaker, self.speaker.pid(), self.ports, self.folder.parent.parent)
        if found:
            raise Refusal("leftovers", f"a start would fail: {'; '.join(stray['says'] for stray in found)}.")
        return ended

    def launched(self, label: str) -> Json | None:
        """What is known of a command that was let through, or was about to be; None: it surely never ran."""
        try:
            document: Json = json.loads((self.folder / label).read_bytes())
        except FileNotFoundError:
            return None
        return document

    def settle(self) -> None:
        """Wait for commands that outlived the call that ran them; end those that take too long."""
        known = [path for path in sorted(self.folder.glob("*")) if path.suffix != ".part"]
        here = False
        for path in known:
            record = self.launched(path.name)
            here = here or bool(record and record["command"] and record["command"][0] == boot_id())
            limit = now() + self.restart_seconds
            while record and record["command"] and is_alive(record["command"]):
                if now() > limit:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(record["command"][1], signal.SIGKILL)
                time.sleep(0.02)
        if here:
            self.speaker.settle(self.restart_seconds)

    def restart(self, label: str) -> Json:
        """Restart the worker and answer the new main process.

        Raises:
            Refusal: `failed`: the command failed or took too long, or no new process came.
        """
        main = self.speaker.pid()
        before = identity_of(main)
        self.speaker.prepare(self.disk, self.script)
        family = [identity_of(pid) for pid in sorted(kin_of(main) | set(self.speaker.members()))]
        self.disk.make(self.folder)
        output = self.folder.with_name("output") / label
        self.disk.make(output.parent)
        # The gate: the command's first act is to wait for a line from us. If we die before we write it, it ends.
        gate = ["/bin/sh", "-c", 'read -r go || exit 125; exec "$@" </dev/null', "sh", *self.speaker.restart_argv]
        with private(output) as sink:
            self.disk.mark("spawn", label)
            child = subprocess.Popen(
                gate,
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=environment(self.speaker.environ),
                cwd=self.speaker.cwd,
                start_new_session=True,
            )
        assert child.stdin is not None
        record: Json = {"command": identity_of(child.pid), "before": before, "family": family, "at": now()}
        self.disk.write(self.folder / label, canonical(record).encode())
        self.disk.mark("command", label)
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(b"go\n")
            child.stdin.close()
        self.disk.mark("wait", label)
        status = self.end_of(child, record)
        said = masked_text(output.read_bytes()[-2000:].decode(errors="replace").strip())
        if status != 0:
            how = f"ended with status {status}" if status is not None else f"took over {self.restart_seconds:g} s"
            with contextlib.suppress(Refusal):
                said = "; ".join(filter(None, (said[-500:], self.speaker.failure())))
            alive = self.survivors(record, 0)
            still = f"; still there: {', '.join(alive)}" if alive else ""
            raise Refusal("failed", f"the restart command {how}: {said or 'no output'}{still}", output=said)
        return self.newcomer(label)

    def end_of(self, child: subprocess.Popen[bytes], record: Json) -> int | None:
        """The status of a restart command; None: it took too long.

        `systemctl` waits until a unit is ready by its own word, which may take as long as a model takes to load; here
        it is done once the new process is there.
        """
        limit, came = now() + self.restart_seconds, False
        while child.poll() is None and not came and now() < limit:
            time.sleep(0.02)
            if isinstance(self.speaker, Unit):
                # A manager that is busy is asked again.
                with contextlib.suppress(Refusal):
                    process = self.main()
                    came = process is not None and self.is_new(process, record)
        if child.poll() is not None:
            return child.returncode
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return 0 if came else None

    def newcomer(self, label: str) -> Json:
        """The main process once it is another one than before, and started after the command was let through."""
        record = self.launched(label)
        assert record is not None
        limit = now() + self.settle_seconds
        while True:
            process = self.main()
            if process is not None and self.is_new(process, record):
                return process
            if process is None and (says := self.speaker.failure()):
                raise Refusal("failed", f"{says}.")
            if now() > limit:
                raise Refusal("failed", f"no new process within {self.settle_seconds:g} s after the restart command.")
            time.sleep(0.05)

    @staticmethod
    def is_new(process: Json, record: Json) -> bool:
        """Whether a process came after a restart command was let through, by the host's own clock."""
        if record["command"] and record["command"][0] != boot_id():
            return False
        tick = 1 / os.sysconf("SC_CLK_TCK")
        came_after = started(int(process["start_ticks"])) > float(record["at"]) - tick
        return came_after and list(identity_in(process) or ()) != record["before"]

    def survivors(self, record: Json, main: int) -> list[str]:
        """The worker's processes from before a restart that live after it; they get a little time to go."""
        limit = now() + min(self.settle_seconds, 10.0)
        while True:
            family = [tuple(member) for member in record["family"] if member]
            kin = kin_of(main) if main else set()
            alive = [member for member in family if is_alive(member) and member[1] not in kin]
            if not alive or now() > limit:
                return [called(member[1]) for member in alive]
            time.sleep(0.1)


# --------------------------------------------------------------------------------------------------- guards


def own_manager() -> tuple[str | None, str]:
    """The manager that keeps units of ours beyond a logout, `system` or `user`; None and why: there is none."""
    if not Path("/run/systemd/system").is_dir() or os.environ.get("PRUDENT_DETACHED"):
        return None, "this machine does not run systemd"
    if os.geteuid() == 0:
        return "system", ""
    if not (runtime_folder() / "systemd").is_dir():
        return None, f"user {login()} has no systemd of its own (loginctl enable-linger {login()})"
    if not Path("/var/lib/systemd/linger", login()).exists():
        return None, f"the systemd of user {login()} ends with its logins (loginctl enable-linger {login()})"
    return "user", ""


def plan_guards(books: Books, service: Mapping[str, Any]) -> Json:
    """Which files will guard a transaction: the boot unit with its link, and the drop-in that disarms `Restart=`."""
    guards: Json = {"files": [], "without": []}
    scope, why = own_manager()
    if scope is None:
        guards["without"].append(f"a reboot is noticed by the next call only: {why}")
    else:
        folder = UNITS[scope].expanduser()
        mark = sha256(str(books.directory).encode())[:8]
        name = f"prudent-boot-{books.worker}-{mark}.service"
        guards["files"] += [str(folder / name), str(folder / f"{TARGETS[scope]}.wants" / name)]
    speaker = speaker_of(service)
    if isinstance(speaker, Unit):
        shown = speaker.show()
        policy = shown.get("Restart", "no")
        base = Path("/run") if speaker.scope == "system" else runtime_folder()
        folder = base / "systemd" / speaker.scope
        drop_in = folder / f"{shown.get('Id', speaker.name)}.d" / "zzz-prudent.conf"
        if policy == "no" and not drop_in.exists():
            pass
        elif os.access(folder if folder.is_dir() else base, os.W_OK):
            guards["files"].append(str(drop_in))
        else:
            guards["without"].append(
                f"Restart={policy} of unit {speaker.name} stays armed: {folder} is not ours to write"
            )
    return guards


def check_alone(books: Books, guards: Json) -> None:
    """No agent that was told another directory has a change of this unit in flight."""
    for path in map(Path, guards["files"]):
        with contextlib.suppress(OSError):
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".conf" and text != content_of(path, books):
                raise Refusal(
                    "busy", f"another change of it is in flight, or was left; {path} says: {text.splitlines()[0]}"
                )


def content_of(guard: Path, books: Books, unit: str = "") -> str:
    """What a guard's file says."""
    if guard.suffix == ".conf":
        return (
            f"# By Prudent, as long as a change of worker {books.worker} is in flight; see {books.folder}.\n"
            "[Service]\nRestart=no\nRestartForceExitStatus=\n"
        )
    helper = Path(__file__).resolve()
    words = [sys.executable, "-I", "-S", "-B", str(helper), "watch", str(books.directory), books.worker]
    command = " ".join('"' + re.sub(r'(["\\])', r"\\\1", word) + '"' for word in words)
    # It is up once the script is back in its place: the worker's first start in a boot is one with the old script.
    first = f"Before={unit}\n" if unit else ""
    return (
        f"# By Prudent, as long as a change of worker {books.worker} is in flight; see {books.folder}.\n"
        f"[Unit]\nDescription=Take back what Prudent left unfinished on worker {books.worker}\n"
        f"ConditionPathExists={str(helper).replace('%', '%%')}\nAfter=local-fs.target remote-fs.target\n{first}"
        # What the helper restarts may be its child and has to outlive it.
        f"[Service]\nType=notify\nTimeoutStartSec=120\nKillMode=process\n"
        f"ExecStart={command.replace('%', '%%').replace('$', '$$')}\n"
    )


def raise_guards(books: Books, transaction: Transaction) -> None:
    """Make the guards that the first line of the journal names; what cannot be made is written down, and not fatal."""
    guards = transaction.opened.get("guards") or {"files": [], "without": []}
    if not guards["files"] or any(entry["event"] == "guarded" for entry in transaction.entries):
        return
    without = list(guards["without"])
    for path in map(Path, guards["files"]):
        try:
            if not path.parent.is_dir():
                books.disk.make(path.parent)
                path.parent.chmod(0o755)
            if path.parent.suffix == ".wants":
                books.disk.point(path, path.parent.parent / path.name)
                continue
            unit = str(transaction.opened["service"].get("unit", ""))
            content = content_of(path, books, unit).encode()
            books.disk.write(path, content, lambda handle: os.fchmod(handle, 0o644))
            if path.suffix == ".conf":
                without += disarm(books, transaction)
        except (OSError, Refusal) as error:
            without.append(f"{path}: {error}")
    books.note(transaction, "guarded", by="agent", without=without)


def disarm(books: Books, transaction: Transaction) -> list[str]:
    """Have the manager read the drop-in; answer what still stands against it."""
    speaker = speaker_of(transaction.opened["service"])
    assert isinstance(speaker, Unit)
    books.disk.mark("reload", speaker.name)
    speaker.call("daemon-reload", limit=90)
    policy = speaker.show().get("Restart")
    return [] if policy == "no" else [f"Restart={policy} of unit {speaker.name} stays armed"]


def lower_guards(books: Books, transaction: Transaction) -> None:
    """Take the guards away, before the transaction's end is written down; again, where a call died in the middle."""
    files = [Path(path) for path in (transaction.opened.get("guards") or {}).get("files", ())]
    # The link before what it points to, and the drop-in last, because the manager then reads all of it anew.
    for path in sorted(files, key=lambda path: (path.suffix == ".conf", path.parent.suffix != ".wants")):
        books.disk.remove(path.with_name(path.name + ".part"))
        books.disk.remove(path)
        if path.suffix == ".conf":
            with contextlib.suppress(OSError):
                path.parent.rmdir()
            speaker = speaker_of(transaction.opened["service"])
            assert isinstance(speaker, Unit)
            books.disk.mark("reload", speaker.name)
            speaker.call("daemon-reload", limit=90)


# ------------------------------------------------------------------------------------------------- watchdog


def arm(books: Books) -> None:
    """Start the watchdog unless one lives; under the lock. It is known to be ready when this returns.

    As a unit of its own where systemd lets us, because whoever logs in may be thrown out with all that it started.
    """
    books.disk.mark("arm", books.folder)
    presence = books.folder / "watchdog"
    handle = os.open(presence, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(handle, 0)
    except BlockingIOError:
        return
    finally:
        os.close(handle)
    words = [sys.executable, "-I", "-S", "-B", str(Path(__file__).resolve()), "watch", str(books.directory)]
    words.append(books.worker)
    scope, _ = own_manager()
    if (scope and arm_unit(books, scope, words)) or arm_process(books, words):
        return
    raise Refusal("no_watchdog", f"the watchdog did not start; see {books.folder / 'watchdog.log'}.")


def is_armed(books: Books, limit: float) -> bool:
    """Whether a watchdog has said its pid in time."""
    until = now() + limit
    while not (books.folder / "watchdog").read_bytes().endswith(b"\n"):
        if now() > until:
            return False
        time.sleep(0.005)
    return True


def arm_unit(books: Books, scope: str, words: Sequence[str]) -> bool:
    """Start the watchdog as a unit; False: this manager did not."""
    name = f"prudent-watch-{books.worker}-{time.monotonic_ns() // 1000000:x}"
    # What it restarts may be its child and has to outlive it.
    how = ["--quiet", "--collect", f"--unit={name}", "--property=KillMode=process", f"--{scope}", "--no-ask-password"]
    env = [f"--setenv={key}={value}" for key, value in environment().items() if key != "XDG_RUNTIME_DIR"]
    try:
        done = said_by(["systemd-run", *how, *env, *(word.replace("$", "$$") for word in words)], limit=30, cwd="/")
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and is_armed(books, 30)


def arm_process(books: Books, words: Sequence[str]) -> bool:
    """Start the watchdog as a process in a session of its own; False: it did not come up."""
    with private(books.folder / "watchdog.log") as log:
        child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=environment(),
            cwd="/",
            start_new_session=True,
        )
    if is_armed(books, 60):
        return True
    child.kill()
    return False


def rearm(books: Books) -> None:
    """A transaction that is under way is never left without a watchdog, whoever killed the last one."""
    current = books.journal.current
    if current is not None and current.state in ("open", "undoing"):
        arm(books)


def first_thing(books: Books) -> None:
    """At boot, before the worker's first start: the script back in its place. All else can wait until after it."""
    current = books.journal.current
    try:
        if current is not None and books.left("deadline") <= 0:
            put_back(books, current, by="watchdog")
            # Processes tell their start in ticks: what starts after this has one that is later beyond doubt.
            time.sleep(2 / os.sysconf("SC_CLK_TCK"))
    except (Refusal, OSError):
        pass  # the whole undo meets it again, and writes it down
    finally:
        tell_manager()


def tell_manager() -> None:
    """Tell the service manager that started us, if one did, that we are up (sd_notify)."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if where:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.connect("\0" + where[1:] if where.startswith("@") else where)
            line.sendall(b"READY=1")


def watch(books: Books, _: Json) -> Json:
    """Wait, without the lock, until the agent has been silent for too long; then take the change back."""
    books.disk.make(books.folder)
    presence = os.open(books.folder / "watchdog", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(presence, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        tell_manager()
        return {"state": "another watchdog lives"}
    os.ftruncate(presence, 0)
    os.pwrite(presence, f"{os.getpid()}\n".encode(), 0)
    attempts = 0
    # The call that started us holds the lock until the transaction is open, or it died.
    with books.lock():
        if "NOTIFY_SOCKET" in os.environ:
            first_thing(books)
    while True:
        current = books.reload().current
        if current is not None and books.left("deadline") > 0:
            time.sleep(min(1.0, max(0.01, books.left("deadline"))))
            continue
        with books.lock():
            current = books.journal.current
            if current is not None and books.left("deadline") <= 0 and attempts < 5:
                attempts += 1
                with contextlib.suppress(Refusal, OSError):
                    take_back(books, current, by="watchdog")
                current = books.journal.current
            hopeless = attempts >= 5 or (
                current is not None and current.entries[-1]["detail"].get("kind") == "foreign_edit"
            )
            if current is None or hopeless:
                # Closed by hand because the lock must not be free before it.
                os.close(presence)
                return {"state": current.state if current else "none"}
        time.sleep(min(30.0, float(attempts**2)))


# ------------------------------------------------------------------------------------------- steps and undo


def edit_script(books: Books, transaction: Transaction, step: Json) -> Json:
    """Give the script its new content."""
    script, id_ = Script(books, transaction), step["id"]
    if id_ in transaction.begun:
        script.settle()
        if script.was_exchanged() and script.now != script.new:
            raise Refusal("stale", f"{script.path} changed after it was edited.", moved="script", found=script.now)
    if script.now != script.new or script.old == script.new:
        if Path(transaction.opened["asked"]).resolve() != script.path:
            raise Refusal("stale", f"{transaction.opened['asked']} is another link now.", moved="script")
        if script.now != script.old:
            raise Refusal("stale", f"{script.path} changed.", moved="script", found=script.now)
        if script.old != script.new:
            books.note(transaction, "begun", by="agent", step=id_, undo="exchange", plain=False)
            script.put(
                script.new,
                instead_of=script.old,
                plain=lambda: books.note(transaction, "begun", by="agent", step=id_, undo="rename", plain=True),
            )
    elif id_ not in transaction.begun:
        raise Refusal("stale", f"{script.path} already has the new content.", moved="script", found=script.now)
    return {"script_sha256": script.now}


def restore_script(books: Books, transaction: Transaction, step: Json) -> Json:
    """Give the script its old content for a while, to measure once more what was before; the transaction stays open."""
    script, id_ = Script(books, transaction), step["id"]
    if id_ in transaction.begun:
        script.settle()
    if script.now != script.old:
        if script.now != script.new or Path(transaction.opened["asked"]).resolve() != script.path:
            raise Refusal("stale", f"{script.path} changed.", moved="script", found=script.now)
        if id_ not in transaction.begun:
            books.note(transaction, "begun", by="agent", step=id_, undo="exchange", plain=False)
        script.put(
            script.old,
            instead_of=script.new,
            plain=lambda: books.note(transaction, "begun", by="agent", step=id_, undo="rename", plain=True),
        )
    elif id_ not in transaction.begun:
        raise Refusal("stale", f"{script.path} already has the old content.", moved="script", found=script.now)
    return {"script_sha256": script.now}


def restart(books: Books, transaction: Transaction, step: Json) -> Json:
    """Restart the worker, or find that a call that died has done so already."""
    service, id_ = Service(books, transaction), step["id"]
    result: Json = {}
    if id_ in transaction.begun:
        service.settle()
        process, record = service.main(), service.launched(id_)
        if process is not None and record is not None and service.is_new(process, record):
            result = {"process": process, "found": True}
    else:
        ended = service.clear_the_way()
        books.note(transaction, "begun", by="agent", step=id_, before=service.main(), undo="restart", ended=ended)
    result = result or {"process": service.restart(id_)}
    record = service.launched(id_)
    assert record is not None
    if alive := service.survivors(record, int(result["process"]["pid"])):
        raise Refusal("leftovers", f"the old worker did not end: {', '.join(alive)} still there beside the new one.")
    return {**result, "unit": service.speaker.look()} if isinstance(service.speaker, Unit) else result


ACTIONS: dict[str, Callable[[Books, Transaction, Json], Json]] = {
    "edit_script": edit_script,
    "restore_script": restore_script,
    "restart": restart,
}


def expect(books: Books, transaction: Transaction, step: Json) -> None:
    """The host shows what the step was approved for."""
    script = Script(books, transaction)
    wanted, found = step["before"].get("script_sha256"), script.now
    if wanted is not None and wanted != found:
        raise Refusal("stale", f"{script.path} changed.", moved="script", found=found)
    process = step["before"].get("process")
    if process is not None:
        here = identity_in(Service(books, transaction).main())
        if here != tuple(process):
            raise Refusal("stale", "the worker's main process is another one.", moved="process", found=here)


def take_back(books: Books, transaction: Transaction, *, by: str) -> None:
    """Undo whatever a transaction may have done; under the lock.

    Raises:
        Refusal: `foreign_edit` or `undo_failed`, journalled; nothing that is not ours was overwritten.
    """
    if transaction.state in ENDED:
        return
    books.disk.remove(books.folder / "spare")
    try:
        script, service = Script(books, transaction), Service(books, transaction)
        service.settle()
        touched = put_back(books, transaction, by=by)
        if rebooted(transaction):
            service.speaker.settle(service.restart_seconds)
        process = service.main()
        launched = [id_ for id_ in transaction.begun if service.launched(id_)]
        same = identity_in(process) == identity_in(transaction.opened["before"])
        restarted = bool(launched) or (touched and not same)
        if began_after(process, transaction) or (isinstance(service.speaker, Unit) and same and process is not None):
            # It has known nothing but the old script: a manager that was asked to restart it and did not, because it
            # may not or could not, has the very same main process still.
            restarted = False
        leftovers: list[str] = []
        if restarted:
            for load in loads(books.directory, service.ports):
                end(load["identity"])
            earlier = service.launched("undo")
            if earlier is None or process is None or not service.is_new(process, earlier):
                process = service.restart("undo")
            # The old configuration has to come back whatever else is there, so that here they are only named.
            earlier = service.launched("undo")
            leftovers = service.survivors(earlier, int(process["pid"])) if earlier else []
        lower_guards(books, transaction)
        # Before the end is written down, because nobody looks at an ended transaction again.
        script.clear()
    except (Refusal, OSError) as error:
        kind = error.kind if isinstance(error, Refusal) and error.kind == "foreign_edit" else "undo_failed"
        books.note(transaction, "undo_failed", by=by, kind=kind, says=str(error))
        raise Refusal(kind, str(error)) from error
    detail: Json = {"restored": touched, "restarted": restarted, "process": process, "script_sha256": script.now}
    books.note(transaction, "undone", by=by, **detail, leftovers=leftovers)


def put_back(books: Books, transaction: Transaction, *, by: str) -> bool:
    """The part of an undo that concerns the script; whether it ever held our new content."""
    script = Script(books, transaction)
    touched = came_into_effect(transaction, script)
    last = transaction.entries[-1]
    if (last["event"], last["by"]) not in (("undo_begun", by), ("restored", by)):
        books.note(transaction, "undo_begun", by=by, touched=touched)
    if touched:
        restore(books, transaction, script, by)
        if rebooted(transaction) and restored_at(transaction) is None:
            books.note(transaction, "restored", by=by, boot=boot_id(), at=now())
    return touched


def rebooted(transaction: Transaction) -> bool:
    """Whether a transaction was opened in an earlier boot."""
    return bool(transaction.opened.get("boot", boot_id()) != boot_id())


def restored_at(transaction: Transaction) -> float | None:
    """When the script was last put back, in seconds of this boot; None: not in this boot."""
    details = [entry["detail"] for entry in transaction.entries if entry["event"] == "restored"]
    return float(details[-1]["at"]) if details and details[-1]["boot"] == boot_id() else None


def began_after(process: Json | None, transaction: Transaction) -> bool:
    """Whether a process has known nothing but the old script, because a reboot ended those that knew another."""
    at = restored_at(transaction)
    return process is not None and at is not None and started(int(process["start_ticks"])) > at


def came_into_effect(transaction: Transaction, script: Script) -> bool:
    """Whether the script held our new content at any time, so that a process may have read it."""
    script.settle()
    if any(entry["detail"].get("touched") for entry in transaction.entries if entry["event"] == "undo_begun"):
        return True
    for step in transaction.opened["steps"]:
        begun = transaction.begun.get(step["id"])
        if step["action"] == "edit_script" and begun is not None:
            refused = transaction.failed.get(step["id"], {}).get("kind") == "stale"
            renamed = bool(begun["plain"]) and not refused
            done = step["id"] in transaction.done
            return done or script.was_exchanged() or script.now == script.new or renamed
    return False


def restore(books: Books, transaction: Transaction, script: Script, by: str) -> bool:
    """Put the old content back; False where it lies there already."""
    found = script.now
    if found == script.old:
        return False
    if found != script.new:
        raise Refusal("foreign_edit", f"{script.path} holds neither the old nor the new content: somebody edited it.")
    id_ = next(step["id"] for step in transaction.opened["steps"] if step["action"] == "edit_script")
    try:
        script.put(
            script.old,
            instead_of=script.new,
            plain=lambda: books.note(transaction, "begun", by=by, step=id_, undo="rename", plain=True),
        )
    except Refusal as refusal:
        raise Refusal("foreign_edit", str(refusal)) from refusal
    return True


# ---------------------------------------------------------------------------------------------------- verbs


def view(transaction: Transaction | None) -> Json | None:
    """A transaction for the agent: heavy and inner fields of the first line left out."""
    if transaction is None:
        return None
    inner = ("dress", "service", "steps")
    after = None
    for entry in transaction.entries:
        after = entry["detail"].get("process", after)
    return {
        "transaction": transaction.id,
        "token": transaction.token,
        "state": transaction.state,
        "holder": transaction.opened["holder"],
        "before": transaction.opened["before"],
        "after": after,
        "problem": transaction.problem,
        "journal": [
            {**entry, "detail": {key: value for key, value in entry["detail"].items() if key not in inner}}
            for entry in transaction.entries
        ],
    }


def lease(books: Books, request: Json) -> Json:
    """Grant the right to write: a token that grows with every grant, so that every earlier call is fenced off."""
    holder, ttl = text_of(request, "holder"), number_of(request, "ttl")
    rearm(books)
    held = books.load("lease")
    left = books.left("lease")
    if left > 0 and held["holder"] != holder:
        which = f" ({held['who']})" if held.get("who") else ""
        says = f"{held['holder']!r}{which} holds the lease of {books.worker!r} for another {left:.0f} s."
        raise Refusal("held", says, holder=held["holder"], seconds=left)
    newest = max([held.get("token", 0), *(known.token for known in books.journal.transactions.values())])
    who = text_of(request, "who") if request.get("who") else None
    mine = {"token": newest + 1, "holder": holder, "who": who, "ttl": ttl, "boot": boot_id(), "until": now() + ttl}
    books.keep("lease", mine)
    return {"token": newest + 1, "execution": view(books.journal.current)}


def release(books: Books, request: Json) -> Json:
    """Give the lease back; the token stays the newest one, without a holder."""
    held = check_token(books, request, alive=False)
    rearm(books)
    books.keep("lease", {**held, "until": 0.0})
    return {}


def observe(books: Books, request: Json) -> Json:
    """Look at script, process, port, transaction and lease. Nothing is written, and no lock is taken."""
    words = [str(word).lower() for word in request.get("mask", [])]
    names = [str(name) for name in request.get("environ_names", [])]
    answer: Json = {"script_sha256": None, "script_problem": None, "process": None, "process_problem": None}
    if request.get("script"):
        try:
            answer["script_sha256"] = sha256(Path(text_of(request, "script")).read_bytes())
        except OSError as error:
            answer["script_problem"] = error.strerror
    speaker, main, ports = None, 0, [int(port) for port in request.get("ports") or ()]
    try:
        speaker = speaker_of(request["service"])
        main = speaker.pid()
        answer["process"] = process_of(main, names, words)
    except Refusal as refusal:
        answer["process_problem"] = str(refusal)
    answer |= {"listener": None, "unit": None, "leftovers": None, "now": now()}
    if ports:
        answer["listener"] = listener_on(ports[0], main, speaker, names, words)
    with contextlib.suppress(Refusal):
        answer["unit"] = speaker.look() if speaker else None
        if speaker and request.get("leftovers"):
            left = strays(speaker, main, ports, books.folder / "saved")
            found = [*left, *loads(books.directory, ports), *gpu_users(speaker, main)]
            answer["leftovers"] = [{"kind": one["kind"], "says": one["says"]} for one in found]
    answer["execution"] = view(books.journal.last)
    answer["lease"] = books.lease_view()
    return answer


def listener_on(
    port: int, main: int, speaker: Commands | Unit | None, names: Sequence[str] = (), words: Sequence[str] = ()
) -> Json:
    """Who listens on a port, in relation to the main process: itself, of its kin or of its unit, or a stranger."""
    holding = listeners(port)
    since = identity_of(main) if holding else None
    own: list[int] = []
    if since is not None:
        kin = kin_of(main)
        with contextlib.suppress(Refusal):
            kin |= {pid for pid in (speaker.members() if speaker else ()) if (identity_of(pid) or since)[2] >= since[2]}
        own = [pid for pid in holding if pid in kin]
    relation = "nobody" if not holding else "foreign" if not own else "main" if main in own else "descendant"
    pid = main if main in own else (own or holding or [0])[0]
    return {"relation": relation, "process": process_of(pid, names, words) if pid else None}


def check_approval(request: Json, plan: Json, text: str) -> Json:
    """The approval, if it says yes to this very plan and its time has not run out."""
    approval: Json = request.get("approval") or {}
    digest = text_of(approval, "digest")
    if not DIGEST.fullmatch(digest):
        raise Refusal("bad_request", "approval.digest is not a SHA-256 in hex.")
    if approval.get("decision") != "approve":
        raise Refusal("foreign", "nobody said yes to this plan.")
    if sha256(text.encode()) != digest or approval.get("run") != plan.get("run"):
        raise Refusal("foreign", "the approval was given for another plan.")
    left = approval.get("expires_in")
    if isinstance(left, bool) or not isinstance(left, int | float) or left <= 0:
        raise Refusal("expired", "the approval has run out.")
    return approval


def check_plan(books: Books, request: Json, plan: Json) -> tuple[list[Json], bytes]:
    """The steps and the new content, if they are what the plan says."""
    if plan.get("worker") != books.worker or plan.get("backup_of") != request.get("script"):
        raise Refusal("foreign", "the plan is for another worker or script.")
    steps: list[Json] = plan["steps"]
    ids = [step["id"] for step in steps]
    if not steps or len(set(ids)) < len(ids) or not all(STEP.fullmatch(id_) and id_ != "undo" for id_ in ids):
        raise Refusal("bad_request", "the plan's step ids are missing, not names, or not unique.")
    if unknown := {step["action"] for step in steps} - set(ACTIONS):
        raise Refusal("bad_request", f"no such action: {', '.join(sorted(unknown))}.")
    edits = [step for step in steps if step["action"] == "edit_script"]
    content = base64.b64decode(request.get("new_content") or "", validate=True)
    if edits:
        promised = {plan["new_script_sha256"], *(step["after"]["script_sha256"] for step in edits)}
        if promised != {sha256(content)}:
            raise Refusal("foreign", "the new content is not the one that was approved.")
        if None in (step["before"].get("script_sha256") for step in edits):
            raise Refusal("bad_request", "an edit names the content that it expects.")
    check_two_contents([step for step in steps if step["action"] != "restart"])
    return steps, content


def check_two_contents(swaps: Sequence[Json]) -> None:
    """A plan knows two contents of the script, edits first, and may then go back and forth between the two."""
    for before, swap in zip([None, *swaps], swaps, strict=False):
        wanted = "edit_script" if before is None or before["action"] == "restore_script" else "restore_script"
        known = before is None or (
            swap["before"].get("script_sha256") == before["after"].get("script_sha256")
            and swap["after"].get("script_sha256") == before["before"].get("script_sha256")
        )
        if swap["action"] != wanted or not known:
            raise Refusal("bad_request", "a plan edits the script once, and then only goes back and forth.")


def open_transaction(books: Books, request: Json) -> Json:
    """Spend an approval on one transaction: back up, arm the watchdog, write the first line of the journal."""
    held = check_token(books, request)
    id_, text = name_of(request, "transaction"), text_of(request, "plan")
    known = books.journal.transactions.get(id_)
    if known is not None and known.opened["digest"] == sha256(text.encode()):
        rearm(books)
        if known.state == "open":
            raise_guards(books, known)
        return {"already": True, "execution": view(known)}
    plan: Json = json.loads(text)
    approval = check_approval(request, plan, text)
    steps, content = check_plan(books, request, plan)
    rearm(books)
    current = books.journal.current
    if current is not None or known is not None:
        other = current or known
        assert other is not None
        says = f"transaction {other.id!r} of {other.opened['holder']!r} is {other.state}."
        raise Refusal("busy", says, transaction=other.id, holder=other.opened["holder"], state=other.state)
    digest = approval["digest"]
    ledger = books.directory / "spent" / digest
    mine = canonical({"worker": books.worker, "transaction": id_}).encode()
    asked = Path(text_of(request, "script"))
    service = request.get("service") or {}
    detail: Json = {
        "holder": held["holder"],
        "who": held.get("who"),
        "digest": digest,
        "run": plan["run"],
        "boot": boot_id(),
        "asked": str(asked),
        "script": str(asked.resolve()),
        "steps": [
            {**{key: step[key] for key in ("id", "action", "before")}, "optional": step.get("optional", False)}
            for step in steps
        ],
        "watchdog_seconds": number_of(plan, "watchdog_seconds"),
        "approved_by": approval.get("by"),
        "service": {
            **spec_of(service),
            "ports": [int(port) for port in request.get("ports") or ()],
            "restart_seconds": number_of(service, "restart_seconds"),
            "settle_seconds": number_of(service, "settle_seconds"),
        },
    }
    old = look_before(detail, steps)
    detail["guards"] = plan_guards(books, detail["service"])
    check_alone(books, detail["guards"])
    detail["new_sha256"] = plan["new_script_sha256"] if content else detail["old_sha256"]
    try:
        books.disk.make(ledger.parent)
        if not books.disk.claim(ledger, mine):
            if ledger.read_bytes() != mine:
                raise Refusal("spent", "the approval has opened a transaction before.")
            books.disk.sync(ledger.parent)
        lay_down(books, id_, {"old": old, "new": content or old, "plan": text.encode()})
        until = now() + detail["watchdog_seconds"]
        books.keep("deadline", {"boot": boot_id(), "until": until})
        arm(books)
        books.journal.append(id_, "opened", token=request["token"], step=None, by="agent", detail=detail)
    except OSError as error:
        if error.errno in NO_SPACE:
            forget(books, id_, ledger, mine)
        raise
    opened = books.journal.transactions[id_]
    raise_guards(books, opened)
    return {"already": False, "execution": view(opened)}


def spec_of(service: Mapping[str, Any]) -> Json:
    """What speaks for the service, as the journal keeps it."""
    if service.get("kind") == "systemd":
        unit = Unit(service)
        return {"kind": "systemd", "unit": unit.name, "scope": unit.scope}
    spoken = Commands({**service, "restart": argv_of(service, "restart")})
    kept = {"restart": spoken.restart_argv, "pid": spoken.pid_argv, "cwd": spoken.cwd, "environ": spoken.environ}
    return {"kind": "command", **kept}


def look_before(detail: Json, steps: Sequence[Json]) -> bytes:
    """The script's bytes, if script and process are what the plan was made for; what is seen goes into `detail`."""
    path = Path(detail["script"])
    try:
        detail["dress"] = Dress.of(path)._asdict()
        if path.stat().st_size > LARGEST_SCRIPT:
            raise Refusal("unsafe_script", f"{path} has over {LARGEST_SCRIPT} bytes: that is no launch file.")
        old = path.read_bytes()
    except OSError as error:
        raise Refusal("no_script", f"{path}: {error.strerror}.") from error
    detail["old_sha256"] = sha256(old)
    speaker = speaker_of(detail["service"])
    speaker.check(path)
    detail["before"] = process_of(speaker.pid())
    expected = steps[0]["before"].get("script_sha256")
    if expected not in (None, detail["old_sha256"]):
        raise Refusal("stale", f"{path} changed since the plan.", moved="script", found=detail["old_sha256"])
    here = identity_in(detail["before"])
    for step in steps:
        process = step["before"].get("process")
        if process is not None and tuple(process) != here:
            raise Refusal("stale", "the worker's main process changed since the plan.", moved="process", found=here)
        if step["action"] == "restart":
            break
    return old


def lay_down(books: Books, transaction: str, contents: Mapping[str, bytes]) -> None:
    """Keep what an undo needs, and room for the journal on a disk that fills up later."""
    folder = books.saved(transaction)
    books.disk.make(folder)
    for name, content in contents.items():
        if hash_of(folder / name) != sha256(content):
            books.disk.write(folder / name, content)
    # A call that died may have made these names without syncing them.
    for made in (folder, folder.parent, books.folder, books.folder.parent, books.directory):
        books.disk.sync(made)
    books.disk.write(books.folder / "spare", os.urandom(SPARE))  # noise: a file system that packs zeros keeps no room


def forget(books: Books, transaction: str, ledger: Path, mine: bytes) -> None:
    """Nothing was opened: leave nothing behind, and the approval unspent."""
    folder = books.saved(transaction)
    for name in ("old", "new", "plan", "old.part", "new.part", "plan.part"):
        (folder / name).unlink(missing_ok=True)
    for name in ("spare", "spare.part", "deadline.part"):
        (books.folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()
    if ledger.exists() and ledger.read_bytes() == mine:
        ledger.unlink()


def step_once(books: Books, request: Json) -> Json:
    """Carry out one step, once."""
    id_ = text_of(request, "step")
    known = books.journal.transactions.get(name_of(request, "transaction"))
    if known is not None and id_ in known.done:
        check_token(books, request, alive=False)
        rearm(books)
        return {"already": True, "result": known.done[id_], "execution": view(known)}
    transaction = check_open(books, request)
    rearm(books)
    steps: list[Json] = transaction.opened["steps"]
    ids = [step["id"] for step in steps]
    needed = [step["id"] for step in steps if not step.get("optional")]
    if id_ not in ids:
        raise Refusal("bad_request", f"the plan has no step {id_!r}.")
    if id_ in transaction.failed:
        raise Refusal("failed", str(transaction.failed[id_]["says"]), already=True)
    if missing := [one for one in ids[: ids.index(id_)] if one in needed and one not in transaction.done]:
        raise Refusal("out_of_order", f"step {missing[0]!r} comes first.")
    step = steps[ids.index(id_)]
    raise_guards(books, transaction)
    if id_ not in transaction.begun:
        expect(books, transaction, step)
    try:
        result = ACTIONS[step["action"]](books, transaction, step)
    except (Refusal, OSError) as error:
        if id_ in transaction.begun:
            kind = error.kind if isinstance(error, Refusal) else "os_error"
            books.note(transaction, "failed", by="agent", step=id_, kind=kind, says=str(error))
        books.extend(transaction)
        raise
    books.note(transaction, "done", by="agent", step=id_, **result)
    if step["action"] != "restart" and Script(books, transaction).beside:
        Script(books, transaction).clear()
    books.extend(transaction)
    return {"already": False, "result": result, "execution": view(transaction)}


def renew(books: Books, request: Json) -> Json:
    """The agent is alive: lease and watchdog wait their full time again."""
    held = check_token(books, request)
    transaction = check_open(books, request) if request.get("transaction") is not None else None
    rearm(books)
    books.extend(transaction)
    return {"seconds": held["ttl"]}


def commit(books: Books, request: Json) -> Json:
    """Keep the change for good."""
    known = books.journal.transactions.get(name_of(request, "transaction"))
    if known is not None and known.state == "committed":
        check_token(books, request, alive=False)
        return {"already": True, "execution": view(known)}
    transaction = check_open(books, request)
    needed = [step["id"] for step in transaction.opened["steps"] if not step.get("optional")]
    if missing := [id_ for id_ in needed if id_ not in transaction.done]:
        raise Refusal("incomplete", f"step {missing[0]!r} is not done.")
    if unread := unread_swap(transaction):
        raise Refusal("incomplete", f"nothing was started since step {unread!r}.")
    check_kept(books, transaction)
    lower_guards(books, transaction)
    # Once more, because the service manager may restart the worker by itself again from here on.
    check_kept(books, transaction)
    Script(books, transaction).clear()
    books.note(transaction, "committed", by="agent")
    books.disk.remove(books.folder / "spare")
    return {"already": False, "execution": view(transaction)}


def unread_swap(transaction: Transaction) -> str | None:
    """A step after the first start that gave the script another content, which no start has read yet."""
    started, unread = False, None
    for step in transaction.opened["steps"]:
        if step["id"] in transaction.begun and step["action"] != "restart":
            unread = step["id"] if started else None
        elif step["id"] in transaction.done:
            started, unread = True, None
    return unread


def check_kept(books: Books, transaction: Transaction) -> None:
    """What is kept is what was approved: the new content, run by the process that was started for it."""
    script = Script(books, transaction)
    held, found = hash_of(script.swap), script.now
    if found != script.new or held not in (None, script.old, script.new):
        says = f"{script.path} was edited by somebody while the change was being verified."
        raise Refusal("moved", says, moved="script", found=found)
    process = transaction.opened["before"]
    for done in transaction.done.values():
        process = done.get("process", process)
    here = identity_in(Service(books, transaction).main())
    if here != identity_in(process):
        raise Refusal("moved", "the worker was restarted by somebody else since.", moved="process", found=here)


def undo(books: Books, request: Json) -> Json:
    """Take a transaction back; needs the newest token, no approval, and has no time limit."""
    check_token(books, request, alive=False)
    transaction = books.journal.transactions.get(name_of(request, "transaction"))
    if transaction is None:
        raise Refusal("not_open", f"there is no transaction {request['transaction']!r}.", state="none")
    if transaction.state in ("committed", "abandoned"):
        raise Refusal("not_open", f"transaction {transaction.id!r} is {transaction.state}.", state=transaction.state)
    already = transaction.state == "undone"
    if not already:
        if transaction.state == "open":
            rearm(books)
        take_back(books, transaction, by="agent")
    return {"already": already, "execution": view(transaction)}


def abandon(books: Books, request: Json) -> Json:
    """A person settles a transaction whose undo failed: nothing is touched, and the worker is free again."""
    check_token(books, request)
    transaction = books.journal.transactions.get(name_of(request, "transaction"))
    if transaction is None or transaction.state != "undo_failed":
        state = transaction.state if transaction else "none"
        raise Refusal(
            "not_open", f"only a transaction whose undo failed can be abandoned; this one is {state}.", state=state
        )
    by, reason = text_of(request, "by"), text_of(request, "reason")
    # A person decides; a manager that does not answer must not keep the worker from being free again.
    with contextlib.suppress(Refusal, OSError):
        lower_guards(books, transaction)
    with contextlib.suppress(OSError):
        Script(books, transaction).clear()
    books.note(transaction, "abandoned", by="person", says=f"abandoned by {by}: {reason}")
    return {"execution": view(transaction)}


def status(books: Books, request: Json) -> Json:
    """How a transaction stands; without an id, the newest one."""
    rearm(books)
    id_ = request.get("transaction")
    transaction = books.journal.transactions.get(name_of(request, "transaction")) if id_ else books.journal.last
    return {"execution": view(transaction), "lease": books.lease_view(), "deadline": max(0.0, books.left("deadline"))}


# --------------------------------------------------------------------------------------------------- doctor


def ability(name: str, ok: bool | None, says: str, remedy: str = "") -> Json:
    """One thing that this user may do here, or may not; None: it could not be found out, or is not needed."""
    return {"name": name, "ok": ok, "says": says, "remedy": "" if ok else remedy}


def doctor(books: Books, request: Json) -> Json:
    """What this user may do here for this worker. Beyond its own directory nothing is written that stays."""
    script = Path(text_of(request, "script"))
    found = [python_here(), room_here(books), script_here(script), exchange_here(books, script)]
    try:
        speaker = speaker_of(request["service"])
        found += unit_here(speaker, script) if isinstance(speaker, Unit) else []
        found += process_here(speaker, [int(port) for port in request.get("ports") or ()])
    except Refusal as refusal:
        found.append(ability("service", False, str(refusal), "Correct the worker's service in prudent.toml."))
    found += [log_here(text_of(request, "log"), request["service"])] if request.get("log") else []
    return {"abilities": [*found, *watchdog_here(), gpu_here()], "user": login(), "boot_id": boot_id()}


def python_here() -> Json:
    """The interpreter that runs us."""
    version = platform.python_version()
    says = f"Python {version} at {sys.executable}"
    return ability("python", sys.version_info >= (3, 10), says, "Name a Python 3.10 or newer as the host's python.")


def room_here(books: Books) -> Json:
    """Whether Prudent's own directory can be written, synced and read again, and how much room there is."""
    trial = books.directory / f".trial-{os.getpid()}"
    remedy = f"Give {login()} a directory of its own, and name it as the worker's directory in prudent.toml."
    try:
        books.disk.make(books.directory)
        if books.directory.stat().st_uid != os.geteuid():
            return ability("directory", False, f"{books.directory} belongs to another user", remedy)
        books.disk.write(trial, os.urandom(SPARE))
    except OSError as error:
        return ability("directory", False, f"{books.directory}: {error.strerror}", remedy)
    finally:
        with contextlib.suppress(OSError):
            trial.unlink()
    free = shutil.disk_usage(books.directory).free
    needed = 4 * (LARGEST_SCRIPT + SPARE)
    says = f"{books.directory} can be written; {free / 2**20:.0f} MiB free"
    return ability("directory", free >= needed, says, f"Make room: a change may need {needed / 2**20:.0f} MiB.")


def script_here(script: Path) -> Json:
    """Whether the launch file is what we can edit."""
    try:
        Dress.of(script.resolve())
        script.read_bytes()
    except OSError as error:
        return ability("script", False, f"{script}: {error.strerror}", "Correct its path, or let this user read it.")
    except Refusal as refusal:
        return ability("script", False, str(refusal), "Edit it by hand, or give it one name and plain content.")
    owner, folder = script.resolve().stat().st_uid, script.resolve().parent
    if not os.access(folder, os.W_OK | os.X_OK):
        why = f"{folder} is not {login()}'s to write"
        return ability("script", False, why, 'Log in as its owner, or use become = "sudo".')
    if owner != os.geteuid() and os.geteuid() != 0:
        why = f"{script} belongs to another user, and an edit would have to keep that"
        return ability("script", False, why, 'Log in as its owner, or use become = "sudo".')
    return ability("script", True, f"{script} can be read and replaced")


def exchange_here(books: Books, script: Path) -> Json:
    """Whether two names can be exchanged where the script will be: in our own directory, or else beside it."""
    says = "an edit is one exchange of two names"
    try:
        near = script.resolve().parent
        inside = mount_of(books.directory) == mount_of(near)
        folder = books.directory if inside else near
        pair = [folder / f".prudent-trial-{os.getpid()}-{letter}" for letter in "ab"]
        try:
            for path in pair:
                books.disk.write(path, path.name.encode())
            exchanged = books.disk.exchange(pair[0], pair[1]) and pair[0].read_bytes() == pair[1].name.encode()
        finally:
            for path in pair:
                path.unlink(missing_ok=True)
    except OSError as error:
        return ability("exchange", None, f"could not be tried: {error.filename}: {error.strerror}")
    if not exchanged:
        return ability(
            "exchange", None, f"{folder} cannot exchange two names: an edit is a rename, checked just before"
        )
    where = "" if inside else f", beside the script, because {books.directory} is on another mount"
    return ability("exchange", True, f"{says}{where}")


def unit_here(unit: Unit, script: Path) -> list[Json]:
    """Whether the unit is there and may be restarted, and what else can start or stop it."""
    remedies = {
        "no_systemd": "See that the manager runs; for a user's own: loginctl enable-linger USER.",
        "no_unit": "Correct unit and scope of the worker's service in prudent.toml.",
        "masked": f"Unmask it with: systemctl unmask {unit.name}",
        "not_controllable": 'Log in as root, use become = "sudo", let a rule of polkit allow '
        "org.freedesktop.systemd1.manage-units for this unit, or run the worker as a user unit.",
        "unit_changed": "Read what changed, then: systemctl daemon-reload, and restart the worker by hand.",
    }
    found = []
    try:
        shown = unit.known()
        there = f"unit {unit.name} of {unit.manager} is {shown['ActiveState']} ({shown['SubState']})"
        found.append(ability("unit", True, there))
        allowed, _ = unit.standing(shown)
        if allowed is not None or shown.get("ActiveState") == "active":
            unit.check(script)
            allowed = True
    except Refusal as refusal:
        name = "restart" if found else "unit"
        return [*found, ability(name, False, str(refusal), remedies.get(refusal.kind, ""))]
    asked = f"whether {login()} may restart it is for polkit to say, once it runs"
    says = f"{login()} may restart it" if allowed else asked
    found.append(ability("restart", allowed, says, remedies["not_controllable"]))
    base = Path("/run") if unit.scope == "system" else runtime_folder()
    policy = shown.get("Restart")
    if policy != "no" and not os.access(base, os.W_OK):
        found.append(
            ability("disarm", None, f"Restart={policy} stays armed during a change: {base} is not ours to write")
        )
    else:
        found.append(ability("disarm", True, f"Restart={policy} can be disarmed during a change"))
    if shown.get("TriggeredBy"):
        found.append(ability("triggers", None, f"{shown['TriggeredBy']} may start it during a change"))
    if shown.get("OnFailure"):
        found.append(ability("on failure", None, f"{shown['OnFailure']} is started when the worker fails in a change"))
    if shown.get("KillMode") in ("process", "none"):
        says = f"KillMode={shown['KillMode']}: children of the worker may outlive a stop"
        found.append(ability("stop", None, says, "Use KillMode=control-group or mixed."))
    return found


def process_here(speaker: Commands | Unit, ports: Sequence[int]) -> list[Json]:
    """Whether the worker's own argv, environment and sockets can be read."""
    pid = speaker.pid()
    if not pid:
        return [ability("process", None, "the worker does not run: nothing can be said of its process")]
    try:
        Path(f"/proc/{pid}/environ").read_bytes()
        list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError as error:
        remedy = 'Log in as the worker\'s user or as root, or use become = "sudo".'
        return [ability("process", False, f"{error.filename}: {error.strerror}", remedy)]
    found = [ability("process", True, f"argv, environment and sockets of {called(pid)} can be read")]
    for port in ports[:1]:
        relation = listener_on(port, pid, speaker)["relation"]
        says = {"nobody": "nobody that we may see", "foreign": "a process that is not the worker's"}.get(relation)
        ok = relation in ("main", "descendant")
        remedy = "Start the worker, or correct its control address in prudent.toml."
        found.append(ability("port", ok, f"port {port} is held by {says or 'the worker'}", remedy))
    return found


def log_here(log: str, service: Mapping[str, Any]) -> Json:
    """Whether the worker's log can be read."""
    if log != "journal":
        try:
            with Path(log).open("rb"):
                return ability("log", True, f"{log} can be read")
        except OSError as error:
            return ability("log", False, f"{log}: {error.strerror}", "Correct its path, or let this user read it.")
    unit = Unit(service)
    which = f"--user-unit={unit.name}" if unit.scope == "user" else f"--unit={unit.name}"
    remedy = f"Let {login()} read it: usermod -aG systemd-journal {login()}, then log in anew."
    try:
        done = said_by(["journalctl", which, "--lines=1", "--output=cat", "--no-pager", "--quiet"], limit=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return ability("log", False, f"journalctl does not answer: {error}", "Write the log to a file instead.")
    if done.returncode or not done.stdout.strip():
        said = done.stderr.strip()[-200:] or "it shows no line of the unit"
        return ability("log", False, f"the journal: {said}", remedy)
    return ability("log", True, f"the journal of unit {unit.name} can be read")


def watchdog_here() -> list[Json]:
    """Whether the watchdog outlives this login, and a reboot."""
    scope, why = own_manager()
    remedy = f"Run: loginctl enable-linger {login()}" if "linger" in why else ""
    if scope is None:
        return [
            ability("watchdog", None, f"a process of its own session: {why}", remedy),
            ability("reboot", None, f"is noticed by the next call only: {why}", remedy),
        ]
    flag = "--user" if scope == "user" else "--system"
    try:
        argv = ["systemd-run", flag, "--quiet", "--wait", "--collect", "--no-ask-password", "/bin/true"]
        done = said_by(argv, limit=30)
        trouble = done.stderr.strip()[-200:] if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        trouble = str(error)
    if trouble:
        runs = ability(
            "watchdog", None, f"a process of its own session: systemd-run: {trouble}", "Install systemd-run."
        )
    else:
        runs = ability("watchdog", True, "a unit of its own, which no logout ends")
    folder = UNITS[scope].expanduser()
    nearest = next(path for path in (folder, *folder.parents) if path.is_dir())
    if not os.access(nearest, os.W_OK):
        return [runs, ability("reboot", None, f"is noticed by the next call only: {nearest} cannot be written")]
    return [runs, ability("reboot", True, f"a unit in {folder} takes back what a reboot leaves open")]


def gpu_here() -> Json:
    """Whether the driver's tool tells who holds GPU memory."""
    try:
        done = said_by(["nvidia-smi", "--query-gpu=name,memory.used", "--format=csv,noheader"], limit=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return ability("gpu", None, f"who holds GPU memory cannot be asked: {error}")
    says = "; ".join(done.stdout.split("\n")).strip("; ") or done.stderr.strip()
    return ability("gpu", True if done.returncode == 0 else None, f"nvidia-smi: {says[:200]}")


LOCKED: dict[str, Callable[[Books, Json], Json]] = {
    "lease": lease,
    "release": release,
    "open": open_transaction,
    "step": step_once,
    "renew": renew,
    "commit": commit,
    "undo": undo,
    "abandon": abandon,
    "status": status,
}
UNLOCKED: dict[str, Callable[[Books, Json], Json]] = {"observe": observe, "doctor": doctor, "watch": watch}


# ----------------------------------------------------------------------------------------------------- door


def carry_out(verb: str, request: Json, disk: Disk) -> Json:
    """One verb, with its answer or its refusal."""
    try:
        check_request(verb, request)
        books = Books(request, disk)
        if verb in UNLOCKED:
            return {"ok": True, **UNLOCKED[verb](books, request)}
        with books.lock(number_of(request, "wait") if "wait" in request else 1e9):
            return {"ok": True, **LOCKED[verb](books, request)}
    except Refusal as refusal:
        return {"ok": False, "kind": refusal.kind, "says": str(refusal), **refusal.more}
    except OSError as error:
        kind = "forbidden" if isinstance(error, PermissionError) else "os_error"
        kind = "no_space" if error.errno in NO_SPACE else kind
        where = error.filename or request.get("directory")
        return {"ok": False, "kind": kind, "says": f"{where}: {error.strerror}"}
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        says = f"{type(error).__name__}: {error} ({frame.name}, line {frame.lineno})"
        return {"ok": False, "kind": "bad_request", "says": says}


def check_request(verb: str, request: Json) -> None:
    """A verb that we have, and a request as it was sent; the seal is taken off."""
    seal = request.pop("seal", None)
    if seal is not None and seal != sha256(canonical(request).encode()):
        raise Refusal("garbled", "the request does not match its seal.")
    if verb not in LOCKED and verb not in UNLOCKED:
        raise Refusal("bad_request", f"no such verb: {verb!r}.")


def watched(argv: Sequence[str]) -> Json | None:
    """The request of a watchdog, which a unit starts with words instead of a document."""
    return {"directory": argv[1], "worker": argv[2]} if len(argv) == 3 and argv[0] == "watch" else None


def main(argv: Sequence[str]) -> NoReturn:
    """Read the request, carry it out, answer."""
    disk = Disk(os.environ)
    try:
        request = watched(argv) or json.loads(sys.stdin.buffer.read())
    except ValueError as error:
        request = f"the request is no JSON: {error}"
    if isinstance(request, dict):
        seal = request.get("seal")
        answer = carry_out(argv[0] if argv else "", request, disk)
    else:
        seal, answer = None, {"ok": False, "kind": "garbled", "says": f"not a JSON object: {str(request)[:200]}"}
    answer["to"] = seal
    answer["seal"] = sha256(canonical(answer).encode())
    disk.mark("answer")
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    sys.exit(0 if answer["ok"] else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
