from __future__ import annotations

import hashlib
import os
import signal
import socket
import sys
import time

import pytest

from agent.errors import HelperRefused


def observe_until(site, relation: str, port: int, **asked):
    """What is seen once the port's listener stands in a relation to the worker."""
    for _ in range(600):
        seen = site.writer.observe(port=port, **asked)
        if seen.listener.relation == relation:
            return seen
        time.sleep(0.05)
    raise AssertionError(f"the listener stayed {seen.listener.relation}")


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_worker_is_seen_as_it_is_and_nothing_is_written(site) -> None:
    """Script hash, process identity and argv come from the host itself, and looking leaves no trace on it."""
    seen = site.writer.observe()
    assert seen.script_sha256 == hashlib.sha256(site.script.read_bytes()).hexdigest()
    assert seen.process.argv == ("sleep", "86432")
    assert seen.state.process == seen.process.identity
    assert seen.execution is None
    assert seen.holder is None
    assert not (site.directory / "workers").exists()


def test_what_cannot_be_seen_is_said(site) -> None:
    """A missing script and a dead worker are told apart from a service that would not answer."""
    site.script.unlink()
    site.serve("stop")
    seen = site.writer.observe()
    assert seen.script_sha256 is None
    assert seen.script_problem == "No such file or directory"
    assert seen.process is None
    assert seen.process_problem is None
    for pid, says in ((("/bin/sh", "-c", "echo no such unit >&2; exit 4"), "ended with 4: no such unit"),
                      (("/nowhere/to/be/found",), "No such file"), (("/bin/echo", "running"), "running")):  # fmt: skip
        seen = site.writer_for("decode", pid=pid).observe()
        assert seen.process is None
        assert says in seen.process_problem
        with pytest.raises(HelperRefused):
            site.writer_for("decode", pid=pid).main()


def test_the_listener_is_told_by_its_descent(site) -> None:
    """The main process, its child, a stranger and nobody are told apart on the worker's port."""
    port = free_port()
    server = f"{sys.executable} -m http.server --bind 127.0.0.1 {port}"
    assert site.writer.observe(port=port).listener.relation == "nobody"
    site.script.write_text(f"export LEVEL=7\nexec {server}\n")
    site.serve("restart")
    seen = observe_until(site, "main", port, environ_names=["LEVEL", "ABSENT"])
    assert seen.listener.process.identity == seen.process.identity
    assert seen.process.environ == {"LEVEL": "7"}
    site.script.write_text(f"export LEVEL=8\n{server}\nexit\n")
    site.serve("restart")
    seen = observe_until(site, "descendant", port, environ_names=["LEVEL"])
    assert seen.listener.process.identity != seen.process.identity
    assert seen.listener.process.environ == {"LEVEL": "8"}
    assert "http.server" in seen.listener.process.argv
    os.kill(seen.listener.process.pid, signal.SIGKILL)
    site.serve("stop")
    observe_until(site, "nobody", port)
    with socket.create_server(("127.0.0.1", port)):
        assert observe_until(site, "foreign", port).listener.process.argv[0]


HIDDEN = "hunter2hunter2"


@pytest.mark.parametrize(
    "words",
    [
        ["--api-key", HIDDEN],
        [f"--api-key={HIDDEN}"],
        ["--admin-api-key", HIDDEN],
        [f"HF_TOKEN={HIDDEN}"],
        [f"--dist-init=tcp://user:{HIDDEN}@node:1"],
        ["--url", f"https://{HIDDEN}@registry"],
        [f'{{"api_key": "{HIDDEN}"}}'],
        [f"python -m server --api-key {HIDDEN} --port 1"],
        [f"A_SECRET='{HIDDEN}' python -m server"],
        [f"Authorization: Bearer {HIDDEN}"],
        ["--team-pin", HIDDEN],
    ],
    ids=lambda words: " ".join(words).replace(HIDDEN, "X"),
)
def test_secrets_in_an_argv_are_masked(site, words) -> None:
    """No spelling of a secret in a command line leaves the host."""
    quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)
    site.script.write_text(f"exec {sys.executable} -c 'import time; time.sleep(1e6)' {quoted}\n")
    site.serve("restart")
    for _ in range(600):
        process = site.writer.observe(mask=["pin"]).process
        if process is not None and len(process.argv) > 3:
            break
        time.sleep(0.02)
    assert HIDDEN not in " ".join(process.argv)
    assert "***" in " ".join(process.argv)


@pytest.mark.parametrize(
    "words",
    [
        ["--max-total-tokens", "2360000"],
        ["--tokenizer-path", "/models/a"],
        ["--cuda-graph-max-bs-decode", "96"],
        ["--keyboard=qwerty"],
    ],
    ids=" ".join,
)
def test_settings_that_only_sound_secret_stay_readable(site, words) -> None:
    """A flag is masked by a whole word of its name and not by a part of one."""
    site.script.write_text(f"exec {sys.executable} -c 'import time; time.sleep(1e6)' {' '.join(words)}\n")
    site.serve("restart")
    for _ in range(600):
        process = site.writer.main()
        if process is not None and len(process.argv) > 3:
            break
        time.sleep(0.02)
    assert list(process.argv[3:]) == words


def test_secret_variables_are_masked_by_name(site) -> None:
    """A variable that was asked for is shown, but not the value of one whose name says that it is secret."""
    site.script.write_text("export HF_TOKEN=hunter2 LEVEL=7\nexec sleep 86400\n")
    site.serve("restart")
    for _ in range(600):
        environ = site.writer.observe(environ_names=["HF_TOKEN", "LEVEL"]).process.environ
        if environ.get("LEVEL"):
            break
        time.sleep(0.02)
    assert environ == {"HF_TOKEN": "***", "LEVEL": "7"}
