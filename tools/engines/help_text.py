"""The words that started an engine -> how its installed self is asked; its help text -> the flags that it knows."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

from agent.domain import Noun
from tools.engines.catalogue import release

_FEWEST: Final = 20
"""Flags below which a text is no help of an engine; both have more than two hundred."""
_WITH_VALUE: Final = frozenset({"-X", "-W"})
_PYTHON: Final = re.compile(r"(?:.*/)?python[\d.]*$")
_PROGRAM: Final = re.compile(r"(?:.*/)?(?:sglang|vllm)$")


class Installed(Noun):
    """The engine that the next start would run, as far as it could be asked."""

    version: str | None = None
    """Its version; None: it does not say."""
    flags: frozenset[str] | None = None
    """Every flag that its own --help lists; None: it could not be asked, or what it said is no help text."""
    basis: str
    """What was asked, or why it could not be, in one sentence."""


def command_of(argv: Sequence[str]) -> tuple[str, ...] | None:
    """The words that started a server, up to where its flags begin; None where they are not recognized.

    `python3 -u -m sglang.launch_server --tp 4` gives the first four words; `python3 /venv/bin/vllm serve M --tp 4` the
    first three.
    """
    words = list(argv)
    if not words or not _PYTHON.match(words[0]):
        return None
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] != "-m":
        at += 2 if words[at] in _WITH_VALUE else 1
    if at >= len(words):
        return None
    if words[at] == "-m":
        at += 1
        if at >= len(words) or not re.match(r"(?:sglang|vllm)(?:\.\w+)*$", words[at]):
            return None
    elif not (_PROGRAM.match(words[at]) or re.search(r"(?:sglang|vllm)\S*\.py$", words[at])):
        return None
    end = at + 1
    if end < len(words) and words[end] == "serve":
        end += 1
    return tuple(words[:end])


def flags_in_help(text: str) -> frozenset[str]:
    """The flags in an argument parser's usage or help text, without what its error line quotes."""
    usage = re.split(r"^[^\n]*: error: ", text, maxsplit=1, flags=re.MULTILINE)[0]
    return frozenset(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*(?<!-)", usage))


def read_help(
    text: str | None, problem: str | None, *, version: str | None, running: str | None, argv: Collection[str]
) -> Installed:
    """Judge what an installed engine said.

    A text that does not even list what the running worker was started with is no help text to go by, where the same
    version is installed.

    Args:
        text: What its --help printed; None: nothing.
        problem: Why there is none.
        version: The version that is installed.
        running: The version that runs.
        argv: The words of the running worker's process.
    """
    called = f"{'an installed engine of unknown version' if version is None else f'the installed {version}'}"
    if text is None:
        return Installed(version=version, basis=f"the --help of {called} could not be asked: {problem or 'no answer'}")
    flags = flags_in_help(text)
    if len(flags) < _FEWEST or not flags & {"--help", "-h"}:
        return Installed(version=version, basis=f"what {called} answered to --help is no help text")
    if same_release(version, running):
        started = {word.partition("=")[0] for word in argv if word.startswith("--") and len(word) > 2}
        strange = {flag for flag in started if not any(known.startswith(flag) for known in flags)}
        if started and len(strange) > len(started) / 2:
            return Installed(version=version, basis=f"what {called} answered to --help lists not even its own launch")
        flags |= started
    return Installed(version=version, flags=flags, basis=f"the --help of {called}, {len(flags)} flags")


def same_release(one: str | None, other: str | None) -> bool:
    """Whether two versions are the same release, as far as both are known."""
    return one is not None and other is not None and release(one) == release(other)
