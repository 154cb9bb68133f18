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
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

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
    return _canonical(noun.model_dump(mode="json"))


class Break(NamedTuple):
    """A place where the chain does not hold."""

    seq: int
    """The first record that is altered, missing, or out of place there."""
    kind: Literal["edit", "gap", "reorder", "end"]
    """A text that is not its hash's, records that are missing, a record in another's place, an end that was cut."""
    says: str
    """What was found, in one sentence."""


def breaks(links: Iterable[Link], *, head: Link | None, after: Link | None = None) -> Iterator[Break]:
    """Find every place where a chain stops holding; after each, what follows is taken as it is found.

    Args:
        links: What is kept, in the order of `seq`.
        head: Place and hash of the last record that was ever appended, kept apart from the records (its `document`
            is not looked at); None: none was appended.
        after: The record before the first of `links`, where only the end of a chain is looked at.
    """
    expected, previous = (1, NOTHING_BEFORE) if after is None else (after.seq + 1, after.hash)
    for link in links:
        found = _break_at(link, expected, previous)
        if found is not None:
            yield found
        expected, previous = link.seq + 1, link.hash
    if head is None:
        if expected > 1:
            yield Break(1, "end", "There are records, and no note of the last one.")
    elif head.seq >= expected:
        missing = _span(expected, head.seq)
        yield Break(expected, "end", f"{missing} missing at the end: {head.seq} records were appended.")
    elif (head.seq, head.hash) != (expected - 1, previous):
        yield Break(min(expected - 1, head.seq), "end", f"Record {expected - 1} is not the one that was appended last.")


def plan_differs(link: Link) -> str | None:
    """Whether the plan in a record is another one than was approved; None: it is that one, or there is none.

    The digest is computed from the text that is kept, so it holds for plans of earlier versions as well.
    """
    try:
        content = json.loads(link.document)
    except ValueError:
        return "the record's text is not JSON"
    plan, digest, approval = (content.get(name) for name in ("plan", "plan_digest", "approval"))
    if plan is None:
        return None
    if _sha256(_canonical(plan)) != digest:
        return f"the plan is not the one of its digest {str(digest)[:12]}"
    if approval is not None and approval.get("digest") != digest:
        return f"what was approved is {str(approval.get('digest'))[:12]}, and the plan is {str(digest)[:12]}"
    return None


def _break_at(link: Link, expected: int, previous: str) -> Break | None:
    """What is wrong with one record; None: nothing."""
    if link.seq > expected:
        return Break(expected, "gap", f"{_span(expected, link.seq - 1)} missing.")
    if link.seq < expected:
        return Break(link.seq, "reorder", f"There is a second record {link.seq}.")
    if _sha256(link.document) != link.hash:
        return Break(link.seq, "edit", f"The text of record {link.seq} was altered: it is not the one of its hash.")
    try:
        content = json.loads(link.document)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        return Break(link.seq, "edit", f"The text of record {link.seq} is not a record.")
    if content.get("seq") != link.seq:
        return Break(link.seq, "reorder", f"In place {link.seq} stands what was appended as {content.get('seq')!r}.")
    if content.get("previous") != previous:
        culprit = f"record {link.seq - 1} or {link.seq}" if link.seq > 1 else "record 1"
        return Break(link.seq, "edit", f"Record {link.seq} does not follow from the one before: {culprit} was altered.")
    return None


def _span(first: int, last: int) -> str:
    return f"Record {first} is" if first == last else f"Records {first} to {last} are"


def _canonical(document: object) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
