"""A worker that a real systemd keeps on the test host, and the writer for it, as root and as an ordinary user."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from evals.campaigns.units import UnitSite


@pytest.fixture(params=["root", "operator"])
def unit_site(machine, request) -> Iterator[UnitSite]:
    """A worker that runs from its script: a system unit of root, and a user unit of an ordinary user."""
    made = UnitSite(machine, request.param)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def root_site(machine) -> Iterator[UnitSite]:
    """The same as root only, for what does not differ."""
    made = UnitSite(machine, "root")
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def unit_sites(machine) -> Iterator[Callable[..., UnitSite]]:
    """Makes sites of one's own."""
    made: list[UnitSite] = []

    def make(user: str, **changed: Any) -> UnitSite:
        made.append(UnitSite(machine, user, **changed))
        return made[-1]

    try:
        yield make
    finally:
        for site in made:
            site.close()


@pytest.fixture
def own_sites(own_machine) -> Callable[..., UnitSite]:
    """Makes sites on a machine that ends with the test."""
    return lambda user, **changed: UnitSite(own_machine, user, **changed)
