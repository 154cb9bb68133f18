"""Prove an edit by executing the file before and after it, and comparing every server that would have been started."""

from __future__ import annotations

import shlex
import subprocess
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple

import yaml

from tools.serve_script.bash_walk import HINT
from tools.serve_script.difference import all_as_intended
from tools.serve_script.intents import Intent
from tools.serve_script.read import Reading, kind_of, read_file
from tools.serve_script.refusals import ScriptRefused, ScriptUnreadable
from tools.serve_script.sandbox import Call, Circumstances, NoSandbox, Ran, run_command, run_script
from tools.serve_script.secrets import mask, mask_argv
from tools.serve_script.text import OPAQUE

Outcome = Literal[
    "proven",  # exactly the intended difference
    "no-sandbox",  # this machine does not allow it: nothing was executed
    "not-reached",  # the execution did not come to the launch
    "no-effect",  # the servers are the same as before
    "other-difference",  # something else changed
    "does-not-parse",  # bash does not accept the file
    "unsteady",  # the unedited file does not start the same servers twice
]

_STAND_IN = "unknown"
"""What a service manager would fill in, in the execution before and in the one after alike."""


class Proof(NamedTuple):
    """What executing an edit showed."""

    proven: bool
    outcome: Outcome
    how: str
    """What was done and seen, in a sentence."""
    differences: tuple[str, ...] = ()
    """The arguments or variables that changed, one line each, secrets masked."""
    launches: int = 0
    """Servers that were started and compared."""


def prove(
    before: bytes,
    after: bytes,
    *,
    path: str,
    intended: Intent | Sequence[Intent],
    reading: Reading | None = None,
    circumstances: Circumstances | None = None,
) -> Proof:
    """Execute both files with stubbed programs in a sandbox, and compare.

    Args:
        before: The file as it is.
        after: The file as it would be.
        path: Its path, for its kind.
        intended: What is meant to change; several intents for edits on top of each other.
        reading: How to read the file, where its path does not say it all.
        circumstances: How it is started: arguments, environment.
    """
    reading = reading or Reading()
    circumstances = circumstances or Circumstances()
    intents = (intended,) if isinstance(intended, Intent) else tuple(intended)
    kind = reading.kind or kind_of(before, path=path)
    shell = kind == "bash" or (kind == "envfile" and reading.env_reader == "bash")
    if shell:
        complaint = check_syntax(after) or check_syntax(before)
        if complaint:
            return Proof(False, "does-not-parse", f"bash does not accept the file: {mask(complaint)}")
    if kind in ("compose", "k8s"):
        try:
            place = _elsewhere(before, after)
        except yaml.YAMLError as error:
            return Proof(False, "does-not-parse", f"The file is not YAML: {mask(str(error).splitlines()[0])}")
        if place:
            return Proof(False, "other-difference", f"The files differ at {place}, which is no part of a launch.")
    try:
        proof = _compare_runs(before, after, path, intents, reading, circumstances)
        if proof.outcome in ("other-difference", "not-reached", "no-effect"):
            # On a busy machine a script can kill a server of its own before the stub has written it down.
            proof = _compare_runs(before, after, path, intents, reading, circumstances)
        if proof.outcome == "other-difference":
            one, other = (_execute(before, path, reading, circumstances) for _ in range(2))
            if Counter(one.calls) != Counter(other.calls) and one.ended and other.ended:
                return proof._replace(
                    outcome="unsteady", how="The unedited file does not start the same servers twice."
                )
    except NoSandbox as reason:
        return Proof(False, "no-sandbox", f"Nothing was executed, for this machine does not allow a sandbox: {reason}.")
    except (ScriptRefused, ScriptUnreadable) as refusal:
        return Proof(False, "does-not-parse", f"The edited file is not readable: {refusal.sentence}")
    return proof


def check_syntax(content: bytes) -> str:
    """What `bash -n` says against a script, which it does not execute; empty: nothing."""
    done = subprocess.run(
        ["bash", "-n"], input=content, capture_output=True, check=False, timeout=20, env={"LC_ALL": "C"}
    )
    if done.returncode == 0 and not done.stderr:
        return ""
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[0] if lines else f"bash -n ends with {done.returncode}"


def _execute(content: bytes, path: str, reading: Reading, circumstances: Circumstances) -> Ran:
    kind = reading.kind or kind_of(content, path=path)
    files = dict(reading.files)
    if kind == "bash":
        return run_script(content, files=files, circumstances=circumstances)
    if kind == "envfile" and reading.env_reader == "bash":
        script = b"set -a; source ./serve.env; set +a\n" + reading.starts.encode() + b"\n"
        return run_script(script, files={**files, "serve.env": content}, circumstances=circumstances)
    calls: list[Call] = []
    ended, complaint = True, ""
    for launch in read_file(content, path=path, reading=reading):
        argv = [word.text.replace(OPAQUE, _STAND_IN) for word in launch.command or launch.words]
        environ = {variable.name: _utf8(variable.text.replace(OPAQUE, _STAND_IN)) for variable in launch.env}
        ran = run_command([_utf8(word) for word in argv], environ, files=files, circumstances=circumstances)
        calls += ran.calls
        ended, complaint = ended and ran.ended, complaint or ran.complaint
    return Ran(tuple(calls), ended, complaint)


_OURS = frozenset({"command", "args", "env", "environment", "entrypoint"})


