"""Launch scripts out of a grammar of what people write: no edit of any of them changes more than it was meant to.

The judge is execution, and it shares nothing with the reader: a generated script is edited, both are executed with
stubs, and every server's arguments and environment are compared word by word.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from agent.errors import Refused
from tools.serve_script.edit import Operation, plan_edit
from tools.serve_script.launches import Target
from tools.serve_script.options import grammar
from tools.serve_script.read import Reading
from tools.serve_script.sandbox import Call, Circumstances, NoSandbox, entrance, run_script

FLAGS = ("--max-num-seqs", "--max-model-len", "--block-size", "--gpu-memory-utilization", "--kv-cache-dtype", "--seed")
VALUES = ("64", "32", "0.85", "fp8", "8192", "a b", "x$y", "it's", '{"a":1}')
READING = Reading(kind="bash", grammar=grammar("vllm"))


class Ask(NamedTuple):
    """A script and what is asked of it."""

    script: str
    operation: Operation
    kind: str
    name: str
    value: str | None
    port: int
    target: Target | None


def quote(draw: st.DrawFn, value: str) -> str:
    """A value as a word of the shell."""
    plain = all(c.isalnum() or c in "._-/" for c in value)
    ways = ["bare"] if plain else []
    ways += ["single"] if "'" not in value else []
    ways.append("double")
    way = draw(st.sampled_from(ways))
    if way == "bare":
        return value
    if way == "single":
        return f"'{value}'"
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$") + '"'


class Script:
    """A script in the making: lines before the launches, and the launches."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.lines: list[str] = []
        self.names = 0
        self.shared: dict[str, str] = {}

    def fresh(self) -> str:
        """A name that no other variable has."""
        self.names += 1
        return f"V{self.names}"

    def pick(self, *ways: str) -> str:
        """One of several ways of writing."""
        return self.draw(st.sampled_from(ways))

    def value(self, value: str) -> str:
        """A value as written at its use, with whatever has to stand above."""
        way = self.pick(
            "literal", "literal", "variable", "default", "use-default", "chain", "shared", "branch", "computed"
        )
        spaced = not all(c.isalnum() or c in "._-/" for c in value)
        if way == "literal" or (spaced and way in ("default", "use-default")):
            return quote(self.draw, value)
        if way == "use-default":
            return f'"${{{self.fresh()}:-{value}}}"'
        name = self.shared.get(value, "") if way == "shared" else ""
        if not name:
            name = self.fresh()
            if way == "default":
                self.lines.append(f"{name}=${{{name}:-{value}}}")
            elif way == "computed":
                self.lines.append(f"{name}=$(printf %s {quote(self.draw, value)})")
            elif way == "branch":
                self.lines.append(f'if [ -n "${{NEVER:-}}" ]; then {name}=7; else {name}={quote(self.draw, value)}; fi')
            else:
                export = "export " if self.pick("no", "no", "yes") == "yes" else ""
                self.lines.append(f"{export}{name}={quote(self.draw, value)}")
            if way == "shared":
                self.shared[value] = name
        if way == "chain":
            other = self.fresh()
            self.lines.append(f'{other}="${name}"')
            name = other
        return f'"${name}"' if self.pick("quoted", "braced") == "quoted" else f'"${{{name}}}"'

    def flag(self, name: str, value: str | None) -> list[str]:
        """The words of a flag."""
        spelled = name.replace("-", "_").replace("__", "--", 1) if self.pick("-", "-", "-", "_") == "_" else name
        if value is None:
            return [spelled]
        written = self.value(value)
        return [f"{spelled}={written}"] if self.pick(" ", "=") == "=" else [spelled, written]

    def noise(self) -> None:
        """Lines that hold the same words and launch nothing."""
        self.lines.append(
            self.pick(
                "# vllm serve /m --max-num-seqs 64",
                'echo "vllm serve /m --max-num-seqs 64 --seed 32"',
                "mkdir -p logs",
                'pkill -f "vllm serve .* --seed 64" || true',
                "cat > note.txt <<'NOTE'\nrun: vllm serve /m --max-num-seqs 64\nNOTE",
                "usage() { echo 'vllm serve MODEL --seed 1'; }",
                "",
            )
        )

    def launch(self, flags: list[list[str]], port: int) -> None:
        """One server, written in one of many ways."""
        head = ["vllm", "serve", f"/m/{port}", "--port", str(port)]
        prefix = self.pick("", "", "X_ENV=1 ", "Y_ENV='a b' X_ENV=2 ")
        wrapper = self.pick("", "", "nohup ", "numactl -N 0 -m 0 ", "env -u Q Z_ENV=3 ", "stdbuf -oL nice -n 5 ")
        end = self.pick("", " &", f" > {port}.log 2>&1 &", " 2>&1 | tee -a out.log", " >>x.log 2>&1")
        shape = self.pick(
            "line", "lines", "array", "append", "string", "function", "shell", "document", "branch", "loop"
        )
        words = [word for flag in flags for word in flag]
        if shape == "string" and any(c in " ".join(words) for c in "'\"$\\{"):
            shape = "lines"
        if shape in ("shell", "document") and any("'" in word or "$" in word for word in words):
            shape = "array"
        line = " ".join([*head, *words])
        if shape == "line":
            self.lines.append(f"{prefix}{wrapper}{line}{end}")
        elif shape == "lines":
            rows = [" ".join(head), *[" ".join(flag) for flag in flags]]
            indent = self.pick("  ", "\t", "    ")
            self.lines.append(f" \\\n{indent}".join([f"{prefix}{wrapper}{rows[0]}", *rows[1:]]) + end)
        elif shape in ("array", "append", "branch"):
            name = f"ARGS{port}"
            cut = len(flags) if shape == "array" else len(flags) // 2
            rows = [f"  {' '.join(flag)}{self.pick('', '', '   # so it was')}" for flag in flags[:cut]]
            self.lines += [f"{name}=(", *rows, ")"]
            for flag in flags[cut:]:
                condition = '[ -z "${NEVER:-}" ] && ' if shape == "branch" else ""
                self.lines.append(f"{condition}{name}+=({' '.join(flag)})")
            self.lines.append(f'{prefix}{wrapper}{" ".join(head)} "${{{name}[@]}}"{end}')
        elif shape == "string":
            name = f"OPTS{port}"
            cut = len(flags) // 2
            self.lines.append(f'{name}="{" ".join(word for flag in flags[:cut] for word in flag)}"')
            for flag in flags[cut:]:
                self.lines.append(self.pick(f'{name}="${name} {" ".join(flag)}"', f'{name}+=" {" ".join(flag)}"'))
            self.lines.append(f"{prefix}{wrapper}{' '.join(head)} ${name}{end}")
        elif shape == "function":
            self.lines += [f"start_{port}() {{", f"  {prefix}{wrapper}{line}{end}", "}", f"start_{port}"]
        elif shape == "shell":
            self.lines.append(f"{prefix}bash -c '{wrapper}{line.strip()}'{end}")
        elif shape == "document":
            self.lines += [f"cat > run{port}.sh <<'EOF'", f"{prefix}{wrapper}{line}", "EOF", f"bash run{port}.sh{end}"]
        else:
            self.lines += ["for i in 0 1; do", f"  {prefix}{wrapper}{line}{end}".rstrip(), "done"]


