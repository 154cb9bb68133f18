from __future__ import annotations

import json

import pytest

from agent.errors import HelperRefused


def journal_of(site):
    """The journal's file."""
    return site.directory / "workers" / "decode" / "journal"


def opened_and_edited(site) -> int:
    """A transaction that has been opened and whose first step is done."""
    token = site.writer.lease("r-1", 60).token
    site.open(token)
    site.writer.step(token, "r-1", "edit")
    return token


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.99], ids=lambda keep: f"{keep:.0%} of it")
def test_a_torn_last_line_is_cut_off(site, keep) -> None:
    """A line that was being written when the power went is not read, and the next line follows the last whole one."""
    token = opened_and_edited(site)
    path = journal_of(site)
    whole = path.read_bytes()
    line = whole.splitlines(keepends=True)[-1]
    path.write_bytes(whole + line[: int(len(line) * keep)])
    assert [entry.event for entry in site.writer.observe().execution.journal] == ["opened", "begun", "done"]
    assert site.writer.undo(token, "r-1").state == "undone"
    assert path.read_bytes().startswith(whole)
    assert [entry.seq for entry in site.writer.status().journal] == [1, 2, 3, 4, 5]


def test_zeros_where_the_last_line_should_be_are_cut_off(site) -> None:
    """A length that reached the disk without its bytes reads as what it is: a torn line."""
    token = opened_and_edited(site)
    path = journal_of(site)
    path.write_bytes(path.read_bytes() + b"\0" * 512)
    assert site.writer.undo(token, "r-1").state == "undone"
    assert b"\0" not in path.read_bytes()


def test_a_step_whose_done_line_was_lost_is_found_done(site) -> None:
    """Without the last line the edit is recognised by what lies on the disk, and is not made a second time."""
    token = opened_and_edited(site)
    path = journal_of(site)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    inode = site.script.stat().st_ino
    execution = site.writer.step(token, "r-1", "edit")
    assert [entry.event for entry in execution.journal] == ["opened", "begun", "done"]
    assert site.script.stat().st_ino == inode


@pytest.mark.parametrize("damage", ["a changed byte", "a missing line", "a doubled line"])
def test_a_journal_that_was_tampered_with_is_refused(site, damage) -> None:
    """Damage before the last line is named, and nothing is written on the strength of such a journal."""
    token = opened_and_edited(site)
    path = journal_of(site)
    lines = path.read_bytes().splitlines(keepends=True)
    lines = {
        "a changed byte": [lines[0].replace(b"r-1", b"r-7"), *lines[1:]],
        "a missing line": [lines[0], *lines[2:], lines[2]],
        "a doubled line": [lines[0], lines[0], *lines[1:]],
    }[damage]
    path.write_bytes(b"".join(lines))
    with pytest.raises(HelperRefused, match="line ") as refused:
        site.writer.undo(token, "r-1")
    assert refused.value.kind == "journal_corrupt"
    assert b"96" in site.script.read_bytes()


def test_a_line_from_another_history_is_refused(site) -> None:
    """A line that is whole by itself and has the right number, but did not follow the line before it, is no line."""
    path = journal_of(site)
    opened_and_edited(site)
    first = path.read_bytes().splitlines(keepends=True)
    site.writer.undo(site.writer.lease("r-1", 60).token, "r-1")
    path.unlink()
    site.open(site.writer.lease("r-1", 60).token, "r-1", diff="another plan")
    site.writer.step(site.writer.lease("r-1", 60).token, "r-1", "edit")
    second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(second[0] + first[1] + second[2])
    with pytest.raises(HelperRefused, match="line 2 ") as refused:
        site.writer.status()
    assert refused.value.kind == "journal_corrupt"


def test_the_journal_is_plain_lines_for_people(site) -> None:
    """Each line is a checksum and a JSON document that says when, what, which step and by whom."""
    opened_and_edited(site)
    for number, line in enumerate(journal_of(site).read_text().splitlines(), 1):
        checksum, _, text = line.partition(" ")
        entry = json.loads(text)
        assert len(checksum) == 16
        assert entry["seq"] == number
        assert {"at", "event", "transaction", "step", "by", "token", "detail"} < set(entry)


def test_tokens_grow_even_when_the_lease_file_is_lost(site) -> None:
    """A token that opened a transaction is never granted a second time."""
    token = opened_and_edited(site)
    (site.directory / "workers" / "decode" / "lease").unlink()
    assert site.writer.lease("r-1", 60).token > token
