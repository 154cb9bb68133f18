"""What an engine is asked at its control endpoint, and how: each question with its spellings over the versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Answers = Mapping[str, bytes]
"""Bodies of answers by the name of the question; a question that nobody answered is not in it."""


class Question(NamedTuple):
    """One thing to ask."""

    name: str
    """What the answer is called, such as `server_info`."""
    paths: tuple[str, ...]
    """Where it is asked, the path of newer versions first; the first that is answered counts."""
    required: bool = True
    """Whether a worker that does not answer it is down."""


class Asked(NamedTuple):
    """What came back."""

    answers: Answers
    """The answers."""
    silent: str | None
    """The path of a required question that was not answered; None: all were."""


def ask(questions: Sequence[Question], get: Callable[[str], bytes | None]) -> Asked:
    """Ask all of them, in order; the first required one without an answer ends it.

    Args:
        questions: What to ask.
        get: Gives the body of a good answer to GET, or None where there was none.
    """
    answers: dict[str, bytes] = {}
    for question in questions:
        body = next((found for path in question.paths if (found := get(path)) is not None), None)
        if body is not None:
            answers[question.name] = body
        elif question.required:
            return Asked(answers, question.paths[0])
    return Asked(answers, None)
