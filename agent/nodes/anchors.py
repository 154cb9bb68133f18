"""What a worker's starts taught: the log is rotated away, and the next forecast wants more than one start."""

from __future__ import annotations

from pydantic import ValidationError

from agent.state import Parts
from memory.store import Fact
from tools.engines.facts import StartupFacts
from tools.serve_script.secrets import STARS, is_secret_name, mask

START = "start"
SIGHTINGS = 120
"""How far a forecast goes back; a start is seen by the run that made it, by the one after, and when it is left."""


def learn_start(run: str, facts: StartupFacts | None, version: str | None, parts: Parts) -> None:
    """Keep a start, good or failed, with its secrets masked; without a time it could not be told from others.

    Args:
        run: The run that saw it.
        facts: What its log says.
        version: The engine's version, where the log does not say it.
        parts: What a node may use.
    """
    if facts is None or facts.begun_at is None or not facts.settings:
        return
    settings = {name: STARS if is_secret_name(name) else mask(text) for name, text in facts.settings.items()}
    failures = tuple(failure.model_copy(update={"line": mask(failure.line)}) for failure in facts.failures)
    kept = facts.model_copy(
        update={"version": facts.version or version, "settings": settings, "failures": failures},
    )
    parts.store.learn(
        Fact(
            worker=parts.name,
            name=f"{START} {kept.begun_at}",
            text=kept.model_dump_json(exclude_defaults=True),
            basis=f"the log of the start at {kept.begun_at}",
            run=run,
            at=parts.clock(),
        )
    )


def learned_starts(parts: Parts) -> tuple[StartupFacts, ...]:
    """The starts that were kept, each once, the newest first; what this release cannot read is left out."""
    found: dict[str, StartupFacts] = {}
    for fact in parts.store.facts(parts.name, limit=SIGHTINGS):
        if fact.name.startswith(f"{START} ") and fact.name not in found:
            try:
                found[fact.name] = StartupFacts.model_validate_json(fact.text)
            except ValidationError:
                continue
    return tuple(found.values())
