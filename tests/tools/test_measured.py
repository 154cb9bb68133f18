"""What every kind of load has in common."""

from __future__ import annotations

from tools.measured import failed_requests


def test_a_key_that_a_server_repeats_is_not_kept():
    """The first failure is told, without the secret that stands in it."""
    first = 'http 401: {"message": "wrong key", "api_key": "sk-abcdef0123"} Authorization: Bearer sk-abcdef0123'

    reading = failed_requests({"n": 4, "bad": 2, "first": first}, "candidate", "probe", 8)

    assert "2 of 4 requests failed" in reading.detail
    assert "http 401" in reading.detail
    assert "sk-abcdef" not in reading.detail
