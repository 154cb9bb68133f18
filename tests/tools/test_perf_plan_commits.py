"""What becomes of the plan document in a repository, and beside people who edit it at the same moment."""

from __future__ import annotations

import os
import subprocess
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.domain import Change, Record, Request, Setting, Verdict
from tools.perf_plan import append_record
from tools.plan_file import exchange

NOON = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
WORDS = ("cuda graphs",)


def record_of(run: str = "r-1") -> Record:
    """A record of a kept change."""
    setting = Setting(knob="cuda-graph-max-bs", kind="flag", spelling="--cuda-graph-max-bs", old="32", new="96")
    return Record(
        seq=7,
        run=run,
        worker="decode",
        at=NOON,
        request=Request(run=run, text="bump cuda graphs to 96", worker="decode", door="cli", by="ana", at=NOON),
        change=Change(worker="decode", operation="set", settings=(setting,), summary="cuda-graph-max-bs 32 -> 96"),
        verdict=Verdict(decision="kept", state="new", why="every criterion is met"),
        previous="0" * 64,
    )


def git(folder: Path, *arguments: str) -> str:
    """Run git as a person would."""
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, check=True)
    return done.stdout.decode().strip()


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed plan document in a repository of its own, on a machine where git knows nobody."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    git(tmp_path, "init", "-q", "-b", "main")
    path = tmp_path / "docs" / "PLAN.md"
    path.parent.mkdir()
    path.write_text("# Plan\n\n## CUDA graphs\n\nState: proposed\n")
    (tmp_path / "serve.sh").write_text("exec serve\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=Ana", "-c", "user.email=ana@example.org", "commit", "-qm", "begin")
    return path


def test_the_record_is_committed_alone(plan: Path) -> None:
    """The commit holds the document only, names run and hash, and uses the fallback where git knows nobody."""
    done = append_record(plan, record_of(), words=WORDS)
    assert done.committed == git(plan.parent, "rev-parse", "HEAD")
    assert git(plan.parent, "show", "--format=", "--name-only", "HEAD") == "docs/PLAN.md"
    message = git(plan.parent, "log", "-1", "--format=%an <%ae>%n%B")
    assert message.startswith("Prudent <prudent@localhost>\nRecord r-1: kept: cuda-graph-max-bs 32 -> 96")
    assert record_of().hash in message
    assert git(plan.parent, "status", "--porcelain") == ""
    again = append_record(plan, record_of(), words=WORDS)
    assert (again.written, again.committed) == (False, done.committed)


def test_the_repositorys_own_identity_is_used(plan: Path) -> None:
    """Where the repository knows a name and an address, they sign."""
    git(plan.parent, "config", "user.name", "Ben")
    git(plan.parent, "config", "user.email", "ben@example.org")
    append_record(plan, record_of(), words=WORDS)
    assert git(plan.parent, "log", "-1", "--format=%an <%ae> %cn") == "Ben <ben@example.org> Ben"


def test_other_work_is_left_where_it_is(plan: Path) -> None:
    """Somebody's staged and unstaged work is neither committed nor unstaged, and the note says that it is there."""
    root = plan.parent.parent
    (root / "serve.sh").write_text("exec serve --new\n")
    git(root, "add", "serve.sh")
    (root / "notes.txt").write_text("hm\n")
    done = append_record(plan, record_of(), words=WORDS)
    assert done.committed is not None
    assert git(root, "show", "--format=", "--name-only", "HEAD") == "docs/PLAN.md"
    assert git(root, "status", "--porcelain") == "M  serve.sh\n?? notes.txt"
    assert "the working tree was not clean: 2 other file(s) had changes" in done.notes


@pytest.mark.parametrize("staged", [False, True])
def test_a_persons_edits_are_not_committed_for_them(plan: Path, staged: bool) -> None:
    """A document with uncommitted edits gets the record and is left for its editor to commit."""
    plan.write_text(plan.read_text() + "\nAna is still writing this.\n")
    if staged:
        git(plan.parent, "add", plan.name)
    before = git(plan.parent, "rev-parse", "HEAD")
    done = append_record(plan, record_of(), words=WORDS)
    assert (done.written, done.committed) == (True, None)
    assert "not committed" in done.notes[-1]
    assert git(plan.parent, "rev-parse", "HEAD") == before
    text = plan.read_text()
    assert "Ana is still writing this." in text
    assert "prudent-record: r-1" in text


def test_a_document_that_was_never_committed_is_not_committed(plan: Path) -> None:
    """A person's untracked document stays untracked."""
    other = plan.with_name("OTHER.md")
    other.write_text("# Other plan\n")
    done = append_record(other, record_of(), words=WORDS)
    assert (done.written, done.committed) == (True, None)
    assert "has never been committed" in done.notes[-1]
    assert git(plan.parent, "status", "--porcelain") == "?? docs/OTHER.md"


