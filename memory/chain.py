"""Records chained by hash: an edit, a gap or a reorder is found, and located.

The hash of a record is the SHA-256 of its canonical JSON, which holds the hash of the record before it. What is kept
is that very text, so that a chain can be verified offline with `sha256sum`, and still verifies after a later version
has given the nouns new fields.

What a chain alone cannot show is a forger who rewrites it from some place to its end. The hashes that stand in plan
documents and git commits are the anchors against that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import NamedTuple

from agent.domain import Noun, Record

NOTHING_BEFORE = "0" * 64
"""What the first record names as the hash before it."""


class Link(NamedTuple):
    """One record as it is kept."""

    seq: int
    """Its place, from 1."""
    hash: str
    """SHA-256 of the document, 64 hexadecimal digits."""
    document: str
    """Canonical JSON of the record."""


def linked(record: Record, *, seq: int, previous: str) -> tuple[Record, Link]:
    """Give a record its place in the chain.

    Args:
        record: The record; its own `seq` and `previous` are replaced.
        seq: Its place, from 1.
        previous: Hash of the record before, or `NOTHING_BEFORE`.

    Returns:
        The record as it now stands, and the text that is kept of it.
    """
    placed = record.model_copy(update={"seq": seq, "previous": previous})
    document = canonical(placed)
    return placed, Link(seq, _sha256(document), document)


def canonical(noun: Noun) -> str:
    """Write a noun as the text whose SHA-256 is its digest.

    Unlike pydantic's own JSON, a number that is not finite stays what it is and does not turn into "no data".
    """
    return json.dumps(noun.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def first_break(links: Iterable[Link], *, head: Link | None) -> int | None:
    """Find where a chain stops holding.

    Args:
        links: What is kept, in the order of `seq`.
        head: Place and hash of the last record that was ever appended, kept apart from the records (its `document`
            is not looked at); None: none was appended.

    Returns:
        The `seq` of the first record that is altered, missing, or out of place; None: all hold.
    """
    expected, previous = 1, NOTHING_BEFORE
    for link in links:
        if link.seq != expected or not _holds(link, previous):
            return expected
        expected, previous = expected + 1, link.hash
    if head is None:
        return None if expected == 1 else 1
    return None if (head.seq, head.hash) == (expected - 1, previous) else min(expected, head.seq)


def _holds(link: Link, previous: str) -> bool:
    if _sha256(link.document) != link.hash:
        return False
    try:
        content = json.loads(link.document)
    except ValueError:
        return False
    return isinstance(content, dict) and (content.get("seq"), content.get("previous")) == (link.seq, previous)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
