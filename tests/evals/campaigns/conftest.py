"""A campaign that all tests of this room share: what an engine was computed to say once is known to all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evals.campaigns.campaign import Campaign, campaign


@pytest.fixture(scope="session")
def under() -> Iterator[Campaign]:
    """A campaign that is under way."""
    with campaign() as made:
        yield made