@st.composite
def asks(draw: st.DrawFn) -> Ask:
    """A script with one or two servers, and a question to it."""
    script = Script(draw)
    if script.pick("no", "yes") == "yes":
        script.lines.append(
            script.pick("export X_ENV=0", "set -a\nX_ENV=0 W_ENV=5\nset +a", "export W_ENV='p q' X_ENV=0")
        )
    ports = [8001] if script.pick("one", "one", "two") == "one" else [8001, 8002]
    for port in ports:
        script.noise()
        names = draw(st.lists(st.sampled_from(FLAGS), min_size=1, max_size=5))
        flags = [script.flag(name, draw(st.sampled_from(VALUES))) for name in names]
        flags += [script.flag("--enforce-eager", None)] * draw(st.integers(0, 1))
        script.launch(draw(st.permutations(flags)), port)
    script.lines.append(script.pick("wait", "wait\necho done", ""))
    text = "#!/bin/bash\n" + "\n".join(script.lines) + script.pick("\n", "")
    port = draw(st.sampled_from(ports))
    target = Target(port=port) if len(ports) > 1 or script.pick("no", "yes") == "yes" else None
    value = draw(st.sampled_from([*VALUES, "96", "128"]))
    what = script.pick("set", "set", "set", "unset", "add", "set-env", "unset-env", "eager")
    if what == "eager":
        return Ask(text, "unset", "flag", "--enforce-eager", None, port, target)
    if what.endswith("env"):
        name = script.pick("X_ENV", "W_ENV", "Z_ENV", "N_ENV")
        return Ask(
            text,
            "set" if what == "set-env" else "unset",
            "env",
            name,
            value if what == "set-env" else None,
            port,
            target,
        )
    operation: Operation = "unset" if what == "unset" else "add" if what == "add" else "replace"
    return Ask(text, operation, "flag", draw(st.sampled_from(FLAGS)), None if what == "unset" else value, port, target)


