"""A worker's log where journald keeps it."""

from __future__ import annotations

from tools.log_source import JournalLog, log_of


def test_the_journal_is_read_from_a_mark_on(unit_site) -> None:
    """What the unit said before the mark is not what it says after it, and other units' words are nobody's."""
    site = unit_site
    log = log_of(site.host, "journal", site.service)
    assert isinstance(log, JournalLog)
    assert site.unit in log.name
    site.write("#!/bin/bash\necho first start\necho sécond line\nexec sleep 86432\n".encode())
    site.systemctl("restart", site.unit)
    site.until(lambda: b"first start" in log.tail(100_000).text)
    mark = log.mark()
    assert mark
    site.until(lambda: log.tail(100_000, after=mark).text == b"")
    site.write(b"#!/bin/bash\necho other start\nexec sleep 86432\n")
    site.systemctl("restart", site.unit)
    tail = site.until(lambda: (t := log.tail(100_000, after=mark)) and b"other start" in t.text and t)
    assert b"first start" not in tail.text
    assert tail.whole
    whole = log.tail(1 << 40)
    assert whole.text.decode().index("first start") < whole.text.decode().index("other start")
    assert "sécond line" in whole.text.decode()
    assert whole.whole


def test_a_long_journal_is_read_from_its_end(root_site) -> None:
    """A window says whether something older was left out; after a mark nothing is, however much came."""
    site = root_site
    log = log_of(site.host, "journal", site.service)
    mark = log.mark()
    site.write(b"#!/bin/bash\nseq -f 'line %g of the log' 3000\nexec sleep 86432\n")
    site.systemctl("restart", site.unit)
    site.until(lambda: b"line 3000 of" in log.tail(1 << 20, after=mark).text)
    tail = log.tail(50_000)
    assert not tail.whole
    assert tail.text.endswith(b"line 3000 of the log\n")
    assert tail.text.count(b"\n") == 500
    since = log.tail(50_000, after=mark)
    assert (since.whole, since.text.count(b"of the log")) == (True, 3000)


def test_a_journal_that_may_not_be_read_is_no_empty_one(unit_sites) -> None:
    """Where journalctl does not answer there is neither a mark nor a tail."""
    site = unit_sites("operator")
    site.host.environ = {"PATH": "/nowhere"}
    log = log_of(site.host, "journal", site.service)
    assert log.mark() is None
    assert log.tail(1000) is None
    site.host.environ = {}
