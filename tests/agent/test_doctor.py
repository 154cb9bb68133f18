"""`prudent doctor`: what a change needs, looked at beforehand."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def test_a_sound_worker_is_fit_for_a_change(bench):
    """Everything that a change and its proof need is looked at, and nothing is touched by it."""
    said = bench.say("doctor", "--json")

    assert said.status == 0, said.out + said.err
    found = {one["name"]: one for one in said.document["found"]}
    assert said.document["fit"]
    assert all(one["ok"] is not False for one in found.values())
    assert {"way in", "python", "script", "exchange", "process", "port", "log", "engine", "entry", "proof"} <= set(
        found
    )
    assert bench.ground.script.read_bytes() == bench.original


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ('entry = "http://127.0.0.1', 'entry = "http://127.0.0.2', "entry"),
        ('log = "run/worker.log"', 'log = "run/wrong.log"', "proof"),
        ('script = "serve_decode.sh"', 'script = "serve.sh"', "script"),
        ('host = "local"', 'host = "nobody@127.0.0.1:9"', "way in"),
    ],
)
def test_what_is_missing_is_named_with_a_remedy(bench, old: str, new: str, name: str):
    """What stands in the way is found before anybody asks for a change, and the exit code calls for a person."""
    if name == "way in":
        for relative in ("serve_decode.sh", "run/worker.log", ".prudent/host"):
            bench.settle(f'"{relative}"', f'"{bench.ground.directory}/{relative}"')
    bench.settle(old, new)

    said = bench.say("doctor", "--json")

    assert said.status == 13, said.out + said.err
    missing = {one["name"]: one for one in said.document["found"] if one["ok"] is False}
    assert name in missing
    assert missing[name]["remedy"] or missing[name]["says"]
