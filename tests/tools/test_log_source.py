from __future__ import annotations

import pytest

from tools.local import LocalHost
from tools.log_source import FileLog, log_of
from tools.service import CommandService


@pytest.fixture
def file(tmp_path):
    """A log file with a start in it."""
    path = tmp_path / "worker.log"
    path.write_bytes(b"first start\n")
    return path


@pytest.fixture
def log(tmp_path, file):
    """The same as a source."""
    service = CommandService(restart=("true",), pid=("echo", "0"))
    made = log_of(LocalHost(tmp_path / "prudent"), str(file), service)
    assert isinstance(made, FileLog)
    return made


def test_a_file_is_read_from_a_mark_on(file, log) -> None:
    """What was there at the mark is not part of what came after it; without a mark all of it is read."""
    mark = log.mark()
    assert log.tail(1000, after=mark) == (b"", True)
    with file.open("ab") as more:
        more.write(b"second start\n")
    assert log.tail(1000, after=mark) == (b"second start\n", True)
    assert log.tail(1000) == (b"first start\nsecond start\n", True)
    assert log.name == str(file)


def test_a_window_that_is_too_small_says_so(file, log) -> None:
    """The end of the file, and whether anything older was left out; nothing from before the mark gets in."""
    mark = log.mark()
    with file.open("ab") as more:
        more.write(b"second start\nready\n")
    assert log.tail(6) == (b"ready\n", False)
    assert log.tail(6, after=mark) == (b"ready\n", False)
    assert log.tail(19, after=mark) == (b"second start\nready\n", True)


@pytest.mark.parametrize("how", ["renamed away", "cut to nothing", "renamed away and longer than before"])
def test_a_log_that_was_rotated_is_read_from_its_new_start(file, log, how) -> None:
    """A mark of a file that is not there any more lets nothing of the new one be overlooked."""
    mark = log.mark()
    new = b"second start\n" * (10 if "longer" in how else 0) + b"ready\n"
    if how == "cut to nothing":
        file.write_bytes(b"")
    else:
        file.rename(file.with_suffix(".1"))
    file.write_bytes(new)
    assert log.tail(1000, after=mark) == (new, True)


def test_a_file_that_cannot_be_read_is_no_empty_one(file, log) -> None:
    """A log that is not there has neither a mark nor a tail; its name may be any."""
    file.unlink()
    assert log.mark() is None
    assert log.tail(1000) is None
    odd = file.with_name("-n $(x) 'y'.log")
    odd.write_bytes(b"line\n")
    service = CommandService(restart=("true",), pid=("echo", "0"))
    assert log_of(LocalHost(file.parent / "prudent"), str(odd), service).tail(1000) == (b"line\n", True)
