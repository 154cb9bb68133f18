"""A stranger's script is executed where it can harm nothing, and an edit is believed only for what that shows."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from tools.serve_script.edit import Intent, plan_edit
from tools.serve_script.prove import prove
from tools.serve_script.sandbox import Circumstances, NoSandbox, Ran, entrance, run_script

SET_SEED = Intent("flag", "set", ("--seed",), ("2",), "--seed", old=("1",))


def run(text: str, **how: object) -> Ran:
    """Execute a script, or skip where the machine does not allow it."""
    try:
        entrance()
    except NoSandbox as reason:
        pytest.skip(f"this machine allows no sandbox: {reason}")
    return run_script(text.encode(), files={}, circumstances=Circumstances(**how))  # type: ignore[arg-type]


class TestSandbox:
    def test_arguments_and_environment_of_a_server_are_written_down(self) -> None:
        """The stub sees what the server would have seen, byte for byte."""
        ran = run("export A='x  y'\nB=é vllm serve \"a b\" '' $'t\\tab' &\nwait\n")

        (call,) = ran.calls
        assert call.argv == ("vllm", "serve", "a b", "", "t\tab")
        assert {"A": "x  y", "B": "é"}.items() <= dict(call.env).items()

    def test_nothing_is_written_outside(self, tmp_path: Path) -> None:
        """A file that the script writes by its absolute path does not appear on this machine."""
        target = tmp_path / "trace"

        ran = run(f"mkdir -p {tmp_path}; echo x > {target}; rm -rf /usr/lib /etc /home; vllm serve $(cat {target})\n")

        assert not target.exists()
        assert [call.argv for call in ran.calls] == [("vllm", "serve", "x")]

    def test_files_of_the_machine_are_out_of_sight(self, tmp_path: Path) -> None:
        """A script cannot read what lies on this machine."""
        secret = tmp_path / "secret"
        secret.write_text("tops3cret")

        ran = run(f'vllm serve "$(cat {secret} /etc/shadow 2>/dev/null)"\n')

        assert [call.argv for call in ran.calls] == [("vllm", "serve", "")]

    def test_there_is_no_network(self) -> None:
        """A script cannot reach a port of this machine."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0.5)
            reached: list[bool] = []

            def accept() -> None:
                try:
                    server.accept()[0].close()
                    reached.append(True)
                except TimeoutError:
                    pass

            thread = threading.Thread(target=accept)
            thread.start()
            ran = run(
                f'(exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]}) 2>/dev/null && A=open\nvllm serve "$A"\n'
            )
            thread.join()

        assert (reached, [call.argv for call in ran.calls]) == ([], [("vllm", "serve", "")])

    def test_no_process_of_the_machine_can_be_seen_or_signalled(self) -> None:
        """The script sees its own processes only."""
        ran = run('n=0; for p in /proc/[0-9]*; do n=$((n+1)); done; (( n < 12 )) && A=few\nvllm serve "$A"\n')

        assert [call.argv for call in ran.calls] == [("vllm", "serve", "few")]

    def test_a_link_that_the_script_lays_for_the_reader_is_not_followed(self, tmp_path: Path) -> None:
        """What the script says on its way out is read from its own files only."""
        secret = tmp_path / "secret"
        secret.write_text("tops3cret")

        try:
            ran = run(f"rm -f /.complaint; ln -s {secret} /.complaint; ln -s {secret} /.calls/1.argv\n")
        except NoSandbox:
            return

        assert "tops3cret" not in repr(ran)

    def test_a_script_that_never_ends_is_ended(self) -> None:
        """A loop is stopped by the clock, and a restart loop by the number of its servers."""
        assert not run("while :; do :; done\n", seconds=1.0).ended
        assert 5 <= len(run("while :; do vllm serve /m; done\n", most=5).calls) <= 6

    def test_launchers_named_by_path_and_behind_wrappers_are_caught(self) -> None:
        """Absolute paths, exec, env -i and wrappers do not get past the stubs."""
        ran = run(
            "sudo -u svc numactl -N 0 /opt/a/bin/vllm serve 1\nenv -i vllm serve 2\n"
            "source /opt/none/bin/activate\ntmux new -d -s x 'vllm serve 3'\nsh -c 'vllm serve 4'\n"
            "exec /opt/b/bin/python3 -u -m sglang.launch_server 5\n"
        )

        assert [call.argv[-1] for call in ran.calls] == ["1", "2", "3", "4", "5"]


class TestProof:
    def test_exactly_the_intended_difference_is_proven(self) -> None:
        """An edit that does what it says is proven, with the difference."""
        run("true\n")
        proof = prove(b"vllm serve /m --seed 1\n", b"vllm serve /m --seed 2\n", path="x.sh", intended=SET_SEED)

        assert (proof.proven, proof.differences) == (True, ("arguments: 1 -> 2",))

    @pytest.mark.parametrize(
        ("before", "after", "outcome"),
        [
            ("vllm serve /m --seed 1", "vllm serve /m --seed 3", "other-difference"),
            ("vllm serve /m --seed 1", "vllm serve /m --seed 2 --port 1", "other-difference"),
            ("vllm serve /m --seed 1", "A=1 vllm serve /m --seed 2\nvllm serve /n", "other-difference"),
            ("export A=1\nvllm serve /m --seed 1", "export A=2\nvllm serve /m --seed 2", "other-difference"),
            ("vllm serve /m --seed 1", "vllm serve /m --seed 1 # --seed 2", "no-effect"),
            ("[ -e /never ] && vllm serve /m --seed 1", "[ -e /never ] && vllm serve /m --seed 2", "not-reached"),
            ("vllm serve /m --seed 1", "vllm serve /m --seed '2", "does-not-parse"),
            ("vllm serve /m --seed 1 --x $RANDOM$RANDOM", "vllm serve /m --seed 2 --x $RANDOM$RANDOM", "unsteady"),
        ],
    )
    def test_anything_else_is_not(self, before: str, after: str, outcome: str) -> None:
        """A wrong value, a second change, no change, a launch that is not reached: each has its name."""
        run("true\n")
        proof = prove(before.encode() + b"\n", after.encode() + b"\n", path="x.sh", intended=SET_SEED)

        assert (False, outcome) == (proof.proven, proof.outcome)

    def test_arguments_and_environment_of_the_caller_decide_what_is_reached(self) -> None:
        """The file is executed as its caller would."""
        run("true\n")
        content = b'case "$1$ROLE" in ab) vllm serve /m --seed 1;; esac\n'
        edit = plan_edit(content, path="x.sh", kind="flag", names=["--seed"], operation="set", value="2")

        alone = prove(content, edit.content, path="x.sh", intended=edit.intent)
        called = prove(
            content,
            edit.content,
            path="x.sh",
            intended=edit.intent,
            circumstances=Circumstances(arguments=("a",), environ={"ROLE": "b"}),
        )

        assert (alone.outcome, called.outcome) == ("not-reached", "proven")

    def test_a_manifest_may_differ_in_commands_and_environments_only(self) -> None:
        """A change of anything else in a YAML file is no part of an edit, whatever the servers say."""
        run("true\n")
        before = b"services:\n  a:\n    image: x\n    command: vllm serve /m --seed 1\n"
        after = before.replace(b"--seed 1", b"--seed 2")

        right = prove(before, after, path="compose.yaml", intended=SET_SEED)
        wrong = prove(before, after.replace(b"image: x", b"image: y"), path="compose.yaml", intended=SET_SEED)

        assert (right.outcome, wrong.outcome) == ("proven", "other-difference")
        assert "services.a.image" in wrong.how
