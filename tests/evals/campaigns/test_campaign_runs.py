"""Runs on virtual time: the real graph, helper and process come to the ends that the seeds have, and die where told."""

from __future__ import annotations

import json

import pytest

from agent.domain import Record
from evals.bench.matrix_crash import around
from evals.campaigns.agent import STORIES, ask, forked, record_of, resume
from evals.campaigns.host import VirtualHost
from evals.campaigns.mortal import Act, Fate
from evals.campaigns.oracle import Truth, before, contradiction, stored, truth

RUN = "r-test"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.mark.parametrize(
    ("story", "decision", "state", "end"),
    [("bump", "kept", "new", "committed"), ("overlap", "deferred", "restored", "undone")],
)
def test_both_seeds_come_to_their_ends(under, story, decision, state, end):
    """A bump is kept and live, an overlap scheduler that wedges is taken back; the ground shows it."""
    with under.ground() as ground:
        was = before(ground)
        ended = forked(lambda: ask(ground, under.forge, RUN, STORIES[story]), said=ground.folder / "said")
        assert ended.status == 0, ended.said
        record, books = stored(ground, RUN)
        real = truth(ground, was, story)
    assert books is None
    assert (record.verdict.decision, record.verdict.state) == (decision, state), record.verdict
    assert real.journal == end
    assert contradiction(record, real) is None
    starts = [reading.value for reading in record.readings if reading.metric == "start_seconds"]
    assert len(starts) == (2 if state == "new" else 3)


def test_an_agent_dies_where_it_is_told_and_resumes_to_the_truth(under):
    """Killed by the kernel once the changed worker runs, it is resumed by another process, and the record is true."""
    with under.ground() as ground:
        was, said = before(ground), ground.folder / "said"
        fate = Fate(Act("helper step r-test-restart", 1), "after")
        ended = forked(lambda: ask(ground, under.forge, RUN, STORIES["bump"], around(fate)), said=said)
        assert ended.status == -9
        assert truth(ground, was, "bump") == Truth("new", "new", "open", 2, ())
        assert record_of(ground, RUN) is None
        ended = forked(lambda: resume(ground, under.forge, RUN), said=said)
        assert ended.status == 0, ended.said
        record, books = stored(ground, RUN)
        assert books is None
        assert contradiction(record, truth(ground, was, "bump")) is None
        lease = json.loads((ground.host_directory / "workers" / "decode" / "lease").read_bytes())
        assert lease["until"] == 0.0, "the next run would have to wait for a lease that nobody has"


def test_the_oracle_sees_a_record_that_is_not_true(under):
    """A worker that is put back behind a kept change, and one that is gone, contradict the record."""
    with under.ground() as ground:
        was = before(ground)
        ended = forked(lambda: ask(ground, under.forge, RUN, STORIES["bump"]), said=ground.folder / "said")
        assert ended.status == 0, ended.said
        record = record_of(ground, RUN)
        assert isinstance(record, Record)
        assert contradiction(record, truth(ground, was, "bump")) is None
        ground.script.write_bytes(was.script)
        assert contradiction(record, truth(ground, was, "bump")) is not None
        ground.service("restart")
        lied = record.model_copy(update={"verdict": record.verdict.model_copy(update={"state": "restored"})})
        assert contradiction(lied, truth(ground, was, "bump")) is not None
        ground.service("stop")
        assert truth(ground, was, "bump").process == "none"


def test_time_passes_only_where_somebody_waits(under):
    """A worker is not up before its start has taken its time, whatever the wall says, and then it is."""
    with under.ground() as ground:
        host = VirtualHost(ground, under.forge)
        url = f"http://127.0.0.1:{ground.port}/server_info"
        assert host.http("GET", url, timeout=5).status == 200
        ground.service("restart")
        before_it, size = host.now(), ground.log.stat().st_size
        with pytest.raises(Exception, match="Connection refused"):
            host.http("GET", url, timeout=5)
        assert host.now() - before_it < 1.0
        host.sleep(10.0)
        assert host.http("GET", url, timeout=5).status == 200
        assert b"fired up and ready to roll" in ground.log.read_bytes()[size:]
        host.close()


def test_the_same_load_brings_the_same_answer(under):
    """Two grounds with one seed measure the same to the last digit, from a computation and from what was kept."""
    answers = []
    for _ in range(2):
        with under.ground() as ground:
            ended = forked(lambda g=ground: ask(g, under.forge, RUN, STORIES["bump"]), said=ground.folder / "said")
            assert ended.status == 0, ended.said
            record = record_of(ground, RUN)
            assert record is not None
            answers.append([(r.metric, r.phase, r.value, r.n) for r in record.readings if r.metric != "log_bytes"])
    assert answers[0] == answers[1]