def executed(scripts: list[bytes]) -> list[list[Call]]:
    """The servers of each script, from one sandbox for all of them."""
    files = {f"{i}/serve.sh": script for i, script in enumerate(scripts)}
    driver = f"for i in {{0..{len(scripts) - 1}}}; do cd ~/work/$i; WHICH=$i bash serve.sh; done\nwait\n"
    ran = run_script(driver.encode(), files=files, circumstances=Circumstances(seconds=120, most=4000))
    assert ran.ended, ran.complaint
    calls: dict[int, list[Call]] = defaultdict(list)
    for call in ran.calls:
        calls[int(dict(call.env)["WHICH"])].append(call)
    return [calls[i] for i in range(len(scripts))]


def port_of(call: Call) -> int:
    """The port that tells a server from another."""
    return int(call.argv[call.argv.index("--port") + 1])


def expected(call: Call, ask: Ask) -> tuple[list[list[str]], dict[str, str]]:
    """The arguments, as groups of a flag and its value, and the environment that a call should have afterwards."""
    groups: list[list[str]] = []
    for word in call.argv:
        if word.startswith("--"):
            groups.append(word.split("=", 1))
        elif groups and len(groups[-1]) == 1 and groups[-1][0].startswith("--"):
            groups[-1].append(word)
        else:
            groups.append([word])
    env = {name: value for name, value in call.env if name != "WHICH"}
    if port_of(call) != ask.port:
        return groups, env
    if ask.kind == "env":
        if ask.value is None:
            env.pop(ask.name, None)
        else:
            env[ask.name] = ask.value
        return groups, env
    ours = [i for i, group in enumerate(groups) if group[0].replace("_", "-") == ask.name]
    if ask.operation == "unset":
        return [group for i, group in enumerate(groups) if i not in ours], env
    assert ask.value is not None
    if ask.operation == "add":
        return [*groups, [ask.name, ask.value]], env
    groups[ours[-1]] = [groups[ours[-1]][0], ask.value]
    return groups, env


def judge(batch: list[Ask]) -> tuple[int, int]:
    """Edit every script of a batch and compare what runs; return how many were edited, and how many are sound."""
    edited: list[tuple[Ask, bytes, str]] = []
    for ask in batch:
        try:
            edit = plan_edit(
                ask.script.encode(),
                path="serve.sh",
                kind=ask.kind,
                names=[ask.name],
                operation=ask.operation,  # type: ignore[arg-type]
                value=ask.value,
                target=ask.target,
                reading=READING,
            )
        except Refused:
            continue
        edited.append((ask, edit.content, ";".join(edit.intent.carriers)))
    if not edited:
        return 0, 0
    runs = executed([ask.script.encode() for ask, _, _ in edited] + [content for _, content, _ in edited])
    for i, (ask, content, carriers) in enumerate(edited):
        before, after = runs[i], runs[len(edited) + i]
        told = f"{ask}\n--- before\n{ask.script}\n--- after\n{content.decode()}"
        assert len(before) == len(after), told

        def view(groups: list[list[str]], env: dict[str, str], ask: Ask = ask, carriers: str = carriers) -> str:
            kept = {name: value for name, value in env.items() if name not in carriers.split(";")}
            return repr((sorted(groups) if ask.operation == "add" else groups, sorted(kept.items())))

        wanted = sorted(view(*expected(call, ask)) for call in before)
        assert wanted == sorted(view(*expected(call, ask._replace(port=-1))) for call in after), told
    return len(edited), len(batch)


def campaign(examples: int, size: int) -> None:
    """Judge `examples` batches of `size` scripts, and see that enough of them were edited for it to mean anything."""
    try:
        entrance()
    except NoSandbox as reason:
        pytest.skip(f"this machine allows no sandbox: {reason}")
    counts = [0, 0]

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],  # shrinking would execute for minutes, and a failing script is short as it is
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )
    @given(st.lists(asks(), min_size=size, max_size=size))
    def batches(batch: list[Ask]) -> None:
        edited, of = judge(batch)
        counts[0] += edited
        counts[1] += of

    batches()
    assert counts[0] > counts[1] * 0.35, counts


def test_no_edit_of_a_few_hundred_scripts_is_unsafe() -> None:
    """A quick look over the grammar: 200 scripts."""
    campaign(8, 25)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_edit_of_two_thousand_scripts_is_unsafe() -> None:
    """The whole campaign: 2,000 scripts, every edit executed, none unsafe."""
    campaign(40, 50)