def test_a_document_that_prudent_makes_is_committed(plan: Path) -> None:
    """Nobody's edits are in a document that was not there before."""
    other = plan.with_name("NEW.md")
    done = append_record(other, record_of(), words=WORDS)
    assert done.committed is not None
    assert git(plan.parent, "show", "--format=", "--name-only", "HEAD") == "docs/NEW.md"


def test_an_ignored_document_is_not_forced_in(plan: Path) -> None:
    """What the repository ignores stays out of it."""
    (plan.parent.parent / ".gitignore").write_text("docs/LOCAL.md\n")
    done = append_record(plan.with_name("LOCAL.md"), record_of(), words=WORDS)
    assert (done.written, done.committed) == (True, None)
    assert "ignored" in done.notes[-1]


def test_a_record_that_a_crash_left_uncommitted_is_committed_later(plan: Path) -> None:
    """A run that died between the write and the commit is finished by the next call, which adds nothing to the text."""
    hook = plan.parent.parent / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho the linter says no >&2\nexit 1\n")
    hook.chmod(0o755)
    first = append_record(plan, record_of(), words=WORDS)
    assert (first.written, first.committed) == (True, None)
    assert "the linter says no" in first.notes[-1]
    hook.unlink()
    text = plan.read_text()
    second = append_record(plan, record_of(), words=WORDS)
    assert (second.written, plan.read_text()) == (False, text)
    assert second.committed == git(plan.parent, "rev-parse", "HEAD")


def test_line_endings_that_git_converts_are_no_edits(plan: Path) -> None:
    """A document that is checked out with CRLF and kept with LF counts as committed."""
    git(plan.parent, "config", "core.autocrlf", "true")
    plan.unlink()
    git(plan.parent, "checkout", "--", plan.name)
    assert b"\r\n" in plan.read_bytes()
    done = append_record(plan, record_of(), words=WORDS)
    assert done.committed is not None
    assert plan.read_bytes().count(b"\n") == plan.read_bytes().count(b"\r\n")


def test_a_repository_that_git_does_not_answer_for_is_said(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a git program the record is written, and the note says why it is not committed."""
    monkeypatch.setenv("PATH", str(plan.parent))
    done = append_record(plan, record_of(), words=WORDS)
    assert (done.written, done.committed) == (True, None)
    assert "git is missing" in done.notes[-1]


def test_a_git_that_called_us_does_not_lead_astray(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of a surrounding git, as in a hook, do not point the commit at another repository."""
    monkeypatch.setenv("GIT_DIR", str(plan.parent / "elsewhere.git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(plan.parent / "elsewhere.index"))
    done = append_record(plan, record_of(), words=WORDS)
    monkeypatch.delenv("GIT_DIR")
    monkeypatch.delenv("GIT_INDEX_FILE")
    assert done.committed == git(plan.parent, "rev-parse", "HEAD")


def test_what_a_person_saves_at_the_same_moment_is_not_lost(tmp_path: Path) -> None:
    """An editor that saves its own text again and again keeps every line of its last save, and the records get in."""
    path = tmp_path / "PLAN.md"
    path.write_text("# Plan\n")
    stop = threading.Event()
    saved = ["# Plan"]

    def edit() -> None:
        while not stop.wait(0.002):
            saved.append(f"line {len(saved)}")
            draft = tmp_path / "editor.tmp"
            draft.write_text("\n".join(saved) + "\n")
            draft.replace(path)

    editor = threading.Thread(target=edit)
    editor.start()
    for place in range(15):
        append_record(path, record_of(f"r-{place}"), words=WORDS)
    stop.set()
    editor.join()
    for place in range(15):
        append_record(path, record_of(f"r-{place}"), words=WORDS)
    lines = path.read_text().splitlines()
    assert [line for line in lines if line == "# Plan" or line.startswith("line ")] == saved
    for place in range(15):
        assert sum(f"prudent-record: r-{place} " in line for line in lines) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["PLAN.md"]


def test_an_exchange_hands_back_what_was_there(tmp_path: Path) -> None:
    """The replaced content comes back, and every version is either in the file or handed back to one writer."""
    path = tmp_path / "file"
    path.write_bytes(b"0-0")
    seen: list[bytes] = []

    def write(name: int) -> None:
        seen.extend(exchange(path, f"{name}-{place}".encode()) for place in range(1, 101))

    writers = [threading.Thread(target=write, args=(name,)) for name in range(1, 4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    seen.append(path.read_bytes())
    assert len(seen) == len(set(seen)) == 301
