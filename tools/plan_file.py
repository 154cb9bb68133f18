"""A file that people edit too: replaced in one step, and what they saved at that moment is handed back."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path


def exchange(path: Path, content: bytes) -> bytes:
    """Put content in a file's place in one step, durably, with the mode and the owner that it had.

    Reading, comparing and renaming leaves a moment in which a person's save is lost. Here the new and the old file
    change places first, and the old one is read afterwards.

    Args:
        path: The file; it exists, and is no symbolic link.
        content: Its new bytes.

    Returns:
        What the file held when it was replaced.

    Raises:
        OSError: it cannot be written; it is as it was.
    """
    was = path.stat()
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with draft.open("xb") as new:
            new.write(content)
            new.flush()
            with suppress(PermissionError):
                os.fchown(new.fileno(), was.st_uid, was.st_gid)
            os.fchmod(new.fileno(), was.st_mode & 0o7777)
            os.fsync(new.fileno())
        displaced = draft.read_bytes() if _swapped(draft, path) else _replaced(draft, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return displaced
    finally:
        draft.unlink(missing_ok=True)


def _swapped(one: Path, other: Path) -> bool:
    """Let two files change places (renameat2 with RENAME_EXCHANGE); False where system or file system cannot."""
    here, flag = -100, 2  # AT_FDCWD of <fcntl.h>, RENAME_EXCHANGE of <stdio.h>
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(here, os.fsencode(one), here, os.fsencode(other), flag) == 0:
        return True
    code = ctypes.get_errno()
    if code in {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}:
        return False
    raise OSError(code, os.strerror(code), str(other))


def _replaced(draft: Path, path: Path) -> bytes:
    """The next best: read as late as can be, then rename. The moment in between is microseconds, not none."""
    displaced = path.read_bytes()
    draft.replace(path)
    return displaced
