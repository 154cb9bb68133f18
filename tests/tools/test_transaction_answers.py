from __future__ import annotations

import pytest

from agent.errors import HelperRefused, HostError, NoAnswer, RunInFlight
from tools.host import Completed
from tools.local import LocalHost
from tools.scripted import ScriptedHost
from tools.service import CommandService
from tools.transaction import HELPER, Writer


def linked(folder, spoil, heard=None):
    """A writer whose calls reach the real helper over a link that spoils what passes, and the calls that were sent."""
    real = LocalHost(folder / "prudent")
    path = real.ship(HELPER.name, HELPER.read_bytes())

    def answer(argv, stdin):
        return spoil(stdin, lambda sent: real.run([real.python, *argv[1:-2], path, argv[-1]], stdin=sent, timeout=60))

    host = ScriptedHost(answer, directory=real.directory)
    service = CommandService(restart=("true",), pid=("/bin/echo", "0"))
    tell = [].append if heard is None else heard.append
    return Writer(host, "decode", str(folder / "serve.sh"), service, sleep=lambda _: None, tell=tell), host


SPOILED = {
    "lost before it was sent": lambda sent, go: NoAnswer("link", ("lease",), None, "connection reset"),
    "lost after it was sent": lambda sent, go: NoAnswer("link", ("lease",), None, "timed out") if go(sent) else None,
    "nothing, with status 0": lambda sent, go: Completed(0, b"", b""),
    "cut short": lambda sent, go: go(sent)._replace(stdout=go(sent).stdout[:20]),
    "one digit changed": lambda sent, go: go(sent)._replace(
        stdout=go(sent).stdout.replace(b'"token": ', b'"token": 9')
    ),
    "somebody's greeting": lambda sent, go: Completed(0, b"Welcome to node7\n" + go(sent).stdout, b""),
    "other JSON": lambda sent, go: Completed(0, b'{"ok": true, "token": 7, "execution": null}', b""),
    "a list": lambda sent, go: Completed(0, b"[]", b""),
    "killed": lambda sent, go: Completed(-9, b"", b""),
}


@pytest.mark.parametrize("how", SPOILED)
def test_an_answer_that_is_not_whole_is_no_answer(tmp_path, how) -> None:
    """Whatever the link does to an answer, it is never taken for a success, and the call is not sent again."""
    writer, host = linked(tmp_path, SPOILED[how])
    with pytest.raises(NoAnswer):
        writer.lease("r-1", 60)
    assert len(host.calls) == 1


@pytest.mark.parametrize(
    ("verb", "how"),
    [*(("status", how) for how in SPOILED if how != "one digit changed"), ("observe", "killed"), ("doctor", "a list")],
)
def test_a_question_is_asked_again(tmp_path, how, verb) -> None:
    """What changes nothing is asked again, with what happened on the way told; the answer is the true one."""
    times: list[bytes] = []

    def spoil(sent, go):
        times.append(sent)
        return SPOILED[how](sent, go) if len(times) == 1 else go(sent)

    heard: list[str] = []
    writer, host = linked(tmp_path, spoil, heard)
    answer = getattr(writer, verb)()
    assert (answer is None) == (verb == "status")
    assert len(host.calls) == 2
    assert times[0] != times[1]
    (told,) = heard
    assert f"asked again ({verb})" in told
    getattr(writer, verb)()
    assert heard == [told]


def test_a_question_is_given_up_in_the_end(tmp_path) -> None:
    """A link that is down is asked over three times, and no longer than one question may take."""
    writer, host = linked(tmp_path, SPOILED["killed"])
    with pytest.raises(NoAnswer):
        writer.status("r-1")
    assert len(host.calls) == 3
    seconds = iter([0.0, 1e6])
    service = CommandService(restart=("true",), pid=("/bin/echo", "0"))
    slow = Writer(host, "decode", str(tmp_path / "serve.sh"), service, clock=lambda: next(seconds))
    with pytest.raises(NoAnswer):
        slow.status("r-1")
    assert len(host.calls) == 4


def test_an_answer_to_another_request_is_no_answer(tmp_path) -> None:
    """A whole answer that belongs to an earlier call is not believed."""
    answers: list[Completed] = []

    def stale(sent, go):
        answers.append(go(sent))
        return answers[0]

    writer, _ = linked(tmp_path, stale)
    assert writer.lease("r-1", 60).token == 1
    with pytest.raises(NoAnswer, match="not for this request"):
        writer.lease("r-1", 60)


def test_a_garbled_request_changes_nothing(tmp_path) -> None:
    """The helper proves that it did nothing with a request that is not as it was sent."""
    writer, _ = linked(tmp_path, lambda sent, go: go(sent.replace(b'"r-1"', b'"r-7"')))
    with pytest.raises(HelperRefused) as refused:
        writer.lease("r-1", 60)
    assert refused.value.kind == "garbled"
    assert not (tmp_path / "prudent" / "workers").exists()


def test_a_refusal_names_the_host_and_what_to_do(tmp_path) -> None:
    """What the operator can settle is one sentence with a remedy; everything else keeps its kind and the command."""
    writer, _ = linked(tmp_path, lambda sent, go: go(sent))
    token = writer.lease("r-1", 60).token
    with pytest.raises(RunInFlight) as held:
        writer.lease("r-2", 60)
    assert "r-1" in held.value.sentence
    assert "prudent" in held.value.remedy
    with pytest.raises(HelperRefused) as refused:
        writer.undo(token, "r-1")
    assert refused.value.kind == "not_open"
    assert refused.value.command[-1] == "undo"


def test_a_host_that_cannot_start_the_helper_says_so(tmp_path) -> None:
    """A missing interpreter is an error of the host with its own words, never an answer."""
    host = LocalHost(tmp_path, python="/nowhere/python3")
    service = CommandService(restart=("true",), pid=("/bin/echo", "0"))
    with pytest.raises(HostError, match="nowhere"):
        Writer(host, "decode", "/tmp/serve.sh", service).lease("r-1", 60)
