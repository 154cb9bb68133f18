"""Run a launch file where it can harm nothing, and see which servers it would start.

The script gets a root file system of its own (mount namespace and pivot_root), no network, no other processes and no
capabilities. Every program that a launch may call is a stub (`stub.sh`) that writes down its arguments and its
environment; a handful of harmless text tools are real and mounted read-only. What the script writes stays in a folder
that is deleted. Where the machine does not allow namespaces, nothing is run at all.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from tools.serve_script.secrets import mask, mask_argv

_STUBS = """
vllm sglang python python3 python3.10 python3.11 python3.12 python3.13 docker podman nerdctl ssh scp rsync
numactl taskset nohup setsid stdbuf nice ionice chrt systemd-run srun sudo uv conda mamba micromamba timeout
unbuffer nsys mpirun apptainer singularity chroot runuser gosu tini dumb-init prlimit systemd-inhibit setpriv
poetry pixi tmux byobu screen date nproc hostname nvidia-smi rocm-smi npu-smi curl wget sleep pkill pgrep
pidof killall lsof ss netstat fuser module git pip pip3 hf huggingface-cli ray systemctl supervisorctl
journalctl scontrol sbatch squeue ip ifconfig nc lscpu ibstat ibv_devinfo ldconfig sysctl mount umount
modprobe apt-get apt chown mooncake_master etcd nats-server free df du logger flock jq yq openssl renice
""".split()  # noqa: SIM905 - a list of words reads better as words
_REAL = """
bash sh cat mkdir tee dirname basename head tail grep egrep fgrep sed awk seq tr cut wc sort uniq env readlink
realpath ls true false printf test [ id uname mktemp touch chmod cp mv ln rm rmdir find xargs expr paste stat
echo rev tac nl fold comm join split cmp diff base64 md5sum sha256sum envsubst tty install
""".split()  # noqa: SIM905 - a list of words reads better as words
_NOISE = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "BASH_ENV", "LINES", "COLUMNS"})
_FOLDERS_OF_A_ROOT = """
usr/bin usr/local/bin usr/local/sbin dev/shm proc tmp var/tmp var/log var/run run etc root opt srv mnt
.old .real/bin .calls
""".split()  # noqa: SIM905 - a list of words reads better as words
_DEVICES = ("null", "zero", "urandom")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HOME = "/home/sre"
_WORK = "/home/sre/work"
_PRELUDE = """\
source() { if [ -e "$1" ]; then builtin source "$@"; fi; }
function . { source "$@"; }
ulimit() { :; }
command_not_found_handle() { return 0; }
"""
_PROGRAMS = re.compile(
    r"(?P<path>(?:~|\$\{?HOME\}?|\.{1,2})?/[\w.+/-]*?/?"
    r"(?P<name>vllm|sglang|python3?(?:\.\d+)?|numactl|docker|uv|activate))(?![\w/-])"
)
_FOLDERS = re.compile(r"\b(?:cd|pushd|WorkingDirectory=|directory=)\s*[\"']?(/[\w./+-]+)")

_INIT = r"""
set -e
root=$1 real=$2
shift 2
mount -a -T "$root/.mounts" || mount -a -T "$root/.mounts-as-they-are"
cd "$root"
pivot_root . .old
cd /
"$real/umount" -l /.old
ulimit -f 131072 -c 0
cd "$SANDBOX_WORK"
unset SANDBOX_WORK
"$real/setsid" "$real/setpriv" --bounding-set -all --inh-caps -all --no-new-privs -- "$@" \
    213>&1 >/dev/null 2>/.complaint </dev/null | "$real/cat" >/dev/null
"""


class Call(NamedTuple):
    """A server that would have been started."""

    argv: tuple[str, ...]
    """Its arguments, the program's base name first."""
    env: tuple[tuple[str, str], ...]
    """Its environment, sorted, without what the shell itself keeps there."""

    def __repr__(self) -> str:
        """The command line and the names of the variables, secrets masked."""
        return f"Call({' '.join(mask_argv(self.argv))!r}, {[name for name, _ in self.env]})"


class Ran(NamedTuple):
    """What came of running a file."""

    calls: tuple[Call, ...]
    """The servers, in the order of their start."""
    ended: bool
    """Whether it ended by itself; a restart loop is ended for it."""
    complaint: str
    """The last that it said on standard error."""


class Circumstances(NamedTuple):
    """How a launch file is started."""

    arguments: tuple[str, ...] = ()
    """Arguments of the script."""
    environ: Mapping[str, str] = {}
    """What its caller's environment adds."""
    seconds: float = 20.0
    """After which it is ended."""
    most: int = 40
    """Servers after which it is ended: a restart loop never ends by itself."""


class NoSandbox(Exception):
    """This machine does not allow the namespaces, or lacks the tools."""


@lru_cache(maxsize=1)
def entrance() -> tuple[str, ...]:
    """The command that opens the namespaces.

    Raises:
        NoSandbox: nothing here opens them.
    """
    for tool in ("unshare", "mount", "pivot_root", "umount", "setsid", "setpriv", "bash", "env"):
        if shutil.which(tool, path=_PATH) is None:
            raise NoSandbox(f"the program {tool} is missing")
    shared = ("--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child")
    ways: list[tuple[str, ...]] = [("unshare", "--user", "--map-root-user", *shared)]
    if os.geteuid() == 0:
        ways.append(("unshare", *shared))
    said = ""
    for way in ways:
        try:
            tried = subprocess.run(
                [*way, "mount", "-t", "tmpfs", "none", "/tmp"],  # noqa: S108 - in a mount namespace that ends with the command
                capture_output=True,
                timeout=20,
                check=False,
                env={"PATH": _PATH},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            said = str(error)
            continue
        if tried.returncode == 0:
            return way
        said = tried.stderr.decode("utf-8", "replace").strip()
    raise NoSandbox(said.splitlines()[-1] if said else "namespaces are not allowed")


def run_script(content: bytes, *, files: Mapping[str, bytes], circumstances: Circumstances) -> Ran:
    """Execute a shell script.

    Raises:
        NoSandbox: it was not executed.
    """
    return _run(["/bin/bash", f"{_WORK}/serve.sh", *circumstances.arguments], content, files, {}, circumstances)


def run_command(
    argv: Sequence[str], environ: Mapping[str, str], *, files: Mapping[str, bytes], circumstances: Circumstances
) -> Ran:
    """Execute a command as a service manager would: no shell, and the environment that it was given.

    Raises:
        NoSandbox: it was not executed.
    """
    return _run(list(argv), "\n".join(argv).encode("utf-8", "surrogateescape"), files, environ, circumstances)


def _run(
    argv: list[str], content: bytes, files: Mapping[str, bytes], environ: Mapping[str, str], how: Circumstances
) -> Ran:
    way = entrance()
    root = Path(tempfile.mkdtemp(prefix="prudent-proof-"))
    try:
        binds, real = _furnish(root, content, files, how.most)
        for name, more in ((".mounts", ""), (".mounts-as-they-are", ",noatime")):
            (root / name).write_text(_table(root, binds, more))
        env = {
            "PATH": _PATH,
            "HOME": _HOME,
            "LANG": "C.UTF-8",
            "USER": "sre",
            "TERM": "dumb",
            "BASH_ENV": "/.prelude.sh",
        }
        env |= {**how.environ, **environ, "SANDBOX_WORK": _WORK}
        if argv and "/" not in argv[0] and not any((root / d / argv[0]).is_symlink() for d in ("usr/bin", "bin")):
            return Ran((), ended=True, complaint=f"{argv[0]}: no such program")
        command = [*way, "bash", "-p", "-c", _INIT, "sandbox", str(root), real, *argv]
        with subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            try:
                _, said = process.communicate(timeout=how.seconds)
                ended = True
            except subprocess.TimeoutExpired:
                process.kill()
                _, said = process.communicate()
                ended = False
        complaint = _read(root / ".complaint")
        if complaint is None:
            raise NoSandbox(
                (said.decode("utf-8", "replace").strip() or "the sandbox could not be furnished").splitlines()[-1]
            )
        return Ran(_calls(root / ".calls"), ended, mask(complaint[-400:].decode("utf-8", "replace").strip()))
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _table(root: Path, binds: Sequence[tuple[str, str]], more: str) -> str:
    """What to mount, one line each; a user namespace may only tighten the options that a mount has already."""
    lines = [f"{_escaped(str(root))} {_escaped(str(root))} none rbind"]
    lines += [f"{host} {_escaped(str(root))}{inside} none bind,ro,nosuid,nodev{more}" for host, inside in binds]
    lines += [f"/dev/{name} {_escaped(str(root))}/dev/{name} none bind" for name in _DEVICES]
    lines.append(f"proc {_escaped(str(root))}/proc proc nofail")
    return "\n".join(lines) + "\n"


def _escaped(path: str) -> str:
    return path.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011")


def _furnish(root: Path, content: bytes, files: Mapping[str, bytes], most: int) -> tuple[list[tuple[str, str]], str]:
    """Make the root file system; return what is to be mounted read-only, and the folder of the real programs."""
    for name in (*_FOLDERS_OF_A_ROOT, _WORK[1:]):
        (root / name).mkdir(parents=True, exist_ok=True)
    binds = _libraries(root)
    for name in _DEVICES:
        (root / "dev" / name).touch()
    (root / "dev/fd").symlink_to("/proc/self/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        (root / "dev" / name).symlink_to(f"/proc/self/fd/{number}")
    (root / "etc/passwd").write_text(f"root:x:0:0:root:{_HOME}:/bin/bash\nsre:x:1000:1000:sre:{_HOME}:/bin/bash\n")
    found = {name: place for name in _REAL if (place := _inside(name))}
    stub = (Path(__file__).parent / "stub.sh").read_text()
    for mark, name in (("@BASH@", "bash"), ("@ENV@", "env"), ("@MV@", "mv")):
        stub = stub.replace(mark, found.get(name, name))
    (root / ".stub").write_text(stub)
    (root / ".stub").chmod(0o755)
    (root / ".most").write_text(str(most))
    (root / ".prelude.sh").write_text(_PRELUDE)
    for name, place in (found | dict.fromkeys(_STUBS, "/.stub")).items():
        (root / "usr/bin" / name).symlink_to(place)
    _wanted(root, content.decode("utf-8", "replace"))
    for name, data in files.items():
        path = root / name.lstrip("/") if name.startswith("/") else root / _WORK[1:] / name
        if root in path.resolve().parents:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    (root / _WORK[1:] / "serve.sh").write_bytes(content)
    return binds, "/.real/bin"


def _libraries(root: Path) -> list[tuple[str, str]]:
    """What the real programs need, to be mounted read-only: (place on the host, place inside)."""
    binds = [("/usr/bin", "/.real/bin")]
    for name in ("lib", "lib32", "lib64", "usr/lib", "usr/lib32", "usr/lib64", "nix/store"):
        host = Path("/") / name
        if host.is_symlink() and not str(host.readlink()).startswith("/"):
            (root / name).symlink_to(host.readlink())
        elif host.is_dir():
            (root / name).mkdir(parents=True, exist_ok=True)
            binds.append((f"/{name}", f"/{name}"))
    for name in ("bin", "sbin"):
        (root / name).symlink_to("usr/bin")
    (root / "usr/sbin").symlink_to("bin")
    if not Path("/bin").is_symlink():
        (root / ".real/slash").mkdir()
        binds.append(("/bin", "/.real/slash"))
    if Path("/etc/ld.so.cache").exists():
        (root / "etc/ld.so.cache").touch()
        binds.append(("/etc/ld.so.cache", "/etc/ld.so.cache"))
    return binds


def _inside(name: str) -> str | None:
    """Where a real program of the host lies inside."""
    place = shutil.which(name, path="/usr/bin:/bin")
    if place is None:
        return None
    target = os.path.realpath(place)
    for host, inside in (("/usr/bin/", "/.real/bin/"), ("/bin/", "/.real/slash/")):
        if target.startswith(host):
            return inside + target[len(host) :]
    return target if target.startswith("/nix/") else None


def _wanted(root: Path, text: str) -> None:
    """Programs that the file names by their path, and folders that it goes to, so that it gets as far as its launch."""
    for match in _FOLDERS.finditer(text):
        _make(root, match[1] + "/.")
    for match in _PROGRAMS.finditer(text):
        path = re.sub(r"^(?:~|\$\{?HOME\}?)", _HOME, match["path"])
        place = path if path.startswith("/home") or not path.startswith((".", "~")) else f"{_WORK}/{path}"
        _make(root, place)
    for match in re.finditer(r"[\w}\"'](/(?:[\w.-]+/)*bin/(?:vllm|sglang|python3?|activate))(?![\w/-])", text):
        for base in re.findall(r"=[\"']?(?:\$\{\w+:-)?((?:~|\$HOME|\$\{HOME\})?/[\w./+-]+)", text)[:40]:
            folder = re.sub(r"^(?:~|\$\{?HOME\}?)", _HOME, base).rstrip("/")
            _make(root, folder + match[1])


def _make(root: Path, place: str) -> None:
    path = Path(os.path.normpath(str(root) + place))
    inner = str(path)[len(str(root)) :]
    if (
        root not in path.parents
        or inner.startswith(("/proc", "/dev", "/.", "/usr/lib", "/lib"))
        or path.exists()
        or path.is_symlink()
    ):
        return
    try:
        if place.endswith("/."):
            path.mkdir(parents=True, exist_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.name == "activate":
            path.touch()
            return
        path.symlink_to("/.stub")
        for name in ("vllm", "sglang", "python", "python3"):
            twin = path.parent / name
            if path.parent.name == "bin" and not twin.exists() and not twin.is_symlink():
                twin.symlink_to("/.stub")
    except OSError:
        return


def _read(path: Path) -> bytes | None:
    """A file that the script may have laid a trap in: links are not followed, and only so much is read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        return file.read(4_000_000)


def _calls(folder: Path) -> tuple[Call, ...]:
    out = []
    for path in sorted(folder.glob("*.argv")):
        argv = (_read(path) or b"").split(b"\0")[:-1]
        env = dict(item.partition(b"=")[::2] for item in (_read(path.with_suffix(".env")) or b"").split(b"\0") if item)
        shown = {_text(name): _text(value) for name, value in env.items()}
        kept = {n: v for n, v in shown.items() if n not in _NOISE and not n.startswith("BASH_FUNC_")}
        out.append(Call(tuple(_text(word) for word in argv), tuple(sorted(kept.items()))))
    return tuple(out)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
