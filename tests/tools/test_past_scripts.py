"""The time before us as backups and git tell of it: by knob, with what nobody knows any more."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from agent.errors import BadSettings
from tools.past.backups import belongs
from tools.past.source import read_sources
from tools.past.versions import Subject

DECODE = Subject(script="serve_decode.sh", engine="sglang", launch=None)


def script(*flags: str, remark: str = "", exports: str = "") -> str:
    """A launch file as people write it."""
    lines = " \\\n    ".join(("exec python3 -m sglang.launch_server", "--model-path /m", "--port 31000", *flags))
    return f"#!/bin/bash\n# {remark}\n{exports}\n{lines}\n"


def backup(folder: Path, name: str, *flags: str, day: str = "2026-11-01", **more: str) -> Path:
    """A version of the script in a folder, last touched at noon of a day."""
    path = folder / name
    path.write_text(script(*flags, **more))
    noon = datetime.fromisoformat(f"{day}T12:00:00+00:00").timestamp()
    os.utime(path, (noon, noon))
    return path


def told(folder: Path, subject: Subject = DECODE):
    """What a folder tells: days and changes, and what was left out."""
    read = read_sources([folder], subject, given=True)
    return [(str(c.origin.at)[:10], c.summary) for c in read.changes], read


def test_backups_are_ordered_by_the_dates_in_their_names(tmp_path):
    """The name's date counts, however the file's own time was altered by copying; the script itself comes last."""
    backup(tmp_path, "serve_decode.sh.bak-20260610", "--cuda-graph-max-bs 16", day="2026-01-01")
    backup(tmp_path, "serve_decode.sh.bak-2026-06-01T0930", "--cuda-graph-max-bs 8", day="2026-11-20")
    backup(tmp_path, "serve_decode_1783000000.sh", "--cuda-graph-max-bs 32", day="2025-01-01")  # 2026-07-02
    backup(tmp_path, "serve_decode.sh", "--cuda-graph-max-bs 64", day="2026-02-02")

    changes, _ = told(tmp_path)

    assert changes == [
        ("2026-06-01", "cuda-graph-max-bs 8 -> 16"),
        ("2026-06-10", "cuda-graph-max-bs 16 -> 32"),
        ("2026-07-02", "cuda-graph-max-bs 32 -> 64"),
    ]


def test_a_backup_without_a_date_goes_by_its_files_time_and_says_so(tmp_path):
    """Where no name says when, the order is that of the files, and the doubt is written down."""
    backup(tmp_path, "serve_decode.sh.bak", "--page-size 1", day="2026-05-02")
    backup(tmp_path, "serve_decode.sh.orig", "--page-size 64", day="2026-04-01")
    backup(tmp_path, "serve_decode.sh", "--page-size 16", day="2026-06-01")

    changes, read = told(tmp_path)

    assert changes == [("2026-04-01", "page-size 64 -> 1"), ("2026-05-02", "page-size 1 -> 16")]
    assert all("the file's own time is taken" in " ".join(c.origin.unsure) for c in read.changes)
    assert "between 2026-04-01 and 2026-05-02" in " ".join(read.changes[0].origin.unsure)
    assert "Who changed it is not known." in read.changes[0].origin.unsure


def test_only_what_the_engine_reads_is_a_change(tmp_path):
    """Remarks, order, quotes, another spelling of a flag and 0.90 for 0.9 change nothing; a flag does."""
    backup(tmp_path, "serve_decode.sh.bak-20260101", "--mem-fraction-static 0.9", "--cuda-graph-max-bs 8", remark="a")
    backup(tmp_path, "serve_decode.sh.bak-20260102", "--cuda-graph-max-bs-decode '8'", "--mem-fraction-static=0.90")
    backup(tmp_path, "serve_decode.sh.bak-20260103", "--cuda-graph-max-bs 8", "--mem-fraction-static .9", "--new-one x")

    assert told(tmp_path)[0] == [("2026-01-02", "new-one not set -> x")]


def test_several_settings_at_once_cannot_be_told_apart(tmp_path):
    """A flag, a switch and a variable that changed together are one change with that doubt."""
    backup(tmp_path, "serve_decode.sh.bak-20260101", "--cuda-graph-max-bs 8", "--disable-overlap-schedule")
    backup(tmp_path, "serve_decode.sh.bak-20260201", "--cuda-graph-max-bs 16", exports="export NCCL_DEBUG=INFO")

    changes, read = told(tmp_path)

    assert changes == [
        ("2026-01-01", "NCCL_DEBUG not set -> INFO, cuda-graph-max-bs 8 -> 16, disable-overlap-schedule set -> not set")
    ]
    assert any("3 settings were changed at once" in doubt for doubt in read.changes[0].origin.unsure)


def test_secrets_of_old_scripts_stay_there(tmp_path):
    """A key that was changed is no change to tell of, and no key shows in one that is."""
    key, token = "--api-key " + "sk-" + "aaaaaaaaaaaaaaaa", "export HF_TOKEN=" + "hf_" + "abcdefghijklm"
    backup(tmp_path, "serve_decode.sh.bak-20260101", key, "--page-size 1", exports=token)
    backup(tmp_path, "serve_decode.sh.bak-20260201", key.replace("aaa", "bbb"), "--page-size 64", exports=token + "x")

    changes, read = told(tmp_path)

    assert [what for _, what in changes] == ["page-size 1 -> 64"]
    assert "sk-" not in str(read) + str(changes)
    assert "hf_" not in str(read)


@pytest.mark.parametrize(
    ("name", "mine"),
    [
        ("serve_decode.sh", True),
        ("serve_decode.sh~", True),
        ("serve_decode.sh.bak", True),
        ("serve_decode.sh.2026-01-31", True),
        ("serve_decode.20260131.sh", True),
        ("serve_decode.bak.sh", True),
        ("20260131-serve_decode.sh", True),
        ("serve_decode.sh.before-overlap", True),
        ("my_serve_decode.sh", False),
        ("serve_decode2.sh", False),
        ("serve_prefill.sh.bak-20260131", False),
        ("serve_decode.sh.md", False),
        ("serve_decode_router.sh", False),
    ],
)
def test_a_backup_is_known_by_its_name(name, mine):
    """Names that people give to backups of a script are the script's, other scripts' are not."""
    assert belongs(name, "serve_decode.sh") is mine


def test_a_version_that_cannot_be_read_is_named(tmp_path):
    """A version that starts nothing breaks the row on both sides, and each gap is told."""
    backup(tmp_path, "serve_decode.sh.bak-20260101", "--page-size 1")
    (tmp_path / "serve_decode.sh.bak-20260201").write_text("#!/bin/bash\necho maintenance\n")
    backup(tmp_path, "serve_decode.sh.bak-20260301", "--page-size 64")
    (tmp_path / "serve_decode.sh.bak-20260302.gz").write_bytes(b"\x1f\x8b")

    changes, read = told(tmp_path)

    assert changes == []
    assert sum("Nothing in the file starts" in sentence for sentence in read.left_out) == 2
    assert any("bak-20260302.gz is packed" in sentence for sentence in read.left_out)


def test_a_name_that_is_no_text_can_be_kept(tmp_path):
    """A backup whose name holds a byte that is no UTF-8 is told with a mark in its place."""
    backup(tmp_path, "serve_decode.sh.bak-20260101-\udcff", "--page-size 1")
    backup(tmp_path, "serve_decode.sh", "--page-size 64")

    (change,) = told(tmp_path)[1].changes

    assert change.origin.sources[0].encode()


def test_a_folder_of_something_else_is_refused_with_the_remedy(tmp_path):
    """A folder without a version of the script is a mistake that the operator can put right."""
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(BadSettings, match=r"neither backups nor a git history of serve_decode\.sh.*--script"):
        told(tmp_path)


class Repository:
    """A real repository that people work in."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.run("init", "-q", "-b", "main")

    def run(self, *argv: str, at: str = "2026-01-01T10:00:00+02:00", by: str = "Ana") -> str:
        """Run git there as somebody, at some time."""
        who = {"GIT_AUTHOR_NAME": by, "GIT_AUTHOR_EMAIL": "x@example.org", "GIT_AUTHOR_DATE": at}
        who |= {"GIT_COMMITTER_NAME": by, "GIT_COMMITTER_EMAIL": "x@example.org", "GIT_COMMITTER_DATE": at}
        nobody = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        done = subprocess.run(
            ["git", *argv], cwd=self.folder, env={**os.environ, **who, **nobody}, check=True, capture_output=True
        )
        return done.stdout.decode().strip()

    def commit(self, words: str, content: str, at: str, path: str = "serve_decode.sh", by: str = "Ana") -> str:
        """Write the script and commit it."""
        (self.folder / path).parent.mkdir(exist_ok=True)
        (self.folder / path).write_text(content)
        self.run("add", "-A")
        self.run("commit", "-q", "-m", words, at=f"{at}T10:00:00+02:00", by=by)
        return self.run("rev-parse", "HEAD")


