from __future__ import annotations

import pytest

from agent.errors import HostError, NoAnswer
from tools.host import Completed, Host, HttpAnswer
from tools.scripted import ScriptedHost


def echo(argv, stdin):
    """Answer what was asked; a command called `lost` gets no answer."""
    if argv[0] == "lost":
        return NoAnswer("scripted", argv, None, "the link broke")
    return Completed(3, " ".join(argv).encode() + b"\n" + stdin, b"")


def test_it_keeps_the_promise_of_a_host() -> None:
    """Every verb answers from the script, and every command is remembered in order."""
    host: Host = ScriptedHost(echo, files={"/log": b"0123"}, http={("GET", "http://x/"): HttpAnswer(200, b"ok")})
    assert host.run(["a", "b"], stdin=b"in", timeout=1) == (3, b"a b\nin", b"")
    with host.stream(["c"], stdin=b"last", silence=1) as lines:
        assert lines.status is None
        assert list(lines) == [b"c", b"last"]
        assert lines.status == 3
    assert host.read("/log", tail=2) == b"23"
    assert host.http("GET", "http://x/", timeout=1) == (200, b"ok")
    assert host.read(host.ship("probe.py", b"code")) == b"code"
    assert isinstance(host, ScriptedHost)
    assert [call.argv for call in host.calls] == [("a", "b"), ("c",)]


def test_what_is_not_in_the_script_fails_as_on_a_host() -> None:
    """A lost command, a missing file and an endpoint that nobody scripted raise what a real host raises."""
    host = ScriptedHost(echo, http={("GET", "http://slow/"): NoAnswer("scripted", ("GET",), None, "timed out")})
    with pytest.raises(NoAnswer, match="the link broke"):
        host.run(["lost"], timeout=1)
    with pytest.raises(HostError, match="No such file"):
        host.read("/none")
    for url in ("http://slow/", "http://none/"):
        with pytest.raises(NoAnswer):
            host.http("GET", url, timeout=1)
