"""The disk of the test host: a small Debian with systemd and sshd, built once and kept in a cache folder."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

SUITE = "bookworm"
"""The Debian release whose python3 is 3.11, so that the site-packages of our environment load in it."""
PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "dbus-user-session",
    "libpam-systemd",
    "openssh-server",
    "openssh-client",
    "python3",
    "sudo",
    "iproute2",
    "procps",
    "polkitd",
    "datefudge",
)
"""What the disk holds beside the base system; openssh-client makes it a jump host, iproute2 cuts connections, polkitd
lets an ordinary user restart a unit, and datefudge gives a process another wall clock."""
ACCOUNTS = ("root", "operator", "deploy")
"""root; an ordinary user whose user units run without a login; an ordinary user who may `sudo -n`."""
_SETTLED = """
set -e
useradd --create-home --gid operator --shell /bin/bash operator
useradd --create-home --user-group --shell /bin/bash deploy
echo 'deploy ALL=(ALL:ALL) NOPASSWD: ALL' > /etc/sudoers.d/deploy
chmod 0440 /etc/sudoers.d/deploy
mkdir -p /var/lib/systemd/linger
touch /var/lib/systemd/linger/operator
systemctl --quiet mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \\
    e2scrub_reap.service systemd-pstore.service getty@tty1.service console-getty.service systemd-timesyncd.service
rm -rf /etc/ssh/ssh_host_* /var/cache/apt /var/lib/apt/lists /usr/share/doc /usr/share/locale /usr/share/man
: > /etc/machine-id
"""
"""What is done once inside: accounts, nothing that wakes up by itself, no keys, no machine id."""


class ImageError(Exception):
    """The disk could not be built; the text holds the last lines of the builder."""


def cache(environ: Mapping[str, str]) -> Path:
    """The folder for what takes long to make: `PRUDENT_CACHE`, else the user's cache folder."""
    if environ.get("PRUDENT_CACHE"):
        return Path(environ["PRUDENT_CACHE"])
    return Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "/root")) / ".cache") / "prudent"


def image(folder: Path) -> Path:
    """The disk's folder, built where it is not there yet; who comes meanwhile waits.

    Args:
        folder: The cache folder.

    Raises:
        ImageError: it could not be built.
    """
    recipe = "\n".join((SUITE, *PACKAGES, _SETTLED))
    built = folder / f"test-host-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "test-host.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            part = folder / f"{built.name}.part"
            shutil.rmtree(part, ignore_errors=True)
            try:
                _build(part)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise
            part.rename(built)
    return built


def _build(root: Path) -> None:
    listed = f"--include={','.join(PACKAGES)}"
    _run(["debootstrap", "--variant=minbase", listed, SUITE, str(root), *_mirror()])
    _run(["chroot", str(root), "/bin/sh", "-c", _SETTLED])


def _mirror() -> list[str]:
    """The archive that this machine's own packages come from; nothing: the builder's default."""
    asked = ["apt-get", "indextargets", "--format", "$(SITE) $(REPO_URI)", f"Codename: {SUITE}", "Origin: Debian"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False)
    return [line.split()[1] for line in said.stdout.splitlines() if len(line.split()) > 1][:1]


def _run(argv: list[str]) -> None:
    environ = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        argv, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        last = "\n".join(done.stdout.decode(errors="replace").splitlines()[-12:])
        raise ImageError(f"{argv[0]} ended with status {done.returncode}:\n{last}")