def test_git_tells_who_when_and_with_which_words(tmp_path):
    """Each commit that changed a setting is a change with author, date, message and commit; others are none."""
    repository = Repository(tmp_path / "ops")
    repository.commit("Start", script("--cuda-graph-max-bs 8"), "2026-01-01")
    repository.commit("Say why", script("--cuda-graph-max-bs 8", remark="why"), "2026-01-02")
    bumped = repository.commit("Bump graphs\n\nFor the demo.", script("--cuda-graph-max-bs 32"), "2026-01-03", by="Ben")

    changes, read = told(repository.folder)

    assert changes == [("2026-01-03", "cuda-graph-max-bs 8 -> 32")]
    change = read.changes[0]
    assert (change.origin.by, change.words) == ("Ben", "Bump graphs\n\nFor the demo.")
    assert change.origin.at == datetime(2026, 1, 3, 8, tzinfo=UTC)
    assert change.origin.sources == (f"git commit {bumped[:12]}, serve_decode.sh",)
    assert "What came of it is not known." in change.origin.unsure


def test_git_is_followed_through_a_rename_and_compared_with_the_parent(tmp_path):
    """A renamed script keeps its past, and two lines of work are not compared with each other."""
    repository = Repository(tmp_path / "ops")
    repository.commit("Start", script("--page-size 1", "--cuda-graph-max-bs 8"), "2026-01-01")
    repository.run("checkout", "-q", "-b", "side")
    side = script("--page-size 64", "--cuda-graph-max-bs 8")
    repository.commit("Larger pages", side, "2026-01-05")
    repository.run("checkout", "-q", "main")
    repository.commit("An unrelated file", "x", "2026-01-04", path="notes.txt")
    repository.run("merge", "-q", "--no-ff", "-m", "Merge side", "side", at="2026-01-06T10:00:00+02:00")
    (repository.folder / "bin").mkdir()
    repository.run("mv", "serve_decode.sh", "bin/serve_decode.sh")
    repository.run("commit", "-q", "-m", "Tidy up", at="2026-01-07T10:00:00+02:00")
    changed = side.replace("max-bs 8", "max-bs 16")
    repository.commit("Graphs to 16", changed, "2026-01-08", path="bin/serve_decode.sh")

    changes, read = told(repository.folder)

    assert sorted(set(changes)) == [("2026-01-05", "page-size 1 -> 64"), ("2026-01-08", "cuda-graph-max-bs 8 -> 16")]
    assert len({change.key for change in read.changes}) == 2


