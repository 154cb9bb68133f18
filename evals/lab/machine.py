"""A machine to work on: Debian with a real systemd and a real sshd in a container, up in a second or two.

    python -m evals.lab.machine build           make the disk, where the cache does not hold it (a minute)
    python -m evals.lab.machine up DIRECTORY    boot one and leave it running; prints how to reach it
    python -m evals.lab.machine down DIRECTORY  end it

It shares the network of this machine, so its sshd listens on the loopback interface at a free port. The disk is a layer
over the built one: a reboot keeps what was written, the end of the machine forgets it. All its processes live in one
process-id namespace, which the kernel ends with its owner, however the owner ends.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from evals.lab.machine_image import ACCOUNTS, cache, image
from evals.lab.ports import free_ports

BOOT_SECONDS = 60.0
"""Limit for a boot, in seconds; it takes one or two on a machine with nothing else to do."""
SOURCE = "/opt/practice/source"
"""Where the source tree is seen inside, read-only."""
PACKAGES = "/opt/practice/site-packages"
"""Where our environment's packages are seen inside, read-only."""
PYTHONPATH = f"{SOURCE}:{PACKAGES}"
"""Lets the machine's own python3 import the practice ground."""
_NEEDED = ("systemd-nspawn", "debootstrap", "unshare", "nsenter", "setpriv", "ssh-keygen")
_ENVIRON = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
_LOGIN = (
    'export HOME="$(getent passwd "$0" | cut -d: -f6)" USER="$0" XDG_RUNTIME_DIR="/run/user/$(id -u "$0")"; '
    'cd "$HOME"; exec setpriv --reuid "$0" --regid "$(id -g "$0")" --init-groups -- env "$@"'
)
_SSHD = """\
ListenAddress 127.0.0.1
Port {port}
PermitRootLogin prohibit-password
PasswordAuthentication no
MaxStartups 100
"""
_BOOT = """\
set -e
mount --make-rprivate /
mkdir -p /run/systemd/nspawn
mount -t tmpfs none /run/systemd/nspawn
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/disk"
tar -C "$2/disk" --numeric-owner -xpf "$2/settings.tar"
name=$3
again=$2/again
shift 3
for group in "$@"; do
    [ "$group" = -- ] && break
    until { mkdir -p "$group" && echo 0 > "$group/cgroup.procs"; } 2> /dev/null; do sleep 0.05; done
    shift
done
shift
set +e
while :; do
    systemd-nspawn --quiet --machine="$name" --register=no --keep-unit --resolv-conf=off --timezone=off \\
        --link-journal=no --console=pipe --boot "$@"
    # 133: the machine itself wants to be started again.
    [ $? = 133 ] || rm "$again" || exit 1
done
"""


class MachineError(Exception):
    """The machine did not do what was asked."""


def unable() -> str | None:
    """Why no such machine can stand here; None: it can."""
    if os.geteuid() != 0:
        return "a test host needs root"
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if missing:
        return f"a test host needs {', '.join(missing)}"
    if not _hierarchies():
        return "a test host needs cgroups that can be written to"
    return None


