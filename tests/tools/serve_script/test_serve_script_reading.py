"""What reading a launch file tells: the launches, their arguments and variables, and where each is written."""

from __future__ import annotations

from contextlib import suppress

import pytest

from agent.errors import Refused
from tools.serve_script.edit import value_of
from tools.serve_script.launches import LineOf, Target
from tools.serve_script.read import Reading, kind_of, read_launches
from tools.serve_script.refusals import LaunchAmbiguous, ScriptRefused, ScriptUnreadable

SCRIPT = b"""#!/usr/bin/env bash
set -euo pipefail
# --cuda-graph-max-bs 160 ran out of memory
export SGLANG_OPT_USE_MULTI_STREAM_OVERLAP=0
MODEL=/models/v4
exec python3 -m sglang.launch_server \\
    --model-path "$MODEL" \\
    --cuda-graph-max-bs 32 \\
    --disable-overlap-schedule \\
    --api-key abc123secret \\
    --port 31000
"""


class TestLaunches:
    def test_arguments_are_read_with_variables_filled_in(self) -> None:
        """A launch has the arguments that the server would get."""
        (launch,) = read_launches(SCRIPT, path="serve.sh")

        assert launch.engine == "sglang"
        assert launch.argv[3:7] == ("--model-path", "/models/v4", "--cuda-graph-max-bs", "32")
        assert launch.line == 6

    def test_flags_have_their_values_and_lines(self) -> None:
        """Each flag is found with its value and the line it stands on."""
        (launch,) = read_launches(SCRIPT, path="serve.sh")

        flags = {flag.name: (flag.line, len(flag.values)) for flag in launch.flags(LineOf(SCRIPT))}

        assert flags["--cuda-graph-max-bs"] == (8, 1)
        assert flags["--disable-overlap-schedule"] == (9, 0)

    def test_variables_have_their_lines(self) -> None:
        """The environment that the file makes is read, and what it does not export is no part of it."""
        (launch,) = read_launches(SCRIPT, path="serve.sh")

        assert [(v.name, v.text, v.line) for v in launch.env] == [("SGLANG_OPT_USE_MULTI_STREAM_OVERLAP", "0", 4)]

    def test_parts_that_only_the_run_decides_are_marked(self) -> None:
        """What is not known is said not to be known, with the reason."""
        (launch,) = read_launches(b'vllm serve "$1" --max-num-seqs $((2*8)) "$@"\n', path="x.sh")

        reasons = [word.unknown.kind for word in launch.words if word.unknown]

        assert reasons == ["from-arguments", "computed", "from-arguments"]
        assert [word.many for word in launch.words if word.many] == [True]

    def test_no_secret_shows_when_a_launch_is_printed(self) -> None:
        """A launch that ends up in a log or a traceback keeps the secret."""
        (launch,) = read_launches(SCRIPT, path="serve.sh")

        assert "abc123secret" not in repr(launch)
        assert "abc123secret" not in str(launch.words)

    @pytest.mark.parametrize(
        ("text", "path", "kind"),
        [
            ("#!/bin/bash\n[Service]\n", "serve", "bash"),
            ("[Unit]\n[Service]\nExecStart=x\n", "a.service", "systemd"),
            ("[Service]\nExecStart=x\n", "override.conf", "systemd"),
            ("[program:x]\ncommand=y\n", "x.conf", "supervisord"),
            ("services:\n  a: {}\n", "compose.yml", "compose"),
            ("apiVersion: v1\nkind: Pod\n", "pod.yaml", "k8s"),
            ("max-num-seqs: 3\n", "settings.yaml", "config"),
            ("A=1\n", "serve.env", "envfile"),
        ],
    )
    def test_the_kind_of_a_file_is_recognised(self, text: str, path: str, kind: str) -> None:
        """Name and first lines say what sort of launch file it is."""
        assert kind == kind_of(text.encode(), path=path)