def _elsewhere(before: bytes, after: bytes) -> str:
    """Where two YAML files differ outside of commands and environments; empty: nowhere."""
    one, other = (list(yaml.safe_load_all(content)) for content in (before, after))

    def walk(a: object, b: object, path: tuple[str, ...]) -> str:
        if a == b or _OURS & set(path) or any(key.startswith("x-") for key in path):
            return ""
        if isinstance(a, dict) and isinstance(b, dict):
            found = (walk(a.get(key), b.get(key), (*path, str(key))) for key in [*a, *(k for k in b if k not in a)])
            return next((place for place in found if place), "")
        if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            pairs = enumerate(zip(a, b, strict=True))
            return next((place for i, (x, y) in pairs if (place := walk(x, y, (*path, str(i))))), "")
        return ".".join(path) or "the whole"

    return walk(one, other, ())


def _utf8(text: str) -> str:
    return text.encode("latin-1", "replace").decode("utf-8", "surrogateescape")


def _compare_runs(
    before: bytes, after: bytes, path: str, intended: Sequence[Intent], reading: Reading, circumstances: Circumstances
) -> Proof:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda content: _execute(content, path, reading, circumstances), (before, after))
    if not first.ended or not second.ended or max(len(first.calls), len(second.calls)) >= circumstances.most:
        old, new = Counter(set(first.calls)), Counter(set(second.calls))
    else:
        old, new = Counter(first.calls), Counter(second.calls)
    return judge(old, new, intended, first)


def judge(old: Counter[Call], new: Counter[Call], intended: Sequence[Intent], first: Ran) -> Proof:
    """Compare the servers of two executions."""
    gone, come = list((old - new).elements()), list((new - old).elements())
    total = sum(old.values())
    if not total:
        said = f" It said: {mask(first.complaint.splitlines()[-1])}" if first.complaint else ""
        return Proof(False, "not-reached", f"The file was executed and started no server.{said}")
    if not gone and not come:
        return Proof(
            False, "no-effect", f"The file was executed before and after: the {total} servers are the same.", (), total
        )
    if len(gone) != len(come):
        how = f"The file was executed before and after: {total} servers before, {sum(new.values())} after."
        return Proof(False, "other-difference", how, tuple(_shown(call) for call in [*gone, *come])[:6], total)
    left = list(come)
    differences: list[str] = []
    for call in gone:
        match = next((other for other in left if _fits(call, other, intended)), None)
        if match is None:
            how = "The file was executed before and after: something else than the intended change differs."
            return Proof(False, "other-difference", how, tuple(_shown(c) for c in [call, *left])[:6], total)
        left.remove(match)
        differences += _differences(call, match)
    how = (
        f"The file was executed before and after in a sandbox with stubs: of {total} server{'s' if total > 1 else ''}, "
        f"{len(gone)} changed, by exactly what was intended."
    )
    return Proof(True, "proven", how, tuple(dict.fromkeys(differences)), total)


def _fits(old: Call, new: Call, intended: Sequence[Intent]) -> bool:
    old_env, new_env = dict(old.env), dict(new.env)
    a, b = flatten(old.argv), flatten(new.argv)
    if all_as_intended(a, b, old_env, new_env, intended):
        return True
    if len(intended) == 1 and intended[0].kind == "env" and old.argv[0] in ("docker", "podman", "nerdctl", "ssh"):
        return old_env == new_env and _boxed(a, b, intended[0])
    return False


def flatten(argv: Sequence[str]) -> list[str]:
    """Arguments with those that are whole commands taken apart, as `bash -c TEXT` in a container has them."""
    out: list[str] = []
    for word in argv:
        if " " in word and HINT.search(word):
            try:
                out += ["(", *shlex.split(word), ")"]
                continue
            except ValueError:
                pass
        out.append(word)
    return out


def _boxed(before: list[str], after: list[str], intended: Intent) -> bool:
    """Whether the variables that a container is given differ as intended, and nothing else does."""
    name = intended.names[0]

    def ours(word: str) -> str | None:
        for head in ("", "-e", "-e=", "--env="):
            if word.startswith(f"{head}{name}="):
                return word[len(head) + len(name) + 1 :]
        return None

    if len(before) == len(after):
        changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
        return len(changed) == 1 and ours(changed[0][0]) is not None and ours(changed[0][1]) == "".join(intended.values)
    longer, shorter = (after, before) if len(after) > len(before) else (before, after)
    size = len(longer) - len(shorter)
    if size > 2 or (intended.operation == "unset") != (longer is before):
        return False
    for at in range(len(longer) - size + 1):
        if longer[:at] + longer[at + size :] == shorter:
            piece = longer[at : at + size]
            value = ours(piece[-1])
            if value is not None and (size == 1 or piece[0] in ("-e", "--env")):
                return intended.operation == "unset" or value == "".join(intended.values)
    return False


def _differences(old: Call, new: Call) -> list[str]:
    a, b = list(mask_argv(old.argv)), list(mask_argv(new.argv))
    while a and b and a[0] == b[0]:
        a, b = a[1:], b[1:]
    while a and b and a[-1] == b[-1]:
        a, b = a[:-1], b[:-1]
    out = []
    if a or b:
        out.append(f"arguments: {' '.join(a) or 'nothing'} -> {' '.join(b) or 'nothing'}")
    one, other = dict(old.env), dict(new.env)
    for name in sorted(one.keys() | other.keys()):
        if one.get(name) != other.get(name):
            shown = mask(f"{name}={one.get(name, '')} -> {name}={other.get(name, '')}")
            out.append(f"environment: {shown}")
    return out


def _shown(call: Call) -> str:
    return " ".join(mask_argv(call.argv))