class Machine:
    """A machine that stands.

    Args:
        directory: Its folder: keys, disk layer, console.
        port: Where its sshd listens on the loopback interface.
        process: The process that everything in it ends with.
        child: The same, where this process has started it.
    """

    address = "127.0.0.1"

    def __init__(self, directory: Path, port: int, process: int, child: subprocess.Popen[bytes] | None = None) -> None:
        self.directory = directory
        self.port = port
        self.process = process
        self._child = child

    @property
    def known_hosts(self) -> Path:
        """A file with its host keys, under `[address]:port`."""
        return self.directory / "known_hosts"

    def key(self, account: str) -> Path:
        """The private key that an account takes; one of `machine_image.ACCOUNTS`."""
        return self.directory / "keys" / account

    def run(
        self,
        argv: Sequence[str],
        *,
        user: str = "root",
        stdin: bytes = b"",
        environ: Mapping[str, str] | None = None,
        timeout: float = 120.0,
        check: bool = True,
    ) -> subprocess.CompletedProcess[bytes]:
        """Execute a command inside, past sshd: the host's own side of the story.

        Args:
            argv: The command.
            user: As whom.
            stdin: What it reads.
            environ: Variables beside `HOME`, `PATH`, `USER` and `XDG_RUNTIME_DIR`, which are set as in a login.
            timeout: Seconds.
            check: Whether a status other than 0 is an error.

        Raises:
            MachineError: it failed, or the machine is not up.
            subprocess.TimeoutExpired: it did not end in time.
        """
        done = subprocess.run(
            self._inside(argv, user, environ or {}),
            env=_ENVIRON,
            input=stdin,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            said = (done.stderr or done.stdout).decode(errors="replace").strip()
            raise MachineError(f"{shlex.join(argv)} ended with status {done.returncode}: {said}")
        return done

    def start(
        self, argv: Sequence[str], *, user: str = "root", environ: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command inside that goes on by itself; its output is for whoever starts it to read.

        Raises:
            MachineError: the machine is not up.
        """
        return subprocess.Popen(
            self._inside(argv, user, environ or {}),
            env=_ENVIRON,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def read(self, path: str) -> bytes:
        """A file's bytes, from the host's own side.

        Raises:
            MachineError: it cannot be read.
        """
        return self.run(["cat", "--", path]).stdout

    def write(self, path: str, content: bytes, *, mode: int = 0o644, user: str = "root") -> None:
        """Write a file as somebody, folders included.

        Raises:
            MachineError: it cannot be written.
        """
        script = 'mkdir -p "$(dirname "$1")" && cat > "$1" && chmod "$2" "$1"'
        self.run(["/bin/sh", "-c", script, "sh", path, f"{mode:o}"], user=user, stdin=content)

    def leader(self) -> int:
        """The process id, seen from outside, of the machine's own process 1.

        Raises:
            MachineError: it is not up.
        """
        children = _children()
        found = list(children.get(self.process, ()))
        while found:
            pid = found.pop()
            # Three nested namespaces deep and 1 in the innermost: ours, the one that ends with its owner, its own.
            if _ids(pid)[2:] == [1]:
                return pid
            found += children.get(pid, ())
        raise MachineError(f"the machine in {self.directory} is not up")

    def reboot(self) -> None:
        """Restart it in order, as its operator would, and wait until it is up."""
        before = self.leader()
        self.run(["systemctl", "--no-block", "reboot"])
        self._await_other(before)

    def power_cut(self) -> None:
        """End all its processes at once, start it again, and wait until it is up."""
        before = self.leader()
        (self.directory / "again").touch()
        os.kill(before, signal.SIGKILL)
        self._await_other(before)

    def wait_until_up(self) -> None:
        """Wait until it is through with its start and lets everybody in.

        Raises:
            MachineError: it is not, within `BOOT_SECONDS`.
        """
        deadline = time.monotonic() + BOOT_SECONDS
        while not self._is_up():
            if time.monotonic() > deadline or not _alive(self.process) or (self._child and self._child.poll()):
                console = (self.directory / "console").read_text(errors="replace").splitlines()
                raise MachineError("the machine did not come up:\n" + "\n".join(console[-12:]))
            time.sleep(0.05)

    def down(self) -> None:
        """End it and remove its folder."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGKILL)
        if self._child:
            self._child.wait()
        _await_end(self.process)
        for group in _groups(self.directory):
            _remove_group(group)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _inside(self, argv: Sequence[str], user: str, environ: Mapping[str, str]) -> list[str]:
        """What executes a command as somebody inside."""
        outer = ["nsenter", f"--target={self.leader()}", "--mount", "--uts", "--ipc", "--pid", "--cgroup"]
        words = [f"{name}={value}" for name, value in environ.items()]
        return [*outer, "--", "/bin/sh", "-c", _LOGIN, user, *words, *argv]

    def _is_up(self) -> bool:
        try:
            with socket.create_connection((self.address, self.port), timeout=1) as speaking:
                speaking.settimeout(1)
                if not speaking.recv(4).startswith(b"SSH-"):
                    return False
            said = self.run(["systemctl", "is-system-running"], check=False, timeout=5).stdout
            user = self.run(["systemctl", "is-active", "user@1000.service"], check=False, timeout=5).stdout
        except (OSError, MachineError, subprocess.TimeoutExpired):
            return False
        return said.strip() in {b"running", b"degraded"} and user.strip() == b"active"

    def _await_other(self, before: int) -> None:
        _await_end(before)
        self.wait_until_up()


def up(directory: Path, *, folder: Path, owned: bool = True, name: str = "gpu7") -> Machine:
    """Boot a machine.

    Args:
        directory: Where it keeps its layer and keys; made anew.
        folder: The cache folder that holds the disk, or shall.
        owned: It ends with the thread that calls this; else only `down` ends it.
        name: What it calls itself.

    Raises:
        MachineError: none can stand here, or it did not come up; nothing is left.
        machine_image.ImageError: its disk could not be built.
    """
    why_not = unable()
    if why_not is not None:
        raise MachineError(f"{why_not}.")
    disk = image(folder)
    directory = directory.absolute()
    for part in ("upper", "work", "disk", "keys"):
        (directory / part).mkdir(parents=True)
    directory.chmod(0o700)
    (port,) = free_ports(directory, 1)
    _settle(directory, port, name)
    groups = _groups(directory)
    sweep()
    binds = [f"--directory={directory / 'disk'}", *_binds()]
    boot = ["sh", "-c", _BOOT, "sh", str(disk), str(directory), _name(directory), *map(str, groups), "--", *binds]
    ends = ["setpriv", "--pdeathsig", "KILL"] if owned else []
    with (directory / "console").open("wb") as console:
        process = subprocess.Popen(
            [*ends, "unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", *boot],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            start_new_session=True,
        )
    machine = Machine(directory, port, process.pid, process)
    (directory / "machine").write_text(f"{process.pid} {port}\n")
    try:
        machine.wait_until_up()
    except BaseException:
        machine.down()
        raise
    return machine


def standing(directory: Path) -> Machine:
    """The machine that stands in a folder.

    Raises:
        MachineError: there is none.
    """
    try:
        process, port = (int(word) for word in (directory / "machine").read_text().split())
    except OSError as error:
        raise MachineError(f"no machine stands in {directory}") from error
    return Machine(directory.absolute(), port, process)


def sweep() -> None:
    """Remove the groups of machines whose owner was killed; one with processes in it cannot be removed."""
    for hierarchy in _hierarchies():
        for group in hierarchy.glob("practice-*"):
            _remove_group(group, tries=1)


def _settle(directory: Path, port: int, name: str) -> None:
    """Write the files that make this machine itself: its name and keys, who may log in, where sshd listens."""
    keys = directory / "keys"
    for whose in ("host", *ACCOUNTS):
        making = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", whose, "-f", str(keys / whose)]
        subprocess.run(making, check=True)
    host = (keys / "host.pub").read_text().split()
    (directory / "known_hosts").write_text(f"[{Machine.address}]:{port} {host[0]} {host[1]}\n")
    with tarfile.open(directory / "settings.tar", "w") as tar:
        _add(tar, "etc/hostname", f"{name}\n".encode(), 0o644)
        _add(tar, "etc/ssh/ssh_host_ed25519_key", (keys / "host").read_bytes(), 0o600)
        _add(tar, "etc/ssh/ssh_host_ed25519_key.pub", (keys / "host.pub").read_bytes(), 0o644)
        _add(tar, "etc/ssh/sshd_config.d/practice.conf", _SSHD.format(port=port).encode(), 0o644)
        # Tests break and restart sshd more often than systemd takes for sane.
        _add(tar, "etc/systemd/system/ssh.service.d/practice.conf", b"[Unit]\nStartLimitIntervalSec=0\n", 0o644)
        for number, account in enumerate(ACCOUNTS):
            who = 999 + number if number else 0
            group = {"root": 0, "operator": 37, "deploy": 1001}[account]
            home = "root" if account == "root" else f"home/{account}"
            _add(tar, f"{home}/.ssh", None, 0o700, who, group)
            _add(tar, f"{home}/.ssh/authorized_keys", (keys / f"{account}.pub").read_bytes(), 0o600, who, group)


def _add(tar: tarfile.TarFile, path: str, content: bytes | None, mode: int, uid: int = 0, gid: int = 0) -> None:
    entry = tarfile.TarInfo(path)
    entry.mode, entry.uid, entry.gid, entry.mtime = mode, uid, gid, int(time.time())
    entry.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
    entry.size = len(content or b"")
    tar.addfile(entry, io.BytesIO(content or b""))


def _binds() -> Iterator[str]:
    yield f"--bind-ro={Path(__file__).resolve().parents[2]}:{SOURCE}"
    yield f"--bind-ro={sysconfig.get_paths()['purelib']}:{PACKAGES}"


def _name(directory: Path) -> str:
    return f"practice-{os.getpid()}-{directory.name}"[:60]


def _hierarchies() -> list[Path]:
    """The cgroup hierarchies in which systemd keeps its units apart: version 2, and systemd's own of version 1."""
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if (kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options)) and os.access(where, os.W_OK):
            found.append(Path(where))
    return found


def _groups(directory: Path) -> list[Path]:
    """A group of its own in each: two machines in one group would end each other's units."""
    name = f"practice-{directory.stat().st_ino}"
    return [hierarchy / name for hierarchy in _hierarchies()]


def _remove_group(group: Path, tries: int = 100) -> None:
    """Remove a group and those in it, once the kernel has taken the processes out."""
    for _ in range(tries):
        folders = sorted((path for path in group.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
        for folder in (*folders, group):
            with contextlib.suppress(OSError):
                folder.rmdir()
        if not group.exists():
            return
        time.sleep(0.02)


def _children() -> dict[int, list[int]]:
    """Every process on this machine by its parent."""
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text(errors="replace").rpartition(") ")[2].split()[1])
                found.setdefault(parent, []).append(int(entry.name))
    return found


def _ids(pid: int) -> list[int]:
    """A process's ids, from our namespace inwards."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("NSpid:"):
                return [int(word) for word in line.split()[1:]]
    return []


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def _await_end(pid: int) -> None:
    """Wait until a process is gone.

    Raises:
        MachineError: it is not, within `BOOT_SECONDS`.
    """
    deadline = time.monotonic() + BOOT_SECONDS
    while _alive(pid):
        if time.monotonic() > deadline:
            raise MachineError(f"process {pid} does not end")
        time.sleep(0.02)


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Build, boot or end a machine, by the words of the command line; 0, or 2 for words that mean nothing."""
    match argv:
        case ["build"]:
            print(image(cache(environ)))
        case ["up", directory]:
            machine = up(Path(directory), folder=cache(environ), owned=False)
            for account in ACCOUNTS:
                options = ["-o", f"UserKnownHostsFile={machine.known_hosts}", "-i", str(machine.key(account))]
                print(shlex.join(["ssh", *options, "-p", str(machine.port), f"{account}@{machine.address}"]))
        case ["down", directory]:
            standing(Path(directory)).down()
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
