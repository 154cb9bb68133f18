"""The test host: a Debian with a real systemd and a real sshd, booted once for all tests that need it."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evals.lab import machine as lab_machine
from evals.lab.machine_image import ACCOUNTS, cache, image
from tools.ssh import SshHost
from tools.ssh_target import SshTarget

REQUIRED = os.environ.get("PRUDENT_REQUIRE_HOST") == "1"
CACHE = cache(os.environ)


def boot() -> lab_machine.Machine:
    """A machine of one's own, in a folder with a short path."""
    folder = Path(tempfile.mkdtemp(prefix="prudent-host-"))
    try:
        return lab_machine.up(folder / "host", folder=CACHE)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


@pytest.fixture(scope="session")
def host_cache() -> Path:
    """The folder that holds the disk, built where it is not there yet; where none can be, skip or fail as ordered."""
    why_not = lab_machine.unable()
    if why_not is not None:
        (pytest.fail if REQUIRED else pytest.skip)(f"no test host on this machine: {why_not}")
    image(CACHE)
    return CACHE


@pytest.fixture(scope="session")
def machine(host_cache) -> Iterator[lab_machine.Machine]:
    """The machine that all tests share: what a test changes on it, it puts back."""
    made = boot()
    try:
        yield made
    finally:
        made.down()
        shutil.rmtree(made.directory.parent, ignore_errors=True)


@pytest.fixture
def own_machine(host_cache) -> Iterator[lab_machine.Machine]:
    """A machine for a test that reboots it, cuts its power, or breaks its sshd."""
    made = boot()
    try:
        yield made
    finally:
        made.down()
        shutil.rmtree(made.directory.parent, ignore_errors=True)


def target(made: lab_machine.Machine, account: str, **changed: Any) -> SshTarget:
    """The way to a machine as an account; `deploy` becomes root with sudo."""
    fields: dict[str, Any] = {
        "name": f"{account}-host",
        "address": made.address,
        "port": made.port,
        "user": account,
        "identity": str(made.key(account)),
        "known_hosts": str(made.known_hosts),
        "config": os.devnull,
        "become": "sudo" if account == "deploy" else None,
    }
    return SshTarget(**{**fields, **changed})


@pytest.fixture(scope="session")
def way(machine: lab_machine.Machine) -> Callable[..., SshTarget]:
    """Makes the way to the shared machine: as an account, with whatever is to be different."""
    return functools.partial(target, machine)


@pytest.fixture
def own_way(own_machine: lab_machine.Machine) -> Callable[..., SshTarget]:
    """Makes the way to a machine of one's own."""
    return functools.partial(target, own_machine)


@pytest.fixture(scope="module", params=ACCOUNTS)
def host(request: pytest.FixtureRequest, machine: lab_machine.Machine) -> Iterator[SshHost]:
    """The shared machine over SSH: as root, as an ordinary user, and as one who becomes root with sudo."""
    with SshHost.connect(target(machine, request.param)) as made:
        yield made


@pytest.fixture
def root_host(machine: lab_machine.Machine) -> Iterator[SshHost]:
    """The shared machine over SSH, as root."""
    with SshHost.connect(target(machine, "root")) as made:
        yield made
