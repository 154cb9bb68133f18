"""The test host: a Debian with a real systemd and a real sshd, booted once for all tests that need it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from evals.lab import machine as lab_machine
from evals.lab.machine_image import cache, image

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
