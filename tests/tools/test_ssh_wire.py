"""What comes over a channel: whole, in pieces, cut, and late."""

from __future__ import annotations

import shlex

import pytest

from tools.ssh_wire import Frames, order

MARK = b"0123456789abcdef"


class Channel:
    """Hands out parts as they were written down; then it is at its end, or silent."""

    def __init__(self, *parts: bytes, silent: bool = False) -> None:
        self.parts = list(parts)
        self.silent = silent

    def settimeout(self, timeout: float | None) -> None:
        assert timeout is not None
        assert timeout > 0

    def sendall(self, s: bytes) -> None:
        raise AssertionError

    def recv(self, nbytes: int) -> bytes:
        if self.parts:
            return self.parts.pop(0)
        if self.silent:
            raise TimeoutError
        return b""


def frames(*parts: bytes, silent: bool = False) -> Frames:
    """An answer that comes in these parts."""
    return Frames(Channel(*parts, silent=silent), MARK, lambda: 0.0)


WHOLE = b"motd 0123456789abcde" + MARK + b"O00000005hello" + b"E00000000" + b"S00000002{}"


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_frames_come_out_whole_however_they_arrive(size) -> None:
    """Where a part ends means nothing; what a shell printed before the mark is dropped."""
    made = frames(*(WHOLE[i : i + size] for i in range(0, len(WHOLE), size)))
    assert [made.next(1.0) for _ in range(3)] == [("O", b"hello"), ("E", b""), ("S", b"{}")]


def test_an_answer_that_is_cut_is_never_an_answer() -> None:
    """Wherever the connection ends, the last word is missing, and that is an error, not an empty answer."""
    for end in range(len(WHOLE)):
        made = frames(WHOLE[:end])
        with pytest.raises(EOFError):
            _to_the_end(made)
        assert made.began == (end >= WHOLE.index(MARK) + len(MARK))


def _to_the_end(made: Frames) -> None:
    while made.next(1.0)[0] != "S":
        pass


def test_silence_is_told_apart_from_the_end() -> None:
    """What has not come yet may still come."""
    made = frames(WHOLE[:-1], silent=True)
    made.next(1.0)
    made.next(1.0)
    with pytest.raises(TimeoutError):
        made.next(1.0)
    with pytest.raises(TimeoutError):
        frames(WHOLE).next(-1.0)


def test_the_shell_sees_one_fixed_line() -> None:
    """Nothing of a wish is in the line for the shell, and every shell's quoting yields the same words."""
    hostile = {"do": "run", "argv": ["$(reboot)", "'", '"', "\n"], "environ": {"A": "`id`"}, "timeout": 1}
    made = order("python3", hostile, b"\0input", mark="m4rk", become=("sudo", "-n", "--"))
    words = shlex.split(made.line)
    assert words[:7] == ["sudo", "-n", "--", "python3", "-I", "-S", "-c"]
    assert words[-1] == "m4rk"
    assert "reboot" not in made.line
    assert "\n" not in made.line
    assert made.sent.endswith(b"\0input")
    assert int(words[-2]) == made.sent.index(b'{"do": "run"')