class TestValueOf:
    def test_a_value_comes_with_its_spelling_line_and_sentence(self) -> None:
        """A value is a fact with its source."""
        names = ["--cuda-graph-max-bs-decode", "--cuda-graph-max-bs"]

        found = value_of(SCRIPT, path="serve.sh", names=names, kind="flag")

        assert found[:3] == ("32", "--cuda-graph-max-bs", 8)
        assert found.sentence == "serve.sh line 8: --cuda-graph-max-bs 32"

    def test_a_switch_that_is_there_reads_as_an_empty_text(self) -> None:
        """There is a difference between a switch that is there and one that is not."""
        there = value_of(SCRIPT, path="serve.sh", names=["--disable-overlap-schedule"], kind="flag")
        absent = value_of(SCRIPT, path="serve.sh", names=["--disable-radix-cache"], kind="flag")

        assert (there.value, absent.value) == ("", None)

    def test_a_secret_is_masked_in_the_sentence(self) -> None:
        """The sentence about a secret does not tell it."""
        found = value_of(SCRIPT, path="serve.sh", names=["--api-key"], kind="flag")

        assert "abc123secret" not in found.sentence

    def test_the_target_decides_between_launches(self) -> None:
        """With two servers in a file, a role or a port says which is meant."""
        content = b"vllm serve /a --port 1 --seed 1 &\nvllm serve /b --port 2 --seed 2 &\nwait\n"

        with pytest.raises(LaunchAmbiguous):
            value_of(content, path="x.sh", names=["--seed"], kind="flag")

        assert value_of(content, path="x.sh", names=["--seed"], kind="flag", target=Target(port=2)).value == "2"

    def test_a_value_under_conditions_is_not_guessed(self) -> None:
        """Where branches give different values, there is no one value to tell."""
        content = b'N=1\n[ -n "$X" ] && N=2\nvllm serve /m --seed $N\n'

        with pytest.raises(ScriptRefused) as refusal:
            value_of(content, path="x.sh", names=["--seed"], kind="flag")

        assert refusal.value.kind == "several-values"

    @pytest.mark.parametrize("content", [b"", b"echo vllm serve x\n", b"# vllm serve x\n", b"\xff\xfe\x00"])
    def test_a_file_that_starts_nothing_says_so(self, content: bytes) -> None:
        """No launch is an error with a remedy, not an empty answer."""
        with pytest.raises(ScriptUnreadable) as refusal:
            value_of(content, path="x.sh", names=["--seed"], kind="flag")

        assert refusal.value.kind == "no-launch"
        assert refusal.value.remedy


class TestHostileFiles:
    @pytest.mark.parametrize(
        ("content", "path"),
        [
            (b"(" * 3000 + b"vllm serve /m" + b")" * 3000, "x.sh"),
            (b"A=(x y)\n" + b'A=("${A[@]}" "${A[@]}")\n' * 60 + b'vllm serve "${A[@]}" --seed 1\n', "x.sh"),
            (b"A=xy\n" + b'A="$A$A"\n' * 60 + b"vllm serve $A --seed 1\n", "x.sh"),
            (b"f() { f; f; vllm serve /m --seed 1; }\nf\n", "x.sh"),
            (
                b"".join(b"f%d() { f%d; f%d; f%d; }\n" % (i, i + 1, i + 1, i + 1) for i in range(40))
                + b"f40() { vllm serve /m --seed 1; }\nf0\n",
                "x.sh",
            ),
            (b"cat > a.sh <<'E'\nbash a.sh\nvllm serve /m --seed 1\nE\nbash a.sh\n", "x.sh"),
            (b"source ./x.sh\nvllm serve /m\n", "x.sh"),
            (b"services: &a\n  x: *a\n", "compose.yaml"),
            (b"kind: Pod\napiVersion: v1\nspec: &a {containers: [*a], b: *a, c: *a}\n", "pod.yaml"),
            (b"services: " + b"[" * 4000, "compose.yaml"),
            (
                b"services: {a: {command: &l0 [vllm, serve]}}\n"
                + b"".join(b"x%d: &l%d [*l%d, *l%d, *l%d]\n" % (i, i, i - 1, i - 1, i - 1) for i in range(1, 30)),
                "compose.yaml",
            ),
            (b"[Service]\nExecStart=" + b"\\\n" * 3000 + b"/bin/vllm serve /m --seed 1\n", "x.service"),
        ],
        ids=range(12),
    )
    def test_a_file_made_to_break_the_reader_is_read_or_refused(self, content: bytes, path: str) -> None:
        """Depth, doubling and cycles end in an answer or a refusal, soon, and never in a traceback."""
        reading = Reading(files={"x.sh": content} if b"source" in content else {})
        with suppress(Refused):
            value_of(content, path=path, names=["--seed"], kind="flag", reading=reading)
