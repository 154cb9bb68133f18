"""A launch as it would be written -> what this engine version would refuse, clamp, cut or ignore, before any edit."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

from agent.domain import Knob, Noun, Spelling
from tools.engines.catalogue import Engine, check_value, knob_named, knobs, plain, release, spellings
from tools.engines.couplings import Coupled, coupled_remarks
from tools.engines.facts import StartupFacts
from tools.engines.help_text import Installed, same_release


class Remark(Noun):
    """One thing that the engine would not do as it is written."""

    kind: Literal[
        "unknown",  # this version does not know the spelling
        "removed",  # it knew it once
        "too_new",  # a later version will know it
        "ambiguous",  # it fits several flags, so the argument parser refuses it
        "deprecated",  # it warns, and obeys
        "not_read",  # nothing in this version or model reads the variable
        "bad_value",  # the value is none that the knob takes
        "contradicts",  # two settings exclude each other, and the engine refuses to start
        "clamped",  # another value will be in force
        "truncated",  # the capture list will be cut
        "ignored",  # it has no effect beside another setting
        "other_version",  # what is installed is not what runs: the next start is another version's
        "not_asked",  # the installed engine could not be asked, so that the catalogue alone counts
        "asked",  # it was asked, and what is said about flags rests on its own word
    ]
    """What would happen."""
    refuse: bool
    """Whether the launch would fail, so that it must not be written."""
    knob: str
    """Canonical name of the knob, or the spelling where there is none."""
    says: str
    """The remark in one sentence, with the remedy where there is one."""


def check_contract(
    engine: Engine,
    version: str | None,
    *,
    launch: Mapping[str, str | None],
    spelled: Mapping[str, str],
    changed: Collection[str] = (),
    facts: StartupFacts | None = None,
    installed: Installed | None = None,
) -> tuple[Remark, ...]:
    """Check a launch against the engine version that will read it.

    Args:
        engine: Which engine.
        version: Its exact version; None: not known, so that nothing is said about versions.
        launch: By canonical knob name the text as it would stand in the script; None or missing: absent.
        spelled: By canonical knob name how it would be written; for names that are no knob, the spelling itself.
        changed: Names of the knobs that the change is about; remarks that touch none of them are left out, except those
            that would keep the engine from starting. Empty: all remarks.
        facts: The last start, for limits that depend on the model and the pool.
        installed: What the next start would run, where somebody asked it; its version and its own --help overrule what
            runs now and the catalogue. None: nobody asked.

    Returns:
        What would refuse the launch first.
    """
    running = version
    version = (installed.version if installed is not None else None) or version
    remarks = [
        *_spelling_remarks(engine, version, spelled, installed.flags if installed is not None else None),
        *_value_remarks(engine, launch),
        *map(_of, coupled_remarks(engine, launch, facts)),
    ]
    if changed:
        remarks = [
            remark
            for remark in remarks
            if remark.refuse or remark.knob in changed or any(name in remark.says for name in changed)
        ]
    remarks += _basis(engine, running, installed)
    return tuple(sorted(remarks, key=lambda remark: not remark.refuse))


def _basis(engine: Engine, running: str | None, installed: Installed | None) -> Iterable[Remark]:
    """What the remarks rest on, where the installed engine was to be asked."""
    if installed is None:
        return
    if running is not None and installed.version is not None and not same_release(running, installed.version):
        says = f"{engine} {installed.version} is installed while {running} runs: the next start is the other version's."
        yield Remark(kind="other_version", refuse=False, knob=engine, says=says)
    if installed.flags is None:
        says = f"{installed.basis[0].upper()}{installed.basis[1:]}; what is known of flags is the catalogue's word."
        yield Remark(kind="not_asked", refuse=False, knob=engine, says=says)
    else:
        says = f"What is known of flags is the word of {installed.basis}."
        yield Remark(kind="asked", refuse=False, knob=engine, says=says)


def _spelling_remarks(
    engine: Engine, version: str | None, spelled: Mapping[str, str], known_flags: Collection[str] | None
) -> Iterable[Remark]:
    for name, text in spelled.items():
        knob = knob_named(engine, name) or knob_named(engine, text)
        if knob is not None and knob.kind == "env":
            yield from _variable_remarks(knob, text, version)
        elif known_flags is not None and text.startswith("-"):
            yield from _by_help(knob, text, known_flags)
            if knob is not None and text in known_flags:
                yield from (each for each in _flag_remarks(engine, knob, text, version) if each.kind == "deprecated")
        elif knob is None:
            yield _unknown(engine, text, version)
        else:
            yield from _flag_remarks(engine, knob, text, version)


def _by_help(knob: Knob | None, text: str, known_flags: Collection[str]) -> Iterable[Remark]:
    if text in known_flags:
        return
    name = knob.name if knob is not None else text
    fits = sorted(flag for flag in known_flags if flag.startswith(text))
    if len(fits) > 1:
        yield Remark(kind="ambiguous", refuse=True, knob=name, says=_ambiguous(text, fits))
    elif not fits:
        near = difflib.get_close_matches(text, known_flags, n=1, cutoff=0.6)
        says = f"The installed engine's --help does not have {text}{_instead(near)}."
        yield Remark(kind="unknown", refuse=True, knob=name, says=says)


def _flag_remarks(engine: Engine, knob: Knob, text: str, version: str | None) -> Iterable[Remark]:
    spelling = next((spelling for spelling in knob.spellings if spelling.text == text), None)
    if spelling is None:
        accepted = spellings(knob, version)
        if any(plain(text) == plain(one) for one in accepted):
            says = f"{text} is not how {knob.name} is spelled{_instead(accepted[:1])}."
            yield Remark(kind="unknown", refuse=True, knob=knob.name, says=says)
        return
    if version is None:
        return
    at = release(version)
    preferred = spellings(knob, version)
    if spelling.until is not None and at >= release(spelling.until):
        fits = _starting_with(engine, text, version)
        if len(fits) > 1:
            yield Remark(kind="ambiguous", refuse=True, knob=knob.name, says=_ambiguous(text, fits) + _gone(spelling))
        else:
            says = f"{engine} {version} no longer knows {text}{_instead(preferred[:1])}.{_gone(spelling)}"
            yield Remark(kind="removed", refuse=True, knob=knob.name, says=says)
    elif spelling.since is not None and at < release(spelling.since):
        says = f"{engine} {version} does not know {text} yet; it came with {spelling.since}{_instead(preferred[:1])}."
        yield Remark(kind="too_new", refuse=True, knob=knob.name, says=says)
    elif spelling.deprecated is not None and at >= release(spelling.deprecated):
        says = f"{engine} {version} warns about {text}{_instead(preferred[:1])}."
        yield Remark(kind="deprecated", refuse=False, knob=knob.name, says=says)


def _variable_remarks(knob: Knob, text: str, version: str | None) -> Iterable[Remark]:
    spelling = next((spelling for spelling in knob.spellings if spelling.text == text), None)
    if spelling is None:
        says = f"Nothing reads {text}: variables are spelled exactly{_instead([knob.name])}."
        yield Remark(kind="not_read", refuse=False, knob=knob.name, says=says)
    elif version is not None and spelling.since is not None and release(version) < release(spelling.since):
        says = f"{knob.engine} {version} does not read {text} yet; it came with {spelling.since}."
        yield Remark(kind="not_read", refuse=False, knob=knob.name, says=says)
    elif version is not None and spelling.until is not None and release(version) >= release(spelling.until):
        says = f"{knob.engine} {version} no longer reads {text}.{_gone(spelling)}"
        yield Remark(kind="not_read", refuse=False, knob=knob.name, says=says)


def _value_remarks(engine: Engine, launch: Mapping[str, str | None]) -> Iterable[Remark]:
    for name, value in launch.items():
        knob = knob_named(engine, name)
        problem = check_value(knob, value) if knob is not None and value is not None else None
        if problem is not None:
            yield Remark(kind="bad_value", refuse=True, knob=name, says=problem)


def _unknown(engine: Engine, text: str, version: str | None) -> Remark:
    fits = _starting_with(engine, text, version) if text.startswith("--") and len(text) > 3 else []
    if len(fits) > 1:
        return Remark(kind="ambiguous", refuse=True, knob=text, says=_ambiguous(text, fits))
    every = [spelling for knob in knobs(engine) for spelling in spellings(knob, version)]
    near = fits or difflib.get_close_matches(text, every, n=1, cutoff=0.6)
    kind: Literal["unknown", "not_read"] = "unknown" if text.startswith("-") else "not_read"
    says = f"The catalogue of {engine} {version or ''}".rstrip() + f" has no {text}{_instead(near)}."
    return Remark(kind=kind, refuse=False, knob=text, says=says)


def _starting_with(engine: Engine, text: str, version: str | None) -> list[str]:
    return sorted(
        spelling
        for knob in knobs(engine)
        for spelling in spellings(knob, version)
        if knob.kind == "flag" and spelling.startswith(text)
    )


def _ambiguous(text: str, fits: Iterable[str]) -> str:
    return f"{text} could be {' or '.join(fits)}, and the argument parser refuses to guess; write it out."


def _gone(spelling: Spelling) -> str:
    return f" It was removed in {spelling.until}."


def _instead(names: Iterable[str]) -> str:
    name = next(iter(names), None)
    return f"; {name} is meant, perhaps" if name is not None else ""


def _of(coupled: Coupled) -> Remark:
    return Remark(kind=coupled.kind, refuse=coupled.kind == "contradicts", knob=coupled.knob, says=coupled.says)
