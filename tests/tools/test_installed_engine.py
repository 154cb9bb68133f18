"""The engine that is installed on a host is asked by a real process, as the worker would start it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.domain import Process
from tools.engines.engine import engine_of
from tools.installed import HelpTexts, installed_engine
from tools.local import LocalHost

SERVER = """
import argparse, os, sys, time
from pathlib import Path
if "--help" in sys.argv or "--help=all" in sys.argv:
    with (Path(__file__).parent / "asked").open("a") as log:
        seen = (os.environ["CUDA_VISIBLE_DEVICES"], os.geteuid(), os.getcwd(), os.environ["MARK"])
        log.write(" ".join(map(str, seen)) + chr(10))
    {help}
parser = argparse.ArgumentParser()
for number in range(30):
    parser.add_argument(f"--flag-{{number}}")
parser.add_argument("--cuda-graph-max-bs", type=int)
parser.parse_args()
print("up", flush=True)
time.sleep(600)
"""
SGLANG = engine_of("sglang")


class Site:
    """A worker that sleeps, and the engine that it was started from."""

    def __init__(self, root: Path, help_does: str, version: str) -> None:
        self.root = root
        self.package = root / "lib" / "sglang"
        self.package.mkdir(parents=True)
        (self.package / "__init__.py").write_text("")
        (self.package / "version.py").write_text(f'__version__ = "{version}"\n')
        (self.package / "launch_server.py").write_text(SERVER.format(help=help_does))
        environ = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "MARK": "sesame"}
        environ |= {"PYTHONPATH": str(root / "lib"), "CUDA_VISIBLE_DEVICES": "0,1"}
        argv = ("python3", "-m", "sglang.launch_server", "--cuda-graph-max-bs", "32")
        self.process = subprocess.Popen(argv, env=environ, cwd=root, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"up\n"
        stat = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8")
        ticks = int(stat[stat.rindex(")") + 2 :].split()[19])
        self.server = Process(pid=self.process.pid, start_ticks=ticks, boot_id="b", argv=argv)
        self.host = LocalHost(root / "prudent")

    def ask(self, *, texts=None, server=None, seconds=60.0):
        """Ask as a run would."""
        return installed_engine(
            self.host,
            SGLANG,
            server or self.server,
            running="0.5.14",
            texts=texts or HelpTexts(),
            limit_seconds=seconds,
        )

    @property
    def asked(self) -> list[str]:
        """How often, and how, its help was asked."""
        log = self.package / "asked"
        return log.read_text(encoding="utf-8").splitlines() if log.exists() else []

    def end(self) -> None:
        """End the worker."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def site(tmp_path, request):
    """A worker whose help does what the parameter says; by default it is argparse's."""
    help_does, version = getattr(request, "param", ("pass", "0.5.14"))
    made = Site(tmp_path, help_does, version)
    yield made
    made.end()


def test_the_installed_engine_says_its_version_and_its_flags(site):
    """Asked in the worker's directory and environment, but without a GPU."""
    found = site.ask()

    assert found.version == "0.5.14"
    assert "--cuda-graph-max-bs" in found.flags
    assert "--cuda-graph-max-bs-decode" not in found.flags
    assert "the --help of the installed 0.5.14" in found.basis
    assert site.asked == [f" {os.geteuid()} {site.root} sesame"]


def test_the_same_binary_is_asked_once(site, tmp_path):
    """Also by the next process; a version that was installed since is asked anew."""
    folder = tmp_path / "texts"

    first, again = site.ask(texts=HelpTexts(folder)), site.ask(texts=HelpTexts(folder))
    (site.package / "version.py").write_text('__version__ = "0.5.20"\n', encoding="utf-8")
    upgraded = site.ask(texts=HelpTexts(folder))

    assert first == again
    assert len(site.asked) == 2
    assert upgraded.version == "0.5.20"


@pytest.mark.parametrize(
    ("site", "says"),
    [
        (("time.sleep(60)", "0.5.14"), "no end in time"),
        (("sys.exit('no accelerator is there')", "0.5.14"), "status 1, no accelerator is there"),
        (("print('x' * 3_000_000); sys.exit()", "0.5.14"), "is no help text"),
        (("os.kill(os.getpid(), 9)", "0.5.14"), "status -9"),
    ],
    indirect=["site"],
    ids=["slow", "fails", "garbled", "dies"],
)
def test_a_help_that_is_none_says_why_and_nothing_is_left(site, says):
    """The version is known all the same, and what hung is gone."""
    begun = time.monotonic()

    found = site.ask(seconds=3.0)

    assert (found.version, found.flags) == ("0.5.14", None)
    assert says in found.basis
    assert time.monotonic() - begun < 50
    assert not [each for each in Path("/proc").glob("[0-9]*/cmdline") if _of(each, site.root) and _is_help(each)]


def _of(cmdline: Path, root: Path) -> bool:
    try:
        return cmdline.parent.joinpath("cwd").readlink() == root
    except OSError:
        return False


def _is_help(cmdline: Path) -> bool:
    try:
        return b"--help" in cmdline.read_bytes()
    except OSError:
        return False


def test_a_worker_that_is_gone_is_not_asked(site):
    """Its pid may be somebody else's by now."""
    other = site.server.model_copy(update={"start_ticks": site.server.start_ticks + 1})

    found = site.ask(server=other)

    assert found.flags is None
    assert "is not the worker any more" in found.basis
    assert not site.asked


def test_a_worker_that_hides_how_it_was_started_is_not_asked(site):
    """A process title in place of argv."""
    found = site.ask(server=site.server.model_copy(update={"argv": ("sglang::server",)}))

    assert found.flags is None
    assert "'sglang::server' does not say how it was started" in found.basis


def test_an_engine_that_is_not_there_any_more_says_so(site):
    """Uninstalled while the worker runs on."""
    (site.package / "__init__.py").unlink()
    site.package.rename(site.package.with_name("gone"))

    assert "finds no sglang" in site.ask().basis


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may ask as somebody else")
def test_root_asks_as_the_workers_user(tmp_path):
    """What that user may write is not executed with root's rights."""
    shared = Path("/tmp") / f"prudent-installed-{os.getpid()}"
    site = None
    try:
        site = Site(shared, "pass", "0.5.14")
        for folder in (shared, shared / "lib", site.package):
            folder.chmod(0o777)
        site.end()
        nobody = 65534
        argv = ("/usr/bin/python3", "-m", "sglang.launch_server", "--cuda-graph-max-bs", "32")
        environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(shared / "lib"), "MARK": "sesame"}
        site.process = subprocess.Popen(
            argv, env=environ, cwd=shared, stdout=subprocess.PIPE, user=nobody, group=nobody
        )
        assert site.process.stdout is not None
        assert site.process.stdout.readline() == b"up\n"
        stat = Path(f"/proc/{site.process.pid}/stat").read_text(encoding="utf-8")
        ticks = int(stat[stat.rindex(")") + 2 :].split()[19])
        server = Process(pid=site.process.pid, start_ticks=ticks, boot_id="b", argv=argv)

        assert "--cuda-graph-max-bs" in site.ask(server=server).flags
        assert site.asked == [f" {nobody} {shared} sesame"]
    finally:
        if site is not None:
            site.end()
        subprocess.run(["rm", "-rf", str(shared)], check=True)