def test_nothing_of_a_repository_is_run(tmp_path):
    """A repository that names programs for showing differences is read without starting them."""
    repository = Repository(tmp_path / "ops")
    trap = tmp_path / "trap.sh"
    trap.write_text(f'#!/bin/sh\ntouch {tmp_path}/sprung\ncat "$1"\n')
    trap.chmod(0o755)
    repository.commit("Start", script("--page-size 1"), "2026-01-01")
    (repository.folder / ".gitattributes").write_text("*.sh diff=trap\n")
    repository.commit("Pages", script("--page-size 64"), "2026-01-02")
    for name in ("diff.trap.textconv", "diff.trap.command", "diff.external", "core.fsmonitor", "core.pager"):
        repository.run("config", name, str(trap))

    assert told(repository.folder)[0] == [("2026-01-02", "page-size 1 -> 64")]
    assert not (tmp_path / "sprung").exists()


def test_words_of_a_commit_cannot_pretend_to_be_another(tmp_path):
    """A message with our separator in it neither stops the reading nor makes a commit up."""
    repository = Repository(tmp_path / "ops")
    repository.commit("Start", script("--page-size 1"), "2026-01-01")
    repository.commit("Pages\x1e" + "0" * 40 + "\x1e", script("--page-size 64"), "2026-01-02")
    repository.commit("More", script("--page-size 16"), "2026-01-03")

    assert ("2026-01-03", "page-size 64 -> 16") in told(repository.folder)[0]


CORPUS = Path(__file__).parent.parent / "data" / "serve-corpus"
KINDS = {"bash": "serve.sh", "systemd": "serve.service", "supervisord": "serve.conf", "compose": "compose.yaml"}
EDITED = [
    case.parent
    for case in sorted(CORPUS.glob("*/case.yaml"))
    if (case.parent / "expected").exists() and yaml.safe_load(case.read_text(encoding="utf-8"))["kind"] in KINDS
]


@pytest.mark.parametrize("folder", EDITED, ids=lambda folder: folder.name)
def test_an_edit_of_one_setting_reads_as_that_setting(tmp_path, folder):
    """Of two versions of a launch file that differ in one setting, however it is written, that setting is told."""
    case = yaml.safe_load((folder / "case.yaml").read_text(encoding="utf-8"))
    name = KINDS[case["kind"]]
    (tmp_path / f"{name}.bak-20260601").write_bytes((folder / "script").read_bytes())
    (tmp_path / name).write_bytes((folder / "expected").read_bytes())
    launch = case["target"] if isinstance(case["target"], str) else None

    told_by = [
        [setting.knob for change in read.changes for setting in change.settings]
        for engine in ("sglang", "vllm")
        if (read := read_sources([tmp_path], Subject(name, engine, launch), given=True)).changes
    ]

    assert told_by == [[case["name"].lstrip("-")]]
