"""Which servers does a launch file start? The front door for reading."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from tools.serve_script.bash import read_shell
from tools.serve_script.containers import read_compose, read_config, read_manifests
from tools.serve_script.env_file import read_env_file
from tools.serve_script.launches import Kind, Launch
from tools.serve_script.names import Grammar
from tools.serve_script.refusals import ScriptUnreadable
from tools.serve_script.supervisord import read_programs
from tools.serve_script.systemd import read_unit
from tools.serve_script.text import Run

EnvReader = Literal["bash", "systemd", "compose", "docker"]
"""Who reads an env file: the same bytes mean different things to each."""


class Reading(NamedTuple):
    """How to read a file, where its path does not say it all."""

    kind: Kind | None = None
    """What sort of file it is; None: go by its name and its first lines."""
    files: Mapping[str, bytes] = {}
    """Other files that it reads (sourced settings, drop-ins, env files, `--config`), by the name it uses."""
    env_reader: EnvReader = "bash"
    """Who reads an env file."""
    starts: str = ""
    """The command line that an env file is read for, as shell text."""
    entrypoints: Mapping[str, tuple[str, ...]] = {}
    """The entry point of the image of a compose service or Kubernetes container, by its name."""
    environ: Mapping[str, str] = {}
    """What the environment of whoever starts it is known to hold, for files that are filled in from it."""
    grammar: Grammar = Grammar()
    """What is known of the engine's options; empty: what `options.yaml` knows of it."""


def kind_of(content: bytes, *, path: str) -> Kind:
    """What sort of launch file it is, by its name and its first lines."""
    name = path.rsplit("/", 1)[-1].lower()
    text = content.decode("latin-1")
    script = text.startswith("#!")
    if name.endswith(".service") or (re.search(r"^\[Service\]", text, re.M) and not script):
        return "systemd"
    if re.search(r"^\[program:", text, re.M) and not script:
        return "supervisord"
    if name.endswith((".yml", ".yaml")) or (not script and re.search(r"^(?:apiVersion|services):", text, re.M)):
        if re.search(r"^\s*apiVersion:|^\s*-?\s*containers:", text, re.M):
            return "k8s"
        return "compose" if re.search(r"^services:", text, re.M) else "config"
    if name.endswith((".env", ".environment")) or name in ("env", "environment") or name.startswith(".env"):
        return "envfile"
    return "bash"


def read_launches(content: bytes, *, path: str, reading: Reading | None = None) -> tuple[Launch, ...]:
    """Read every launch of a file, in the order of execution.

    Args:
        content: The file.
        path: Its path, for its kind and for messages.
        reading: How to read it, where its path does not say it all.

    Raises:
        ScriptUnreadable: it is not a file of its kind, or a template of one.
    """
    return read_file(content, path=path, reading=reading or Reading())


def read_file(content: bytes, *, path: str, reading: Reading) -> tuple[Launch, ...]:
    """Read a file as its kind demands."""
    kind = reading.kind or kind_of(content, path=path)
    text = content.decode("latin-1")
    if "\r" in text and (kind == "bash" or (kind == "envfile" and reading.env_reader == "bash")):
        line = text.count("\n", 0, text.index("\r")) + 1
        raise ScriptUnreadable(
            "carriage-returns",
            f"Line {line} of {path} ends with a carriage return, which bash takes for a part of the last word.",
            "Convert the line ends (dos2unix) first, and look at what then runs.",
            line=line,
        )
    try:
        return _read(content, kind, reading)
    except RecursionError:
        raise ScriptUnreadable(
            "does-not-parse", f"{path} is nested too deeply, or calls itself.", "Edit it by hand."
        ) from None


def _read(content: bytes, kind: Kind, reading: Reading) -> tuple[Launch, ...]:
    text = content.decode("latin-1")
    whole = (Run(text, 0, len(text), (), (0, len(text))),)
    if kind == "bash":
        return read_shell(whole, content=content, files=reading.files)
    if kind == "envfile":
        return read_env_file(content, reader=reading.env_reader, starts=reading.starts, files=reading.files)
    if kind == "systemd":
        return read_unit(whole, content=content, files=reading.files)
    if kind == "supervisord":
        return read_programs(whole, content=content, files=reading.files)
    if kind == "compose":
        return read_compose(content, files=reading.files, environ=reading.environ, entrypoints=reading.entrypoints)
    if kind == "k8s":
        return read_manifests(content, files=reading.files, entrypoints=reading.entrypoints)
    return read_config(content)
