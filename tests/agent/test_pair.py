"""A change of the decode side of a pair, which serves nobody but through the router."""

import json
import subprocess
import sys
import time
import urllib.request

import pytest

from evals.lab import supervisor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("quick_pair", [()], indirect=True)
def test_a_change_of_the_decode_side_is_proven_through_the_entry(quick_pair):
    """It is kept; load and proof went through the router, and the decode side was asked for itself alone."""
    said = quick_pair.ask("bump cuda graphs to 96")

    record = said.record
    assert (said.status, record["verdict"]["decision"], record["verdict"]["state"]) == (0, "kept", "new")
    words = quick_pair.argv()
    assert words[words.index("--cuda-graph-max-bs") + 1] == "96"
    prefill, decode, router = (
        post.log.read_text(encoding="utf-8")
        for name in ("prefill", "decode", "router")
        for post in quick_pair.ground.posts
        if post.name == name
    )
    asked = '"POST /v1/chat/completions HTTP/1.1" 200'
    assert router.count(asked) > 20
    assert router.count(asked) == prefill.count(asked) >= decode.count(asked)
    assert "boostrap room id" not in decode


@pytest.mark.parametrize("quick_pair", [("stale-bootstrap",)], indirect=True)
def test_a_side_that_comes_back_to_a_peer_that_does_not_know_it_is_left_to_people(quick_pair):
    """The restarted worker is new, healthy and reaches nobody; taking it back does not help, and that is said."""
    said = quick_pair.ask("bump cuda graphs to 96")

    verdict = said.record["verdict"]
    assert (said.status, verdict["decision"], verdict["state"]) == (13, "needs_human", "unknown"), verdict["why"]
    assert [one["outcome"] for one in verdict["findings"] if one["criterion"] == "entry"] == ["breached"]
    assert quick_pair.ground.script.read_bytes() == quick_pair.original
    for name in ("prefill", "decode"):
        post = next(one for one in quick_pair.ground.posts if one.name == name)
        before = post.log.read_bytes().count(b"fired up")
        command = [sys.executable, supervisor.__file__, "--directory", str(post.directory), "restart"]
        subprocess.run(command, check=True, capture_output=True)
        while post.log.read_bytes().count(b"fired up") == before:
            time.sleep(0.1)
    body = json.dumps({"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 4}).encode()
    asked = f"{quick_pair.ground.entry}/v1/chat/completions"
    request = urllib.request.Request(asked, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200
